"""A run that is stopped and gone on with: the same bits where that is promised, every row once in any case."""

import errno
import itertools
import json
from collections import Counter

import h5py
import numpy as np
import pytest
from runs import train_over_threads

from ssmpi.checkpoint import disk
from ssmpi.checkpoint.store import Store
from ssmpi.errors import DataError
from ssmpi.model.replica import Twin
from ssmpi.roles import control, trainer
from ssmpi.sync.warmup import WarmUp

ONE = ("data.batch_size=100", "data.passes=2", "evaluate.per_pass=2")


@pytest.fixture
def watched(monkeypatch):
    """What is trained on, row by row, and a stop after a number of batches of all trainers."""

    class Watched:
        def __init__(self):
            self.rows, self.stop_at, self._batches = Counter(), None, itertools.count(1)
            self.stopping = False

        def stop_after(self, batches):
            self._batches, self.stop_at, self.stopping = itertools.count(1), batches, False

    watched, forward_backward = Watched(), Twin.forward_backward

    def watching(twin, dense, rows, labels):
        if not dense.any():  # made up to warm up
            return forward_backward(twin, dense, rows, labels)
        watched.rows.update(row.tobytes() for row in dense)
        if next(watched._batches) == watched.stop_at:
            watched.stopping = True
        return forward_backward(twin, dense, rows, labels)

    monkeypatch.setattr(Twin, "forward_backward", watching)
    monkeypatch.setattr(control, "stop_asked", lambda: watched.stopping)
    monkeypatch.setattr(trainer, "warm_up", lambda *_: None)  # its made-up batch is no part of the data
    return watched


def in_pieces(folder, data, watched, stops, *overrides, other=()):
    """A run stopped after so many batches, again and again, and at last finished, each job perhaps with other settings."""
    run = None
    for number, batches in enumerate([*stops, None]):
        watched.stop_after(batches)
        more = other[number % len(other)] if other else ()
        run = train_over_threads(folder, data, *overrides, *more, resume=number > 0)
        assert run.result["status"] == ("complete" if batches is None else "stopped")
    return run


def assert_same(run, reference):
    np.testing.assert_array_equal(run.losses(), reference.losses())
    for name, values in reference.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    for what in ("weights", "state"):
        for table, expected in zip(run.tables(what), reference.tables(what), strict=True):
            np.testing.assert_array_equal(table, expected)
    for name in ("examples", "iterations", "progressive_auc", "evaluations"):
        assert run.result[name] == reference.result[name], name
    loss = "progressive_log_loss"  # summed report by report
    assert run.result[loss] == pytest.approx(reference.result[loss], rel=1e-12)


@pytest.mark.parametrize(("prefetch", "servers"), [("true", 0), ("true", 2), ("false", 2)])
def test_stopped_anywhere_it_gives_the_same_bits(tmp_path, small_data, watched, prefetch, servers):
    overrides = (
        *ONE,
        f"embedding.prefetch={prefetch}",
        f"topology.embedding_ps={servers}",
        "schedule.decay_examples=9000",
    )
    reference = train_over_threads(tmp_path / "whole", small_data, *overrides)
    run = in_pieces(tmp_path / "cut", small_data, watched, [1, 7, 30, 31, 1], *overrides)
    assert_same(run, reference)
    assert set(watched.rows.values()) == {4}  # two passes of two runs


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_an_optimizer_on_sync_pss_goes_on_to_the_same_bits(tmp_path, small_data, watched, optimizer):
    """Its memory is theirs, and their number may change: they are shards of one vector."""
    steps = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1", "sync.by=thread")
    overrides = (*ONE, *steps, f"dense.optimizer={optimizer}")
    reference = train_over_threads(tmp_path / "whole", small_data, *overrides, "topology.sync_ps=2")
    numbers = [(f"topology.sync_ps={n}",) for n in (2, 1, 3)]
    run = in_pieces(tmp_path / "cut", small_data, watched, [1, 30, 45], *overrides, other=numbers)
    assert_same(run, reference)
    with h5py.File(Store(run.folder).committed()[-1] / "trainer-0000.h5") as saved:
        if optimizer == "sgd":
            assert "sync" not in saved
        else:
            np.testing.assert_array_equal(saved["sync/center"], saved["dense/sums"])  # of one trainer the same


