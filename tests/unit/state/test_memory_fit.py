"""A run that cannot fit in a host's memory is told so, with what would make it fit, before anything starts."""

import fcntl
import re

import pytest

from ssmpi import cli
from ssmpi.cluster import launch
from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError, TopologyError
from ssmpi.runtime.host import host_memory, memory_folder
from ssmpi.runtime.topology import Role
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


def test_rows_on_disk_need_room_there_and_no_memory(tmp_path, small_data, disk, monkeypatch, capsys):
    run_file, system = tmp_path / "run.toml", memory_folder.file_system(disk)
    run_file.write_text(f"data.folder = '{small_data}'\nrun.folder = '{tmp_path}/run'")
    rows, manifest = f"embedding.storage={disk}", read_manifest(small_data)
    in_memory, on_disk = (load(run_file, more).over(manifest.features) for more in ([], [rows]))
    size, role = sum(manifest.cardinalities) * in_memory.rows.row_bytes, Role.EMBEDDING_PS
    needed, less = (requirements.memory_of_ranks(each, placement_of(each)) for each in (in_memory, on_disk))
    assert needed[role] - less[role] == size
    kept, less = (requirements.kept_memory(each, placement_of(each)) for each in (in_memory, on_disk))
    assert kept[role] - less[role] == size
    monkeypatch.setattr(launch.Launch, "run", lambda launched, site: 0)
    assert launch.launch(RunRequest(run_file, [rows]), None, False) == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(run_file), rows])
    assert not ended.value.code
    assert f"rows of one PS in {disk}: " in capsys.readouterr().out
    with pytest.raises(DataError, match="no such folder on"):
        launch.launch(RunRequest(run_file, [f"{rows}/none"]), None, False)
    monkeypatch.setattr(memory_folder, "file_system", lambda _: system._replace(free=size - 1))
    with pytest.raises(DataError, match=f"no room in {disk}: {size:,} bytes are needed, {size - 1:,} are free"):
        launch.launch(RunRequest(run_file, [rows]), None, False)
    left = memory_folder.of_launch(str(disk), "before") / "embedding_ps-0"
    left.parent.mkdir()
    left.write_bytes(b"0")  # of a launch that was killed: the next one goes on with it, or replaces it
    assert launch.launch(RunRequest(run_file, [rows]), None, False) == 0
    with left.open("r+b") as file:
        memory_folder.hold(file.fileno(), fcntl.F_RDLCK)  # of one that runs
        with pytest.raises(DataError, match=f"{size - 1:,} are free"):
            launch.launch(RunRequest(run_file, [rows]), None, False)


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
