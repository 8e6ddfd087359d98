"""What a run writes while it goes on: windows and evaluations at the right place in the run, and a picture of them."""

import fcntl
import json
import logging
import os
import re
import resource
import select
import struct
import termios
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import CARDINALITIES, make_dataset, name_group
from faults import no_room
from runs import train_over_threads

from ssmpi.runtime.files import log
from ssmpi.runtime.quality import Quality
from ssmpi.runtime.topology import Topology
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.rows.row_store import RowStore
from ssmpi.state.checkpoint.rows.saver import RowSaver
from ssmpi.state.recovery import run_record
from ssmpi.tools import report
from ssmpi.trainer import control
from ssmpi.trainer.metrics.fields import FIELDS, KEYS, KINDS, RECOVERY, markdown
from ssmpi.trainer.metrics.log_files import JsonlFile
from ssmpi.trainer.metrics.metric_logger import MetricLogger

SETTINGS = ("topology.embedding_ps=0", "run.log_seconds=0.01")


def written(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"], [line for line in lines if line["kind"] == "evaluation"]


def test_an_evaluation_stands_where_it_was_made(tmp_path, small_data):
    run = train_over_threads(tmp_path, small_data, *SETTINGS, "evaluate.per_pass=3")
    windows, evaluations = written(run)
    total = run.result["examples"]
    places = [line["examples"] for line in evaluations]
    assert places == sorted(places)
    assert 0 < places[0] < places[1] < places[2] == total
    assert [line["split"] for line in evaluations] == ["validation"] * 3 + ["test"]
    assert [line["weights"] for line in evaluations] == ["model"] * 4
    assert {line["rows"] for line in evaluations} == {600.0}
    assert windows[-1]["examples"] == total
    last, best = (run.result["evaluations"]["validation"][name] for name in ("last", "best"))
    assert last["ne"] == pytest.approx(evaluations[2]["ne"])
    assert best["ne"] == pytest.approx(min(line["ne"] for line in evaluations[:3]))


def test_a_run_can_be_drawn(tmp_path, small_data):
    run = train_over_threads(tmp_path, small_data, *SETTINGS)
    picture = report.plot(run.folder)
    assert picture.read_bytes().startswith(b"\x89PNG")


EASGD = ("topology.trainers=2", "topology.embedding_ps=1", "topology.sync_ps=1", "sync.algorithm=easgd")


def test_closing_rounds_are_in_the_result(tmp_path, small_data):
    """No round is due before the end, when every trainer makes one."""
    rate = ("sync.pace=fixed_rate", "sync.every_iterations=1_000_000")
    run = train_over_threads(tmp_path, small_data, *SETTINGS[1:], *EASGD, *rate)
    assert run.result["rounds"] == 2
    assert run.result["sync_gap_trainer"] == run.result["iterations"] / 2


def test_rounds_in_figures(tmp_path, small_data):
    """In every window, and over the whole run in the result."""
    rate = ("sync.pace=fixed_rate", "sync.every_iterations=4", "data.handout=static")
    run = train_over_threads(tmp_path, small_data, *SETTINGS[1:], *EASGD, *rate)
    iterations = [len(run.losses(trainer)) for trainer in range(2)]
    assert run.result["rounds"] == pytest.approx(sum(n // 4 + 1 for n in iterations))  # one at the end
    assert run.result["staleness"] == 0  # in the foreground nobody learns meanwhile
    windows = [line for line in written(run)[0] if "sync_gap_trainer" in line]
    assert windows
    for line in (*windows, run.result):
        assert 0 < line["round_seconds"] < 60
        assert 0 < line["divergence"] < 1
        assert line["sync_gap_thread"] == line["sync_gap_trainer"]
    assert run.result["sync_gap_trainer"] > 0  # a window may have the last round alone, with no iteration


def test_every_field_is_documented_and_every_documented_field_is_written(tmp_path, monkeypatch, inject):
    """By kind of line: rounds, evaluations, a checkpoint that finds the disk full, and later ones that do not; saves of
    rows, the first of which fails too.
    """
    inject(RowStore, "save_all", no_room, 1)
    inject(disk, "write", no_room, 1, where=lambda path, content: "checkpoint" in str(path))

    def save_and_report(saver):
        saver.save()
        return take_lines(saver)

    take_lines = RowSaver.take_lines
    monkeypatch.setattr(RowSaver, "run", lambda saver: saver._thread_is_done.set())
    monkeypatch.setattr(RowSaver, "take_lines", save_and_report)  # whenever the first trainer asks
    monkeypatch.setattr(control, "REPORT_SECONDS", 0)

    often = (
        "schedule.plateau_factor=0.5",
        "checkpoint.every_examples=600",
        "checkpoint.background=false",
        "data.passes=2",
        "recovery.mtbf_hours=1e-6",
        "recovery.mode=partial",
        "recovery.max_lost_fraction=1",
    )
    sparse = ("sync.algorithm=async_ps", "sync.codec=threshold:0.9")
    options = (*SETTINGS[1:], *EASGD, *sparse, *often, "checkpoint.priority=mfu")
    data = name_group(make_dataset(tmp_path / "data", 6_000, shard=2_300), "C9")
    run = train_over_threads(tmp_path, data, *options, memory=tmp_path)
    found = {}
    for line in map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines()):
        found.setdefault(line["kind"], set()).update(line)
    documented = {kind: {name for name, (kinds, _) in FIELDS.items() if kind in kinds} for kind in KINDS}
    del documented[RECOVERY]  # which takes a kill: tests/contract/test_partial_recovery.py
    del documented[KEYS]  # which takes dynamic tables: tests/contract/test_dynamic_tables.py
    assert found == documented
    assert run_record.RunRecord.read(run.folder).row_save_seconds > 0
    assert markdown().count("\n") == len(FIELDS) + 1


def test_lines_that_the_disk_does_not_take_wait_until_it_does(tmp_path):
    """The kernel refuses what goes beyond a limit of the process, in the middle of a line, as it does on a full
    disk.
    """
    lines, path = JsonlFile(tmp_path / "lines", known=0), tmp_path / "lines"
    lines.write("first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        lines.write("second line")
        lines.write("third")
        assert path.read_text() == "first\nseco"
        assert lines.size == len("first\nsecond line\nthird\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines.write("fourth")
    lines.close()
    assert path.read_text() == "first\nsecond line\nthird\nfourth\n"
    again = JsonlFile(path, known=6)
    again.write("other")
    again.close()
    assert path.read_text() == "first\nother\n"


class HungDisk:
    """A file, or a writer of events, that does not return before ``answers`` is set."""

    def __init__(self, behind):
        self.answers, self._behind = threading.Event(), behind

    def write(self, text):
        self.answers.wait()
        return self._behind.write(text)

    def add_scalar(self, name, value, step):
        self.answers.wait()

    def close(self):
        self._behind.close()


def test_a_disk_that_hangs_holds_up_nobody_who_has_something_to_record(tmp_path, messages):
    logbook = MetricLogger(tmp_path, Topology(), 1_000, 5.0)
    disk = logbook._lines._file = logbook.writer = HungDisk(logbook._lines._file)
    unread = tmp_path / "unread"
    os.mkfifo(unread)
    pipe = os.open(unread, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    os.write(pipe, bytes(4096))
    log.log_to_file(unread, "trainer 0")

    quality = dict.fromkeys(("ne", "log_loss", "auc", "auc_error", "accuracy", "calibration", "rows"), 0.5)

    def record():
        for name in ("first", "second"):
            logbook.evaluated(name, quality, 0.1)
        logbook.rows_saved({"ps": 0})

    recording = threading.Thread(target=record, daemon=True)
    recording.start()
    recording.join(5)
    late, size = recording.is_alive(), (tmp_path / "metrics.jsonl").stat().st_size
    disk.answers.set()
    os.read(pipe, 4096)
    assert not late
    assert size == 0
    state = logbook.numbers()
    logbook.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["kind"] for line in text.splitlines()] == ["evaluation", "evaluation", "row_save"]
    assert state["bytes"] == len(text)
    assert "second (model)" in messages.read_text()
    for handler in log.log.handlers:
        handler.close()
    assert b"second (model)" in os.read(pipe, 4096)
    os.close(pipe)


@pytest.fixture
def messages(tmp_path):
    """This process as trainer 0, whose lines are in the file."""
    before = log.log.handlers[:], log.log.level, log.log.propagate
    log.configure("trainer 0", verbose=True)
    log.log_to_file(tmp_path / "logs" / "trainer-0.log", "trainer 0")
    yield tmp_path / "logs" / "trainer-0.log"
    for handler in log.log.handlers:
        handler.close()
    log.log.handlers[:], log.log.level, log.log.propagate = before


@pytest.fixture
def terminal(monkeypatch):
    """``terminal(rows, columns)`` is where bars are drawn; called again with nothing it is what was drawn."""
    ours, theirs = os.openpty()
    waiting = select.poll()
    waiting.register(ours, select.POLLIN)

    def use(rows=None, columns=None):
        if rows is None:
            drawn = b""
            while waiting.poll(200):
                drawn += os.read(ours, 1 << 16)
            return drawn.decode()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        monkeypatch.setattr(log, "_terminal", os.fdopen(os.dup(theirs), "w", encoding="utf-8"))
        return None

    yield use
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("size", [(0, 0), (0, 80), (24, 0), (24, 80)])
def test_the_bar_is_drawn_whatever_size_the_terminal_reports(tmp_path, messages, terminal, size):
    """As a terminal of docker, ssh -t or expect does, that nobody has told its size."""
    terminal(*size)
    logbook = MetricLogger(tmp_path, Topology(), 1_000, 5.0)
    quality = dict.fromkeys(("ne", "log_loss", "auc", "auc_error", "accuracy", "calibration", "rows"), 0.5)
    logbook.evaluated("validation", quality, 0.1)
    logbook.close()
    drawn = terminal()
    assert "0.00/1.00k" in drawn
    assert "] |" not in drawn
    assert " trainer 0 | validation (model): NE 0.50000" in drawn  # as every other line, under a bar too
    assert " trainer 0 | validation (model): NE 0.50000" in messages.read_text()


def test_the_bar_of_a_resumed_run_counts_only_its_own_examples_in_its_rate(tmp_path, terminal):
    terminal(24, 80)
    scored = Quality()
    scored.add(np.zeros(600, np.float32), np.ones(600, np.float32))
    MetricLogger(tmp_path, Topology(), 1_000, 5.0, {"examples": 600.0}, [scored]).close()
    drawn = terminal()
    assert "600/1.00k" in drawn
    assert set(re.findall(r", +(\S+)ex/s", drawn)) <= {"?", "0.00"}


def test_what_takes_long_is_said_with_seconds(messages, monkeypatch):
    monkeypatch.setattr(log, "FIRST_REMINDER", 0.02)
    monkeypatch.setattr(log, "WORTH_SAYING", 0.01)
    with log.during("compiling", lambda: ", half of it done"):
        while "so far" not in messages.read_text():
            time.sleep(0.005)
    with pytest.raises(ValueError, match="broken"), log.during("placing rows"):
        raise ValueError("broken")
    said = [line.partition("| ")[2] for line in messages.read_text().splitlines()]
    assert said[0] == "compiling ..."
    assert re.fullmatch(r"compiling: \d+ s so far, half of it done", said[1])
    assert [line for line in said if " took " in line] == [said[said.index("placing rows ...") - 1]]
    assert re.match(r"compiling: took \d+\.", said[said.index("placing rows ...") - 1])


def test_a_run_says_what_it_prepares(tmp_path, small_data, messages):
    train_over_threads(tmp_path, small_data, "topology.embedding_ps=2")
    said = [line.partition("| ")[2] for line in messages.read_text().splitlines()]
    begun = [line for line in said if line.endswith("...") or line == "training starts"]
    rows = sum(CARDINALITIES)
    assert begun == [
        f"placing {rows:,} embedding rows on 2 embedding PSs ...",
        "loading kernels ...",
        "waiting for the other ranks ...",
        "training starts",
    ]


def test_lines_in_memory_are_tried_once_more_at_the_end(tmp_path):
    lines = JsonlFile(tmp_path / "lines", known=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        lines.write("the only line")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines.close()
    assert (tmp_path / "lines").read_text() == "the only line\n"


def test_a_line_that_a_full_disk_cut_off_does_not_swallow_the_next(tmp_path, messages):
    log.log.info("first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (messages.stat().st_size + 10, before[1]))
    try:
        log.log.info("second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.record("it was killed")
    assert log.last_end(tmp_path, None) == "it was killed"
    first, cut_off, *others = messages.read_text().splitlines()
    assert (" | first" in first, len(cut_off)) == (True, 10)
    assert all(line.count(" trainer 0 | ") == 1 for line in others)


def test_what_is_no_text_is_logged_too(messages):
    line = log.log.makeRecord("ssmpi", logging.INFO, "", 0, "folder \udcff", (), None)
    for handler in log.log.handlers:
        if isinstance(handler, log.RankFile):
            handler.handle(line)
    assert "folder \\udcff" in messages.read_text()


def test_a_line_before_the_end_of_a_process_waits_for_its_disk(tmp_path, messages, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: (time.sleep(0.3), write(file, text))[1])
    log.log_and_flush("the launcher has ended")
    assert "the launcher has ended" in messages.read_text()


def test_events_that_end_are_reported_once(tmp_path, messages):
    logbook = MetricLogger(tmp_path, Topology(), 1_000, 5.0)
    disk = logbook.writer = HungDisk(SimpleNamespace(close=lambda: None))
    disk.add_scalar = lambda name, value, step: disk.answers.wait() and (tmp_path / "lost").stat()
    quality = dict.fromkeys(("ne", "log_loss", "auc", "auc_error", "accuracy", "calibration", "rows"), 0.5)
    for name in ("first", "second", "third"):
        logbook.evaluated(name, quality, 0.1)
    disk.answers.set()
    logbook.close()
    assert messages.read_text().count("TensorBoard's events end here") == 1
    assert (tmp_path / "metrics.jsonl").read_text().count("evaluation") == 3
