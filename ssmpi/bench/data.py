"""The rows for all contenders if no run file names a data set: synthetic Criteo rows, made once and kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ssmpi.config import Config, load
from ssmpi.runtime import settings
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.host.mpi_environment import PYTHON

ROWS, SHORT_ROWS = 1_500_000, 12_000
SCALE = 0.05  # distinct tokens, as a share of Criteo Kaggle's 33.8 million

# The defaults without a run file: the model of jobs/configs/kaggle.toml, and plain SGD as the PyTorch contender.
KAGGLE = (
    "embedding.optimizer=sgd", "embedding.rate=0.1", "dense.optimizer=sgd", "dense.rate=0.1",
    "model.center_inputs=false", "data.passes=1",
)  # fmt: skip


def base_run_file(given: Path | None, overrides: Sequence[str], folder: Path, short: bool) -> Path:
    """Write the common run file of all contenders to ``folder``, with existing data."""
    target = folder / "base.toml"
    if given is None:
        target.write_text("", encoding="utf-8")
        if not any(override.replace(" ", "").startswith("data.folder=") for override in overrides):
            overrides = (f"data.folder={synthetic(folder / 'data', SHORT_ROWS if short else ROWS)}", *overrides)
        overrides = (*KAGGLE, *overrides)
    config: Config = load(given or target, overrides)
    target.write_text(settings.dump(config), encoding="utf-8")
    return target


def synthetic(folder: Path, rows: int) -> Path:
    """Shards of ``rows`` synthetic rows, made by ``ssmpi-prepare`` unless they exist already."""
    raw, shards = folder / f"raw-{rows}", folder / f"shards-{rows}"
    if not (shards / "manifest.json").is_file():
        prepare("synthesize", raw, "--rows", str(rows), "--scale", str(SCALE), "--seed", "1", "--overwrite")
        prepare("criteo", raw / "train.txt", "--output", shards, "--split", "kaggle")
    return shards.resolve()


def prepare(*arguments: str | Path) -> None:
    """Run ``ssmpi-prepare``, which this package may not import; DataError with its output if it fails."""
    line = [*PYTHON, "-m", "data_prep", *map(str, arguments)]
    print("+", *line, file=sys.stderr, flush=True)
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    if found.returncode:
        raise DataError(f"cannot make data to measure on: {' '.join(line)}\n{found.stderr.strip()}")