def test_checkpoints_on_the_way_change_no_bit(tmp_path, small_data):
    reference = train_over_threads(tmp_path / "without", small_data, *ONE)
    run = train_over_threads(tmp_path / "with", small_data, *ONE, "checkpoint.every_examples=500")
    assert Store(run.folder).committed()
    assert_same(run, reference)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, small_data, monkeypatch):
    """The first save finds the disk full in the middle of a file; a later one finds room."""
    write_at, calls = disk.write_at, itertools.count(1)

    def full_at_first(descriptor, content, offset):
        if next(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_at(descriptor, content, offset)

    monkeypatch.setattr(disk, "write_at", full_at_first)
    run = train_over_threads(tmp_path, small_data, *ONE, "checkpoint.every_examples=500", "topology.embedding_ps=2")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    saved = [line for line in lines if line["kind"] == "checkpoint"]
    assert "No space left on device: make room there" in saved[0]["error"]
    assert run.result["status"] == "complete"
    assert run.result["checkpoints"] == sum("error" not in line for line in saved)


def test_a_stop_that_cannot_save_says_so(tmp_path, small_data, watched, monkeypatch):
    def vanished(path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    watched.stop_after(10)
    monkeypatch.setattr(disk, "make_folder", vanished)
    with pytest.raises(DataError, match=r"no checkpoint could be saved.*checkpoints.*There is no earlier one"):
        train_over_threads(tmp_path, small_data, *ONE)


def test_what_a_manifest_holds(tmp_path, small_data, watched, golden):
    """As pinned, but for what differs between processors and libraries: sizes, checksums, seconds, quality."""
    watched.stop_after(40)
    run = train_over_threads(tmp_path, small_data, *ONE, "topology.embedding_ps=2")
    (folder,) = Store(run.folder).committed()
    body = json.loads((folder / "manifest.json").read_text())
    for entry in body["files"]:
        assert entry["bytes"] == (folder / entry["file"]).stat().st_size
        assert len(entry["checksum"]) == 64
        entry["bytes"], entry["checksum"] = 0, ""
    logbook, evaluations = body["state"]["logbook"], body["state"]["evaluations"]
    for name in ("seconds", "O_save", "bytes"):
        assert logbook[name] > 0
        logbook[name] = 0
    for kept in evaluations["validation"].values():
        kept.update({name: 0 for name in kept if name not in ("rows", "after_examples")})
    body["state"]["identity"]["data.folder (its contents)"] = ""
    found = json.dumps(body, indent=1) + "\n"
    assert found == golden("checkpoint.json", found)


def test_a_warm_up_is_not_repeated(tmp_path, small_data, watched, monkeypatch):
    """It would take the first trainer's replica for that of all."""
    begun, begin = [], WarmUp.__init__
    monkeypatch.setattr(WarmUp, "__init__", lambda *arguments: begun.append(1) or begin(*arguments))
    two = (*ONE, "topology.trainers=2", "sync.algorithm=slowmo", "sync.warmup_steps=5")
    run = in_pieces(tmp_path, small_data, watched, [40], *two)
    assert len(begun) == 2  # trainers of the first job
    assert run.result["examples"] == 12_000


OTHER_NUMBERS = [
    ("topology.trainers=1", "topology.threads=1", "topology.embedding_ps=0"),
    (
        "topology.trainers=3",
        "topology.threads=2",
        "topology.embedding_ps=3",
        "topology.sync_ps=2",
        "sync.algorithm=easgd",
    ),
    ("topology.trainers=2", "topology.threads=4", "topology.embedding_ps=1", "sync.algorithm=bmuf"),
    (
        "topology.trainers=2",
        "topology.threads=1",
        "topology.embedding_ps=2",
        "topology.sync_ps=1",
        "sync.algorithm=easgd",
    ),
]


@pytest.mark.parametrize("handout", ["dynamic", "static"])
def test_other_numbers_repeat_no_row_and_lose_none(tmp_path, small_data, watched, handout):
    settings = (*ONE, f"data.handout={handout}")
    run = in_pieces(tmp_path, small_data, watched, [9, 15, 20, 11, 25, 3], *settings, other=OTHER_NUMBERS)
    assert set(watched.rows.values()) == {2}
    assert len(watched.rows) == 6_000
    assert run.result["examples"] == run.result["expected_examples"] == 12_000
