"""Whatever happens while a checkpoint is saved, and whenever, the newest committed one loads."""

import errno
import itertools
import json
import os
import random
import signal
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from faults import broken_disk, io_error, no_room

from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import checkpoint_number
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin, ProcessMemory
from ssmpi.runtime.run_options import CheckpointOptions
from ssmpi.state.checkpoint import disk, files, manager, pending_save, store
from ssmpi.state.checkpoint.manager import CheckpointTimer
from ssmpi.state.checkpoint.store import CheckpointManifest, Store
from ssmpi.state.recovery import run_record

OPERATIONS = (
    "make_folder",
    "created",
    "write",
    "write_at",
    "sync",
    "sync_folder",
    "rename",
    "remove_file",
    "remove_folder",
)
OPERATIONS_OF_A_SAVE = 25  # of the one below, which also retires an older one


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """What a killed process has written survives it without that; what a power cut leaves has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def values(number, rows=2_000):
    return np.random.default_rng(number).normal(size=(rows, 4)).astype(np.float32)


def save(run, number, keep=2):
    """A checkpoint of two files whose content is known from its number; the same calls as a job's."""
    run.mkdir(exist_ok=True)
    the_store = Store(run)
    folder = the_store.begin()
    datasets = [("table/weights", values(number), {"table": 0}), ("table/state", values(number)[:, 0], {})]
    entries = (
        files.write(folder / "embedding-0000.h5", datasets),
        files.write(folder / "trainer-0000.h5", [("replica", values(1000 + number), {})]),
    )
    store.commit(folder, CheckpointManifest(entries, {"number": number}))
    the_store.retire(keep)


def newest(run):
    """The number of the newest committed checkpoint, every byte of which is as saved; 0 if there is none."""
    there = Store(run).committed()
    for path in there:
        store.check(path)  # those before it are whole too
        number = store.read_manifest(path).state["number"]
        found = files.read(path / "embedding-0000.h5")
        np.testing.assert_array_equal(found["table/weights"], values(number))
        np.testing.assert_array_equal(found["table/state"], values(number)[:, 0])
        np.testing.assert_array_equal(files.read(path / "trainer-0000.h5")["replica"], values(1000 + number))
    return number if there else 0


def in_child(body):
    """Run ``body`` in a process of its own; whether it came to its end."""
    child = os.fork()
    if not child:
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def at_operation(number, happens):
    """Let something happen before the ``number``-th change on disk, and half of a write be done."""
    count = itertools.count(1)
    for name in OPERATIONS:
        original = getattr(disk, name)

        def counted(*arguments, original=original, name=name):
            if next(count) == number:
                if name == "write":
                    arguments[0].write_bytes(arguments[1][: len(arguments[1]) // 2])
                if name == "write_at":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
                happens()
            return original(*arguments)

        setattr(disk, name, counted)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def full():
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("happens", [kill, full])
def test_killed_or_failing_at_any_operation_of_any_save(tmp_path, happens):
    """Two saves are committed, a third is killed at its n-th operation, then a fourth must work and clear up."""
    survived, done = [], []
    for number in range(1, OPERATIONS_OF_A_SAVE + 5):
        run = tmp_path / str(number)

        def third(run=run, number=number):
            at_operation(number, happens)
            save(run, 3)

        save(run, 1)
        save(run, 2)
        done.append(in_child(third))
        survived.append(newest(run))
        save(run, 4)
        assert newest(run) == 4
        assert len(list((run / "checkpoints").iterdir())) == 2
    if happens is kill:
        assert done.index(True) == OPERATIONS_OF_A_SAVE, "the operations are not counted any more"
    assert set(survived) == {2, 3}
    assert survived == sorted(survived)  # from some operation on, the third counts; never half of it


@pytest.mark.parametrize("times", [30, pytest.param(1_000, marks=pytest.mark.soak)])
def test_killed_at_any_moment_time_and_again(tmp_path, times):
    """Real SIGKILLs from outside, one after the other into the same folder."""
    save(tmp_path, 2)
    generator, before, reach = random.Random(5), 2, 0.01
    midway = committed = 0
    for number in range(5, times + 5):
        child = os.fork()
        if not child:
            try:
                save(tmp_path, number)
                os._exit(0)
            finally:
                os._exit(1)
        if number % 5:  # the others end by themselves, so that there is always a newer one to lose
            time.sleep(generator.uniform(0, reach))
            os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] in (0, signal.SIGKILL)
        now = newest(tmp_path)
        assert now in (before, number)
        if number % 5:  # aim at the midst of a save, as long as one takes on this host by now
            reach *= 0.7 if now == number else 1.3
        committed += now == number
        midway += len(list((tmp_path / "checkpoints").iterdir())) > len(Store(tmp_path).committed())
        before = now
    assert committed >= times // 5
    if times > 100:  # of few kills by chance none: those at each operation are above
        assert midway > times // 30, "nearly none was killed in the midst of a save"
    save(tmp_path, times + 5)
    assert newest(tmp_path) == times + 5
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_what_was_not_synced_may_be_lost_in_a_power_cut(tmp_path, monkeypatch):
    """After a commit every file and every name in the folders above it has been synced since it was last changed."""
    dirty, names = set(), set()

    def path_of(descriptor):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())

    original = {name: getattr(disk, name) for name in OPERATIONS}

    def write_at(descriptor, content, offset):
        dirty.add(path_of(descriptor))
        original["write_at"](descriptor, content, offset)

    def sync(descriptor):
        dirty.discard(path_of(descriptor))

    def make_folder(path):
        names.add(path.parent)
        original["make_folder"](path)

    def rename(old, new):
        assert not dirty, "renamed before what it names was synced"
        assert not names - {old.parent.parent}, "the folder's names were not synced before the manifest was put there"
        names.add(new.parent)
        original["rename"](old, new)

    monkeypatch.setattr(disk, "write_at", write_at)
    monkeypatch.setattr(disk, "sync", sync)
    monkeypatch.setattr(disk, "make_folder", make_folder)
    monkeypatch.setattr(disk, "rename", rename)
    monkeypatch.setattr(disk, "sync_folder", lambda path: names.discard(path))
    save(tmp_path, 1)
    assert not dirty
    assert not names


