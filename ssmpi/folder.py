"""Checks a run before anything starts and makes its folder: resolved settings, versions. Called on the first rank."""

from __future__ import annotations

import json
import platform
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import IO

from ssmpi import __version__, lockfile, settings
from ssmpi.comm.world import versions as mpi_versions
from ssmpi.config import RUN_FILE, Config
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.placement import place
from ssmpi.errors import DataError, SettingsError
from ssmpi.model import processor
from ssmpi.roles.evaluate import Options
from ssmpi.roles.results import now

PACKAGES = ("torch", "numpy", "h5py", "numba", "mpi4py")
LOCK_NAME = "job.lock"
ENDING_SECONDS = 3.0  # for a job on this host that is just ending
LEASE_SECONDS = 120.0  # a host that was lost holds its locks on a shared file system until its lease ends (NFS: 90 s)


def prepare(config: Config, ranks: int, overwrite: bool) -> Config:
    """Check everything that can be checked before training, then make the run folder; the same settings."""
    check(config, ranks)
    make(Path(config.run.folder), config, overwrite)
    return config


def check(config: Config, ranks: int) -> SplitReader:
    """Raise a UserError if settings, ranks and data do not fit together; the data to train on."""
    config.topology.check_size(ranks)
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    if not reader.manifest.labelled:
        raise DataError(f"{config.data.folder}: this data has no labels; train on a labelled set")
    if not reader.rows:
        raise DataError(f"{config.data.folder}: split '{config.data.train_split}' has no rows to train on")
    reader.check()
    check_rule(config.evaluate, reader)
    for split in {config.evaluate.split, config.evaluate.final} & set(reader.manifest.splits):
        SplitReader(reader.folder, split, config.data.block_rows).check()  # now, not when training is done
    place(reader.manifest.cardinalities, max(1, config.topology.embedding_ps))
    return reader


def check_rule(options: Options, reader: SplitReader) -> None:
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


def refuse(folder: Path, overwrite: bool) -> list[Path]:
    """Raise SettingsError unless a run may begin in this folder; what an earlier one has left there."""
    there = [path for path in folder.iterdir() if path.name != LOCK_NAME] if folder.exists() else []
    if there and not (folder / RUN_FILE).is_file():
        raise SettingsError(f"{folder}: not empty and not a run folder; choose another run.folder")
    if there and not overwrite:
        raise SettingsError(f"{folder}: holds an earlier run; choose another run.folder, or pass --overwrite")
    return there


def make(folder: Path, config: Config, overwrite: bool) -> None:
    """Make the run folder with ``run.toml`` and ``versions.json`` in it."""
    for path in refuse(folder, overwrite):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"ssmpi": __version__, "python": platform.python_version(), "machine": platform.platform()}
    versions |= {name: metadata.version(name) for name in PACKAGES} | mpi_versions()
    versions |= {"host": socket.gethostname(), "processor": processor.name(), "started": now()}
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    (folder / RUN_FILE).write_text(settings.dump(config), encoding="utf-8")
