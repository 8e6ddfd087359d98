"""What ``ssmpi doctor RUN`` says of runs whose ranks have logged known times and places."""

import json
import re
import socket
import subprocess
import sys

import pytest

from ssmpi import cli
from ssmpi.runtime.files.run_files import LOCK_NAME, REQUEST
from ssmpi.runtime.host.vitals import MARK
from ssmpi.state import run_lock
from ssmpi.tools.bottleneck import EMBEDDING, REMEDIES
from ssmpi.tools.rank_log import RankLog

NAMES = ("trainer-0", "trainer-1", "embedding_ps-0")
STEPS = {"computes": 10.0, "seconds": 20.0, "cpu": 19.0, "queue": 0.5}
IDLE = {"waits": 10.0, "seconds": 20.0, "cpu": 0.5, "queue": 0.0}


def vitals(kind, spent, at=1000.0, **more):
    """A line of a rank's log."""
    line = {"at": at, "began": 900.0, "host": "h7", "pid": 77, "seconds": 20.0, "memory": 2_000_000, "peak": 3_000_000}
    line |= {"threads": {kind: spent}, "stacks": [["main", "nap (waiting.py:55)", "serve (service.py:60)"]]} | more
    return f"2026-11-28 17:00:00,000 h7 someone | {MARK}{json.dumps(line)}\n"


