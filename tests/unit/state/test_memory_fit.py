"""A run that cannot fit in a host's memory is told so, with what would make it fit, before anything starts."""

import fcntl
import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import make_keyed

from data_prep.vocabulary.vocabulary_file import MergedFeature, write_vocabulary
from ssmpi import cli
from ssmpi.cluster import launch
from ssmpi.cluster.node_layout import layout_of
from ssmpi.cluster.site import Node, Site, SitePlacement
from ssmpi.config import load
from ssmpi.data.features import CRITEO, Features
from ssmpi.data.schema import DatasetManifest, read_manifest, write_manifest
from ssmpi.embedding.keyed_memory import KeyMemory
from ssmpi.embedding.placement import place
from ssmpi.runtime.errors import DataError, TopologyError
from ssmpi.runtime.host import host_memory, memory_folder
from ssmpi.runtime.topology import Role
from ssmpi.state import memory_needs, requirements
from ssmpi.state.request import RunRequest
from ssmpi.state.requirements import placement_of
from ssmpi.tools import plan

LARGE = ("topology.trainers=4", "topology.threads=8", "data.batch_size=4096", "sync.algorithm=ma")


def why_not(run_file, data, limit, *overrides):
    config = load(run_file, [*LARGE, *overrides]).over(read_manifest(data).features)
    return requirements.misfit(config, placement_of(config), limit)


def test_every_setting_that_is_named_makes_it_fit(tmp_path, small_data):
    run_file = tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{small_data}'\nrun.folder = '{tmp_path}/run'")
    needed = float(re.search(r"need ([\d.]+) GB", why_not(run_file, small_data, 1e6))[1]) * 1e9
    assert why_not(run_file, small_data, needed + 1e8) == ""
    said = why_not(run_file, small_data, 0.6 * needed)
    named = re.findall(r"\n  ([a-z]+\.[a-z_]+) = (\"?[\w/]+\"?): ([\d.]+) GB of memory", said)
    assert {"data.batch_size", "topology.threads", "topology.trainers"} <= {name for name, *_ in named}
    for name, value, size in named:
        assert why_not(run_file, small_data, 0.6 * needed, f"{name}={value}") == ""
        assert f"need {size} GB" in why_not(run_file, small_data, 1e6, f"{name}={value}")
    assert "no setting alone makes it fit; a site file (--site)" in why_not(run_file, small_data, 1e6)


