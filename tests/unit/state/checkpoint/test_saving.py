"""Training goes on while the disk is slow, hangs or is full; what is late is named with its file and its rank."""

import errno
import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import no_room
from runs import train_over_threads
from strength import in_soak

from ssmpi.data.schema import read_manifest
from ssmpi.embedding.shards import Tables
from ssmpi.model.replica import ThreadModel
from ssmpi.runtime.errors import DataError, PeerError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.run_options import CheckpointOptions
from ssmpi.state import resume
from ssmpi.state.checkpoint import disk, model_saver, pending_save, store
from ssmpi.state.checkpoint.manager import CheckpointManager, CheckpointTimer
from ssmpi.state.checkpoint.store import MANIFEST_NAME, Store
from ssmpi.state.request import RunRequest
from ssmpi.trainer import trainer

SETTINGS = (
    "data.batch_size=50", "data.block_rows=100", "evaluate.split=none", "evaluate.final=none",
    "checkpoint.every_examples=500", "run.record_losses=false",
)  # fmt: skip
TWO = ("topology.trainers=2", "topology.embedding_ps=2", "sync.algorithm=ma")
MORE = 12  # iterations that must be seen while the disk is held: of several blocks, so some were dealt meanwhile
LIMIT = 30.0  # seconds for that


class Held:
    """A call to the disk that lasts until training has gone on, or clearly has not."""

    def __init__(self):
        self.iterations, self.gone_on, self.calls = 0, [], 0

    def hold(self, *arguments):
        """Wait for more iterations; note how many there were."""
        self.calls += 1
        before, deadline = self.iterations, time.monotonic() + LIMIT
        while self.iterations < before + MORE and time.monotonic() < deadline:
            time.sleep(0.002)
        self.gone_on.append(self.iterations - before)


@pytest.fixture
def held(inject):
    held = Held()

    def count(*arguments):
        held.iterations += 1

    inject(ThreadModel, "forward_backward", count)
    return held


def by_trainers(path):
    return path.name.startswith("trainer-0001")


def test_due_does_not_touch_a_checkpoint_being_written(tmp_path):
    options = CheckpointOptions(every_examples=10)
    config = SimpleNamespace(checkpoint=options, waiting=None, run=SimpleNamespace(path=tmp_path))
    timer = CheckpointTimer(options, 0, ProcessMemory())
    manager = CheckpointManager(config, None, None, None, timer, SimpleNamespace(seconds=1.0))
    assert [manager.due(examples) for examples in (9, 10, 9, 10)] == [False, True, False, True]
    manager._writing = object()  # whatever is asked of it fails
    assert not manager.due(10)


HOLDS = {
    "tables are written": (disk, "created", lambda path: path.name.startswith("embedding-")),
    "a trainer's file is written": (disk, "created", by_trainers),
    "a checkpoint is committed": (store, "commit", lambda folder, manifest: folder.name.startswith("checkpoint-")),
    "an older one is removed": (disk, "remove_folder", lambda path: True),
}


@pytest.mark.parametrize("what", HOLDS)
def test_training_goes_on_while(what, tmp_path, small_data, monkeypatch, inject, held):
    """Iterations are counted while it is under way, over blocks that are dealt meanwhile; then the run is stopped: it
    must not end before a slow machine has come so far.
    """
    owner, name, which = HOLDS[what]
    inject(owner, name, held.hold, 1, where=which)
    monkeypatch.setattr(trainer, "stop_requested", lambda: bool(held.gone_on))
    run = train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "data.passes=1000", "checkpoint.keep=1")
    assert held.gone_on[0] >= MORE
    assert run.result["status"] == "stopped"
    assert len(Store(run.folder).committed()) == 1


def test_a_limited_time_allows_for_what_the_saves_of_the_run_take(tmp_path, small_data, monkeypatch):
    taken = []
    monkeypatch.setattr(signals, "expect_save", taken.append)
    run = train_over_threads(tmp_path, small_data, *SETTINGS, *TWO)
    written = [line["write_seconds"] for line in checkpoints(run.folder)]
    assert written
    assert taken == pytest.approx(written, abs=0.5)


