"""Embedding PSs save by themselves while training continues, which computes the same; what fails is said."""

import json
import math
import os
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from faults import Fault, broken_disk, no_room
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options
from runs import train_over_threads, write_run_file
from strength import at_least

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import MFU, scope_of
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import RECOVERIES, unknown_entries
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.topology import Topology
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.rows import saver
from ssmpi.state.checkpoint.rows.newest import Unsaved
from ssmpi.state.checkpoint.rows.records import read_rows
from ssmpi.state.checkpoint.rows.row_store import RowStore, path_of, remove_beyond
from ssmpi.state.checkpoint.rows.saver import POLL_SECONDS, RowSaver, SaveSchedule
from ssmpi.state.recovery import run_record
from ssmpi.tools import inspect
from ssmpi.trainer import control, embedding_ps
from ssmpi.trainer.metrics.results import RunResults

OFTEN = ("recovery.mtbf_hours=1e-6", "recovery.mode=partial")
SAVING = ("topology.embedding_ps=2", *OFTEN, "checkpoint.priority=mfu")
ROWS, FRACTION = 100, 0.1


class Notes(ProcessMemory):
    """Memory whose notes outlive a process."""

    def __init__(self):
        self.kept_notes = "{}"

    @property
    def noted(self):
        return json.loads(self.kept_notes)

    def note(self, **changes):
        self.kept_notes = json.dumps(self.noted | changes)


@pytest.fixture
def said(monkeypatch):
    texts = []
    monkeypatch.setattr(log, "warning", texts.append)
    return texts


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Saving:
    """A saver of 100 rows that are looked up by hand. ``restart`` is another process that goes on with the memory."""

    def __init__(self, folder, priority="mfu", fraction=FRACTION, interval=100 * 3600.0, most_samples=math.inf):
        share = 1.0 if priority == "none" else fraction
        self.schedule = SaveSchedule(share, interval, 10.0, most_samples)
        self.path, plan = path_of(folder / "run", 0), place((ROWS,), 1)
        self.path.parent.mkdir(parents=True)
        self.arena = Arena(row_options(4), plan, 0, seed=1)
        self.tracker = None
        if priority == "mfu":
            scope = scope_of(plan, 0)
            self.tracker = MFU(scope, fraction, np.zeros(MFU.bytes_for(scope, fraction), np.uint8))
            self.arena.set_observer(self.tracker.observe)
        self.server = SimpleNamespace(arena=self.arena, samples=7, checkpoint=0)
        self.memory = Notes()
        self.restart()

    def restart(self, earlier=0.0):
        store = RowStore(self.path, self.arena, 1)
        self.saver = RowSaver(store, self.tracker, self.server, self.memory, self.schedule, earlier)

    def use(self, *rows, times=1):
        found = np.array(rows, np.int32)
        self.arena.update(found, np.ones((len(rows), 4), np.float32), 1.0, np.full(len(rows), times, np.int32))

    def save(self, *, samples=7):
        self.server.samples = samples
        self.saver.save()

    @property
    def records(self):
        found, dropped = read_rows(self.path)
        assert not dropped
        return [record.header.count for record in found.records]

    def seconds_left(self):
        """Until the next save, as its thread sees it."""
        self.saver._note_server()
        return self.saver._seconds_left()

    def loaded(self):
        """The rows that another process finds."""
        again = Arena(self.arena.options, place((ROWS,), 1), 0, seed=2)
        store = RowStore(self.path, again, 1)
        store.restore(store.load())
        return again.weights


@pytest.fixture
def saving(tmp_path):
    return Saving(tmp_path)


def test_all_rows_first_then_those_selected(saving, said):
    saving.save()
    saving.use(3, 50)
    saving.save()
    assert saving.records == [ROWS, 2]
    assert not said
    lines = saving.saver.take_lines()
    assert [(line["rows"], line["covered"], line["position"]) for line in lines] == [(ROWS, 1, 7), (2, 1, 7)]
    assert sum(line["bytes"] for line in lines) == saving.path.stat().st_size
    assert saving.saver.take_lines() == []


def test_without_priority_all_rows_every_time(tmp_path):
    saving = Saving(tmp_path, "none")
    for _ in range(2):
        saving.use(3)
        saving.save()
        assert saving.records == [ROWS]
        np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)


@pytest.mark.parametrize("step", ["sync", "write_at"])
def test_a_save_that_fails_is_said_and_all_rows_are_saved_next(saving, said, step):
    saving.save()
    saving.use(3)
    with Fault(disk, step, no_room):
        saving.save()
    (text,) = said
    assert "rows could not be saved, training continues" in text
    assert "bytes needed" in text
    assert str(saving.path) in text
    assert saving.saver.take_lines()[-1] == {"error": text}
    saving.use(4)
    saving.save()
    assert saving.records == [ROWS]
    np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)
    saving.save()
    assert saving.records == [ROWS, 0]


