"""Whole training runs, over real ranks or over threads, and what they leave behind."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
from rank_pool import over_mpi
from ranks import PATIENCE, over_threads, ssmpi

from ssmpi.config import load
from ssmpi.data.block_dispatcher import block_order
from ssmpi.data.reader import SplitReader, batches_in, shuffled, suit_block_rows
from ssmpi.embedding.precision import converted
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin
from ssmpi.runtime.settings import dump
from ssmpi.state import run_folder
from ssmpi.state.checkpoint import model_files
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.recovery.start import Start
from ssmpi.train import PARTS

AS_ORACLE = ("model.center_inputs=false", "embedding.initial_bound=1")  # initial values as oracle.py has them
SMALL_MODEL = ("model.bottom=[32,8]", "model.top=[32,1]", "embedding.dim=8", *AS_ORACLE)
QUIET = ("run.tensorboard=false", "run.record_losses=true", "schedule.warmup_examples=0")  # given: none is chosen


def batches(config):
    """All batches of a run of one thread, in order."""
    data, seed = config.data, config.run.seed
    whole = SplitReader(Path(data.folder), "train", data.block_rows)
    reader = SplitReader(Path(data.folder), "train", suit_block_rows(data, whole.rows, 1))
    for a_pass in range(data.passes):
        for number in block_order(data, seed, a_pass, len(reader.blocks)):
            block = reader.blocks[number]
            order = shuffled(seed, 2, a_pass, number, size=block.rows)
            yield from batches_in(order, reader.read(block), data.batch_size)


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    def losses(self, trainer=0):
        """Mean loss of every batch, before its update, float64 (batches,)."""
        return np.load(self.folder / f"losses-{trainer}.npy")

    def quality(self, split="test"):
        """Metrics of the last evaluation of a split."""
        return self.result["evaluations"][split]["last"]

    def dense(self):
        """Dense parameters by name."""
        with h5py.File(model_files.find(self.folder) / "dense.h5") as saved:
            return {name: saved[name][()] for name in names(saved)}

    def tables(self, what="weights"):
        """Embedding tables, or the ``state`` of their optimizer, put together from the parts of all PSs."""
        tables = {}
        for path in sorted(model_files.find(self.folder).glob("embedding-*.h5")):
            with h5py.File(path) as saved:
                for group in saved.values():
                    table, first, stride, rows = (
                        int(group["weights"].attrs[a]) for a in ("table", "first", "stride", "cardinality")
                    )
                    values = converted(group[what][()], np.float32)
                    whole = tables.setdefault(table, np.full((rows, *values.shape[1:]), np.nan, np.float32))
                    whole[first::stride] = values
        return [tables[table] for table in sorted(tables)]


def assert_same_model(run, reference, *, state=False):
    """Dense parameters and rows are the same to the bit; the ``state`` of the rows' optimizer too, if asked for."""
    for name, values in reference.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    for what in ("weights", "state")[: 1 + state]:
        for table, expected in zip(run.tables(what), reference.tables(what), strict=True):
            np.testing.assert_array_equal(table, expected)


def assert_same_bits(run, reference):
    """Losses, parameters and rows."""
    np.testing.assert_array_equal(run.losses(), reference.losses())
    assert_same_model(run, reference)


def names(saved):
    """Names of all data sets of an HDF5 file."""
    found = []
    saved.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def write_run_file(folder, data, *overrides):
    """A run file beside its run folder, with ``overrides`` over small and quiet settings. Returns its config."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "given.toml"
    path.write_text("")
    base = (f"data.folder={data}", f"run.folder={folder / 'run'}", *SMALL_MODEL, *QUIET, "sync.algorithm=none")
    return load(path, (*base, *overrides))


def train(folder, data, *overrides, timeout=PATIENCE):
    """``mpirun ... -m ssmpi train`` to its end."""
    config = write_run_file(folder, data, *overrides)
    (folder / "given.toml").write_text(dump(config))
    ssmpi("train", folder / "given.toml", ranks=config.topology.size, timeout=timeout).check()
    return Run(Path(config.run.folder))


def play(world, config, checkpoint=None, memory=None, parent=None):
    """A body: one rank's part in a training run, with its state in the folder ``memory`` if that is given; it begins
    with the model of the run ``parent`` if that is given.
    """
    start = Start(checkpoint, parent=parent and parent / "model")
    if memory:
        kept = MemoryFile(memory / f"{world.role}-{world.index}", Origin("run", world.who, 1))
        start = replace(start, memory=kept)
    return PARTS[world.role](config, world, start)


def train_over_threads(folder, data, *overrides, resume=False, memory=None, parent=None, timeout=PATIENCE):
    """The same run with a thread for each rank, in this process. ``resume`` from the newest checkpoint; or begin
    with the model of the run in the folder ``parent``.
    """
    config = write_run_file(folder, data, *overrides)
    path = Path(config.run.folder)
    if not resume:
        run_folder.make(path, config, overwrite=False)
    checkpoint = Store(path).committed()[-1] if resume else None
    over_threads(config.topology, play, config, checkpoint, memory, parent, timeout=timeout)
    return Run(path)


def train_over_ranks(folder, data, *overrides):
    """The same run by real ranks that stay."""
    config = write_run_file(folder, data, *overrides)
    path = Path(config.run.folder)
    run_folder.make(path, config, overwrite=False)
    over_mpi(config.topology, play, config)
    return Run(path)
