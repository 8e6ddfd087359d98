"""Runs a little of everything once, so that compiled kernels are on disk before several processes want the same ones.

``jobs/test.sh`` starts it beside the linters, once to train and once to prepare data, whose kernels are others. Else
all test workers, and the ranks of the jobs they start, compile the same kernels at the same time.
"""

import mpi4py

mpi4py.rc.initialize = False  # as in conftest.py
mpi4py.rc.finalize = False

import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

from datasets import make_dataset, make_lists_dataset  # noqa: E402
from runs import train_over_threads  # noqa: E402

from data_prep.cli import main as ssmpi_prepare  # noqa: E402

SGD = ("embedding.optimizer=sgd", "dense.optimizer=sgd")
SERVED = ("topology.embedding_ps=2", "run.shared_memory=false")
RUNS = (
    ("topology.embedding_ps=0",),
    ("topology.embedding_ps=0", "embedding.prefetch=false", *SGD),
    ("topology.embedding_ps=0", "model.name=deepfm"),
    ("topology.embedding_ps=0", "model.name=masknet", "model.dropout=0.1"),
    SERVED,
    (*SERVED, *SGD),
    *((*SERVED, f"checkpoint.priority={name}") for name in ("mfu", "ssu")),
    *(("topology.trainers=2", f"sync.algorithm={name}") for name in ("ma", "bmuf", "slowmo", "gossip")),
    *(("topology.trainers=2", "topology.sync_ps=1", f"sync.algorithm={name}") for name in ("easgd", "async_ps")),
    ("topology.trainers=2", "topology.sync_ps=1", "sync.algorithm=async_ps", "sync.codec=threshold:0.9"),
    ("topology.trainers=2", "topology.group=2", "run.shared_memory=false"),
    ("topology.trainers=2", "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1"),
)


LISTS = (
    ("topology.embedding_ps=0",),
    *((*SERVED, f"embedding.pooling={who}", *rows) for who in ("trainer", "server") for rows in ((), SGD)),
)


def train(folder):
    make_dataset(folder / "data", rows=1_000)
    for number, settings in enumerate(RUNS):
        train_over_threads(folder / str(number), folder / "data", *settings, timeout=600)  # compiling takes long
    make_lists_dataset(folder / "lists", rows=300)
    for number, settings in enumerate(LISTS):
        train_over_threads(folder / f"lists-{number}", folder / "lists", *settings, timeout=600)


def prepare(folder):
    ssmpi_prepare(["synthesize", str(folder / "raw"), "--rows", "2000", "--scale", "0.0001"])
    ssmpi_prepare(["criteo", str(folder / "raw" / "train.txt"), "-o", str(folder / "data")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"train": train, "prepare": prepare}[sys.argv[1]](Path(name))
