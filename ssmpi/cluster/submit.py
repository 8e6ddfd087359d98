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
from collections.abc import Iterator, Sequence
from pathlib import Path

from ssmpi import __version__
from ssmpi.cluster import site
from ssmpi.cluster.node_layout import NodeLayout, layout_of
from ssmpi.cluster.site import Site
from ssmpi.config import Config, save
from ssmpi.data.schema import read_manifest
from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.runtime.files.run_files import BATCH_FILE, BATCH_LOG, OWN_CODE, RUN_FILE, SITE_FILE, VERSIONS
from ssmpi.runtime.host.mpi_environment import remove_session
from ssmpi.runtime.host.versions import package_versions
from ssmpi.state import continued, run_lock
from ssmpi.state.checkpoint import disk
from ssmpi.state.requirements import composed, splits_to_score

FILES = (RUN_FILE, SITE_FILE, BATCH_FILE, VERSIONS)


def submit(config: Config, site_file: Path, dry_run: bool) -> int:
    """Make the run folder and submit its batch file, or run it at once on a site without SLURM; print what happens.

    UserError, so exit code 2, if sbatch rejects the job: the cause is in the site file, the run file or the queue. The
    run folder is then left unchanged. Without SLURM the job replaces this process: signals and exit codes are its own.
    """
    where = site.load(site_file)
    manifest = read_manifest(Path(config.data.folder))
    splits_to_score(config, manifest)  # now rather than after a wait in the queue
    config = composed(config, manifest.features)
    continued.parent_of(config, manifest)
    layout = layout_of(config, where)
    folder = config.run.path
    text = batch_file(config, where, layout)
    words = ["sbatch" if where.slurm else "bash", str(folder / BATCH_FILE)]
    print(layout.describe(where))
    if dry_run:
        print(f"\n{folder / BATCH_FILE}:\n\n{text}\n+ {shlex.join(words)}")
        return 0
    check_folder(folder, where)
    with removed_on_failure(folder):
        make_folder(folder, config, where, text)
        print(f"+ {shlex.join(words)}", flush=True)
        if where.slurm and shutil.which("sbatch"):
            hand_over(words, site_file)
    if not where.slurm:
        remove_session()
        os.execvp(words[0], words)
    if not shutil.which("sbatch"):
        raise UserError(f"no sbatch here: submit on a login node of the cluster; {words[-1]} is ready")
    return 0


def hand_over(words: Sequence[str], site_file: Path) -> None:
    """Run sbatch and print what it says; UserError with that if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise UserError(f"{words[0]}: cannot be started ({error.strerror}): repair it, then submit again") from None
    if done.returncode:
        said = " / ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())
        raise UserError(
            f"sbatch rejected the job (exit code {done.returncode}): {said or 'it does not say why'}. Correct "
            f"the [slurm] section of {site_file} or the run's settings and submit again; if SLURM did not answer, check"
            " first whether 'squeue' shows the job"
        )
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)


def check_folder(folder: Path, where: Site) -> None:
    """Raise SettingsError unless the folder is empty or not there, and can be written."""
    run_lock.check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        ways = f"{folder}: not empty; choose another run.folder"
        if (folder / BATCH_FILE).is_file():
            ways += f", or resume the run in it with '{'sbatch' if where.slurm else 'bash'} {folder / BATCH_FILE}'"
        elif (folder / RUN_FILE).is_file() and not where.slurm:
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
    (folder / BATCH_FILE).write_text(text, encoding="utf-8")
    versions = {"ssmpi": __version__, "python": platform.python_version(), "command": sys.argv}
    versions |= package_versions()
    (folder / VERSIONS).write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")


def batch_file(config: Config, where: Site, layout: NodeLayout) -> str:
    """A batch file that people can read and edit: what it requests, what it sets up, one command."""
    folder = config.run.path
    launch = ["ssmpi", "launch", "--resume", str(folder), "--site", str(folder / SITE_FILE)]
    options = slurm_options(folder, where, layout) if where.slurm else []
    lines = [
        "#!/usr/bin/env bash",
        *(f"#SBATCH {option}" for option in options),
        "set -euo pipefail",
        "",
        *([*where.setup, ""] if where.setup else []),
        "# Starts the run, or resumes it from its last checkpoint. SIGUSR1 to this process makes it save and exit.",
        f"exec {shlex.join(launch)}",
    ]
    return "\n".join(lines) + "\n"


def slurm_options(folder: Path, where: Site, layout: NodeLayout) -> list[str]:
    """What the job requests of SLURM: cores of whole tasks on each node. The launcher decides which rank runs where."""
    slurm = where.slurm
    assert slurm
    return [
        shlex.quote(f"--job-name={folder.name}"),
        shlex.quote(f"--output={folder / BATCH_LOG}"),
        "--open-mode=append",
        f"--time={slurm.time}",
        *([f"--partition={slurm.partition}"] if slurm.partition else []),
        *([f"--account={slurm.account}"] if slurm.account else []),
        f"--nodes={layout.count + where.placement.spare_hosts}",
        *(["--no-kill"] if where.placement.spare_hosts else []),
        f"--ntasks-per-node={layout.tasks_per_node}",
        f"--cpus-per-task={layout.cores_per_task}",
        *(["--exclusive", "--mem=0"] if slurm.exclusive else [f"--mem={layout.memory_gib(where)}G"]),
        f"--signal=B:USR1@{slurm.signal_seconds}",
        "--requeue" if slurm.requeue else "--no-requeue",
        *slurm.options,
    ]
