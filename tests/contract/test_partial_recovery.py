"""A run whose processes are killed, and with them the memory of some ranks, goes on: what was lost is made anew, and
nobody else notices.
"""

import itertools
import json
import mmap
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import h5py
import numpy as np
import pytest
from faults import Fault, Kill, KilledError
from oracle import train_plainly
from ranks import PATIENCE, PretendedStart, end_helpers, over_threads
from runs import Run, batches, train_over_threads, write_run_file

from ssmpi.data.reader import SplitReader
from ssmpi.data.trained_rows import InFlightBatches, TrainedRows
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import LocalShard
from ssmpi.embedding.table import RowArray
from ssmpi.embedding.trackers import scope_of
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import RECOVERIES
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.mpi import rank_memory
from ssmpi.runtime.mpi.rank_memory import MemoryFile
from ssmpi.runtime.topology import Role
from ssmpi.state import run_folder
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.checkpoint.rows import newest
from ssmpi.state.checkpoint.rows.saver import RowSaver
from ssmpi.state.checkpoint.store import Store, read_manifest
from ssmpi.state.memory_needs import kept_memory, memory_of_ranks
from ssmpi.state.recovery import lost_servers, restart, run_record
from ssmpi.state.recovery.start import ResumePlan, Supervised
from ssmpi.state.recovery.warm_state import RecoveryNotes, cost_of
from ssmpi.state.requirements import placement_of
from ssmpi.sync.pace import Shadow
from ssmpi.train import PARTS
from ssmpi.trainer.evaluate import Evaluator
from ssmpi.trainer.metrics.fields import FIELDS, RECOVERY
from ssmpi.trainer.progress import Progress

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

LAUNCH = "launch"
ONE = (
    "embedding.prefetch=false", "data.block_rows=600", "run.log_seconds=0.01",
    "checkpoint.background=false", "evaluate.split=none",
)  # fmt: skip
TWO_PS = (
    *ONE, "recovery.target_pls=1", "topology.embedding_ps=2", "checkpoint.every_examples=1000", "checkpoint.keep=9",
)  # fmt: skip
UNSAVED = 5  # batches between the first save and a kill


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Pretended ranks share a process, which does not let go of what they mapped."""
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)


def play(world, config, number):
    """A body: one rank's part in the ``number``-th start of a launch."""
    run = Path(config.run.folder)
    found = tuple(Store(run).committed()[::-1]) if number > 1 else ()
    again, parent = number > 1, None if found else Parent.recorded(run)
    plan = ResumePlan(config, found, again=again, ahead=again, parent=parent)
    start = restart.begin(PretendedStart(world), plan, Supervised(LAUNCH, number, time.time()))
    return PARTS[world.role](config, world, start)


class Killed:
    """A run over threads that is killed, and loses memory, between its starts."""

    def __init__(self, folder, data, *overrides):
        self.memory = folder / "memory"
        self.memory.mkdir(parents=True)
        config = write_run_file(folder, data, *overrides, f"recovery.memory_folder={self.memory}")
        self.config, self.folder, self._number = config, Path(config.run.folder), 0
        run_folder.make(self.folder, config, overwrite=False)

    def start(self, *kills):
        """One more start, which one of ``kills``, context managers, makes a ``KilledError`` come in; or none."""
        self._number += 1
        with ExitStack() as stack:
            for kill in kills:
                stack.enter_context(kill)
            if kills:
                stack.enter_context(pytest.raises(KilledError))
            over_threads(self.config.topology, play, self.config, self._number)
        with mock.patch.object(Shadow, "_rest_for", side_effect=KilledError):
            for thread in {each for each in threading.enumerate() if each.name.startswith(("worker", "shadow"))}:
                thread.join(PATIENCE)  # unlike killed ones they end at their next message, or round, only
                assert not thread.is_alive()
        end_helpers()
        return self

    def ended_before(self, kill):
        """A start in which ``kill`` may come too late; whether it did."""
        try:
            self.start(kill)
        except pytest.fail.Exception:
            return True
        return False

    def start_and_save(self):
        """A start that is killed some batches after its first save: the newest save, and how many batches were done."""
        kill = KillAfterSave(self.folder)
        self.start(kill)
        return Store(self.folder).committed()[-1], kill.done

    def lose(self, *ranks):
        """Their memory goes, with their host."""
        for rank in ranks:
            rank_memory.remove(self.path(rank))
        return self

    def path(self, rank):
        return memory_folder.of_launch(str(self.memory), LAUNCH) / rank

    def live(self, rank, *names):
        """What the memory of a rank, ``trainer-0``, holds."""
        memory = MemoryFile.found(self.path(rank), LAUNCH, rank.replace("-", " "))
        return {name: memory.place(name, memory._table[name][1])[0] for name in names or memory._table}

    def arrays(self, rank, *names):
        """Copies of it."""
        return {name: values.copy() for name, values in self.live(rank, *names).items()}

    @property
    def run(self):
        return Run(self.folder)

    @property
    def recoveries(self):
        return json.loads((self.folder / RECOVERIES).read_text())["recoveries"]


