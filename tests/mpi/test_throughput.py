"""The benchmark works, on real ranks and with everything it makes itself. No time is judged here."""

import json
import math

import pytest
from ranks import ssmpi

from ssmpi.bench.contenders import grid
from ssmpi.bench.reporting import cores


@pytest.mark.soak
@pytest.mark.timeout(630)  # it starts four jobs, one after the other
def test_the_short_benchmark_measures_every_contender(tmp_path):
    words = ("bench", "throughput", "--short", "--seconds", "0.5", "--folder", tmp_path)
    finished = ssmpi(*words, timeout=600).check()
    report = json.loads((tmp_path / "throughput.json").read_text())

    wanted = {contender.name: contender for contender in grid([128], cores(), short=True)}
    assert set(report["contenders"]) == set(wanted)
    for name, found in report["contenders"].items():
        assert len(found["windows"]) == 1, name
        assert 0 <= found["windows"][0] < math.inf, name
        assert sum(found["cores"].values()) > 0, name
        assert name in finished.out
    ours = [found for found in report["contenders"].values() if found["kind"] == "ssmpi"]
    assert any(found["windows"][0] > 0 for found in ours)  # on a loaded machine one may take no step in its window
    assert all("embedding_ps" in found["cores"] for found in ours)
    assert {"sync_ps 0", "trainer 1"} <= set(ours[1]["rss"])  # the one with S-EASGD

    stages = next(iter(report["sections"]["stages"].values()))
    assert stages["trainer"]  # on a loaded machine a step may be longer than the window and show some of them only
    assert set(stages["trainer"]) <= {
        "read", "ask for rows", "wait for rows", "forward/backward", "record", "push", "dense update", "rest",
    }  # fmt: skip
    assert {"receive", "gather and reply", "update", "idle"} <= set(stages["embedding_ps"])
    assert math.isclose(sum(stages["embedding_ps"].values()), 1.0)
    for turns in report["sections"]["bare"].values():
        assert turns["ratio"] > 0
    assert "mpi_library" in report["header"]

    assert (tmp_path / "throughput.txt").read_text() == finished.out


def test_a_job_that_fails_ends_the_benchmark_with_its_own_words(tmp_path, small_data):
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'[data]\nfolder = "{small_data}"\ntrain_split = "nowhere"\n')
    finished = ssmpi("bench", "throughput", run_file, "--only", "ssmpi 2x*none, 128", "--folder", tmp_path / "out")
    assert finished.code == 1
    assert "a measured job ended with" in finished.err
    assert "no split 'nowhere' in this data set" in finished.err
