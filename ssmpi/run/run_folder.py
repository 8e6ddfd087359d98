"""Checks a run before anything starts and makes its folder: resolved settings, versions. Called on the first rank."""

from __future__ import annotations

import difflib
import json
import platform
import shutil
import socket
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import IO

from ssmpi import __version__
from ssmpi.comm.world import versions as mpi_versions
from ssmpi.config import NO_SPLIT, Config, EvaluateOptions
from ssmpi.core import git_commit, run_files, settings
from ssmpi.core.errors import DataError, SettingsError
from ssmpi.core.log import log
from ssmpi.core.run_files import LOCK_NAME, RUN_FILE, VERSIONS
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.placement import place
from ssmpi.model import processor
from ssmpi.report.results import now
from ssmpi.run import lockfile

SHOWN = 5  # of the files that are in the way
PACKAGES = ("torch", "numpy", "h5py", "numba", "mpi4py")
ENDING_SECONDS = 3.0  # for a job on this host that is just ending
LEASE_SECONDS = 120.0  # a host that was lost holds its locks on a shared file system until its lease ends (NFS: 90 s)


def prepare(config: Config, ranks: int, overwrite: bool) -> Config:
    """Check everything that can be checked before training, then make the run folder; the same settings."""
    check(config, ranks)
    make(Path(config.run.folder), config, overwrite)
    return config


def check(config: Config, ranks: int, overridden: Collection[str] = ()) -> SplitReader:
    """Raise a UserError if settings, ranks and data do not fit together; the data to train on.

    ``overridden`` names the settings that the command line gave.
    """
    config.topology.check_size(ranks)
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    if not reader.manifest.labelled:
        raise DataError(f"{config.data.folder}: this data has no labels; train on a labelled set")
    if not reader.rows:
        raise DataError(f"{config.data.folder}: split '{config.data.train_split}' has no rows to train on")
    reader.check()
    check_rule(config.evaluate, reader)
    for split in splits_to_score(config, reader, overridden):
        SplitReader(reader.folder, split, config.data.block_rows).check()  # now, not when training is done
    place(reader.manifest.cardinalities, max(1, config.topology.embedding_ps))
    return reader


def splits_to_score(config: Config, reader: SplitReader, overridden: Collection[str]) -> set[str]:
    """Those that the data has rows of; SettingsError if somebody has named another. A run file may well name the defaults,
    as a resolved one does: they are left out with a word.
    """
    defaults, found = EvaluateOptions(), set()
    there = [name for name in reader.manifest.splits if reader.manifest.has_rows(name)]
    for key in ("split", "final"):
        split, setting = getattr(config.evaluate, key), f"evaluate.{key}"
        if split == NO_SPLIT:
            continue
        if split in there:
            found.add(split)
        elif split != getattr(defaults, key) or setting in overridden:
            close = difflib.get_close_matches(split.lower(), [*there, NO_SPLIT], n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"name one of {', '.join(there)}, or {NO_SPLIT}"
            raise SettingsError(f"{setting} = '{split}': {reader.folder} has no rows of that split; {hint}")
        else:
            log.info(f"no rows in split '{split}' of this data: nothing is scored there ({setting})")
    return found


def check_rule(options: EvaluateOptions, reader: SplitReader) -> None:
    """Raise SettingsError if a rule is to decide by evaluations that there cannot be."""
    split = reader.manifest.splits.get(options.split)
    if options.rule and not (split and split.rows):
        there = ", ".join(name for name, each in reader.manifest.splits.items() if each.rows) or "none"
        raise SettingsError(
            f"evaluate.{options.rule} needs evaluations while training, but {reader.folder} has no rows in a split "
            f"'{options.split}' (evaluate.split); there are {there}"
        )


def lock(folder: Path) -> IO[str]:
    """Make the folder, and keep other jobs from writing to it while this file is open; SettingsError if one does."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return lockfile.take(folder / LOCK_NAME, lambda holder: LEASE_SECONDS if holder.elsewhere else ENDING_SECONDS)
    except lockfile.HeldError as error:
        job = error.holder.job
        end = f"end it ('{f'scancel {job}' if job else f'kill {error.holder.process}'}')"
        raise SettingsError(
            f"{folder}: another job is at this run ({error}): wait for its end, {end}, or choose another run.folder"
        ) from None


def refuse(folder: Path, overwrite: bool, run_file: Path | None = None) -> list[Path]:
    """Raise SettingsError unless a run may begin in this folder; what an earlier one has left there, and nobody else.

    ``run_file`` is the one that was given, which must not lie there.
    """
    there = [path for path in folder.iterdir() if path.name != LOCK_NAME] if folder.exists() else []
    if not there:
        return []
    remedy = "choose another run.folder"
    if run_file and folder.resolve() in run_file.resolve().parents:
        raise SettingsError(f"{folder}: holds the run file {run_file}, which a run here would replace: {remedy}")
    others = run_files.strangers(folder)
    if not run_files.is_run_folder(folder):
        found = others or [path.name for path in there]
        raise SettingsError(f"{folder}: not empty and not a run folder; {remedy} (it holds {shown(found)})")
    if others:
        raise SettingsError(
            f"{folder}: holds an earlier run, and what no run has written: {shown(others)}. Move that away, or {remedy}"
        )
    if not overwrite:
        raise SettingsError(f"{folder}: holds an earlier run; {remedy}, or pass --overwrite")
    return there


def shown(found: list[str]) -> str:
    """The first few of many names."""
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def make(folder: Path, config: Config, overwrite: bool, run_file: Path | None = None) -> None:
    """Make the run folder with ``run.toml`` and ``versions.json`` in it; ``run_file`` is the one that was given."""
    for path in refuse(folder, overwrite, run_file):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"ssmpi": __version__, **({"commit": git_commit.commit()} if git_commit.commit() else {})}
    versions |= {"python": platform.python_version(), "machine": platform.platform()}
    versions |= {name: metadata.version(name) for name in PACKAGES} | mpi_versions()
    versions |= {"host": socket.gethostname(), "processor": processor.name(), "started": now()}
    (folder / VERSIONS).write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    (folder / RUN_FILE).write_text(settings.dump(config), encoding="utf-8")
