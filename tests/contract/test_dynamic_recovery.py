"""A lost embedding PS with dynamic tables: its keys and rows come back from its part of the newest checkpoint, everyone
else goes on.
"""

import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import FEW, make_dataset, make_keyed
from faults import Kill
from oracle import mix
from runs import train_over_threads
from strength import one_at_a_time
from test_dynamic_tables import KEYED, tables
from test_partial_recovery import ONE, Killed, SaveRows, after, examples_of

from ssmpi.data.schema import read_manifest
from ssmpi.embedding import keyed_memory
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import LocalShard
from ssmpi.embedding.table import Arena
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi import rank_memory
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.recovery import restart
from ssmpi.trainer.progress import Progress

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SIZES, ROWS = (400, 400, 20, 9, 50), 2_000
DYNAMIC = ("embedding.dynamic.keys=400",)
TWO_PS = (*ONE, "data.batch_size=50", "recovery.target_pls=1", "topology.embedding_ps=2", "checkpoint.keep=9")
SAVED = (*TWO_PS, "checkpoint.every_examples=600")


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Pretended ranks share a process, which does not let go of what they mapped; and tables grow often."""
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)
    monkeypatch.setattr(keyed_memory, "FIRST_ROWS", 8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same rows with ids, and with the ids of two features as keys."""
    folder = tmp_path_factory.mktemp("rows")
    ids = make_dataset(folder / "ids", ROWS, cardinalities=SIZES, features=FEW, shard=900)
    return ids, make_keyed(folder / "keys", ids, KEYED)


class Found:
    """The memory of a killed rank, as a new process finds it."""

    kept, file, hot = True, -1, ()

    def __init__(self, values):
        self._values = values

    def allocate(self, size, first=None):
        assert size == len(self._values)
        return self._values


def held(killed, index):
    """Weights, state and date by table and key, and of reserved rows, as they lie in the memory of a PS."""
    config, arrays = killed.config, killed.arrays(f"embedding_ps-{index}", "rows", "keys")
    placement = config.placement(read_manifest(Path(config.data.folder)))
    return held_in(Arena(config.rows, placement, index, 0, Found(arrays["rows"]), Found(arrays["keys"])))


def held_in(arena):
    """The same of an arena."""
    found = {}
    for part in arena.placement.keyed_parts_of(arena.server):
        table, base = arena.keyed[part.table], part.base
        found[part.table, "shared" if arena.server else "missing"] = [*arena.weights[base], *arena.state[base]]
        for row in table.in_use():
            values = [*arena.weights[base + row], *arena.state[base + row], table.seen[row]]
            found[part.table, int(table.keys[row])] = values
    return found


def saved(checkpoint, index):
    """The same in a checkpoint."""
    found = {}
    with h5py.File(checkpoint / f"embedding-{index:04}.h5") as file:
        for group in file.values():
            if "keys" not in group:
                continue
            table, weights, state = int(group["weights"].attrs["table"]), group["weights"][()], group["state"][()]
            found[table, "shared" if index else "missing"] = [*weights[0], state[0]]
            rows = zip(group["keys"][()].tolist(), weights[1:], state[1:], group["seen"][()], strict=True)
            found |= {(table, key): [*row, sums, date] for key, row, sums, date in rows}
    return found


def test_a_lost_embedding_ps_reloads_its_keys(tmp_path, data, caplog):
    """What the other one has is the same to the last bit; the loss is booked."""
    caplog.set_level("INFO", log.name)
    killed = Killed(tmp_path, data[1], *SAVED, *DYNAMIC)
    checkpoint, done = killed.start_and_save()
    taken, at_kill = examples_of(checkpoint), after(killed.config, done)
    server, unsaved = killed.arrays("embedding_ps-0"), held(killed, 1)
    killed.lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    for name, values in killed.arrays("embedding_ps-0").items():
        np.testing.assert_array_equal(values, server[name], err_msg=name)
    found, expected = held(killed, 1), saved(checkpoint, 1)
    assert found == expected
    assert len(unsaved) > len(found) > 30, "some were admitted since"
    (only,) = killed.recoveries
    assert (only["how"], only["examples"], only["batches_repeated"]) == ("partial", at_kill, 0)
    assert only["sources"] == {"embedding_ps 1": checkpoint.name}
    assert only["samples_lost"] == at_kill - taken > 0
    placement = killed.config.placement(read_manifest(data[1]))
    plain = sum(part.rows for part in placement.parts_of(1) if part.table not in placement.keyed)
    assert only["rows_reloaded"] == plain + len(expected)
    killed.start()
    result = killed.run.result
    assert (result["status"], result["examples"]) == ("complete", ROWS)
    assert result["pls"] == pytest.approx((at_kill - taken) / (ROWS * 2))


class SaveKeys(SaveRows):
    """Also keeps what PS 1 holds at each save, and which keys are saved."""

    def save(self, samples):
        (saver,) = (saver for path, saver in self._savers.items() if path.stem.endswith("1"))
        arena, store = saver._server.arena, saver._store
        self.held, self.taken = [*getattr(self, "held", []), held_in(arena)], getattr(self, "taken", [])
        write, kinds = store.save, [(part, arena.keyed[part.table]) for part in arena.placement.keyed_parts_of(1)]

        def saved_some(rows, *others):
            self.taken.append(
                {
                    (part.table, int(table.keys[row - part.base])) if row >= part.base + 2 else (part.table, "shared")
                    for part, table in kinds
                    for row in rows[(rows >= part.base) & (rows < part.base + part.rows)]
                }
            )
            return write(rows, *others)

        store.save = saved_some
        super().save(samples)
        store.save = write


