"""``ssmpi submit``: makes a run folder with a batch file for a site, and submits it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ssmpi import __version__
from ssmpi.cluster import site
from ssmpi.cluster.batch_file import batch_file
from ssmpi.cluster.node_layout import layout_of
from ssmpi.cluster.site import Site
from ssmpi.config import Config, save
from ssmpi.data.schema import read_manifest
from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.runtime.files.run_files import BATCH_FILE, BATCH_FILES, OWN_CODE, RUN_FILE, SITE_FILE, VERSIONS
from ssmpi.runtime.host.mpi_environment import remove_session
from ssmpi.runtime.host.schedulers import Scheduler
from ssmpi.runtime.host.versions import package_versions
from ssmpi.state import continued, run_lock
from ssmpi.state.checkpoint import disk
from ssmpi.state.requirements import composed, splits_to_score

FILES = (RUN_FILE, SITE_FILE, *BATCH_FILES, VERSIONS)


def submit(config: Config, site_file: Path, dry_run: bool) -> int:
    """Make the run folder and submit its batch file, or run it at once on a site without a scheduler; print what
    happens.

    UserError, so exit code 2, if the scheduler rejects the job: the cause is in the site file, the run file or the
    queue. The run folder is then left unchanged. Without a scheduler the job replaces this process: signals and exit
    codes are its own.
    """
    where = site.load(site_file)
    manifest = read_manifest(Path(config.data.folder))
    splits_to_score(config, manifest)  # now rather than after a wait in the queue
    config = composed(config, manifest.features)
    continued.parent_of(config, manifest)
    layout = layout_of(config, where)
    folder, scheduler = config.run.path, where.scheduler
    text, file = batch_file(config, where, layout), folder / file_name(where)
    line = submission(folder, where)
    print(layout.describe(where))
    if dry_run:
        print(f"\n{file}:\n\n{text}\n+ {line}")
        return 0
    check_folder(folder, where)
    tool = line.partition(" ")[0]
    with removed_on_failure(folder):
        make_folder(folder, config, where, text)
        print(f"+ {line}", flush=True)
        if scheduler and shutil.which(tool):
            hand_over(line, scheduler, site_file)
    if not scheduler:
        remove_session()
        os.execvp(tool, [tool, str(file)])
    if not shutil.which(tool):
        raise UserError(f"no {tool} here: submit on a login node of the cluster; {file} is ready")
    return 0


def file_name(where: Site) -> str:
    """The name of the batch file of a run."""
    return where.scheduler.batch_file if where.scheduler else BATCH_FILE


def submission(folder: Path, where: Site) -> str:
    """The command that submits the batch file of a run, or runs it on a site without a scheduler."""
    return where.scheduler.submission(folder) if where.scheduler else shlex.join(["bash", str(folder / BATCH_FILE)])


def hand_over(line: str, scheduler: Scheduler, site_file: Path) -> None:
    """Submit the job and print what the scheduler says; UserError with that if it fails."""
    done = subprocess.run(line, shell=True, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = " / ".join(text.strip() for text in (done.stderr or done.stdout).splitlines() if text.strip())
        raise UserError(
            f"{line.partition(' ')[0]} rejected the job (exit code {done.returncode}): {said or 'it does not say why'}."
            f" Correct the [{scheduler.section}] section of {site_file} or the run's settings and submit again; if"
            f" {scheduler.name} did not answer, check first whether '{scheduler.jobs}' shows the job"
        )
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)


def check_folder(folder: Path, where: Site) -> None:
    """Raise SettingsError unless the folder is empty or not there, and can be written."""
    run_lock.check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        ways = f"{folder}: not empty; choose another run.folder"
        if (folder / file_name(where)).is_file():
            ways += f", or resume the run in it with '{submission(folder, where)}'"
        elif (folder / RUN_FILE).is_file() and not where.scheduler:
            ways += f", or resume the run in it with 'ssmpi launch --resume {folder}'"
        raise SettingsError(ways)


@contextlib.contextmanager
def removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove what ``make_folder`` has made, folders above included, if the block fails."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except Exception:
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        for copies in OWN_CODE.values():
            shutil.rmtree(folder / copies, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):  # another run's by now
                path.rmdir()
        raise


def make_folder(folder: Path, config: Config, where: Site, text: str) -> None:
    """Make the run folder: resolved settings, site file, batch file and versions."""
    disk.make_folders(folder)
    save(folder, config)
    (folder / SITE_FILE).write_text(settings.dump(where), encoding="utf-8")
    (folder / file_name(where)).write_text(text, encoding="utf-8")
    versions = {"ssmpi": __version__, "python": platform.python_version(), "command": sys.argv}
    versions |= package_versions()
    (folder / VERSIONS).write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
