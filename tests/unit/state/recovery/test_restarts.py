"""How often a job is started again, and what the first rank makes of what the last start has left."""

import contextlib
import dataclasses
import gc
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import write_run_file

from ssmpi.cluster import restarts as cluster_restarts
from ssmpi.cluster.restarts import SEGMENTS, Restarts
from ssmpi.config import load
from ssmpi.runtime.errors import DIVERGED, OUT_OF_MEMORY, DamageError
from ssmpi.runtime.files import atomic_file, log
from ssmpi.runtime.files.run_files import RECOVERIES, ROWS
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.memory_folder import in_use
from ssmpi.runtime.run_options import RecoveryOptions
from ssmpi.runtime.topology import Topology
from ssmpi.state import resume, run_folder
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.pending_save import FullDiskError
from ssmpi.state.recovery import restart, run_record
from ssmpi.state.recovery.decision import FROM_BEGINNING, MEMORY, PARTIAL
from ssmpi.state.recovery.start import MemoryPlace, ResumePlan, Supervised, remove_left
from ssmpi.state.request import RunRequest
from ssmpi.tools import report
from ssmpi.trainer.metrics.results import RunResults


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def restarts(run, begun=True, clock=None, storage="", **options):
    """Of a run that the first start has begun, or not."""
    made = Restarts(run, RecoveryOptions(**options), clock or Clock(), storage=storage)
    if begun and made.supervised:
        run_record.begin_start(run, made.supervised.launch)
    return made


def resumed(run, made, examples):
    """The newest start of a launch resumes after so many examples."""
    restart.record(run, made.supervised, MEMORY)
    run_record.complete(run, run_record.outcome(run, {"examples": examples}))


def test_a_crash_loop_ends(tmp_path, capsys):
    clock = Clock()
    made = restarts(tmp_path, clock=clock, max_restarts=2, within_minutes=1)
    found = []
    for seconds in (0, 30, 29, 2, 1):
        clock.now += seconds
        if len(found) > 1:
            resumed(tmp_path, made, 100 * len(found))  # there is progress, but too many restarts in a minute
        found.append(made.note_loss())
        if found[-1]:
            made.begin()
    assert found == [True, True, False, True, False]  # the first one is a minute ago by then
    assert made.supervised.start == 4
    assert "the job was restarted 2 times within 1 min (recovery.max_restarts" in capsys.readouterr().err


def test_without_progress_pauses_grow_and_restarts_end(tmp_path, capsys):
    """However long a start takes to fail: one that takes 6 minutes never reached 10 restarts within an hour."""
    clock = Clock()
    made, pauses = restarts(tmp_path, clock=clock), []
    while made.note_loss() and len(pauses) < 100:
        pauses.append(made.pause())
        made.begin()
        resumed(tmp_path, made, 1_000)  # always the same
        clock.now += 1_000
    assert len(pauses) == 1 + 10  # the first of them brought the run to 1,000 examples
    assert pauses[:4] == [0, 0, 5, 10]
    assert sum(pauses) > 15 * 60
    assert max(pauses) == 300
    assert "restarted 10 times without training on anything new (recovery.max_restarts)" in capsys.readouterr().err


@pytest.mark.parametrize("logged", [True, False])
def test_a_job_that_runs_out_of_memory_again_and_again_ends(tmp_path, monkeypatch, capsys, logged):
    """As a rank has logged, or as the system counts killed processes; ten restarts took hours."""
    kills = 0
    monkeypatch.setattr(cluster_restarts, "oom_kills", lambda: kills)
    made, found = restarts(tmp_path), []
    for memory in (False, True, True):
        if memory and logged:
            monkeypatch.setattr(log, "last_end", lambda *_: f"error: trainer 0: {OUT_OF_MEMORY}")
        kills += memory and not logged
        resumed(tmp_path, made, 1_000 * (1 + memory))
        found.append(made.note_loss())
        made.begin()
    assert found == [True, True, False]
    said = capsys.readouterr().err
    assert said.count("the last start ran out of memory: 'ssmpi plan' shows the memory of its ranks") == 2
    assert said.endswith("error: the last start made no progress: the job is not restarted\n")