@pytest.mark.parametrize(("priority", "every"), one_at_a_time(["mfu", "none", "ssu"], [600, 0]))
def test_each_key_of_a_lost_embedding_ps_has_the_values_of_its_newest_save(tmp_path, data, priority, every):
    """Saved between checkpoints or without any, some keys at a time after the first save of all."""
    settings = ("recovery.mode=partial", f"checkpoint.priority={priority}", "checkpoint.priority_fraction=0.1")
    killed = Killed(tmp_path, data[1], *TWO_PS, *DYNAMIC, *settings, f"checkpoint.every_examples={every}")
    saving = SaveKeys(killed.config, (14, 18, 22), kill=23)
    killed.start(saving)
    whole, *later = saving.held
    expected = dict(whole)
    for number, held_then in enumerate(later):
        taken = saving.taken[number] if priority != "none" else held_then.keys()
        expected |= {name: held_then[name] for name in taken & held_then.keys()}
    if priority != "none":
        sizes = [len(held_then) for held_then in later]
        assert all(0 < len(taken) < size for taken, size in zip(saving.taken, sizes, strict=True))
    last = held(killed, 1)
    killed.lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    assert held(killed, 1) == expected != last
    (only,) = killed.recoveries
    file = "embedding-0001.rows"
    newest = Store(killed.folder).committed()
    assert only["sources"] == {"embedding_ps 1": f"{newest[0].name} and {file}" if newest else file}
    assert only["how"] == "partial"
    killed.start()
    assert killed.run.result["status"] == "complete"


def test_losses_are_those_of_one_process_that_overwrites_the_rows_of_the_same_ids(tmp_path, data, monkeypatch):
    """To the last bit: rows of keys that PS 1 has by their hash are as they were saved, or, if they were not there, as
    they begin. No keys, servers or recoveries are in it.
    """
    killed = Killed(tmp_path / "killed", data[1], *SAVED, *DYNAMIC)
    checkpoint, lost = killed.start_and_save()
    killed.lose("embedding_ps-1").start()
    numbers = {n for n in range(lost) if after(killed.config, n) == examples_of(checkpoint)} | {lost}
    assert len(numbers) == 2
    placement = killed.config.placement(read_manifest(data[1]))
    whole = {part.table: part for part in place(SIZES, 1).parts}
    mine = [  # arena rows of the oracle that PS 1 holds
        whole[table].base + id_
        for table, size in enumerate(SIZES)
        for id_ in range(size)
        if (id_ and (mix(id_) >> 33) * 2 >> 31 == 1 if table in placement.keyed else owner(placement, table, id_) == 1)
    ]
    arenas, calls, copies = [], itertools.count(), []
    make, push = LocalShard.__init__, Lookups.push

    def made(self, arena, *others, **more):
        arenas.append(arena)
        make(self, arena, *others, **more)

    def pushed(*arguments):
        push(*arguments)
        if next(calls) in numbers:  # the first one compiles
            pair = arenas[0].weights, arenas[0].state
            copies.append([values[mine] for values in pair])
            for values, copy in zip(pair, copies[0], strict=True):
                values[mine] = copy

    monkeypatch.setattr(LocalShard, "__init__", made)
    monkeypatch.setattr(Lookups, "push", pushed)
    oracle = train_over_threads(tmp_path / "ids", data[0], *TWO_PS, "topology.embedding_ps=0")
    assert (copies[0][0] != copies[1][0]).any()
    found = killed.run.losses()
    np.testing.assert_array_equal(found, oracle.losses()[-len(found) :])
    for what in ("weights", "state"):
        (keyed, plain), by_id = tables(killed.run, what), oracle.tables(what)
        for table, rows in keyed.items():
            for key in (key for key in rows if isinstance(key, int)):
                np.testing.assert_array_equal(rows[key], by_id[table][key], err_msg=f"{what} of {key}")
        for table, rows in plain.items():
            np.testing.assert_array_equal(rows, by_id[table])


def owner(placement, table, id_):
    """The PS of an id of a static table."""
    return int(placement.owners[table, id_ % placement.strides[table]])


def test_before_the_first_checkpoint_keys_come_from_the_run_that_is_continued(tmp_path, data):
    """Or, without one, are not there."""
    parent = train_over_threads(tmp_path / "parent", data[1], *TWO_PS, *DYNAMIC)
    still = (*TWO_PS, *DYNAMIC, "checkpoint.every_minutes=0", "embedding.rate=0", "dense.rate=0")
    killed = Killed(tmp_path / "rows", data[1], *still, f"run.continue_from={parent.folder}")
    Parent.of(parent.folder).record(killed.folder)
    killed.start(Kill(Progress, "record", 5)).lose("embedding_ps-1").start()
    assert killed.recoveries[-1]["how"] == "partial"
    for found, expected in zip(tables(killed.run), tables(parent), strict=True):
        assert found.keys() == expected.keys()
        for table, rows in expected.items():
            for place_ in rows if isinstance(rows, dict) else range(len(rows)):
                np.testing.assert_array_equal(found[table][place_], rows[place_])
    killed = Killed(tmp_path / "new", data[1], *TWO_PS, *DYNAMIC, "checkpoint.every_minutes=0")
    killed.start(Kill(Progress, "record", 5)).lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    assert [key for _, key in held(killed, 1)] == ["shared"] * len(KEYED)
    assert len(held(killed, 0)) > 20


def test_above_the_target_all_ranks_go_back(tmp_path, data):
    killed = Killed(tmp_path, data[1], *SAVED, *DYNAMIC, "recovery.target_pls=1e-6")
    checkpoint, _ = killed.start_and_save()
    killed.lose("embedding_ps-1").start()
    (only,) = killed.recoveries
    assert only["how"] == checkpoint.name
    assert "partial recovery would bring the run's PLS to" in only["lost"]
    assert (killed.run.result["status"], killed.run.result["pls"]) == ("complete", 0.0)