def test_without_the_background_it_stands_still(tmp_path, small_data, monkeypatch, inject, held):
    """The control of the test above."""
    monkeypatch.setattr("test_saving.LIMIT", 0.3)
    owner, name, which = HOLDS["tables are written"]
    inject(owner, name, held.hold, 1, where=which)
    train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "checkpoint.background=false")
    assert held.gone_on[0] == 0


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_is_stopped_where_it_started_saves_nothing(tmp_path, small_data, monkeypatch, held, resumed):
    """An untrained model can be large, and a copy of a checkpoint would replace an older one."""
    if resumed:
        monkeypatch.setattr(trainer, "stop_requested", lambda: held.iterations > 20)
        train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "data.passes=3")
    before = Store(tmp_path / "run").committed()
    assert bool(before) == resumed
    monkeypatch.setattr(trainer, "stop_requested", lambda: True)
    run = train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "data.passes=3", resume=resumed)
    assert run.result["status"] == "stopped"
    assert Store(run.folder).committed() == before


def hang(monkeypatch, owner, name, which):
    """Calls that ``which`` picks by their arguments last until the test is over."""
    over, original = threading.Event(), getattr(owner, name)

    def hanging(*arguments):
        if which(*arguments):
            over.wait(60)
        return original(*arguments)

    monkeypatch.setattr(owner, name, hanging)
    return over


@pytest.fixture
def said(monkeypatch):
    found = []
    monkeypatch.setattr(log, "error", found.append)
    return found


HANGS = {
    "a trainer's file": (disk, "created", by_trainers, r"trainer 1 has not written .*-000001/trainer-0001\.h5"),
    "a PS's file": (
        disk, "created", lambda path: path.name == "embedding-0001.h5",
        r"embedding_ps 1 has not written .*-000001/embedding-0001\.h5",
    ),
    "the manifest": (
        disk, "rename", lambda old, new: new.name == MANIFEST_NAME, r"trainer 0 has not written .*manifest\.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ["a PS's file", *in_soak("a trainer's file", "the manifest")])
def test_a_file_that_is_never_written_is_named_with_its_rank(what, tmp_path, small_data, monkeypatch, said):
    """While training continues, which can begin no other save; at the end the job does not wait for ever."""
    owner, name, which, words = HANGS[what]
    over = hang(monkeypatch, owner, name, which)
    words += r" after checkpoint\.limit_seconds = 5"
    with pytest.raises(DataError, match=words):
        train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "checkpoint.limit_seconds=5")
    over.set()
    assert not [text for text in said if "No other checkpoint can be written until it finishes" not in text]


def test_where_training_waits_a_hang_costs_the_checkpoint(tmp_path, small_data, monkeypatch, said):
    over = hang(monkeypatch, disk, "created", lambda path: "-000001/embedding-0001" in str(path))
    once = ("checkpoint.every_examples=3500", "checkpoint.limit_seconds=5", "checkpoint.background=false")
    run = train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, *once)
    over.set()
    assert run.result["status"] == "complete"
    assert any("embedding_ps 1: " in text and "embedding-0001.h5 is not written after" in text for text in said)


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path, small_data, monkeypatch, said):
    over = hang(monkeypatch, disk, "make_folder", lambda path: path.name == "checkpoint-000001")
    run = train_over_threads(tmp_path, small_data, *SETTINGS, *TWO, "checkpoint.limit_seconds=5")
    over.set()
    assert run.result["status"] == "complete"
    assert any("trainer 0 has not made a folder in" in text and "limit_seconds = 5" in text for text in said)


def test_a_model_is_not_committed_without_its_tables(tmp_path, small_data, monkeypatch):
    monkeypatch.setattr(Tables, "_wrote", lambda tables, index: False)
    settings = (*SETTINGS, "checkpoint.every_examples=0", "checkpoint.limit_seconds=5", "topology.embedding_ps=0")
    with pytest.raises((DataError, PeerError), match=r"trainer 0 has not written .*embedding-0000\.h5 after"):
        train_over_threads(tmp_path, small_data, *settings)
    assert not list(tmp_path.rglob(MANIFEST_NAME))