def test_with_progress_a_job_restarts_at_once_for_ever(tmp_path):
    clock = Clock()
    made, pauses = restarts(tmp_path, clock=clock), []
    for examples in range(100):
        assert made.note_loss()
        pauses.append(made.pause())
        made.begin()
        resumed(tmp_path, made, examples)
        clock.now += 1_000
    assert set(pauses) == {0}


def test_a_run_that_has_not_begun_is_started_again_if_a_rank_was_killed(tmp_path, capsys):
    """A kill in the first seconds ended a launch. What else keeps a run from beginning does so again; and its folder
    may hold another run.
    """
    assert not restarts(tmp_path, begun=False).note_loss()
    run_record.begin_start(tmp_path, "another launch")
    made = restarts(tmp_path, begun=False)
    assert not made.note_loss()
    for _ in range(2):
        assert made.note_loss(killed=True)
        made.begin()
    assert not made.note_loss(killed=True)
    assert "the job was restarted 2 times before the run had begun, and ends now" in capsys.readouterr().err


def test_off_is_off(tmp_path):
    made = restarts(tmp_path, mode="off", memory_folder=str(tmp_path))
    assert made.supervised is None
    assert not made.note_loss()
    folder = memory_folder.of_launch(str(tmp_path), made._launch)
    assert made.variables({}, here=False) == {}
    assert made.variables({}) == {SEGMENTS: str(folder)}  # killed ranks leave them behind without recovery, too
    made.clean(lambda command: pytest.fail("nobody has any memory elsewhere"))
    assert not folder.exists()


def test_memory_of_killed_ranks_is_removed_or_its_host_named(tmp_path, capsys):
    """And with it rows on disk."""
    made = restarts(tmp_path, memory_folder=str(tmp_path), storage=str(tmp_path / "disk"))
    folders = [memory_folder.of_launch(str(each), made.supervised.launch) for each in (tmp_path, tmp_path / "disk")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "trainer-0").write_bytes(b"left")
    commands = []
    made.clean(lambda command: commands.append(command) or ["h3"])
    assert not any(folder.exists() for folder in folders)
    assert commands == [["rm", "-rf", *map(str, folders)]]
    assert f"{folders[0]} and {folders[1]} may be left on h3" in capsys.readouterr().err


def test_segments_of_the_mpi_library_lie_beside_the_ranks_memory(tmp_path):
    made = restarts(tmp_path, memory_folder=str(tmp_path))
    folder = memory_folder.of_launch(str(tmp_path), made.supervised.launch)
    assert made.variables({}) == {SEGMENTS: str(folder)}
    (folder / "sm_segment.h.0.1").write_bytes(b"left by the first start")
    (folder / "trainer-0").write_bytes(b"kept")
    made.variables({})
    assert [path.name for path in folder.iterdir()] == ["trainer-0"]
    assert made.variables({SEGMENTS: "/elsewhere"}) == {}  # the user's own value wins
    assert restarts(tmp_path, memory_folder=str(tmp_path / "nowhere")).variables({}) == {}