def test_a_full_disk_names_the_file_and_both_numbers(tmp_path, monkeypatch, inject):
    inject(disk, "write_at", no_room)
    monkeypatch.setattr(disk, "free", lambda path: 1_234)
    for name, body in (
        ("manifest.json", lambda path: disk.write(path, bytes(2_000))),
        ("embedding-0000.h5", lambda path: files.write(path, [("x", np.ones(500, np.float32), {})])),
    ):
        with pytest.raises(OSError, match=rf"device: [\d,]+ bytes needed, 1,234 free: '.*/{name}'"):
            body(tmp_path / name)


def test_hdf5_does_not_touch_the_disk(tmp_path, monkeypatch):
    """It would hold the interpreter lock: where the disk hangs no thread could say so, nor end the job."""
    opened, original = [], h5py.File

    def watching(path, *arguments, **keywords):
        opened.append(Path(f"/proc/self/fd/{path.fileno()}").readlink() if hasattr(path, "fileno") else Path(path))
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(h5py, "File", watching)
    files.write(tmp_path / "a.h5", [("x", values(1), {})])
    assert opened
    assert not any(path.is_relative_to(tmp_path) for path in opened)


def test_a_commit_that_fails_at_its_end_leaves_no_half_of_a_checkpoint(tmp_path, inject):
    """The manifest is in place already when the disk fails, and then not all files can be removed."""
    save(tmp_path, 1)
    folder = Store(tmp_path).begin()
    entry = files.write(folder / "trainer-0000.h5", [("replica", values(1), {})])

    inject(disk, "sync_folder", broken_disk, where=lambda path: path == folder.parent)
    inject(os, "unlink", broken_disk, where=lambda path: path == store.MANIFEST_NAME)  # in a folder that is removed
    with pytest.raises(OSError, match="Input/output error"):
        pending_save.commit_or_remove(folder, [asdict(entry)], {"number": 2})
    assert newest(tmp_path) == 1
    assert not folder.exists()


def test_checkpoints_that_cannot_be_listed_are_not_none(tmp_path, monkeypatch, inject, caplog):
    """The run would start over, and what it saved then would replace them."""
    save(tmp_path, 1)

    for name in ("scandir", "listdir"):
        inject(os, name, io_error(errno.EACCES))
    for body in (Store(tmp_path).committed, Store(tmp_path).set_aside, Store(tmp_path).begin):
        with pytest.raises(PermissionError, match=r"denied: '.*checkpoints'"):
            body()
    monkeypatch.setattr(log, "propagate", True)
    Store(tmp_path).retire(1)  # in the background: nobody asks for its exception
    assert "checkpoints: older checkpoints are not removed: [Errno 13] Permission denied" in caplog.text


def test_a_number_is_used_once(tmp_path):
    """Row saves refer to it, whatever has become of the checkpoint."""
    save(tmp_path, 1)
    failed = Store(tmp_path).begin()
    store.try_to_remove(failed)
    assert Store(tmp_path).begin(after=checkpoint_number(failed)).name == "checkpoint-000003"
    assert checkpoint_number(tmp_path / "model") == 0
    save(tmp_path, 4, keep=9)
    Store(tmp_path).set_aside_after(Store(tmp_path).path(1))
    assert Store(tmp_path).begin().name == "checkpoint-000005"


def test_a_run_folder_that_is_gone_is_not_made_anew(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        Store(tmp_path / "gone").begin()


def test_as_many_as_asked_for_stay(tmp_path):
    for number in range(1, 7):
        save(tmp_path, number, keep=3)
    assert [path.name for path in Store(tmp_path).committed()] == [f"checkpoint-00000{n}" for n in (4, 5, 6)]


@pytest.mark.parametrize("file", ["embedding-0000.h5", "trainer-0000.h5"])
@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_one_changed_bit_is_found_wherever_it_is(tmp_path, file, place):
    save(tmp_path, 1)
    (folder,) = Store(tmp_path).committed()
    content = bytearray((folder / file).read_bytes())
    content[int(place * len(content)) if place >= 0 else -1] ^= 1
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=rf"{file}: damaged"):
        store.check(folder)