def test_before_the_first_checkpoint_a_continued_run_goes_back_to_its_parent(tmp_path, small_data):
    """All of it if the first trainer's memory is lost; of a lost embedding PS, its rows."""
    parent = train_over_threads(tmp_path / "parent", small_data, *TWO_PS)
    settings = (*TWO_PS[:-2], "checkpoint.every_minutes=0", f"run.continue_from={parent.folder}")
    whole = train_over_threads(tmp_path / "whole", small_data, *settings, parent=parent.folder)
    killed = Killed(tmp_path / "all", small_data, *settings)
    Parent.of(parent.folder).record(killed.folder)
    killed.start(Kill(Progress, "record", 5)).lose("trainer-0").start()
    assert killed.recoveries[-1]["how"] == "beginning"
    np.testing.assert_array_equal(killed.run.losses(), whole.losses())
    for found, expected in zip(killed.run.tables(), whole.tables(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert killed.run.result["continued_from"]["run"] == str(parent.folder)
    still = Killed(tmp_path / "rows", small_data, *settings, "embedding.rate=0", "dense.rate=0")
    Parent.of(parent.folder).record(still.folder)
    still.start(Kill(Progress, "record", 5)).lose("embedding_ps-1").start()
    assert still.recoveries[-1]["how"] == "partial"
    for found, expected in zip(still.run.tables(), parent.tables(), strict=True):
        np.testing.assert_array_equal(found, expected)


class KillAfterSave(Fault):
    """Kills a trainer before it adds a batch, some batches after its run's first checkpoint; ``done`` before that."""

    def __init__(self, run):
        self.done = 0
        super().__init__(Progress, "record", self._die, UNSAVED + 1, where=lambda *_: Store(run).committed())

    def _die(self, progress, *_):
        self.done = len(progress.losses)
        raise KilledError


def examples_of(checkpoint):
    return read_manifest(checkpoint).state["examples"]


def after(config, number):
    """Examples after so many batches."""
    return sum(len(batch) for batch in itertools.islice(batches(config), number))


def saved_rows(checkpoint, index):
    """Weights and optimizer state of an embedding PS in a checkpoint, by the names of their data sets."""
    with h5py.File(checkpoint / f"embedding-{index:04}.h5") as saved:
        return {name: (group["weights"][()], group["state"][()]) for name, group in saved.items()}


def assert_reloaded(killed, placement, weights, state):
    """The rows of PS 1 are these."""
    for name, (found, found_state) in rows_in(killed, 1).items():
        part = next(p for p in placement.parts_of(1) if name == f"table-{p.table:02}-{p.first}-{p.stride}")
        rows = slice(part.base, part.base + part.rows)
        np.testing.assert_array_equal(found, weights[rows])
        np.testing.assert_array_equal(found_state, state[rows].reshape(found_state.shape))


def rows_in(killed, index):
    """The same, as they lie in the memory of the PS."""
    config = killed.config
    placement = placement_of(config)
    held = killed.arrays(f"embedding_ps-{index}", "rows")["rows"]
    rows = RowArray(config.rows, held, placement.rows_of(index))
    weights, state = rows.weights, np.squeeze(rows.state)
    return {
        f"table-{part.table:02}-{part.first}-{part.stride}": (
            weights[part.base : part.base + part.rows],
            state[part.base : part.base + part.rows],
        )
        for part in placement.parts_of(index)
    }


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_lost_embedding_ps_loses_its_own_unsaved_rows_only(tmp_path, small_data, precision):
    """Its memory is removed at rest, between two starts; what the others had there is the same to the last bit."""
    killed = Killed(tmp_path / "killed", small_data, *TWO_PS, f"embedding.precision={precision}")
    checkpoint, done = killed.start_and_save()
    taken, at_kill = examples_of(checkpoint), after(killed.config, done)
    server, trainer = killed.arrays("embedding_ps-0"), killed.arrays("trainer-0", "replica", "dense optimizer")
    unsaved = rows_in(killed, 1)
    killed.lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    for before, now in ((server, killed.arrays("embedding_ps-0")), (trainer, killed.arrays("trainer-0", *trainer))):
        for name, values in before.items():
            np.testing.assert_array_equal(values, now[name], err_msg=name)
    found, expected = rows_in(killed, 1), saved_rows(checkpoint, 1)
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        for values, there in zip(pair, found[name], strict=True):
            np.testing.assert_array_equal(values, there)
    assert any((unsaved[name][0] != pair[0]).any() for name, pair in found.items())
    (only,) = killed.recoveries
    assert (only["how"], only["examples"], only["batches_repeated"]) == ("partial", at_kill, 0)
    assert only["rows_reloaded"] == sum(len(pair[0]) for pair in found.values())
    assert only["sources"] == {"embedding_ps 1": checkpoint.name}
    assert only["samples_lost"] == at_kill - taken > 0
    assert cost_of(only) == (
        f"going on after {at_kill:,} examples: {only['rows_reloaded']:,} embedding rows reloaded (embedding_ps 1 from"
        f" {checkpoint.name}), which miss {at_kill - taken:,} samples and {only['updates_lost']:,} updates. PLS is"
        f" {only['pls']:.3g} so far"
    )
    killed.start()
    result = killed.run.result
    assert (result["status"], result["examples"], result["restarts"]) == ("complete", 6_000, 2)
    assert result["pls"] == pytest.approx((at_kill - taken) / (6_000 * 2))
    assert [each["how"] for each in result["recoveries"]] == ["partial", "memory"]
    lines = [json.loads(line) for line in (killed.folder / "metrics.jsonl").read_text().splitlines()]
    partial, warm = (line for line in lines if line["kind"] == RECOVERY)
    assert (partial["how"], warm["how"]) == ("partial", "memory")
    assert set(partial) == {name for name, (kinds, _) in FIELDS.items() if RECOVERY in kinds}


@pytest.mark.parametrize(
    ("priority", "precision"), [*((p, "fp32") for p in ("none", "mfu", "ssu", "scar")), ("scar", "bf16")]
)
def test_a_plan_counts_all_that_an_embedding_ps_keeps_in_memory(tmp_path, small_data, priority, precision):
    """Its memory file has the rows, what its tracker needs, and less than a page for each array besides."""
    how = f"checkpoint.priority={priority}", f"embedding.precision={precision}"
    killed = Killed(tmp_path, small_data, *TWO_PS, *how)
    killed.start(Kill(Progress, "record", 3))
    placement = placement_of(killed.config)
    largest = max(range(2), key=placement.rows_of)
    size = killed.path(f"embedding_ps-{largest}").stat().st_size
    assert abs(size - kept_memory(killed.config, placement)[Role.EMBEDDING_PS]) < 4 * mmap.PAGESIZE
    plain = replace(killed.config, checkpoint=replace(killed.config.checkpoint, priority="none"))
    for memory in (kept_memory, memory_of_ranks):
        more, none = (memory(config, placement)[Role.EMBEDDING_PS] for config in (killed.config, plain))
        rows, width = placement.rows_of(largest), killed.config.rows.layout.width
        tracker = {"none": 0, "mfu": 4 * rows, "scar": {"fp32": 4, "bf16": 2}[precision] * width * rows}
        assert more - none == tracker.get(priority, pytest.approx(32 + 4 * rows / 8 + rows / 8, rel=0.02))


def own_rows(cardinalities, index):
    """Tables and the stripes of them that one of two embedding PSs holds."""
    return [(part.table, slice(part.first, None, part.stride)) for part in place(cardinalities, 2).parts_of(index)]


@pytest.fixture(scope="module")
def lost_once(tmp_path_factory, small_data):
    """A run of which PS 1 was lost, and after how many batches its rows were saved and lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_memory, "_lock", lambda file, path: None)
        return lose_once(Killed(tmp_path_factory.mktemp("once"), small_data, *TWO_PS))


def lose_once(killed):
    """The same run, whose PS 1 is lost, and the numbers."""
    checkpoint, lost = killed.start_and_save()
    killed.lose("embedding_ps-1").start()
    saved = [number for number in range(lost) if after(killed.config, number) == examples_of(checkpoint)]
    return killed, (*saved, lost)


def test_losses_are_those_of_one_process_that_overwrites_the_same_rows(tmp_path, small_data, lost_once, monkeypatch):
    """To the last bit; there are no servers in it and no recovery."""
    run, numbers = lost_once[0].run, lost_once[1]
    arenas, calls, copies = [], itertools.count(1), {}
    make, push = LocalShard.__init__, Lookups.push
    cardinalities = SplitReader(small_data, "train", 600).manifest.cardinalities
    parts = {part.table: part for part in place(cardinalities, 1).parts}

    def made(self, arena, *others, **more):
        arenas.append(arena)
        make(self, arena, *others, **more)

    def pushed(*arguments):
        push(*arguments)
        number = next(calls) - 1  # the first one compiles
        if number not in numbers:
            return
        for table, stripe in own_rows(cardinalities, 1):
            rows = slice(parts[table].base, parts[table].base + parts[table].rows)
            for values in (arenas[0].weights[rows][stripe], arenas[0].state[rows][stripe]):
                copy = copies.setdefault((table, stripe.start, values.shape[1]), values.copy())
                values[:] = copy

    monkeypatch.setattr(LocalShard, "__init__", made)
    monkeypatch.setattr(Lookups, "push", pushed)
    oracle = train_over_threads(tmp_path, small_data, *ONE, "topology.embedding_ps=0")
    found = run.losses()
    assert run.result["status"] == "complete"
    np.testing.assert_array_equal(found, oracle.losses()[-len(found) :])
    for mine, theirs in zip(run.tables(), oracle.tables(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert run.quality() == oracle.quality()


def test_losses_are_those_of_plain_pytorch_that_overwrites_the_same_rows(small_data, lost_once):
    (killed, numbers), copies = lost_once, {}
    config, lost = killed.config, numbers[-1]
    cardinalities = SplitReader(small_data, "train", 600).manifest.cardinalities

    def overwrite(number, model, sparse):
        if number not in numbers:
            return
        for table, stripe in own_rows(cardinalities, 1):
            for values in (model.tables[table].weight.data[stripe], sparse.sums[table][stripe]):
                values[:] = copies.setdefault((table, stripe.start, values.ndim), values.clone())

    _, losses = train_plainly(config, cardinalities, itertools.islice(batches(config), lost + 5), overwrite)
    np.testing.assert_allclose(killed.run.losses()[:5], losses[lost:], rtol=2e-4)


def test_tables_that_decay_go_on_from_the_rows_that_are_reloaded(tmp_path, small_data):
    """The steps between save and loss are lost to them, those of decay as well."""
    kinds = [f"{part}.{key}" for part in ("dense", "embedding") for key in ("optimizer=sgd", "rate=0.1")]
    killed, numbers = lose_once(Killed(tmp_path, small_data, *TWO_PS, *kinds, "embedding.table_decay=0.1"))
    cardinalities, copies = SplitReader(small_data, "train", 600).manifest.cardinalities, {}

    def overwrite(number, model, sparse):
        for table, stripe in own_rows(cardinalities, 1) if number in numbers else ():
            values = model.tables[table].weight.data[stripe]
            values[:] = copies.setdefault((table, stripe.start), values.clone())

    model, losses = train_plainly(killed.config, cardinalities, batches(killed.config), overwrite)
    np.testing.assert_allclose(killed.run.losses(), losses[numbers[-1] :], rtol=2e-5)
    for found, expected in zip(killed.run.tables(), model.rows, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("lost_again", [False, True])
def test_a_death_in_the_middle_of_a_recovery_begins_again_and_books_once(tmp_path, small_data, lost_again):
    """At the load, when it is done, and before the first trainer has noted it; another PS may be lost meanwhile."""
    killed = Killed(tmp_path, small_data, *TWO_PS, "recovery.max_lost_fraction=1")
    checkpoint, done = killed.start_and_save()
    before = killed.recoveries
    killed.lose("embedding_ps-1")
    killed.start(Kill(newest, "restore")).start(Kill(newest, "restore", after=True))
    assert killed.recoveries == before == []
    if lost_again:
        killed.lose("embedding_ps-0")
    killed.start(Kill(restart, "resumed")).start(Kill(run_record, "complete"))
    assert "pls" not in killed.recoveries[-1]
    killed.start()  # which writes what nobody else knows any more: that loss is booked
    assert [each["how"] for each in killed.recoveries] == ["partial"] * 2 + ["memory"]
    lost, booked = after(killed.config, done) - examples_of(checkpoint), killed.recoveries[1]
    assert (booked["samples_lost"], booked["pls"]) == ((1 + lost_again) * lost, killed.run.result["pls"])
    assert set(booked["seconds"]) == {"ranks", "process", "load", "restore"}
    lines = [json.loads(line) for line in (killed.folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == RECOVERY]
    went_on = killed.recoveries[1:]
    assert [line["at"] for line in told] == [each["at"] for each in went_on]
    assert told[0]["samples_lost"] == booked["samples_lost"]
    assert killed.run.result["pls"] == pytest.approx((1 + lost_again) * lost / (6_000 * 2))
    assert killed.run.result["status"] == "complete"


@pytest.mark.parametrize("after", [False, True])
def test_a_repeated_batch_is_reported_once_despite_a_second_kill(tmp_path, small_data, after):
    """The first trainer has noted the second one's batch; that is killed before it forgets it, or after."""
    killed = Killed(tmp_path, small_data, "topology.trainers=2", *ONE[1:])
    killed.start(Kill(Progress, "record", 20, after=True))
    killed.start(Kill(InFlightBatches, "reported", 2, after=after)).start()
    told = [each["batches_repeated"] for each in killed.recoveries]
    assert (len(told), sum(told)) == (2, 1)
    assert killed.run.result["status"] == "complete"


BY_MESSAGES = ("topology.trainers=2", "run.shared_memory=false", "embedding.prefetch=true", *ONE[1:])
EVERY = {
    "none": (), "ma": (), "gossip": (), "bmuf": (), "slowmo": (),
    "synchronous": ("sync.pace=fixed_rate", "sync.every_iterations=1"),
    "easgd": ("topology.sync_ps=2",),
    "async_ps": ("topology.sync_ps=2",),
}  # fmt: skip


SOAK = {"ma", "gossip", "slowmo"}


@pytest.mark.parametrize("algorithm", [pytest.param(a, marks=[pytest.mark.soak] * (a in SOAK)) for a in EVERY])
def test_no_row_of_a_lost_trainer_is_left_out(tmp_path, small_data, algorithm, monkeypatch):
    """Rows that it had in hand come again, and no others but those of batches under way."""
    trained, add = [], TrainedRows.add
    monkeypatch.setattr(TrainedRows, "add", lambda self, thread, rows: (trained.append(rows), add(self, thread, rows)))
    settings = (*BY_MESSAGES, f"sync.algorithm={algorithm}", *EVERY[algorithm])
    killed = Killed(tmp_path, small_data, *settings).start(Kill(Progress, "record", 28))
    killed.lose("trainer-1").start(Kill(restart, "resumed", number=2)).start()
    partial = [each for each in killed.recoveries if each["how"] == "partial" and "examples" in each]
    result, last = killed.run.result, partial[-1]
    assert (result["status"], result["examples"], result["pls"]) == ("complete", 6_000, 0.0)
    times = Counter((block, row) for block, start, stop in trained for row in range(start, stop))
    assert len(times) == 6_000
    assert 0 <= sum(times.values()) - 6_000 <= sum(each["rows_dealt_again"] for each in partial) > 0
    assert last["rows_reloaded"] == last["samples_lost"] == 0
    assert last["accounts_lost"] == (algorithm == "async_ps")


def kept_until_started(tmp_path, data, lost, algorithm, *changed):
    """What trainers and sync PSs hold when some are lost, and when all is made good but nobody has trained yet. Arrays
    to be lost that are named here are ``changed`` before.
    """
    killed = Killed(tmp_path, data, *BY_MESSAGES, f"sync.algorithm={algorithm}", *EVERY[algorithm], *TWO_PS[-2:])
    killed.start_and_save()
    servers = ["sync_ps-0", "sync_ps-1"] if "topology.sync_ps=2" in EVERY[algorithm] else []
    ranks = ["trainer-0", "trainer-1", *servers]
    for name in changed:
        killed.live(lost, name)[name].view(np.float32)[:] += 1.0  # whatever the last rounds did, it differs now
    before = {rank: killed.arrays(rank) for rank in ranks}
    killed.lose(lost)
    both = threading.Barrier(2)

    def ready(notes, *_):
        notes.memory.ready()
        both.wait(PATIENCE)
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restart, "resumed", ready)  # nobody goes further than this
        with pytest.raises(KilledError):
            over_threads(killed.config.topology, play, killed.config, 2)
    return killed, before, {rank: killed.arrays(rank) for rank in ranks}


@pytest.mark.parametrize("algorithm", ["none", "easgd"])
def test_a_lost_replica_is_that_of_the_living_or_the_center(tmp_path, small_data, algorithm):
    _, before, now = kept_until_started(tmp_path, small_data, "trainer-1", algorithm)
    for rank in before.keys() - {"trainer-1"}:
        for name in ("replica", "dense optimizer") if rank == "trainer-0" else ("center",):
            np.testing.assert_array_equal(before[rank][name], now[rank][name])
    found = now["trainer-1"]
    np.testing.assert_array_equal(found["dense optimizer"], before["trainer-0"]["dense optimizer"])
    common = before["trainer-0"]["replica"]
    if algorithm == "easgd":
        common = np.concatenate([before[f"sync_ps-{k}"]["center"] for k in range(2)])
    np.testing.assert_array_equal(found["replica"].view(np.float32), common.view(np.float32))


@pytest.mark.parametrize("algorithm", ["easgd", "async_ps"])
def test_a_lost_center_becomes_the_mean_with_the_saved_optimizer(tmp_path, small_data, algorithm):
    names = ("center", "optimizer") if algorithm == "async_ps" else ("center",)
    killed, before, now = kept_until_started(tmp_path, small_data, "sync_ps-1", algorithm, *names)
    replicas = [before[f"trainer-{k}"]["replica"].view(np.float32) for k in range(2)]
    size = replicas[0].size
    expected = {"center": replicas[0] / np.float32(2) + replicas[1] / np.float32(2)}
    if algorithm == "async_ps":
        with h5py.File(Store(killed.folder).committed()[-1] / "trainer-0000.h5") as saved:
            expected["optimizer"] = np.concatenate(
                [saved["sync/center"][name][()].ravel() for name, _ in killed.config.network.layout]
            )
    lost = np.arange(size) >= size // 2
    for name, values in expected.items():
        found = np.concatenate([now[f"sync_ps-{k}"][name].view(np.float32) for k in range(2)])
        old = np.concatenate([before[f"sync_ps-{k}"][name].view(np.float32) for k in range(2)])
        np.testing.assert_array_equal(found[lost], values[lost])
        np.testing.assert_array_equal(found[~lost], old[~lost])
        assert (old[lost] != found[lost]).all()
    for rank in ("trainer-0", "trainer-1"):
        np.testing.assert_array_equal(before[rank]["replica"], now[rank]["replica"])


@pytest.mark.parametrize(
    ("lost", "setting", "why"),
    [
        ("trainer-0", "recovery.mode=partial", "the first trainer's is needed to resume"),
        ("embedding_ps-1", "recovery.mode=full", "recovery.mode = 'full'"),
        ("embedding_ps-1", "recovery.mode=partial", "that of embedding_ps 1 cannot be rebuilt (the disk says no)"),
    ],
)
def test_what_cannot_be_made_good_takes_all_ranks_back_to_the_checkpoint(
    tmp_path, small_data, lost, setting, why, monkeypatch, caplog
):
    """To compute what a run computes that was not killed; rows saved before are then those of another timeline."""
    through = train_over_threads(tmp_path / "through", small_data, *ONE, "topology.embedding_ps=2")
    killed = Killed(tmp_path / "killed", small_data, *TWO_PS, setting)
    checkpoint, _ = killed.start_and_save()
    assert run_record.RunRecord.read(killed.folder).timeline == 1
    caplog.set_level("INFO", log.name)

    def refuse(*arguments):
        raise DataError("the disk says no")

    monkeypatch.setattr(newest, "restore", refuse)
    killed.lose(lost).start()
    (only,) = killed.recoveries
    assert only["how"] == checkpoint.name
    assert why in only["lost"]
    assert f"all ranks go back to {checkpoint.name} (full recovery)" in caplog.text
    assert run_record.RunRecord.read(killed.folder).timeline == 2
    result = killed.run.result
    assert (result["status"], result["pls"], result["examples"]) == ("complete", 0.0, 6_000)
    for mine, theirs in zip(killed.run.tables(), through.tables(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_loss_during_a_save_goes_back_to_the_one_before(tmp_path, small_data):
    killed = Killed(tmp_path, small_data, *TWO_PS).start(Kill(store, "commit", 2)).lose("embedding_ps-1").start()
    (only,) = killed.recoveries
    assert only["sources"] == {"embedding_ps 1": "checkpoint-000001"}
    taken = examples_of(Store(killed.folder).committed()[0])
    assert only["samples_lost"] == only["examples"] - taken >= 1_000
    assert killed.run.result["status"] == "complete"


def test_a_trainer_lost_in_an_evaluation_has_nothing_in_hand(tmp_path, small_data):
    killed = Killed(tmp_path, small_data, *BY_MESSAGES, "evaluate.split=validation")
    killed.start(Kill(Evaluator, "run")).lose("trainer-1").start()
    (only,) = killed.recoveries
    assert (only["how"], only["rows_dealt_again"], only["examples"]) == ("partial", 0, 6_000)
    assert killed.run.result["status"] == "complete"
    assert killed.run.quality("validation")["after_examples"] == 6_000


def test_a_loss_is_recovered_in_part_only_within_the_target(tmp_path, small_data):
    """By what it costs, as booked, whatever is expected of losses: at exactly the target, not above it. At 85 %."""
    settings = (*TWO_PS, "checkpoint.every_examples=0", "data.batch_size=100", "recovery.mtbf_hours=1e5")
    for target, how, booked in ((1.0, "partial", 0.425), (0.425, "partial", 0.425), (0.4249, "beginning", 0.0)):
        killed = Killed(tmp_path / str(target), small_data, *settings, f"recovery.target_pls={target}")
        killed.start(Kill(Progress, "record", 53)).lose("embedding_ps-1").start()
        (only,), result = killed.recoveries, killed.run.result
        assert (only["how"], result["pls"], result["status"]) == (how, booked, "complete")
    assert "partial recovery would bring the run's PLS to 0.425, above recovery.target_pls = 0.4249" in only["lost"]


@pytest.mark.parametrize("lost", [("embedding_ps-1",), ("embedding_ps-1", "trainer-1")])
def test_what_a_loss_costs_is_known_before_it_is_booked(tmp_path, small_data, monkeypatch, lost):
    asked = []
    monkeypatch.setattr(lost_servers, "over_target", lambda pls, options: asked.append(pls) or "")
    settings = (*BY_MESSAGES, *TWO_PS[len(ONE) :], "checkpoint.every_examples=0")
    killed = Killed(tmp_path, small_data, *settings).start(Kill(Progress, "record", 20))
    killed.lose(*lost).start(Kill(Progress, "record", 5)).lose(*lost).start()
    booked = set(itertools.accumulate(each["samples_lost"] / 6_000 / 2 for each in killed.recoveries))
    assert sorted(set(asked)) == pytest.approx(sorted(booked))  # every rank asks
    assert asked[-1] == killed.run.result["pls"] >= asked[0] > 0  # or only the lost trainer trained in between


class SaveRows:
    """Embedding PSs save rows by themselves when so many batches were done, and at no other time; then comes a kill.
    ``values`` are weights and state of the PSs at each save. They believe the run to be so many samples ``ahead``.
    """

    def __init__(self, config, numbers, kill, ahead=0):
        self._config, self._numbers, self._kill, self._ahead = config, numbers, kill, ahead
        self._savers, self.values, self.dies = {}, [], False

    def __enter__(self):
        self._were = Progress.record, RowSaver.__init__, RowSaver.run
        (record, made, _), calls = self._were, itertools.count(-1)  # the first call compiles

        def recorded(*arguments):
            done = next(calls)
            if done in self._numbers:
                self.save(after(self._config, done))
            if done == self._kill or self.dies:
                raise KilledError
            return record(*arguments)

        def kept(saver, store, *arguments):
            made(saver, store, *arguments)
            self._savers[store.path] = saver

        Progress.record, RowSaver.__init__ = recorded, kept
        RowSaver.run = lambda saver: saver._thread_is_done.set()

    def save(self, samples):
        savers = [self._savers[path] for path in sorted(self._savers)]
        self.values.append([(s._server.arena.weights.copy(), s._server.arena.state.copy()) for s in savers])
        for saver in savers:
            saver._server.samples = samples + self._ahead
            saver.save()

    def __exit__(self, *error):
        Progress.record, RowSaver.__init__, RowSaver.run = self._were


def lookups_by_hand(config, placement, server, first, end):
    """How often each row of an embedding PS is looked up by the batches from one number to before another."""
    counts = np.zeros(placement.rows_of(server), int)
    for batch in itertools.islice(batches(config), first, end):
        for part in placement.parts_of(server):
            column = batch.ids[:, part.table]
            mine = column[column % part.stride == part.first]
            np.add.at(counts, part.base + mine // part.stride, 1)
    return counts


ADAM = tuple(f"{part}.{key}" for part in ("dense", "embedding") for key in ("optimizer=adam", "rate=0.001"))


@pytest.mark.parametrize("optimizers", [(), ADAM], ids=["adagrad", "adam"])
def test_each_row_of_a_lost_embedding_ps_is_as_in_its_own_newest_save(tmp_path, small_data, optimizers):
    """With its optimizer's state. Which rows the priority saves after the first one take, and which accesses they miss,
    is counted by hand.
    """
    saves, kill, fraction = (4, 8, 12), 14, 0.02
    settings = ("checkpoint.priority=mfu", f"checkpoint.priority_fraction={fraction}", "recovery.mode=partial")
    killed = Killed(tmp_path, small_data, *TWO_PS, *settings, *optimizers, "checkpoint.every_examples=0")
    config, placement = killed.config, place(SplitReader(small_data, "train", 600).manifest.cardinalities, 2)
    saving, scope = SaveRows(config, saves, kill), scope_of(placement, 1)
    killed.start(saving)
    weights, state = saving.values[0][1]
    unsaved = np.zeros(scope.rows, int)
    for number, (first, end) in enumerate(itertools.pairwise(saves), 1):
        unsaved += lookups_by_hand(config, placement, 1, first, end)
        chosen = np.zeros(scope.rows, bool)
        for start, stop, whole in scope.parts:
            chosen[start:stop] = whole
        able = np.flatnonzero(~chosen & (unsaved > 0))
        chosen[able[np.argsort(-unsaved[able], kind="stable")][: scope.most(fraction)]] = True
        assert unsaved[chosen].sum() < unsaved.sum()
        unsaved[chosen] = 0
        weights[chosen], state[chosen] = (values[chosen] for values in saving.values[number][1])
    killed.lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    assert_reloaded(killed, placement, weights, state)
    (only,) = killed.recoveries
    now = after(config, kill)
    assert (only["how"], only["examples"], only["batches_repeated"]) == ("partial", now, 0)
    assert only["sources"] == {"embedding_ps 1": "embedding-0001.rows"}
    assert only["samples_lost"] == now - after(config, saves[0])
    lost = unsaved.sum() + (now - after(config, saves[-1])) * placement.lookups_of(1)
    assert only["updates_lost"] == round(lost)
    unsaved += lookups_by_hand(config, placement, 1, saves[-1], kill)
    assert unsaved.sum() == pytest.approx(lost, rel=0.05)  # of a striped table not every PS has the same share
    assert f"and {round(lost):,} updates" in cost_of(only)


@pytest.mark.parametrize("priority", ["none", "mfu"])
def test_rows_saved_before_a_checkpoint_do_not_replace_it(tmp_path, small_data, priority, monkeypatch):
    """Though they are dated after it; and a checkpoint that fails in between leaves its number to no other."""
    settings = (*TWO_PS, "recovery.mode=partial", f"checkpoint.priority={priority}")
    killed, commit, commits = Killed(tmp_path, small_data, *settings), store.commit, itertools.count(1)
    saving = SaveRows(killed.config, (5,), kill=None, ahead=10_000)

    def committing(*arguments):
        if (number := next(commits)) == 2:
            saving.save(2_000)
            raise OSError(5, "Input/output error")
        saving.dies = number == 3
        return commit(*arguments)

    monkeypatch.setattr(store, "commit", committing)
    killed.start(saving)
    assert [path.name[-1] for path in Store(killed.folder).committed()] == ["1", "3"]
    killed.lose("embedding_ps-1").start()
    (only,) = killed.recoveries
    assert only["sources"] == {"embedding_ps 1": "checkpoint-000003"}
    assert only["samples_lost"] == only["examples"] - examples_of(Store(killed.folder).path(3))


PLACES = (
    (Progress, "record", 30), (Lookups, "push", 30), (restart, "resumed", 2), (RecoveryNotes, "evaluated", 3),
    (Evaluator, "run", 3), (store, "commit", 2), (newest, "restore", 1), (run_record, "complete", 1),
)  # fmt: skip
MAY_GO = ("embedding_ps-0", "embedding_ps-1", "trainer-1", "sync_ps-0", "sync_ps-1")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_killed_every_row_is_trained_on(tmp_path, small_data, seed, monkeypatch):
    """Ten kills at random places, each with the memory of some ranks or of none."""
    chance, trained, add = random.Random(seed), [], TrainedRows.add
    monkeypatch.setattr(TrainedRows, "add", lambda self, thread, rows: (trained.append(rows), add(self, thread, rows)))
    algorithm = chance.choice(sorted(EVERY))
    settings = (*BY_MESSAGES, f"sync.algorithm={algorithm}", *EVERY[algorithm], *TWO_PS[-3:], "recovery.mode=partial")
    killed = Killed(tmp_path, small_data, *settings, "recovery.max_lost_fraction=1", "evaluate.split=validation")
    lost = []
    for _ in range(10):
        owner, name, most = chance.choice(PLACES if lost else PLACES[:-2])
        if killed.ended_before(Kill(owner, name, chance.randint(1, most), after=chance.random() < 0.5)):
            break
        lost = chance.sample(MAY_GO, chance.choice((0, 1, 1, 2, 5)))
        killed.lose(*lost)
    else:
        killed.start()
    result = killed.run.result
    assert (result["status"], result["examples"]) == ("complete", 6_000)
    assert len({(block, row) for block, start, stop in trained for row in range(start, stop)}) == 6_000
    booked = sum(each.get("samples_lost", 0) for each in result["recoveries"])
    assert booked <= round(result["pls"] * 6_000 * 2) <= 6_000 * 2  # a kill may come between booking and record
