"""Checks a run before anything starts and makes its folder: resolved settings, versions. Called on the first rank."""

from __future__ import annotations

import json
import platform
import shutil
from importlib import metadata
from pathlib import Path

from ssmpi import __version__, settings
from ssmpi.comm.world import versions as mpi_versions
from ssmpi.config import RUN_FILE, Config
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.placement import place
from ssmpi.errors import DataError, SettingsError

PACKAGES = ("torch", "numpy", "h5py", "numba", "mpi4py")


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
    place(reader.manifest.cardinalities, max(1, config.topology.embedding_ps))
    return reader


def make(folder: Path, config: Config, overwrite: bool) -> None:
    """Make the run folder with ``run.toml`` and ``versions.json`` in it."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / RUN_FILE).is_file():
            raise SettingsError(f"{folder}: not empty and not a run folder; choose another run.folder")
        if not overwrite:
            raise SettingsError(f"{folder}: holds an earlier run; choose another run.folder, or pass --overwrite")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"ssmpi": __version__, "python": platform.python_version(), "machine": platform.platform()}
    versions |= {name: metadata.version(name) for name in PACKAGES} | mpi_versions()
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    (folder / RUN_FILE).write_text(settings.dump(config), encoding="utf-8")
