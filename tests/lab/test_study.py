"""Studies over real jobs: killed half-way they go on without repeating anything, and one bad cell does not spoil the
rest.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import laboratory
import pytest
from datasets import make_dataset
from laboratory import lab
from ranks import WITHOUT_SCIPY

STUDY = """
[study]
folder = "{folder}"
[settings]
data.folder = "{data}"
model.bottom = [8]
model.top = [8, 1]
embedding.dim = 8
topology.embedding_ps = 0
run.tensorboard = false
[grid]
{grid}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data"), rows=2_000)


def write_study(folder, data, grid):
    path = folder / "study.toml"
    path.write_text(STUDY.format(folder=folder / "study", data=data, grid=grid))
    return path


@contextlib.contextmanager
def running(study):
    """A study to interfere with. Its jobs have sessions of their own: what is left of them is found by a variable."""
    mark = f"SSMPI_TEST_STUDY={study}"
    job = laboratory.running("study", study, without=(WITHOUT_SCIPY,), environ=[mark.split("=")])
    try:
        yield job
    finally:
        job.close()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark.encode() in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)


def marker(folder, cell):
    """What changes when a cell is run again: file number and time of its run folder's first and last files."""
    run = folder / "study" / "cells" / cell
    return [((run / name).stat().st_ino, (run / name).stat().st_mtime_ns) for name in ("run.toml", "result.json")]


def wait_for(condition, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.02)


def test_a_killed_study_goes_on_without_repeating_finished_cells(tmp_path, data):
    study = write_study(tmp_path, data, "run.seed = [1, 2]")
    cells = tmp_path / "study" / "cells"
    with running(study) as job:
        wait_for(lambda: (cells / "seed-2" / "run.toml").is_file())
        job.process.send_signal(signal.SIGKILL)  # the study alone: the job it started is told to stop
        job.process.wait(60)
        before = marker(tmp_path, "seed-1")
        again = lab("study", study, timeout=200, without=(WITHOUT_SCIPY,)).check()
    assert "1 of them finished" in again.err or "2 of them finished" in again.err  # the second may have ended meanwhile
    assert marker(tmp_path, "seed-1") == before
    assert "another job is using this run" not in again.err  # the job left behind was waited for
    results = json.loads((tmp_path / "study" / "results.json").read_text())
    assert [row["runs"] for row in results["rows"]] == [2]
    assert not results["missing"]
    assert (tmp_path / "study" / "results.html").is_file()
    assert not list(cells.glob("*/model"))


@pytest.mark.soak
def test_a_bad_cell_is_named_and_the_others_are_in_the_table(tmp_path, data):
    study = write_study(tmp_path, data, "dense.rate = [0.01, 1e30]")
    one = lab("study", study, "--cell", 0).check()
    assert not one.out
    before = marker(tmp_path, "rate-0.01")
    found = lab("study", study)
    assert found.code == 1
    assert marker(tmp_path, "rate-0.01") == before
    assert "| 0.01" in found.out
    assert "Not finished, so not in the table: rate 1e+30" in found.out
    last = found.err.splitlines()[-1]
    assert "cell 1, rate 1e+30: exit code" in last
    assert "training has diverged" in last
    listed = lab("study", study, "--list").check().out
    assert "0  finished  rate 0.01" in listed
    assert "1  to do     rate 1e+30" in listed
    alone = lab("study", study, "--cell", 2)
    assert alone.code == 2
    assert "has cells 0 to 1" in alone.err


def test_ctrl_c_stops_the_cell_and_the_study(tmp_path, data):
    study = write_study(tmp_path, data, "data.passes = [5_000, 6_000]")
    metrics = tmp_path / "study" / "cells" / "passes-5000" / "metrics.jsonl"
    with running(study) as job:
        wait_for(lambda: metrics.is_file() and metrics.stat().st_size)
        job.process.send_signal(signal.SIGINT)
        found = job.wait(60)
    assert found.code == 85, found.err
    assert "resumes with cell 0" in found.err
    assert json.loads((metrics.parent / "result.json").read_text())["status"] == "stopped"
    assert not (tmp_path / "study" / "cells" / "passes-6000").exists()
