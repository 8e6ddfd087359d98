"""``ssmpi evaluate`` and ``ssmpi predict``: a finished run's model on a split, or on a raw file nobody has prepared."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssmpi.comm.failure import say
from ssmpi.comm.world import World, joined
from ssmpi.config import RUN_FILE, Config, load
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches
from ssmpi.data.schema import MANIFEST_NAME, VOCABULARY_NAME, read_manifest
from ssmpi.errors import DataError, TopologyError
from ssmpi.roles import weights
from ssmpi.roles.embedding_ps import serve_embeddings
from ssmpi.roles.logbook import describe
from ssmpi.topology import Role, Topology


@dataclass(frozen=True)
class Source:
    """What to score: a raw file with ``vocabulary`` (default: that of the training data), or a split of a folder."""

    path: Path
    split: str
    vocabulary: Path | None


def open_run(run: Path, ranks: int) -> Config:
    """The settings of a finished run for scoring on ``ranks`` ranks, without sync PSs; one rank holds all tables itself."""
    if not (run / RUN_FILE).is_file():
        raise DataError(f"{run}: no {RUN_FILE} here, so not a run folder")
    model = weights.find(run)
    if model != run / weights.MODEL:
        say(f"{run}: not finished; scoring {model.name}")
    config = load(run / RUN_FILE)
    topology = dataclasses.replace(config.topology, sync_ps=0)
    if ranks == 1:
        topology = Topology(trainers=1, threads=config.topology.threads, embedding_ps=0)
    elif ranks != topology.size:
        raise TopologyError(
            f"'ssmpi evaluate' runs in one process, which holds all tables, or on the {topology.size} ranks "
            f"({topology.arithmetic()}) that this run had without sync PSs, got {ranks}: start it without mpirun, "
            f"or with mpirun -n {topology.size}"
        )
    return dataclasses.replace(config, topology=topology, sync=dataclasses.replace(config.sync, algorithm="none"))


def evaluate(run: Path, split: str, data: Path | None) -> int:
    """Print the metrics of ``run``'s model on one split; alone or on its trainers and embedding PSs under mpirun."""
    with joined() as job:
        config = job.agree(lambda: _check(run, split, data, job.size))
        world = World(job, config.topology)
        if world.role is Role.EMBEDDING_PS:
            serve_embeddings(config, world, run, weights.find(run))
        else:
            from ssmpi.roles.scorer import Scorer

            scorer = Scorer(config, world, weights.find(run))
            metrics = scorer.evaluate(split)
            scorer.goodbye()
            if job.rank == 0:
                print(f"{split}: {describe(metrics)}")
        job.leave()
    return 0


def predict(run: Path, source: Source, output: Path) -> int:
    """Write one click probability a line, in the order of the rows; the file appears when it is whole."""
    with joined() as job:
        config = job.agree(lambda: _open_alone(run, job.size))
        from ssmpi.roles.scorer import Scorer

        scorer = Scorer(config, World(job, config.topology), weights.find(run))
        beside = output.with_name(f".{output.name}.tmp")
        rows = 0
        with beside.open("w", encoding="ascii") as out:
            for batch, logits in scorer.scores(_batches(config, source)):
                np.savetxt(out, 1.0 / (1.0 + np.exp(-logits.astype(np.float64))), fmt="%.8f")
                rows += len(batch)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(output)
    print(f"{rows:,} scores in {output}")
    return 0


def _check(run: Path, split: str, data: Path | None, ranks: int) -> Config:
    """The settings to score with, after everything that can be checked before."""
    config = open_run(run, ranks)
    if data:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, folder=str(data)))
    reader = SplitReader(Path(config.data.folder), split, 65536)
    if not reader.manifest.labelled:
        raise DataError(f"{config.data.folder}: this data has no labels to compare with; use 'ssmpi predict'")
    reader.check()
    return config


def _open_alone(run: Path, ranks: int) -> Config:
    if ranks != 1:
        raise DataError(f"'ssmpi predict' runs in one process, got {ranks} ranks: start it without mpirun")
    return open_run(run, ranks)


def _batches(config: Config, source: Source) -> Iterator[Batch]:
    """Batches of a raw file or of a prepared split, in order."""
    size = config.evaluate.batch_size
    if source.path.is_dir() or source.path.name == MANIFEST_NAME:
        reader = SplitReader(source.path, source.split, 16 * size)
        if reader.manifest.cardinalities != read_manifest(Path(config.data.folder)).cardinalities:
            raise DataError(f"{source.path}: prepared with another vocabulary than the training data")
        for block in reader.blocks:
            yield from batches(reader.read(block), size)
        return
    from data_prep.criteo import encode

    vocabulary = source.vocabulary or Path(config.data.folder) / VOCABULARY_NAME
    for ids, dense, _ in encode([source.path], vocabulary):
        yield from batches(Batch(ids, dense, None), size)