def test_a_restart_does_not_ask_for_the_room_of_a_model(tmp_path, small_data, monkeypatch):
    """A first start does: but what is in memory is not to be lost for a model that is not written yet."""
    write_run_file(tmp_path, small_data)
    given = (f"data.folder={small_data}", f"run.folder={tmp_path / 'run'}")
    request = RunRequest(tmp_path / "given.toml", given)
    ranks = request.load().topology.size
    for start in (1, 2):
        with contextlib.ExitStack() as held:
            asked = dataclasses.replace(request, supervised=Supervised("launch", start, 0.0))
            assert resume.prepare(asked, ranks, held).again == (start == 2)
        run_record.begin_start(tmp_path / "run", "launch", start)
        monkeypatch.setattr(disk, "free", lambda folder: 0)
    with contextlib.ExitStack() as held, pytest.raises(FullDiskError):
        resume.prepare(RunRequest(None, (), run=tmp_path / "run"), ranks, held)


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_memory_stays_where_the_run_is_not_saved(tmp_path, capsys, mode):
    """Not the segments of the MPI library; and no memory of a run that has diverged: its next launch would, too."""
    made = restarts(tmp_path, memory_folder=str(tmp_path), mode=mode)
    folder = memory_folder.of_launch(str(tmp_path), made._launch)
    made.variables({})
    assert not made.keep([], pytest.fail)
    for name in ("trainer-0", "sm_segment.h.0.1"):
        (folder / name).touch()
    assert made.keep([], lambda command: []) == (mode == "auto")
    if mode == "off":
        return
    assert [path.name for path in folder.iterdir()] == ["trainer-0"]
    assert f"the memory of the ranks stays in {folder}: the next launch" in capsys.readouterr().err
    (tmp_path / log.LOGS).mkdir()
    (tmp_path / log.LOGS / "trainer-0.log").write_text(
        f"2999-01-01 00:00:00,000 h | {log.ENDS}error: {DIVERGED}; lower\n"
    )
    assert not made.keep([], pytest.fail)


def test_the_next_launch_continues_what_the_last_one_has_left(tmp_path):
    run_record.begin_start(tmp_path, "launch", 3)
    made = Restarts(tmp_path, RecoveryOptions(), left=run_record.left(tmp_path))
    assert made.supervised == ("launch", 4, made.supervised.ended, 4)
    assert not made.note_loss()  # its own first start has not begun the run
    run_record.begin_start(tmp_path, "launch", 4)
    assert made.note_loss()
    copied = shutil.copytree(tmp_path, tmp_path / "copy")
    assert run_record.left(copied) is None  # the memory belongs to the original
    (tmp_path / "result.json").write_text('{"status": "stopped"}')
    assert run_record.left(tmp_path) is None


def test_a_start_travels_on_the_command_line():
    start = Supervised("abc", 3, 12.5)
    assert Supervised.parse(start.word) == start


def test_a_later_launch_removes_what_a_killed_one_has_left_in_memory(tmp_path, small_data):
    """Not what a process maps: that of the run that this one is a copy of; nor what is of another run."""
    alone = ("topology.trainers=1", "topology.embedding_ps=0", f"recovery.memory_folder={tmp_path}")
    config = write_run_file(tmp_path, small_data, *alone)
    run_folder.make(Path(config.run.folder), config, overwrite=False)
    job = SimpleNamespace(rank=0, size=1, agree=lambda act: act(), gather=lambda found: [found])
    folders = {name: memory_folder.of_launch(str(tmp_path), name) for name in ("first", "second", "third", "other")}
    made = []
    for name in ("first", "second", "third"):
        previous = run_record.owner(Path(config.run.folder))
        start = restart.begin(job, ResumePlan(config, previous=previous), Supervised(name, 1, 0.0))
        made.append(start.memory if name == "second" else None)  # the others were killed
        del start
        gc.collect()
        folders["other"].mkdir(exist_ok=True)
        begin_as_often_as_it_likes(Path(config.run.folder))
    assert [name for name, folder in folders.items() if folder.exists()] == ["second", "third", "other"]
    assert made[1].path.exists()


def begin_as_often_as_it_likes(run):
    """As the message about jobs that get nowhere tells a user to."""
    if (record := run / RECOVERIES).exists():
        record.write_text(json.dumps(json.loads(record.read_text()) | {"attempts": []}))


@pytest.fixture
def of_one_rank(tmp_path, small_data):
    """A run of one trainer, and what begins a start of it."""
    alone = ("topology.trainers=1", "topology.embedding_ps=0", f"recovery.memory_folder={tmp_path}")
    config = write_run_file(tmp_path, small_data, *alone)
    run_folder.make(Path(config.run.folder), config, overwrite=False)
    job = SimpleNamespace(rank=0, size=1, agree=lambda act: act(), gather=lambda found: [found])

    def begin(launch, start, **plan):
        begin_as_often_as_it_likes(Path(config.run.folder))
        gc.collect()  # no process maps what an earlier start has left
        plan = {"config": config, "previous": run_record.owner(Path(config.run.folder)), **plan}
        found = restart.begin(job, ResumePlan(**plan), launch and Supervised(launch, start, 0.0, start))
        kept = bool(getattr(found.memory, "kept", False))
        if launch and not kept:
            found.memory.ready()
            found.memory.note(ledger=found.ledger.state())
        return kept

    return Path(config.run.folder), begin