COUNTS = np.maximum(1, 1_000_000 // np.arange(1, 100_001))  # of the tokens of each of two tables


@pytest.fixture
def large(tmp_path):
    """A run file over two tables of 100,002 rows of 1,024 floats, and a vocabulary of as many tokens."""
    names, data = ("a/b", "C2"), tmp_path / "data"
    about = {"id_order": "frequency", "min_count": 1, "max_ind_range": 0, "fit_on": "all", "features": names}
    merged = MergedFeature(np.arange(COUNTS.size, dtype="u8"), COUNTS, [])
    data.mkdir()
    rows = {"fitted_rows": int(COUNTS.sum()) + 100}
    write_vocabulary(data / "vocabulary.h5", dict.fromkeys(names, merged), about | rows)
    write_manifest(data, DatasetManifest((100_002, 100_002), {}, features=Features(CRITEO.dense, names)))
    settings = "topology.sync_ps = 0\nsync.algorithm = 'ma'\nembedding.dim = 1024\nmodel.bottom = [16, 1024]"
    (tmp_path / "run.toml").write_text(f"data.folder = '{data}'\n{settings}")
    return tmp_path / "run.toml"


def loaded(run_file, *overrides):
    config = load(run_file, overrides)
    config = config.over(read_manifest(Path(config.data.folder)).features)
    return config, placement_of(config)


def with_less(placed, least):
    """Tables of those tokens, and of missing and rare ones."""
    return place([2 + int(sum(least <= COUNTS))] * 2, placed.servers)


def test_large_tables_are_told_what_each_way_needs(large):
    """By hand: rows of 4,100 bytes, in 16 bits of 2,052; of each table 50,000 tokens occur 20 times or more."""
    config, placed = loaded(large)
    rest = requirements.this_host(config, placed).need - 200_004 * 4_100
    limit = rest + 0.55 * 200_004 * 4_100
    said = requirements.misfit(config, placed, limit)
    assert f'\n  embedding.precision = "bf16": {(rest + 200_004 * 2_052) / 1e9:,.1f} GB of memory\n' in said
    least, size, left = re.search(
        r"\n  ssmpi-prepare ... --min-count (\d+): ([\d.]+) GB of memory, ([\d,]+) of 200,004 rows are left\n", said
    ).groups()
    assert (least, left) == ("20", "100,004")
    fewer = with_less(placed, 20)
    assert requirements.misfit(config, fewer, limit) == ""
    assert size == f"{(rest + 100_004 * 4_100) / 1e9:,.1f}"
    assert requirements.misfit(config, with_less(placed, 10), limit), "fewer would do"
    share, each = re.search(
        rf'\n  embedding.storage = "/local/disk": {rest / 1e9:,.1f} GB of memory, 0.8 GB of disk; '
        r"([\d.]+)% of the lookups have to read, ([\d.]+) an example: a disk that reads 50,000 pages/s", said
    ).groups()  # fmt: skip
    kept = int((limit - rest) / 4_100 / 2)  # of each table, if the most frequent rows stayed
    assert 1 < float(share) / (100 * COUNTS[kept:].sum() / COUNTS.sum()) < 1.7
    assert float(each) == pytest.approx(2 * float(share) / 100, rel=5e-3)
    assert requirements.misfit(*loaded(large, "embedding.storage=/local/disk"), limit) == ""
    assert "topology.embedding_ps" not in said


def test_nodes_that_are_too_small_are_told_the_same(large):
    config = loaded(large)[0]
    site = Site(Node(cores=8, memory_gb=0.7, count=9), SitePlacement(servers="packed"))
    with pytest.raises(TopologyError, match=r"^does not fit: node 1 \(embedding_ps 0\) needs") as refused:
        layout_of(config, site)
    named = re.findall(r"\n  ([a-z]+\.[a-z_]+) = (\"?[\w/]+\"?): ([\d.]+) GB of memory", str(refused.value))
    assert [name for name, *_ in named][:3] == ["embedding.precision", "embedding.storage", "topology.embedding_ps"]
    for name, value, size in named:
        layout = layout_of(loaded(large, f"{name}={value}")[0], site)
        assert f"{max(load.need for load in layout.loads()) / 1e9:,.1f}" == size
    assert "--min-count" in str(refused.value)
    assert str(refused.value).endswith("\nor take nodes with more memory")
    shared = Site(Node(cores=8, memory_gb=0.7, count=9), SitePlacement(trainers_per_node=2))
    with pytest.raises(TopologyError, match=r"lower placement.trainers_per_node or set placement.servers = .packed.$"):
        layout_of(config, shared)


def test_a_node_needs_no_memory_for_copies_of_rows_on_disk(large):
    """0.82 GB, which the node does not have besides."""
    config = loaded(large, "embedding.storage=/local/disk")[0]
    site = Site(Node(cores=8, memory_gb=1.0, count=9), SitePlacement(servers="packed"))
    assert "no room for copies" not in layout_of(config, site).describe(site)


def test_checkpoints_copy_rows_on_disk_only_where_memory_has_room(large, disk, monkeypatch):
    """0.82 GB of rows: in three quarters of memory, or all; and there must be 0.4 of what is left for a copy."""
    config, placed = loaded(large, f"embedding.storage={disk}")
    needed, rows = requirements.this_host(config, placed).need, 200_004 * 4_100
    for times, room, said in ((3.51, "2.88 GB", "for their copy besides"), (3.49, "2.86 GB", "training waits")):
        monkeypatch.setattr(plan, "memory_limit", lambda times=times: needed + times * rows)
        text = plan.stored(config, placed, None, None)
        assert f"with {room} of memory left for them" in text
        assert re.search(rf"while a checkpoint is written: 820 MB .*{said}$", text)
    assert "while a checkpoint" not in plan.memory(config, placed)


def test_hot_rows_have_three_quarters_of_what_ranks_leave(large, disk, monkeypatch):
    """The least of memory, of what is free of it now and of the folder of the ranks' memory, shared by the PSs of the
    host; in the trainer without one. Each part's first rows, which are its most frequent ones.
    """
    config, placed = loaded(large, f"embedding.storage={disk}", "topology.embedding_ps=2", "topology.trainers=2")
    roles, rows = [Role.TRAINER, Role.EMBEDDING_PS, Role.TRAINER, Role.EMBEDDING_PS], 200_004 * 4_100
    ranks, system = memory_needs.memory_of_ranks(config, placed), memory_folder.file_system(disk)
    room = {"memory_limit": 9e9, "free_memory": 9e9, "folder": 9e9}
    monkeypatch.setattr(memory_needs, "memory_limit", lambda: room["memory_limit"] + sum(ranks[r] for r in roles))
    monkeypatch.setattr(memory_needs, "free_memory", lambda: room["free_memory"])
    monkeypatch.setattr(memory_folder, "file_system", lambda _: system._replace(free=room["folder"]))

    def size(server=0, on=roles, of=config):
        return sum(each.stop - each.start for each in memory_needs.hot_memory(of, placed, server, on))

    assert size() + size(1) == pytest.approx(rows, abs=20 * mmap.PAGESIZE)
    for name in room:
        monkeypatch.setitem(room, name, 4e8)
        assert size() == pytest.approx(1.5e8, abs=20 * mmap.PAGESIZE)
        monkeypatch.setitem(room, name, 9e9)
    monkeypatch.setitem(room, "free_memory", 4e8)
    assert size(0, roles[:3]) == pytest.approx(3e8, abs=20 * mmap.PAGESIZE)
    monkeypatch.setitem(room, "memory_limit", -1.0)
    assert not size()
    monkeypatch.setitem(room, "memory_limit", 9e9)
    assert not size(of=loaded(large)[0])
    assert size(of=loaded(large, f"embedding.storage={disk}", f"recovery.memory_folder={disk}/none")[0])
    Path(config.data.folder, "vocabulary.h5").unlink()
    assert not size()


def test_tables_of_keys_share_what_is_hot_by_their_size(tmp_path, small_data, disk, monkeypatch):
    names = read_manifest(small_data).features.sparse
    data, path = make_keyed(tmp_path / "keys", small_data, names[:2]), tmp_path / "run.toml"
    path.write_text(f"data.folder = '{data}'\nrun.folder = '{tmp_path}/run'")
    more = (
        f"recovery.memory_folder={disk}",
        "embedding.dynamic.keys=100000",
        f"embedding.dynamic.features.{names[1]}.keys=300000",
    )
    config = load(path, [f"embedding.storage={disk}", *more]).over(read_manifest(data).features)
    placed, system = placement_of(config), memory_folder.file_system(disk)
    keys, rows = KeyMemory(placed, 0).size, placed.rows_of(0) * config.rows.row_bytes
    monkeypatch.setattr(memory_needs, "memory_limit", lambda: 9e9)
    monkeypatch.setattr(memory_needs, "free_memory", lambda: 9e9)
    monkeypatch.setattr(
        memory_folder, "file_system", lambda _: system._replace(free=keys + rows / 4 / memory_needs.HOT)
    )
    hot = memory_needs.hot_memory(config, placed, 0, [Role.TRAINER])
    assert sum(each.stop - each.start for each in hot) == pytest.approx(rows / 4, rel=0.02)
    for part in placed.parts_of(0)[:2]:
        assert part.rows >= 100_000
        weights = config.rows.bytes_of(slice(part.base, part.base + part.rows), placed.rows_of(0))[-2]
        of_part = sum(each.stop - each.start for each in hot if weights.start <= each.start < weights.stop)
        assert of_part == pytest.approx((weights.stop - weights.start) / 4, rel=0.1)
    assert re.search(r"\n  hot rows: at most [\d.]+ MB of that", plan.stored(config, placed, None, None))


def test_rows_on_disk_need_room_there_and_no_memory(tmp_path, small_data, disk, monkeypatch, capsys):
    run_file, system = tmp_path / "run.toml", memory_folder.file_system(disk)
    run_file.write_text(f"data.folder = '{small_data}'\nrun.folder = '{tmp_path}/run'")
    rows, manifest = f"embedding.storage={disk}", read_manifest(small_data)
    in_memory, on_disk = (load(run_file, more).over(manifest.features) for more in ([], [rows]))
    size, role = sum(manifest.cardinalities) * in_memory.rows.row_bytes, Role.EMBEDDING_PS
    needed, less = (memory_needs.memory_of_ranks(each, placement_of(each)) for each in (in_memory, on_disk))
    assert needed[role] - less[role] == size
    kept, less = (memory_needs.kept_memory(each, placement_of(each)) for each in (in_memory, on_disk))
    assert kept[role] - less[role] == size
    monkeypatch.setattr(launch.Launch, "run", lambda launched, site: 0)
    assert launch.launch(RunRequest(run_file, [rows]), None, False) == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(run_file), rows])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert f"rows of one PS in {disk}: " in said
    assert re.search(r"all ranks together need 0.[\d]+ GB of memory, and this host has [\d.]+: they fit\n$", said)
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