def test_damage_names_the_file(tmp_path):
    save(tmp_path, 1)
    (folder,) = Store(tmp_path).committed()
    os.truncate(folder / "trainer-0000.h5", 100)
    with pytest.raises(DataError, match=r"trainer-0000\.h5: 100 bytes, .* were written"):
        store.check(folder)
    (folder / "trainer-0000.h5").unlink()
    with pytest.raises(DataError, match=r"trainer-0000\.h5: missing"):
        store.check(folder, 1, 2)
    store.check(folder, 0, 2)  # the other rank's share
    (folder / "manifest.json").write_text('{"format": "ssmpi-checkpoint"')
    with pytest.raises(DataError, match=r"manifest\.json: damaged"):
        store.read_manifest(folder)


def test_the_checksum_is_that_of_sha256sum(tmp_path):
    import hashlib

    entry = files.write(
        tmp_path / "a.h5", [("x", values(1), {"a": 1}), ("g/y", values(2)[:0], {}), ("g/z", values(3), {})]
    )
    content = (tmp_path / "a.h5").read_bytes()
    assert entry == files.Entry("a.h5", len(content), hashlib.sha256(content).hexdigest())


def test_a_run_that_gets_nowhere_twice_is_given_up(tmp_path):
    for examples in (0, 0, 500, 500, 700, 500):
        run_record.count_start(tmp_path, examples)
    run_record.add_attempt(tmp_path, run_record.NOT_BEGUN)  # which hides nothing
    run_record.count_start(tmp_path, 500)
    with pytest.raises(UserError, match=r'jobs of this run began after 500 examples.*"attempts" in .*recoveries\.json'):
        run_record.count_start(tmp_path, 500)
    run_record.count_start(tmp_path, 501)


@pytest.mark.parametrize(
    ("written", "read"), [("[0, -1, 500]", [0, -1, 500]), ("[0, 5", []), ("7", [])], ids=["whole", "cut off", "other"]
)
def test_where_jobs_began_is_read_once_from_the_file_of_earlier_versions(tmp_path, written, read):
    (tmp_path / "attempts.json").write_text(written)
    assert run_record.RunRecord.read(tmp_path).attempts == read
    run_record.begin_start(tmp_path, "launch")
    (tmp_path / "attempts.json").write_text("[9]")  # it is not looked at again
    run_record.add_attempt(tmp_path, 700)
    assert run_record.RunRecord.read(tmp_path).attempts == [*read, 700]


def test_a_run_of_an_earlier_version_that_is_given_up_can_be_tried_again(tmp_path):
    """As the message says."""
    (tmp_path / "attempts.json").write_text("[500, 500]")
    record = tmp_path / "recoveries.json"
    record.write_text('{"launch": "", "start": 0, "recoveries": [], "timeline": 3}')
    with pytest.raises(UserError, match=r'empty the list "attempts" in .*recoveries\.json'):
        run_record.count_start(tmp_path, 500)
    there = json.loads(record.read_text())
    assert (there["timeline"], there["attempts"]) == (3, [500, 500])
    record.write_text(json.dumps(there | {"attempts": []}))
    run_record.count_start(tmp_path, 500)


def test_due_by_examples_or_by_time():
    nowhere = ProcessMemory()
    due = CheckpointTimer(CheckpointOptions(every_minutes=0, every_examples=100), 40, nowhere)
    assert [due.now(examples) for examples in (40, 139, 140)] == [False, False, True]
    due.saved(150)
    assert [due.now(examples) for examples in (249, 250)] == [False, True]
    assert not CheckpointTimer(CheckpointOptions(every_minutes=60), 0, nowhere).now(10**9)
    assert CheckpointTimer(CheckpointOptions(every_minutes=1e-9), 0, nowhere).now(0)


def test_the_clock_of_checkpoints_goes_on_after_a_kill(tmp_path, monkeypatch):
    """Ten kills a quarter of the interval apart, the date going back: without it there would never be a checkpoint."""
    clock = SimpleNamespace(time=lambda: 1e9 - 99 * clock.now, monotonic=lambda: clock.now, now=50.0)
    monkeypatch.setattr(manager, "time", clock)
    options, path, found = CheckpointOptions(every_minutes=1), tmp_path / "ssmpi-0-run" / "trainer-0", []
    for process in range(10):
        fresh = not process
        memory = MemoryFile(path, Origin("run", "0", 1)) if fresh else MemoryFile.found(path, "run", "0")
        due = CheckpointTimer(options, 0, memory)
        found.append(due.now(0))
        if found[-1]:
            due.saved(0)
            if found.count(True) > 1:  # the first one is not committed before the next kill
                due.committed()
        memory.ready()
        del memory, due  # the next one finds nobody's lock
        clock.now += 15
    assert found == [False] * 4 + [True, True] + [False] * 3 + [True]