@pytest.mark.parametrize("setting", ["waiting.frozen_seconds=600", "recovery.target_pls=0.5", "run.log_seconds=60"])
def test_what_no_memory_depends_on_may_change_between_two_launches(of_one_rank, setting):
    """Messages of lost ranks recommend such changes."""
    run, begin = of_one_rank
    begin("launch", 1)
    assert begin("launch", 2, ahead=True, config=load(run / "run.toml", (setting,)))
    assert setting.partition("=")[2] in (run / "run.toml").read_text()


def test_a_run_begins_and_has_its_launch_in_one_change(of_one_rank, monkeypatch):
    """A kill between two of them left a run of no launch: its next start found an earlier run there."""
    _, begin = of_one_rank
    written, real = [], run_record.atomic_file.write

    def spy(path, content):
        if path.name == RECOVERIES:
            written.append(json.loads(content))
        real(path, content)

    monkeypatch.setattr(run_record.atomic_file, "write", spy)
    begin("launch", 1)
    assert (written[0]["launch"], written[0]["start"], written[0]["attempts"]) == ("launch", 1, [0])


def test_memory_on_a_host_that_the_run_came_back_to_is_stale(tmp_path, of_one_rank, caplog):
    """Its second launch ran on another host, where nothing was."""
    _, begin = of_one_rank
    here, there = memory_folder.of_launch(str(tmp_path), "launch"), tmp_path / "on another host"
    assert not begin("launch", 1)
    assert begin("launch", 2, ahead=True)
    here.rename(there)
    assert not begin("launch", 3, ahead=True)
    shutil.rmtree(here)
    there.rename(here)
    assert not begin("launch", 4, ahead=True)
    why = "what is there is that of start 1, and start 3 began without memory"
    assert f"the memory that launch launch left cannot be used ({why})" in caplog.messages
    assert begin("launch", 5, ahead=True)


def test_a_copy_of_a_run_leaves_the_memory_of_the_original(tmp_path, of_one_rank):
    run, begin = of_one_rank
    begin("launch", 1)
    run.rename(tmp_path / "original")
    shutil.copytree(tmp_path / "original", run)
    own = shutil.copy(run / "run.toml", tmp_path / "own.toml")
    request = RunRequest(Path(own), overrides=(), overwrite=True, supervised=Supervised("other", 1, 0.0, 1))
    with contextlib.ExitStack() as held:
        assert resume.prepare(request, 1, held).previous == ""
    run.rename(tmp_path / "overwritten")
    shutil.copytree(tmp_path / "original", run)
    begin("other", 1)
    assert memory_folder.of_launch(str(tmp_path), "launch").exists()


def test_a_start_without_a_launcher_removes_memory_it_does_not_want(tmp_path, of_one_rank):
    """As where ``--checkpoint`` is given."""
    _, begin = of_one_rank
    begin("launch", 1)
    begin(None, 0)
    assert not memory_folder.of_launch(str(tmp_path), "launch").exists()


@pytest.mark.parametrize("name", ["abc/../../victim", "../victim", ""])
def test_a_damaged_name_of_a_launch_removes_nothing_else(tmp_path, name):
    memory, victim = tmp_path / "memory", tmp_path / "victim"
    for folder in (victim, memory_folder.of_launch(str(memory), "abc")):
        folder.mkdir(parents=True)
    remove_left(str(memory), name)
    assert victim.exists()
    assert memory_folder.of_launch(str(memory), "abc").exists()


