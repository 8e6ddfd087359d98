"""Checks a run before anything starts and creates its folder with resolved settings and versions. Called on the first
rank.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
from collections.abc import Collection
from pathlib import Path

from ssmpi import __version__
from ssmpi.config import Config, own_code, save
from ssmpi.data.reader import SplitReader
from ssmpi.model import processor
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files import atomic_file, result_marker, run_files
from ssmpi.runtime.files.run_files import LOCKS, OWN_CODE, PARENT, RECOVERIES, RUN_FILE, VERSIONS
from ssmpi.runtime.host import versions
from ssmpi.runtime.host.clock import now
from ssmpi.runtime.mpi.world import versions as mpi_versions
from ssmpi.state.checkpoint import disk
from ssmpi.state.requirements import splits_to_score

OUR_VERSIONS = re.compile(rb'\{\s*"ssmpi"')  # how ``versions.json`` begins
SHOWN = 5  # unexpected files, in a message


def prepare(config: Config, ranks: int, overwrite: bool) -> Config:
    """Check all that can be checked before training, then make the run folder. Returns ``config`` with its network."""
    config = config.over(check(config, ranks).manifest.features)
    make(config.run.path, config, overwrite)
    return config


def check(config: Config, ranks: int, overridden: Collection[str] = ()) -> SplitReader:
    """Raise a UserError if settings, ranks and data do not fit together; return the training data.

    ``overridden`` names the settings given on the command line.
    """
    config.topology.check_size(ranks)
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    if not reader.manifest.labelled:
        raise DataError(f"{config.data.folder}: this data has no labels; train on a labelled set")
    if not reader.rows:
        raise DataError(f"{config.data.folder}: split '{config.data.train_split}' has no rows to train on")
    reader.check()
    check_evaluation_rule(config, reader)
    for split in splits_to_score(config, reader.manifest, overridden):
        SplitReader(reader.folder, split, config.data.block_rows).check()  # now rather than after training
    config.placement(reader.manifest)
    return reader


def check_evaluation_rule(config: Config, reader: SplitReader) -> None:
    """Raise SettingsError if a rule needs evaluations that the data does not allow."""
    name = config.evaluate.split
    split = reader.manifest.splits.get(name)
    if config.evaluation_rule and not (split and split.rows):
        there = ", ".join(name for name, each in reader.manifest.splits.items() if each.rows) or "none"
        raise SettingsError(
            f"{config.evaluation_rule} needs evaluations while training, but {reader.folder} has no rows in a split "
            f"'{name}' (evaluate.split); there are {there}"
        )


def check_overwrite(folder: Path, overwrite: bool, run_file: Path | None = None) -> list[Path]:
    """Raise SettingsError unless a run may start in this folder; returns the files of an earlier run. ``run_file`` is
    the run file in use, which must not be among them.
    """
    there = [path for path in folder.iterdir() if path.name not in LOCKS] if folder.exists() else []
    if not there or is_unfinished(folder):
        return there
    remedy = "choose another run.folder"
    if run_file and folder.resolve() in run_file.resolve().parents:
        raise SettingsError(f"{folder}: holds the run file {run_file}, which a run here would replace: {remedy}")
    others = run_files.unknown_entries(folder)
    if not run_files.is_run_folder(folder):
        found = others or [path.name for path in there]
        raise SettingsError(f"{folder}: not empty and not a run folder; {remedy} (it holds {shown(found)})")
    if not result_marker.is_finished(folder):
        remedy = f"resume it with --resume {folder}, {remedy}"
    if others:
        raise SettingsError(
            f"{folder}: holds an earlier run, and files that no run writes: {shown(others)}; {remedy}, or move those"
            " files away"
        )
    if not overwrite:
        raise SettingsError(f"{folder}: holds an earlier run; {remedy}, or pass --overwrite")
    return there


def is_unfinished(folder: Path, *more: str) -> bool:
    """Whether all that is there is what ``make`` writes before ``run.toml``, which makes it a run folder: it was
    killed, or found the disk full. A ``versions.json`` of another program is not ours to replace. ``more`` names files
    that may be there too, and what was not whole yet may be there in any case.
    """
    names = {path.name for path in folder.iterdir()} - {*LOCKS, *more} if folder.is_dir() else set()
    if VERSIONS in names and not OUR_VERSIONS.match((folder / VERSIONS).read_bytes()):
        return False
    begun = [name for name in names if re.fullmatch(rf"{VERSIONS}|{atomic_file.temporary(VERSIONS)}", name)]
    before = "|".join(
        (VERSIONS, *OWN_CODE.values(), atomic_file.temporary("|".join((VERSIONS, RUN_FILE, PARENT, RECOVERIES))))
    )
    return bool(begun) and all(re.fullmatch(before, name) for name in names) and not run_files.unknown_entries(folder)


def shown(found: list[str]) -> str:
    """The first few names of a long list."""
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def make(folder: Path, config: Config, overwrite: bool, run_file: Path | None = None) -> None:
    """Make the run folder with ``run.toml`` and ``versions.json`` in it; ``run_file`` is the run file in use."""
    code = own_code(config)  # before anything is removed: the files may be in this folder
    last = (RUN_FILE, VERSIONS)  # as long as they are there it is a run folder, which may be replaced
    there = check_overwrite(folder, overwrite, run_file)
    for path in sorted(there, key=lambda path: last.index(path.name) if path.name in last else -1):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    disk.make_folders(folder)
    disk.sync_folder(folder)  # else a power cut could bring back checkpoints of the earlier run
    found = {"ssmpi": __version__, **({"commit": versions.commit()} if versions.commit() else {})}
    found |= {"python": platform.python_version(), "machine": platform.platform()}
    found |= versions.package_versions() | mpi_versions()
    found |= {"host": socket.gethostname(), "processor": processor.name(), "started": now()}
    atomic_file.write(folder / VERSIONS, json.dumps(found, indent=1) + "\n")
    save(folder, config, code)