def test_a_full_disk_at_the_base_leaves_the_older_one_alone(tmp_path, said):
    saving = Saving(tmp_path, "none")
    saving.save()
    before = saving.loaded().copy()
    saving.use(3)
    with Fault(disk, "sync", no_room):
        saving.save()
        saving.save()
    assert len(said) == 2
    assert list(saving.path.parent.iterdir()) == [saving.path]
    np.testing.assert_array_equal(saving.loaded(), before)


class KilledError(BaseException):
    """The process ends here."""


@at_least(40)
@given(st.integers(0, 60), st.integers(0, 40))
def test_a_kill_at_any_step_of_any_save_costs_no_saved_row(tmp_path_factory, at, rows):
    """Killed at each of the calls that change the disk; the next process goes on with the memory, and what it saves
    next makes the file as the rows are, as it is after every save of all that was used.
    """
    saving = Saving(tmp_path_factory.mktemp("kill"), fraction=1.0)
    calls = [0]

    def maybe(operation):
        def counted(*arguments):
            calls[0] += 1
            if calls[0] == at:
                raise KilledError
            return operation(*arguments)

        return counted

    killed = False
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write_at", "truncate", "sync", "rename", "remove_file", "sync_folder"):
            patch.setattr(disk, name, maybe(getattr(disk, name)))
        for k in range(6):
            saving.use(*range(k, k + rows))
            try:
                saving.save()
                np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)
            except KilledError:
                killed = True
                saving.restart()
    saving.use(99)
    saving.save()
    np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)
    assert killed or calls[0] < at or at == 0


def test_a_warm_restart_goes_on_with_counts_increments_and_the_clock(saving):
    saving.save()
    saving.use(3, times=5)
    saving.use(*range(20, 40))
    left, cost = saving.seconds_left(), saving.saver.interval
    saving.restart()
    assert saving.seconds_left() == pytest.approx(left, abs=1)
    assert saving.saver.interval == cost
    saving.save()
    assert saving.records == [ROWS, 10]
    found, _ = read_rows(saving.path)
    assert found.records[1].rows.tolist() == [3, *range(20, 29)]


def test_after_a_kill_between_selection_and_writing_all_rows_are_saved(saving, monkeypatch):
    saving.save()
    saving.use(3)

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(RowStore, "save", killed)
        with pytest.raises(KilledError):
            saving.saver.save()
    saving.restart()
    saving.save()
    assert saving.records == [ROWS]


def test_a_damaged_file_is_replaced(saving, said):
    saving.save()
    saving.path.write_bytes(b"x" + saving.path.read_bytes()[1:])
    saving.restart()
    for _ in range(2):
        saving.use(3)
        saving.save()
    assert "damaged" in said[0]
    assert saving.records == [ROWS]
    np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)


def test_updates_lost_are_the_accesses_since_each_rows_own_save(saving):
    """``mfu`` knows them; a loss before the next save adds those of the samples since."""
    saving.save(samples=100)
    saving.use(*range(10), times=6)
    saving.use(*range(10, 30), times=2)
    saving.save(samples=200)
    assert read_rows(saving.path)[0].unsaved == (40, 200)
    unsaved = Unsaved(40, 200, per_sample=1.5)
    assert unsaved.lost(covered=100, now=200) == 40
    assert unsaved.lost(covered=100, now=300) == 40 + 150
    assert unsaved.lost(covered=250, now=300) == 75  # lost, and loaded anew, after that save
    saving.use(50)
    saving.save(samples=210)
    assert read_rows(saving.path)[0].unsaved == (40 - 2 * 10 + 1, 210)


def test_updates_lost_are_not_known_where_nobody_counts(saving):
    saving.save()
    RowStore.load(store := RowStore(saving.path, saving.arena, 1))
    store.save(np.array([3], np.int32), 9, 0.1)
    left, samples = read_rows(saving.path)[0].unsaved
    assert math.isnan(left)
    assert math.isnan(Unsaved(left, samples, 1.0).lost(0, 10))


def test_increments_that_outweigh_their_base_are_merged(saving):
    for checkpoint, records in ((0, [ROWS]), (1, [ROWS, 10])):
        saving.save(samples=100)
        found = []
        for samples in range(200, 1400, 100):
            saving.use(*range(10))
            saving.save(samples=samples)
            saving.server.checkpoint = checkpoint
            found.append(saving.records)
            np.testing.assert_array_equal(saving.loaded(), saving.arena.weights)
        shrunk = next(k for k in range(1, 12) if len(found[k]) < len(found[k - 1]))
        assert found[shrunk][:2] == records[:2] or found[shrunk] == [ROWS]
        base = read_rows(saving.path)[0].base.header.samples
        assert (base > 100) == (checkpoint == 1)  # a merged base is as old as its oldest row
        saving.restart()


