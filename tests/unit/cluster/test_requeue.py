"""How an attempt ended is told by the run's marker; what the launcher says counts only where there is none."""

import json
import os

import pytest

from ssmpi.cluster.requeue import LaunchAttempt
from ssmpi.runtime.errors import LOST, STOPPED
from ssmpi.runtime.host.schedulers import SCHEDULERS

SLURM = SCHEDULERS[0]


@pytest.fixture
def requeued(tmp_path, monkeypatch):
    """In a batch job; the value tells which jobs were put back into the queue."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    record = tmp_path / "requeued"
    return lambda: record.read_text().split("\n")[:-1] if record.exists() else []


def conclude(folder, code, status=None, *, before=None, requeue=SLURM, cancelled=False, resumed=False):
    """An attempt in a folder that holds the marker ``before``, and writes ``status``."""
    run = folder / "run"
    run.mkdir()
    marker = run / "result.json"
    if before:
        marker.write_text(json.dumps({"status": before}))
        os.utime(marker, (1, 1))
    attempt = LaunchAttempt(run, requeue=requeue, resumed=resumed)
    if status:
        marker.write_text(json.dumps({"status": status}))
    return attempt.conclude(code, cancelled=cancelled)


@pytest.mark.parametrize(
    ("code", "status", "expected", "again"),
    [
        (0, "complete", 0, False),
        (137, "complete", 0, False),  # a rank that was killed after the marker was written harms nothing
        (85, "stopped", STOPPED, True),
        (143, "stopped", STOPPED, True),
        (85, None, STOPPED, True),  # asked to stop and not saved within the budget: there is an earlier checkpoint
        (0, None, LOST, True),  # mpirun after a lost host
        (14, None, LOST, True),  # srun after a lost host
        (137, None, LOST, True),
        (-9, None, LOST, True),
        (LOST, None, LOST, True),
        (1, None, 1, False),
        (2, None, 2, False),
        (1, "incomplete", 1, False),
    ],
)
def test_the_marker_decides(tmp_path, requeued, code, status, expected, again):
    assert conclude(tmp_path, code, status) == expected
    assert requeued() == ["requeue 17"] * again


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [
        (2, 2, 0),  # the ranks refused, and have said why
        (1, 1, 0),
        (0, LOST, 1),  # mpirun after a lost host
        (127, LOST, 1),
        (137, LOST, 1),
        (-9, LOST, 1),
        (STOPPED, STOPPED, 0),
    ],
)
@pytest.mark.parametrize("before", ["stopped", "complete"])
def test_a_marker_from_before_is_no_success_of_this_attempt(
    tmp_path, requeued, capfd, before, code, expected, said, resumed
):
    if resumed and before == "complete" and code == 0:
        expected = said = 0  # it found the run finished
    assert conclude(tmp_path, code, before=before, resumed=resumed, requeue=None) == expected
    assert capfd.readouterr().err.count("error: ") == said


def test_a_refused_launch_has_not_finished_another_jobs_run(tmp_path, requeued):
    assert conclude(tmp_path, 2, "complete") == 2


def test_a_run_that_did_not_begin_is_not_looked_for(tmp_path, capfd):
    """A rank was killed while it started: there is no folder yet."""
    assert LaunchAttempt(tmp_path / "run", requeue=None).conclude(137, cancelled=False) == LOST
    assert capfd.readouterr().err == "error: the launcher ended with 137, but the run did not begin: launch it again\n"


@pytest.mark.parametrize("how", [{"requeue": None}, {"cancelled": True}])
def test_who_is_cancelled_or_may_not_is_not_put_back(tmp_path, requeued, how):
    assert conclude(tmp_path, 85, "stopped", **how) == STOPPED
    assert requeued() == []


@pytest.mark.parametrize(("does", "said"), [("kill -TERM $$", 0), ("exit 1", 1)])
def test_a_requeue_may_kill_scontrol_and_is_told_if_it_fails(tmp_path, requeued, capfd, does, said):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{does}\n")
    assert conclude(tmp_path, 85, "stopped") == STOPPED
    assert capfd.readouterr().err.count("error: 'scontrol requeue 17' ended with 1: submit the job again") == said


@pytest.mark.parametrize(
    ("code", "before", "now", "own_words", "expected"),
    [
        (137, "", "h1 trainer 0 | the job ends: error: embedding_ps 0 was killed", 0, LOST),
        (137, "", "h1 trainer 0 | error: no checkpoint could be saved, training continues", 1, LOST),
        (137, "h1 trainer 0 | the job ends: error: of an earlier job", "h1 trainer 0 | training starts", 1, LOST),
        (1, "", "h1 trainer 0 | the job ends: error: TypeError", 0, 1),
        (1, "", "h1 trainer 0 | training starts", 1, LOST),  # srun, when a rank was killed for its memory
        (2, "", "h1 trainer 0 | training starts", 0, 2),
    ],
)
def test_what_a_rank_has_said_is_not_said_again(tmp_path, requeued, capfd, code, before, now, own_words, expected):
    file = tmp_path / "run" / "logs" / "trainer-0.log"
    file.parent.mkdir(parents=True)
    file.write_text(f"{before}\n")
    attempt = LaunchAttempt(tmp_path / "run", requeue=SLURM)
    with file.open("a") as out:
        out.write(f"{now}\n")
    assert attempt.conclude(code, cancelled=False) == expected
    assert capfd.readouterr().err.count(f"error: the launcher ended with {code}") == own_words
    assert requeued() == ["requeue 17"] * (expected == LOST)


def test_outside_slurm_nothing_is_put_back(tmp_path, requeued, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID")
    assert conclude(tmp_path, 0) == LOST
    assert requeued() == []


@pytest.mark.parametrize(
    ("code", "begun", "said"), [(0, True, ": "), (255, False, ", and no rank has started: "), (LOST, True, None)]
)
def test_silent_hosts_are_named_unless_a_rank_has_said_what_was_lost(tmp_path, capsys, code, begun, said):
    attempt = LaunchAttempt(tmp_path, requeue=None)
    if begun:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "trainer-0.log").write_text("h1 trainer 0 | training starts\n")
    assert attempt.conclude(code, cancelled=False, silent=lambda: ["h2", "h5"]) == (LOST if begun else 2)
    err = capsys.readouterr().err
    assert (f"error: no answer from h2, h5{said}repair" in err) == bool(said)
    assert begun or err.count("error: ") == 1


@pytest.mark.parametrize("section", ["pbs", "lsf", "flux"])
def test_other_batch_systems_requeue_a_run_by_their_own_commands(tmp_path, monkeypatch, section):
    scheduler = next(known for known in SCHEDULERS if known.section == section)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(scheduler.job, "17")
    for tool in ("qsub", "brequeue", "flux"):
        (tmp_path / tool).write_text(f'#!/bin/sh\necho "{tool} $@" >> {tmp_path}/requeued\n')
        (tmp_path / tool).chmod(0o755)
    assert conclude(tmp_path, 85, "stopped", requeue=scheduler) == STOPPED
    file = tmp_path / "run" / scheduler.batch_file
    expected = {"pbs": f"qsub {file}", "lsf": "brequeue 17", "flux": f"flux --parent batch {file}"}
    assert (tmp_path / "requeued").read_text() == f"{expected[section]}\n"
