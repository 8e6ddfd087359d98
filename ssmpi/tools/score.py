"""``ssmpi evaluate`` and ``ssmpi predict``: a run's model on a split of prepared data, or on a raw file."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi import sync
from ssmpi.config import Config, load
from ssmpi.data.batch import Batch
from ssmpi.data.features import CRITEO
from ssmpi.data.reader import SplitReader, batches
from ssmpi.data.schema import MANIFEST_NAME
from ssmpi.model.hierarchy_options import HierarchyOptions
from ssmpi.runtime.errors import DataError, SettingsError, TopologyError
from ssmpi.runtime.files import atomic_file, run_files
from ssmpi.runtime.files.run_files import MODEL, RUN_FILE
from ssmpi.runtime.mpi.failure import say
from ssmpi.runtime.mpi.world import World, joined
from ssmpi.runtime.topology import Role, Topology
from ssmpi.state.checkpoint import model_files, saved_network, saved_tables
from ssmpi.state.checkpoint.data_origin import DataOrigin, described
from ssmpi.state.recovery.start import Start
from ssmpi.trainer.embedding_ps import serve_embeddings
from ssmpi.trainer.metrics.fields import describe

if TYPE_CHECKING:
    from data_prep.table.schema import Schema


@dataclass(frozen=True)
class ScoringInput:
    """What to score: a raw file with ``vocabulary`` (default: the training data's), Criteo's or with columns as a
    ``schema`` says, or a split of a prepared folder.
    """

    path: Path
    split: str
    vocabulary: Path | None
    schema: Path | None = None

    @property
    def prepared(self) -> Path | None:
        """The prepared folder, which may be given by its manifest; None for a raw file, or a folder of them."""
        if self.schema and not (self.path / MANIFEST_NAME).exists():
            return None
        return self.path if self.path.is_dir() else self.path.parent if self.path.name == MANIFEST_NAME else None


@dataclass(frozen=True)
class RunModel:
    """A saved model: its folder, the settings to score it with, and the data it belongs to."""

    folder: Path
    config: Config
    origin: DataOrigin


def open_run(run: Path, ranks: int, data: Path | None = None) -> RunModel:
    """The model of a run, to score on ``ranks`` ranks without sync PSs; a single rank holds all tables itself. ``data``
    replaces the run's data folder.
    """
    run_files.check(run, RUN_FILE)
    model = model_files.find(run)
    if model != run / MODEL:
        say(f"{run}: not finished; scoring {model.name}")
    config = load(run / RUN_FILE, to_train=False)
    topology = dataclasses.replace(config.topology, sync_ps=0, group=1, homes="all")  # each scores with a whole model
    if ranks == 1:
        topology = Topology(trainers=1, threads=config.topology.threads, embedding_ps=0)
    elif ranks != topology.size:
        raise TopologyError(
            f"'ssmpi evaluate' runs in one process, which holds all tables, or on the {topology.size} ranks "
            f"({topology.arithmetic()}) that this run had without sync PSs, got {ranks}: start it without mpirun, "
            f"or with mpirun -n {topology.size}"
        )
    alone = sync.Options(algorithm="none")  # without the run's codec or its user's own settings, which need another one
    config = dataclasses.replace(config, topology=topology, hierarchy=HierarchyOptions(), sync=alone)
    config, setting = saved_tables.with_room(config, model, config), str(data or config.data.folder)
    return RunModel(model, saved_network.of_model(config, model, setting), DataOrigin.of_model(model, setting))


def evaluate(run: Path, split: str, data: Path | None) -> int:
    """Print the metrics of ``run``'s model on one split, in one process or on its ranks under mpirun."""
    with joined() as job:
        saved = job.agree(lambda: open_split(open_run(run, job.size, data), split, data))
        model_files.check(job, saved.folder)
        world = World(job, saved.config.topology)
        if world.role is Role.EMBEDDING_PS:
            serve_embeddings(saved.config, world, Start(saved.folder))
        else:
            from ssmpi.trainer.evaluate import Scorer

            scorer = Scorer(saved.config, world, saved.folder)
            metrics = scorer.evaluate(split)
            scorer.goodbye()
            if job.rank == 0:
                print(f"{split}: {describe(metrics)}")
        job.leave()
    return 0


def predict(run: Path, source: ScoringInput, file: Path) -> int:
    """Write one click probability per line, in the order of the rows; the file appears once it is complete."""
    with joined() as job, contextlib.ExitStack() as temporary:
        saved, source = job.agree(lambda: open_input(run, job.size, source, file))
        model_files.check(job, saved.folder)
        if source.schema:
            folder = temporary.enter_context(tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent))
            source = prepared_table(source, saved.origin, Path(folder))
        from ssmpi.trainer.evaluate import Scorer

        scorer = Scorer(saved.config, World(job, saved.config.topology), saved.folder)
        rows = 0
        with atomic_file.whole(file) as beside, beside.open("w", encoding="ascii") as out:
            for batch, logits in scorer.scores(_batches(saved, source)):
                if len(bad := np.flatnonzero(~np.isfinite(logits))):
                    raise DataError(
                        f"{source.path}: row {rows + bad[0] + 1:,} of those to score has no finite score: its values "
                        "are far too large, or the model's weights are not finite"
                    )
                np.savetxt(out, 1.0 / (1.0 + np.exp(-logits.astype(np.float64))), fmt="%.8f")
                rows += len(batch)
    print(f"{rows:,} scores in {file}")
    return 0