@pytest.fixture
def run(tmp_path):
    """A run of two trainers and an embedding PS that has ended without a result."""
    (tmp_path / "run.toml").write_text("[topology]\ntrainers = 2\nembedding_ps = 1\nsync_ps = 0\n")
    (tmp_path / "versions.json").write_text('{"ssmpi": "0"}')
    (tmp_path / "logs").mkdir()
    for name in NAMES:
        kind, spent = ("main", IDLE) if name.startswith("embedding") else ("worker", STEPS)
        (tmp_path / "logs" / f"{name}.log").write_text(vitals(kind, spent))
    windows = [{"kind": "train", "examples": 100 * k, "seconds": 70.0 * k, "eps": 100.0} for k in (1, 2)]
    lines = [{**window, "eps_by_trainer": [50.0, 50.0], "bytes_embedding_pull": 5e6} for window in windows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def log_of(run, name):
    return run / "logs" / f"{name}.log"


def page(run, capsys, code):
    """What the command prints, which ends with ``code``."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", str(run)])
    said = capsys.readouterr()
    assert ended.value.code == code, said
    return said.out if code < 2 else said.err


def finish(run):
    (run / "result.json").write_text(
        json.dumps({"status": "complete", "evaluations": {}, "examples": 200, "expected_examples": 200})
    )


@pytest.mark.parametrize(
    ("workers", "server", "says"),
    [
        (STEPS, IDLE, "nothing stands out"),
        ({**STEPS, "reads": 5.0}, IDLE, "33% read data\n"),
        ({**STEPS, "pulls": 5.0}, {**IDLE, "cpu": 18.0}, f"embedding_ps 0 is busy 90% .*: {REMEDIES[EMBEDDING]}"),
        ({**STEPS, "pushes": 5.0}, IDLE, r"embedding_ps 0, the busiest, is busy 2% of the time: the links .*5\.0 MB"),
        ({**STEPS, "rounds": 5.0}, IDLE, "the workers are in rounds. To relieve: sync.pace"),
        ({**STEPS, "cpu": 5.0, "queue": 15.0}, IDLE, "75% wait for a core\n"),
        ({**STEPS, "cpu": 5.0}, IDLE, "72% wait in a step, for the GIL"),
    ],
)  # fmt: skip
def test_what_bounds_the_speed_follows_from_times(run, capsys, workers, server, says):
    for name, kind, spent in (("trainer-0", "worker", workers), ("embedding_ps-0", "main", server)):
        log_of(run, name).write_text(vitals(kind, spent))
    log_of(run, "trainer-1").write_text(vitals("worker", workers))
    finish(run)
    text = page(run, capsys, 0)
    assert re.search(says, text), text
    assert ("To relieve" in text) is (workers is not STEPS)


def test_a_silent_and_a_slow_rank_are_problems(run, capsys):
    finish(run)
    assert "problem:" not in page(run, capsys, 0)
    log_of(run, "embedding_ps-0").write_text(vitals("main", IDLE, at=800.0))
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(metrics.replace("[50.0, 50.0]", "[80.0, 20.0]"))
    text = page(run, capsys, 1)
    silent = "problem: embedding_ps 0 (host h7, process 77) is silent, for 200 s longer than others"
    assert silent in text
    assert "look at the silent rank first" in text
    assert "It was in main at nap (waiting.py:55) < serve (service.py:60)" in text
    assert "problem: trainer 1 (host h7, process 77) is slow: 20 EPS, the median of the others is 80" in text
    assert re.search(r"^  embedding_ps 0 +h7 +77 +200 s +2 +3 ", text, re.MULTILINE)


def test_an_end_without_a_result_is_told_with_its_reason_and_earlier_restarts(run, capsys):
    with log_of(run, "trainer-1").open("a") as file:
        file.write("2026-11-28 17:00:01,000 h7 trainer 1 | the job ends: error: no answer from embedding_ps 0\n")
    recovery = {"at": "2026", "why": "error: trainer 1 was killed; all ranks end", "how": "partial", "samples_lost": 7}
    recovery |= {"lost": "embedding_ps 0 is lost", "seconds": {"ranks": 2.0, "process": 1.0, "restore": 3.0}}
    (run / "recoveries.json").write_text(json.dumps({"launch": "a", "recoveries": [recovery]}))
    text = page(run, capsys, 1)
    assert "problem: the job has ended without a result: no answer from embedding_ps 0." in text
    assert "2026: resumed (partial), training after 5.0 s; why: trainer 1 was killed\n" in text
    assert "embedding_ps 0 is lost; samples lost: 7" in text


def test_damaged_lines_and_missing_logs_are_named(run, capsys):
    finish(run)
    with log_of(run, "trainer-1").open("a") as file:
        file.write(vitals("worker", STEPS)[:-30] + "\n" + vitals("worker", 3) + f"x | {MARK}{{}}\n")
    log_of(run, "embedding_ps-0").unlink()
    (run / "metrics.jsonl").unlink()
    text = page(run, capsys, 1)
    assert "note: 3 damaged lines of logs/ left out" in text
    assert "problem: embedding_ps 0 has not begun; its log ends: no log" in text
    assert "note: no metrics.jsonl" in text


def test_of_an_earlier_version_it_says_what_is_missing(run, capsys):
    finish(run)
    for name in NAMES:
        log_of(run, name).write_text("2026-11-28 17:00:00,000 h7 someone | training starts\n")
    text = page(run, capsys, 0)
    assert text.count("has not logged what it does") == len(NAMES)
    assert "not known: no worker was seen at work" in text


def test_what_is_no_run_or_has_no_ranks_is_refused(run, capsys, monkeypatch):
    assert "no such folder; name a run folder" in page(run / "none", capsys, 2)
    (run / "run.toml").write_text("[topology\n")
    assert "which ranks it has is not known: run.toml is not readable" in page(run, capsys, 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert "runs in one process, without mpirun" in page(run, capsys, 2)


def test_a_live_run_that_may_not_be_asked_is_still_described(run, capsys):
    (run / "logs" / REQUEST).mkdir()  # as where the folder is somebody else's
    with run_lock.lock(run, LOCK_NAME):
        text = page(run, capsys, 0)
    assert "running (process" in text
    assert "the ranks cannot be asked where their threads are" in text


HANGS = """
import faulthandler, re, signal, sys
faulthandler.register(signal.SIGQUIT, open(sys.argv[1], "a"))
pattern = re.compile("(a+)+b")  # not in hang: its calls would be the innermost while it is compiled
def hang():
    print(flush=True)
    pattern.match("a" * 99)  # for years, with the GIL
hang()
"""


def test_a_rank_that_holds_the_gil_prints_its_stacks(tmp_path):
    path = tmp_path / "logs" / "trainer-0.log"
    path.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HANGS, path], stdout=subprocess.PIPE) as rank:
        rank.stdout.readline()
        path.write_text(vitals("worker", STEPS, pid=rank.pid, host=socket.gethostname()))
        asked = RankLog.read(tmp_path, "trainer 0")
        state, stacks = asked.state, asked.stacks_by_signal()
        rank.kill()
    assert state
    assert any(call.startswith("hang (<string>:") for call in stacks[0])