def test_what_a_killed_launch_has_left_and_cannot_be_removed_is_named_once(tmp_path, small_data, caplog, monkeypatch):
    """However many ranks of the host have tried."""
    config = write_run_file(tmp_path, small_data, f"recovery.memory_folder={tmp_path}")
    run_folder.make(Path(config.run.folder), config, overwrite=False)
    run_record.begin_start(Path(config.run.folder), "abc")
    (folder := memory_folder.of_launch(str(tmp_path), "abc")).mkdir()
    (folder / "trainer-0").touch()

    unlink = os.unlink

    def refuse(path, **where):
        if path == "trainer-0":
            raise PermissionError(13, "Permission denied", path)
        unlink(path, **where)

    monkeypatch.setattr(os, "unlink", refuse)
    job = SimpleNamespace(rank=0, size=3, agree=lambda act: act(), gather=lambda found: [found] * 3)
    restart.begin(job, ResumePlan(config, previous="abc"), Supervised("def", 1, 0.0))
    assert caplog.text.count(f"{folder} on {os.uname().nodename}, left by a launch that was killed, cannot be") == 1


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[]", '{"launch": 3, "recoveries": []}', '{"launch": "a", "recoveries": 1}', "{"),
        *(
            f'{{"launch": "a", "recoveries": [], {more}}}'
            for more in (
                '"attempts": null',
                '"attempts": "57"',
                '"attempts": {"5": 7}',
                '"attempts": ["5"]',
                '"start": []',
            )
        ),
        '{"launch": "a", "recoveries": [3]}',
    ],
)
def test_a_damaged_record_of_recoveries_is_named_and_kept(tmp_path, text):
    record = tmp_path / RECOVERIES
    record.write_text(text)
    for change in (lambda: run_record.begin_start(tmp_path, "launch"), lambda: run_record.begin_timeline(tmp_path)):
        with pytest.raises(DamageError, match=f"{record}: .*; .*put an intact copy in its place; or move it away"):
            change()
    assert record.read_text() == text
    results = RunResults(tmp_path, SimpleNamespace(log_seconds=1.0, tensorboard=False), Topology(), 0)
    results.finish(stopped=False)
    assert "recoveries" not in json.loads((tmp_path / "result.json").read_text())
    found = report.read(tmp_path)
    assert found.recoveries == []
    assert any(problem.endswith("its recoveries are not known") for problem in found.missing)


def test_a_row_save_and_a_recovery_are_both_recorded(tmp_path, monkeypatch):
    """Each on a thread of its own: the second must not read before the first has written."""
    write, others = atomic_file.write, []

    def write_late(path, text):
        if not others:
            others.append(threading.Thread(target=run_record.add, args=(tmp_path, {"at": "now"})))
            others[0].start()
            others[0].join(0.5)  # it waits
        write(path, text)

    monkeypatch.setattr(atomic_file, "write", write_late)
    run_record.rows_saved(tmp_path, {0: 3.0})
    others[0].join()
    record = run_record.RunRecord.read(tmp_path)
    assert (record.row_save_seconds, record.recoveries) == (3.0, [{"at": "now"}])


def test_without_its_record_a_run_trusts_no_row_saves_of_earlier_timelines(tmp_path):
    assert run_record.begin_timeline(tmp_path) == 1
    (tmp_path / ROWS).mkdir()
    assert run_record.begin_timeline(tmp_path) == 2
    (tmp_path / RECOVERIES).unlink()
    assert run_record.begin_timeline(tmp_path) > 2


def test_without_a_memory_folder_training_goes_on(tmp_path, caplog):
    place = MemoryPlace(tmp_path / "nowhere" / "ssmpi-0-launch" / "trainer-0", "launch", "trainer 0")
    memory = place.fresh(tmp_path, start=1)
    assert memory.array("rows", (2,), float).tolist() == [0, 0]
    assert "No such file or directory" in caplog.text
    assert "recovery.memory_folder" in caplog.text