def open_split(saved: RunModel, split: str, data: Path | None) -> RunModel:
    """The same, with the data folder to evaluate on; DataError for other ids than the model's or a missing split."""
    folder = data or saved.origin.find(saved.config.data.folder)
    reader = SplitReader(folder, split, 65536)
    saved.origin.check(folder, reader.manifest)
    if not reader.manifest.labelled:
        raise DataError(f"{folder}: this data has no labels to compare with; use 'ssmpi predict'")
    reader.check()
    options = dataclasses.replace(saved.config.data, folder=str(folder))
    config = dataclasses.replace(saved.config, data=options).with_network(saved.config.network)
    return dataclasses.replace(saved, config=config)


def open_input(run: Path, ranks: int, source: ScoringInput, file: Path) -> tuple[RunModel, ScoringInput]:
    """The model and the input with its vocabulary, after all that can be checked beforehand has been."""
    if ranks != 1:
        raise DataError(f"'ssmpi predict' runs in one process, got {ranks} ranks: start it without mpirun")
    atomic_file.check(file)
    atomic_file.check_replaceable(file, re.compile(rb"([01]\.\d{8}\n)++([01]|\Z)"))
    saved = open_run(run, ranks)
    if source.prepared:
        for option in ("vocabulary", "schema"):
            if getattr(source, option):
                raise SettingsError(f"--{option} is for raw files, and {source.prepared} is prepared: leave it out")
        reader = SplitReader(source.prepared, source.split, 65536)
        saved.origin.check(source.prepared, reader.manifest)
        reader.check()
        return saved, source
    if source.schema:
        table_schema(source.schema, saved.origin)
    elif saved.origin.features != CRITEO:
        raise DataError(
            f"{source.path}: raw files are read as Criteo's rows, and this model was trained on other features "
            f"({described(saved.origin.features)}): name the schema that its data was prepared with (--schema), or a "
            "prepared folder"
        )
    vocabulary = source.vocabulary or saved.origin.find(saved.config.data.folder)
    return saved, dataclasses.replace(source, vocabulary=saved.origin.check_vocabulary(vocabulary))


def table_schema(path: Path, origin: DataOrigin) -> Schema:
    """A schema with keys where a model has them, as ``ssmpi-prepare table --hash`` may have made its data; DataError if
    it names other features.
    """
    from data_prep.table.schema import read_schema

    schema = read_schema(path).with_keys(origin.features.keyed)
    if schema.features != origin.features:
        raise DataError(
            f"{path}: other features ({described(schema.features)}) than the data this model was trained on "
            f"({described(origin.features)}): name the schema that it was prepared with"
        )
    return schema


def prepared_table(source: ScoringInput, origin: DataOrigin, folder: Path) -> ScoringInput:
    """The rows of a table as a prepared split in an empty ``folder``, for a model that belongs to ``origin``."""
    from data_prep.table.command import prepare_to_score

    assert source.schema
    assert source.vocabulary
    with contextlib.redirect_stdout(sys.stderr):  # how preparation goes on is no result
        prepare_to_score(table_schema(source.schema, origin), source.path, source.vocabulary, folder)
    return ScoringInput(folder, "test", None)


def _batches(saved: RunModel, source: ScoringInput) -> Iterator[Batch]:
    """Batches of a raw file or of a prepared split, in order."""
    size = saved.config.evaluate.batch_size
    if source.prepared:
        reader = SplitReader(source.prepared, source.split, 16 * size)
        for block in reader.blocks:
            if not block.start:
                reader.verify(block.shard)
            yield from batches(reader.read(block), size)
        return
    from data_prep.criteo import encode

    assert source.vocabulary
    for ids, dense, _ in encode([source.path], source.vocabulary):
        yield from batches(Batch(ids, dense, np.full(len(ids), np.nan, np.float32)), size)
