"""A run that cannot fit in a host's memory is told so, with what would make it fit, before anything starts."""

import re

import pytest

from ssmpi import cli
from ssmpi.cluster import launch
from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.host import host_memory
from ssmpi.state import requirements
from ssmpi.state.request import RunRequest
from ssmpi.state.requirements import placement_of

LARGE = ("topology.trainers=4", "topology.threads=8", "data.batch_size=4096", "sync.algorithm=ma")


def why_not(run_file, data, limit, *overrides):
    config, features = load(run_file, [*LARGE, *overrides]), read_manifest(data).features
    return requirements.misfit(config.over(features), features, placement_of(config), limit)


def test_every_setting_that_is_named_makes_it_fit(tmp_path, small_data):
    run_file = tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{small_data}'\nrun.folder = '{tmp_path}/run'")
    needed = float(re.search(r"need ([\d.]+) GB", why_not(run_file, small_data, 1e6))[1]) * 1e9
    assert why_not(run_file, small_data, needed + 1e8) == ""
    said = why_not(run_file, small_data, 0.6 * needed)
    named = re.findall(r"([a-z]+\.[a-z_]+) = (\"?\w+\"?)", said)
    assert {"data.batch_size", "topology.threads", "topology.trainers"} <= {name for name, _ in named}
    for name, value in named:
        assert why_not(run_file, small_data, 0.6 * needed, f"{name}={value}") == ""
    assert "no setting alone makes it fit; a site file (--site)" in why_not(run_file, small_data, 1e6)


def test_plan_and_launch_refuse_it(tmp_path, small_data, monkeypatch, capsys):
    run_file = tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{small_data}'\nrun.folder = '{tmp_path}/run'")
    for module in (host_memory, requirements):
        monkeypatch.setattr(module, "memory_limit", lambda: 1e8)
    monkeypatch.setattr(launch.Launch, "run", lambda launched, site: 0)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(run_file)])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "work: " in said.out
    assert "error: does not fit: all ranks together need" in said.err
    with pytest.raises(TopologyError, match=r"this host has 0\.1: .* --ignore-memory' starts it anyway"):
        launch.launch(RunRequest(run_file, []), None, False)
    assert launch.launch(RunRequest(run_file, []), None, False, ignore_memory=True) == 0
    assert launch.launch(RunRequest(run_file, ["data.folder=nowhere"]), None, False) == 0  # the ranks say what is wrong