def test_the_interval_is_never_below_ten_saves(tmp_path):
    """A fraction of it for a fraction of the rows."""
    saving = Saving(tmp_path / "a", interval=3_600.0)
    assert saving.saver.interval == pytest.approx(FRACTION * 3_600)
    saving.memory = Notes()  # which was lost
    saving.restart(earlier=1000.0)
    assert saving.saver.interval == pytest.approx(FRACTION * 10 * 1000)
    assert Saving(tmp_path / "b", "none", interval=3_600.0).saver.interval == 3_600


@pytest.mark.parametrize("priority", ["none", "mfu"])
def test_rows_are_saved_before_one_loss_costs_more_than_the_target(tmp_path, priority):
    """However rare losses are; a checkpoint and a restart count, and no save follows another at once."""
    saving = Saving(tmp_path, priority, most_samples=1_000)
    share = 1.0 if priority == "none" else FRACTION
    saving.save(samples=5_000)
    saving.restart()
    saving.saver._seconds = 3.0
    saving.server.samples = int(5_000 + 1_000 * share) - 1
    assert saving.seconds_left() > 3_600
    saving.server.samples += 1
    assert 28 * share < saving.seconds_left() <= 30 * share
    saving.server.checkpoint = 1
    assert (saving.seconds_left() > 3_600) == (priority == "none")


def test_without_priority_a_checkpoint_counts_as_a_save(tmp_path):
    saving = Saving(tmp_path, "none")
    saving.saver._at -= 3600
    left = saving.seconds_left()
    saving.server.checkpoint = 1
    assert saving.seconds_left() == pytest.approx(left + 3600, abs=5)


def test_nothing_is_saved_before_samples_are_known(saving):
    saving.server.samples = -1
    assert saving.seconds_left() == POLL_SECONDS
    saving.server.samples = 0
    assert saving.seconds_left() < 0


def test_nothing_is_saved_where_that_does_not_pay(tmp_path):
    saving = Saving(tmp_path, interval=math.inf)
    assert saving.seconds_left() == math.inf
    saving.server.samples = 1_000_000_000
    assert saving.seconds_left() == math.inf


def test_row_saves_that_cannot_be_removed_do_not_change_how_a_run_ends(saving, inject, said):
    saving.save()
    inject(disk, "remove_file", broken_disk)
    saving.saver._thread_is_done.set()
    saving.saver.stop(0)
    assert said == [f"obsolete row saves are not removed: [Errno 5] Input/output error: '{saving.path}'"]


def test_a_full_disk_where_row_saves_are_timed_ends_nothing(tmp_path, monkeypatch, said):
    """``recoveries.json`` is written again and again while training goes on; saves that fail end nothing either."""
    results = RunResults(tmp_path, SimpleNamespace(log_seconds=1.0, tensorboard=False), Topology(embedding_ps=2), 100)
    line = {"ps": 1, "rows": 3, "bytes": 12, "covered": 1.0, "write_seconds": 0.1, "position": 50}
    results.rows_saved([{**line, "all_rows_seconds": 0.5}])

    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", full)
        results.rows_saved([{**line, "all_rows_seconds": 0.75}])
    assert said == [
        "training continues, but how long row saves take is not recorded: [Errno 28] No space left on device:"
        f" '{tmp_path / RECOVERIES}'"
    ]
    results.logbook.close()
    assert run_record.RunRecord.read(tmp_path).row_save_seconds == 0.5
    written = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["rows"] for each in written] == [3, 3]


def test_flat_access_draws_one_warning(saving, said):
    saving.save()
    for _ in range(3):
        saving.use(*range(ROWS))
        saving.save()
    (text,) = said
    assert "10.0% of the rows that a priority save takes have 10.0% of what changes" in text
    assert "checkpoint.priority = 'none'" in text


def test_a_saver_that_is_told_to_stop_ends_the_save_that_it_is_writing(saving, monkeypatch):
    writing, told = threading.Event(), threading.Event()
    write_at = disk.write_at

    def slow(*arguments):
        writing.set()
        assert told.wait(20)
        write_at(*arguments)

    monkeypatch.setattr(disk, "write_at", slow)
    thread = threading.Thread(target=saving.saver.run)
    thread.start()
    assert writing.wait(20)
    stopping = threading.Thread(target=saving.saver.stop, args=(20,))
    stopping.start()
    told.set()
    stopping.join(20)
    thread.join(20)
    assert not thread.is_alive()
    assert list(saving.path.parent.iterdir()) == []


def test_what_more_embedding_ps_had_saved_is_removed(tmp_path):
    for index in range(3):
        path_of(tmp_path, index).parent.mkdir(exist_ok=True)
        path_of(tmp_path, index).touch()
    remove_beyond(tmp_path, 2)
    assert [path_of(tmp_path, index).exists() for index in range(3)] == [True, True, False]