def test_a_recovery_is_recorded_with_what_is_known_later(tmp_path, monkeypatch):
    run_record.begin_start(tmp_path, "launch")
    assert run_record.outcome(tmp_path, {"examples": 7}) == {}  # this start is none
    (tmp_path / log.LOGS).mkdir()
    (tmp_path / log.LOGS / "trainer-0.log").write_text(
        "2026-11-22 12:00:00,001 h trainer 0 | the job ends: first\n2026-11-22 12:00:01,001 h trainer 0 | no\n"
    )
    (tmp_path / log.LOGS / "trainer-1.log").write_text("2026-11-22 12:00:02,001 h trainer 1 | the job ends: last\n")
    restart.record(tmp_path, Supervised("launch", 2, 0.0), MEMORY)
    outcome = run_record.outcome(tmp_path, {"examples": 9, "batches_repeated": 1})
    unfinished = run_record.RunRecord.read(tmp_path).unfinished()
    run_record.complete(tmp_path, {**outcome, "at": "2026-11-22T12:00:00+00:00"})  # an older one's
    assert run_record.RunRecord.read(tmp_path).unfinished() == unfinished
    run_record.complete(tmp_path, outcome)
    assert run_record.RunRecord.read(tmp_path).recoveries[-1]["examples"] == 9
    run_record.complete(tmp_path, {**outcome, "examples": 11})  # it has one
    assert run_record.outcome(tmp_path, {"examples": 11}) == {}
    (only,) = json.loads((Path(tmp_path) / RECOVERIES).read_text())["recoveries"]
    assert (only["start"], only["how"], only["why"], only["lost"]) == (2, "memory", "last", "")
    assert (only["examples"], only["batches_repeated"]) == (9, 1)
    assert set(only["seconds"]) == {"ranks", "process", "restore"}
    assert 0 <= only["seconds"]["restore"] < 60
    monkeypatch.setattr(restart, "process_age", lambda: 0.5)
    more = {"rows_reloaded": 5, "seconds": {"load": 0.25}}
    restart.record(tmp_path, Supervised("launch", 2, time.time() - 1), PARTIAL, "", more)
    *_, partial = run_record.RunRecord.read(tmp_path).recoveries
    assert (partial["rows_reloaded"], partial["seconds"]["load"]) == (5, 0.25)
    assert 0.75 <= partial["seconds"]["ranks"] < 0.95
    restart.record(tmp_path, Supervised("launch", 3, time.time() + 3600), FROM_BEGINNING, "it is lost")
    *_, second = run_record.RunRecord.read(tmp_path).recoveries
    assert (second["how"], second["lost"], second["why"]) == ("beginning", "it is lost", "")  # nobody has said why
    assert second["seconds"]["ranks"] == second["seconds"]["process"] > 0  # the clock was set back meanwhile


def test_a_memory_folder_with_a_space_in_its_name_is_tidied_alone(tmp_path):
    bystander = tmp_path / "my"
    bystander.mkdir()
    folders = [tmp_path / "my memory", tmp_path / "my disk"]
    made = restarts(tmp_path, memory_folder=str(folders[0]), storage=str(folders[1]))
    folder, rows = (memory_folder.of_launch(str(each), made.supervised.launch) for each in folders)
    for used, left in ((True, ["trainer-0"]), (False, None)):
        for each in (folder, rows):
            each.mkdir(parents=True, exist_ok=True)
        for name in ("sm_segment.h.0.1", "trainer-0"):
            (folder / name).touch()
        subprocess.run(made.tidy(used=used), check=True)
        assert bystander.is_dir()
        assert (sorted(path.name for path in folder.iterdir()) if folder.exists() else None) == left
        assert rows.exists() == used


def test_without_recovery_a_launchs_folder_is_in_use_as_long_as_it_lives(tmp_path):
    """No rank maps a file in it that would show that."""
    made = restarts(tmp_path, mode="off", memory_folder=str(tmp_path))
    folder = memory_folder.of_launch(str(tmp_path), made._launch)
    made.variables({})
    assert in_use(folder)
    os.close(made._lock)  # as when the launcher is killed
    assert not in_use(folder)