class Full:
    """A disk of so many bytes, of which files in a folder take some."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size

    def free(self, _):
        return self.size - sum(path.stat().st_size for path in self.folder.rglob("*.h5") if path.exists())

    def created(self, path):
        if self.free(path) < 1:
            raise OSError(errno.ENOSPC, "No space left on device")


def checkpoints(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "checkpoint"]


@pytest.fixture
def size(tmp_path, small_data):
    """Bytes of a checkpoint of the runs below."""
    run = train_over_threads(tmp_path / "first", small_data, *SETTINGS, "topology.embedding_ps=2")
    return checkpoints(run.folder)[0]["bytes"]


def test_older_checkpoints_make_room_for_new_ones_and_for_the_model(tmp_path, small_data, monkeypatch, size):
    """Of three that are asked for there is room for two; at the end one goes, so that the model has room."""
    full = Full(tmp_path / "run", int(2.5 * size))
    monkeypatch.setattr(pending_save, "SPARE", 0)
    monkeypatch.setattr(disk, "free", full.free)
    run = train_over_threads(tmp_path, small_data, *SETTINGS, "topology.embedding_ps=2", "checkpoint.keep=3")
    assert run.result["status"] == "complete"
    assert not any("error" in line for line in checkpoints(run.folder))
    assert len(Store(run.folder).committed()) == 1
    assert run.tables()


def test_a_save_without_room_says_what_it_needs(tmp_path, small_data, monkeypatch, said):
    monkeypatch.setattr(disk, "free", lambda _: 1_234)
    monkeypatch.setattr(model_saver, "make_room", lambda *_: None)
    run = train_over_threads(tmp_path, small_data, *SETTINGS)
    assert run.result["checkpoints"] == 0
    assert rf"{run.folder}/checkpoints: " in said[0]
    assert "bytes needed, 1,234 free: make room there" in said[0]


def opened(file):
    """The path of a file descriptor."""
    return str(Path(f"/proc/self/fd/{file}").readlink())


def test_a_model_without_room_waits_for_some(tmp_path, small_data, monkeypatch, inject, said):
    """Training is done: what was learned is in memory only. The disk is full in fact, whatever the system says
    is free.
    """
    inject(disk, "write_at", no_room, range(1, 3), where=lambda file, *_: ".model.tmp" in opened(file))
    monkeypatch.setattr(model_saver, "ROOM_SECONDS", 0.05)
    run = train_over_threads(tmp_path, small_data, *SETTINGS, "checkpoint.every_examples=0", "topology.embedding_ps=2")
    assert run.result["status"] == "complete"
    assert run.tables()
    assert len(said) == 1
    assert "cannot be saved" in said[0]
    assert ".h5'" in said[0]
    assert "stays in memory" in said[0]


def test_a_model_that_finds_no_room_leaves_the_newest_checkpoint(tmp_path, small_data, monkeypatch, said):
    monkeypatch.setattr(
        model_saver, "make_room", lambda store, needed, path: pending_save.make_room(store, 10**18, path)
    )
    monkeypatch.setattr(model_saver, "ROOM_SECONDS", 0.05)
    settings = (*SETTINGS, "checkpoint.limit_seconds=5", "topology.embedding_ps=0")
    with pytest.raises(DataError, match=r"model: [\d,]+ bytes needed, [\d,]+ free: .*is the newest committed one"):
        train_over_threads(tmp_path, small_data, *settings)
    assert len(Store(tmp_path / "run").committed()) == 1


def test_a_disk_too_small_for_the_model_is_refused_before_training(tmp_path, small_data, monkeypatch):
    """Before an earlier run is touched; what is removed for the new one counts as free."""
    run, rows = tmp_path / "run", 4 * sum(read_manifest(small_data).cardinalities)
    given = tmp_path / "given.toml"
    given.write_text(f'data.folder = "{small_data}"\nrun.folder = "{run}"\n')

    def prepare(overwrite):
        with ExitStack() as held:
            resume.prepare(RunRequest(given, (), overwrite=overwrite), 2, held)

    prepare(False)
    monkeypatch.setattr(disk, "free", lambda _: 10 * rows)
    with pytest.raises(DataError, match=r"run/model: [\d,]+ bytes needed .*, [\d,]+ free: make room there"):
        prepare(True)
    (run / "metrics.jsonl").write_bytes(bytes(10 * rows + pending_save.SPARE))
    prepare(True)