@pytest.fixture
def often(monkeypatch):
    """The first trainer tells the PSs soon how many samples there are; none ends before it has saved."""
    monkeypatch.setattr(control, "REPORT_SECONDS", 0.01)
    monkeypatch.setattr(saver, "POLL_SECONDS", 0.01)
    end, deadline = RowSaver.end, time.monotonic() + 60

    def end_once_saved(saver):
        while saver._store.base_checkpoint < 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        end(saver)

    monkeypatch.setattr(RowSaver, "end", end_once_saved)


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory, small_data):
    return train_over_threads(tmp_path_factory.mktemp("plain"), small_data, "topology.embedding_ps=2").losses()


@pytest.mark.parametrize(
    ("priority", "shared"),
    [("none", "true"), ("mfu", "true"), ("mfu", "false"), ("ssu", "true"), ("ssu", "false"), ("scar", "true")],
)
def test_saves_beside_training_change_nothing_in_it(
    tmp_path, small_data, plain_losses, often, monkeypatch, priority, shared
):
    kept = []
    monkeypatch.setattr(RowStore, "remove", lambda store: kept.append(store.path))
    options = ("topology.embedding_ps=2", f"run.shared_memory={shared}", f"checkpoint.priority={priority}")
    run = train_over_threads(tmp_path / "run", small_data, *options, *OFTEN, memory=tmp_path)
    np.testing.assert_array_equal(run.losses(), plain_losses)
    assert sorted(kept) == [path_of(run.folder, k) for k in range(2)]
    for path in kept:
        found, _ = read_rows(path)
        assert 0 <= found.base.header.samples <= 12_000
    assert unknown_entries(run.folder) == []
    text, well = inspect.describe(run.folder, checksums=True)
    assert well
    assert re.search(
        r"embedding-0001\.rows: [\d,]+ rows, all saved after [\d,]+ samples, [\d,]+ increments up to", text
    )
    path_of(run.folder, 1).write_bytes(b"x" + path_of(run.folder, 1).read_bytes()[1:])
    text, well = inspect.describe(run.folder, checksums=True)
    assert not well
    assert "embedding-0001.rows: DAMAGED" in text


def test_a_run_that_ends_leaves_no_saved_rows(tmp_path, small_data, often):
    run = train_over_threads(tmp_path, small_data, *SAVING, memory=tmp_path)
    assert list((run.folder / "rows").iterdir()) == []


@pytest.mark.parametrize(
    ("override", "text"),
    [("topology.embedding_ps=0", "has no embedding PSs"), ("recovery.mode=off", 'recovery.mode = "off" rules out')],
)
def test_priority_needs_embedding_ps_and_partial_recovery(tmp_path, small_data, override, text):
    with pytest.raises(SettingsError, match=text):
        write_run_file(tmp_path, small_data, "checkpoint.priority=mfu", override)


def test_priority_without_the_launcher_is_said_to_do_nothing(tmp_path, small_data, said):
    run = train_over_threads(tmp_path, small_data, "topology.embedding_ps=1", "checkpoint.priority=mfu")
    assert [text for text in said if "checkpoint.priority has no effect in this job" in text]
    assert not (run.folder / "rows").exists()


def test_a_copy_that_does_not_fit_is_refused(tmp_path, small_data, monkeypatch):
    monkeypatch.setattr(embedding_ps, "free_memory", lambda: 1000.0)
    arithmetic = (
        r'"scar" copies the weights: 0\.0 GB for 1 embedding PSs of this host \(this one\'s [\d,]+ rows x 8 floats'
    )
    with pytest.raises(DataError, match=arithmetic):
        train_over_threads(tmp_path, small_data, *SAVING, "checkpoint.priority=scar", memory=tmp_path)


@pytest.mark.parametrize("saved", [True, False])
def test_time_outlives_a_process_and_does_not_follow_the_date(tmp_path, monkeypatch, saved):
    """A clock that starts anew with every process would never be due where processes die often; nor one that the
    administrator has set back.
    """
    saving = Saving(tmp_path, "none")
    if saved:
        saving.save()
    later = time.monotonic() + saving.saver.interval + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    saving.restart()
    assert saving.seconds_left() <= 0


@pytest.mark.parametrize("of", ["save_all", "save"])
def test_rows_stay_where_they_are_while_they_are_saved(tmp_path, monkeypatch, of):
    """A pause that moved some would let a save miss them."""
    saving, write, held = Saving(tmp_path), getattr(RowStore, of), []

    def watched(store, *arguments):
        held.append(saving.arena.move_lock.locked())
        return write(store, *arguments)

    monkeypatch.setattr(RowStore, of, watched)
    saving.save()
    saving.use(1)
    saving.save()
    assert held == [True]
    assert not saving.arena.move_lock.locked()
