"""The names of all files that a run and its tools write in a run folder. Every writer takes them from here, and
``--overwrite`` removes files with these names only: add a new kind of file here first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.atomic_file import temporary

RUN_FILE = "run.toml"  # the resolved settings
VERSIONS = "versions.json"  # of the software that made the folder; a user's own folder has no such file
METRICS = "metrics.jsonl"
RESULT_NAME = "result.json"  # the marker that says how the run ended
ATTEMPTS = "attempts.json"
RECOVERIES = "recoveries.json"
PARENT = "parent.json"  # the finished run that this one continues
LOCK_NAME, LAUNCH_LOCK = LOCKS = "job.lock", "launch.lock"  # held by the first rank, and by the launcher
PLOT = "plot.png"
SITE_FILE, BATCH_LOG = "site.toml", "job-{}.log"  # with the number of the batch job
BATCH_FILE = "job.sbatch"  # also where there is no batch system
BATCH_FILES = (BATCH_FILE, "job.pbs", "job.lsf", "job.flux")
EXPORTS = {"torch": "model.pt", "safetensors": "model.safetensors", "onnx": "model.onnx"}
ONNX_TABLES = ".tables.safetensors"  # in place of .onnx
DELTA = "delta.safetensors"  # what has changed since an earlier model
REPORT = "report.html"

REQUEST = "request"  # in LOGS: 'ssmpi doctor' asks the ranks what they do

MODEL, BEST, CHECKPOINTS, ROWS, USAGE, LOGS = "model", "best", "checkpoints", "rows", "usage", "logs"  # folders
OWN_CODE = {  # settings that may name a user's own file, and the folder of its copy
    "model.name": "network", "sync.algorithm": "algorithm", "sync.codec": "codec",
}  # fmt: skip
CHECKPOINT, ASIDE = "checkpoint-", "set-aside-"  # folders in CHECKPOINTS
MANIFEST_NAME = "manifest.json"

OPTIMIZER = "optimizer.h5"  # in MODEL
_RANK = r"(trainer|embedding_ps|sync_ps)-\d+"
_WEIGHTS = rf"(dense|optimizer|embedding-\d+|trainer-\d+)\.h5|{re.escape(MANIFEST_NAME)}"
_IN_FOLDER = {  # a folder to the files that it holds; the first is the run folder itself
    "": "|".join((
        *map(re.escape, (RUN_FILE, VERSIONS, METRICS, RESULT_NAME, ATTEMPTS, *LOCKS, PLOT, SITE_FILE, *BATCH_FILES)),
        *map(re.escape, (RECOVERIES, PARENT, *EXPORTS.values(), f"model{ONNX_TABLES}", DELTA, REPORT)),
        r"report-[a-z]+\.png",
        BATCH_LOG.format(r"(\d+|pbs)"), r"events\.out\.tfevents\..+", r"losses-\d+\.npy",
        rf"{_RANK}\.json",  # what the ranks of a benchmark measured
    )),
    rf"({MODEL}|\.{MODEL}\.(tmp|old))/": _WEIGHTS,
    f"({CHECKPOINTS}|{BEST})/": "(?!)",  # subfolders only
    rf"{BEST}/\.?after-\d+(\.(tmp|old))?/": _WEIGHTS,
    rf"{CHECKPOINTS}/({ASIDE})?{CHECKPOINT}\d+/": _WEIGHTS,
    f"{ROWS}/": r"embedding-\d+\.rows",
    f"({'|'.join(OWN_CODE.values())})/": r"[^/]+\.py",
    f"{USAGE}/": rf"{_RANK}\.json",
    f"{LOGS}/": rf"{_RANK}\.log|{REQUEST}",
}  # fmt: skip
_KNOWN = re.compile(  # a folder ends in a slash; a file has another name until it is whole
    "|".join(rf"{folder}(({files})|{temporary(files)})?" for folder, files in _IN_FOLDER.items())
)


def checkpoint_number(folder: Path) -> int:
    """The number of a checkpoint, by its folder; 0 for any other folder, such as a model's."""
    found = re.fullmatch(rf"({ASIDE})?{CHECKPOINT}(\d+)", folder.name)
    return int(found[2]) if found else 0


def is_run_folder(folder: Path) -> bool:
    """Whether a run was started here; a ``run.toml`` without versions may be a user's own."""
    return (folder / RUN_FILE).is_file() and (folder / VERSIONS).is_file()


def check(folder: Path, *names: str) -> None:
    """Raise DataError unless ``folder`` is there and has these files of a run."""
    missing = [name for name in names if not (folder / name).is_file()]
    if folder.is_file():
        raise DataError(f"{folder}: a file; name a run folder")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name a run folder")
    if missing:
        raise DataError(f"{folder}: not a run folder: no {' and no '.join(missing)} in it")


def unknown_entries(folder: Path) -> list[str]:
    """Names of entries that neither a run nor its tools have written; an unknown folder appears once as a whole."""
    return sorted(_unknown_entries(folder, ""))


def _unknown_entries(folder: Path, inside: str) -> Iterator[str]:
    for entry in os.scandir(folder / inside):
        is_folder = entry.is_dir(follow_symlinks=False)
        name = f"{inside}{entry.name}{'/' * is_folder}"
        if not _KNOWN.fullmatch(name) and not (entry.is_symlink() and _KNOWN.fullmatch(f"{name}/")):
            yield name
        elif is_folder:
            yield from _unknown_entries(folder, name)
