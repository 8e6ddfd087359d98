"""The plan is arithmetic, and the same arithmetic as the run's."""

import mmap
import re
import tempfile
from pathlib import Path

import pytest
from runs import train_over_threads

from ssmpi.cluster.node_layout import lay_out
from ssmpi.cluster.site import Node, Site, SitePlacement
from ssmpi.config import load
from ssmpi.data.features import Features
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.model.replica import Replica
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.mpi.rank_memory import HEADER, MemoryFile, Origin
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link
from ssmpi.state.memory_needs import dense_parameters, held_parameters, memory_of_ranks, round_cost, row_memory
from ssmpi.state.requirements import placement_of
from ssmpi.tools import plan
from ssmpi.tools.units import in_units

ROOM = 64  # floats that the borders of copies and what they are sent with take, at most


def read(tmp_path, data, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{data}"')
    return load(path, overrides)


@pytest.mark.parametrize(
    "overrides",
    [(), ("model.bottom=[16]",), ("model.bottom=[4,8]", "model.top=[1]", "embedding.dim=8"), ("model.top=[7,5,3,1]",)],
)
def test_it_counts_the_parameters_that_the_model_has(tmp_path, small_data, overrides):
    config = read(tmp_path, small_data, *overrides)
    replica = Replica(config.network, config.model.precision, 1)
    assert dense_parameters(config) == replica.vector.size


def test_members_hold_what_they_own_and_copies(tmp_path, small_data):
    """By hand: member 1 owns the first layer, and member 0 all others; only lanes of the first member compute here."""
    shape = ("model.bottom=[512,16]", "model.top=[8,1]", "topology.trainers=4", "run.shared_memory=false")
    group = ("topology.group=2", "hierarchy.homes=first", 'hierarchy.tags=["bottom.0: 1", "*: 0"]')
    config, flat = (read(tmp_path, small_data, *shape, *more) for more in (group, ()))
    whole, first = flat.network.parameters, 13 * 512 + 512
    assert dense_parameters(config) == max(first, whole - first)
    assert 0 <= held_parameters(config) - dense_parameters(config) < ROOM  # it computes with nothing else
    assert dense_parameters(flat) == held_parameters(flat) == whole
    assert round_cost(config).sent == {Link.TRAINERS: 4 * (dense_parameters(config) + 1)}  # an all-reduce of two
    data = read(tmp_path, small_data, *shape, *group[:2], "hierarchy.plan=data")
    assert 0 <= held_parameters(data) - whole < ROOM
    assert whole / 2 <= dense_parameters(data) < whole
    assert "sent by each of 2 replicas" in plan.traffic(config, place([10] * 26, 1))


def test_every_rank_and_every_table_is_in_it(tmp_path, small_data):
    overrides = ("topology.trainers=3", "topology.embedding_ps=2", "topology.sync_ps=1", "sync.algorithm=easgd")
    text = plan.describe(read(tmp_path, small_data, *overrides))
    assert "ranks: 6 = 3 trainer + 2 embedding_ps + 1 sync_ps" in text
    assert "mpirun -n 6" in text
    shown = re.findall(r"\b(C\d+)\b", text)
    assert set(shown) == {f"C{f}" for f in range(1, 27)}


@pytest.mark.parametrize(
    ("overrides", "rows", "accumulators"),
    [
        (("model.name=deepfm",), "17 (embedding.dim = 16 and a first-order weight)", 2),
        (("model.name=deepfm", "embedding.dim=8"), "9 (embedding.dim = 8 and a first-order weight)", 2),
        (("model.name=logistic",), "1 (a first-order weight)", 1),
        ((), "16", 1),
    ],
)
def test_rows_are_as_wide_as_the_network_reads_them(tmp_path, small_data, overrides, rows, accumulators):
    config = read(tmp_path, small_data, *overrides)
    width = int(rows.split()[0])
    assert f" rows x {rows}, " in plan.describe(config)
    assert config.rows.row_bytes == 4 * (width + accumulators)
    assert f"{128 * 26 * (4 + 4 * width) / 1e3:.3g} kB pulled" in plan.traffic(config, place([10] * 26, 1))


def test_rows_of_16_bits(tmp_path, small_data):
    """Half of the weights' bytes, in memory and where they are pulled; those that decay send what they compute, and get
    clocks.
    """
    half = "embedding.precision=bf16"
    config, placement = read(tmp_path, small_data, half), place([10] * 26, 1)
    assert " rows x 16 in bf16 (36 bytes a row, 68 in fp32), " in plan.describe(config)
    assert plan.row_bytes(config, placement) == (16 + 128 * 26 * (4 + 32), 28 + 128 * 26 * (4 + 64))
    decaying = read(tmp_path, small_data, half, "embedding.table_decay=0.1")
    assert plan.row_bytes(decaying, placement) == (16 + 128 * 26 * (4 + 64), 28 + 16 + 128 * 26 * (4 + 64))
    assert " (52 bytes a row, 84 in fp32), " in plan.describe(decaying)


def test_tables_without_servers_are_the_trainers(tmp_path, small_data):
    text = plan.describe(read(tmp_path, small_data, "topology.embedding_ps=0", "sync.algorithm=none"))
    assert re.search(r"trainer 0: .* 26.00 lookups an example", text)
    assert "on the wire: nothing" in text


def test_work_counts_every_pass(tmp_path, small_data):
    text = plan.describe(read(tmp_path, small_data, "data.passes=3", "topology.threads=5", "topology.trainers=2"))
    assert "18,000 examples (6,000 rows x 3 passes)" in text
    assert "ELP: 1,280 = batch 128 x 5 threads x 2 trainers" in text


def test_the_last_batch_of_a_pass_is_an_iteration_too(tmp_path, small_data):
    text = plan.describe(read(tmp_path, small_data, "data.passes=3", "evaluate.per_pass=2"))
    run = train_over_threads(tmp_path / "run", small_data, "data.passes=3", "evaluate.per_pass=2")
    assert run.result["iterations"] > 3 * 6_000 // 128
    assert f"{run.result['iterations']:,.0f} iterations" in text


@pytest.mark.parametrize("rows", ["²", "99999999999999999999999", "3000000000", "0", "-1", "1.5", ""])
def test_rows_that_no_table_can_have_are_an_error_of_the_user(tmp_path, small_data, rows):
    (tmp_path / "tables.txt").write_text(f"1000 {rows}\n" if rows else "# none\n", encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'tables.txt'}: ") + f".*{rows or 'none'}"):
        plan.describe(read(tmp_path, small_data), None, tmp_path / "tables.txt")


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [("ma", 1.5), ("bmuf", 1.5), ("slowmo", 1.5), ("easgd", 1.0), ("async_ps", 1.0), ("gossip", 1.0)],
)
def test_traffic_of_a_round(tmp_path, small_data, algorithm, expected):
    """A ring all-reduce sends 2 (n - 1) / n of the vector; with a center or a partner it goes once, and comes once."""
    servers = 1 if algorithm in ("easgd", "async_ps") else 0
    config = read(
        tmp_path, small_data, "topology.trainers=4", f"topology.sync_ps={servers}", f"sync.algorithm={algorithm}"
    )
    text = plan.traffic(config, place([10] * 26, 1))
    number, unit = re.search(r"a round: ([\d.]+) (kB|MB)", text).groups()
    sent = float(number) * {"kB": 1e3, "MB": 1e6}[unit]
    assert sent == pytest.approx(expected * 4 * dense_parameters(config), rel=5e-3)


@pytest.mark.parametrize(("pace", "clients"), [("shadow", 3), ("fixed_rate", 6)])
def test_a_sync_ps_keeps_mirrors_of_every_client(tmp_path, small_data, pace, clients):
    """Of its replica and of the center; a client is a trainer, or each of its threads."""
    overrides = ("topology.trainers=3", "topology.threads=2", "topology.sync_ps=2", "sync.algorithm=easgd")
    overrides += (f"sync.pace={pace}", f"sync.every_iterations={5 if pace == 'fixed_rate' else 0}")
    whole, some = (
        memory_of_ranks(config, placement_of(config))
        for config in (read(tmp_path, small_data, *overrides, f"sync.codec={c}") for c in ("dense", "threshold:0.9"))
    )
    config = read(tmp_path, small_data)
    vector = 4 * dense_parameters(config)
    assert some[Role.SYNC_PS] - whole[Role.SYNC_PS] == (3 * clients + 1) * vector / 2
    assert some[Role.TRAINER] - whole[Role.TRAINER] == 4 * clients / 3 * vector


def test_memory_files_are_held_against_half_of_a_nodes_memory(tmp_path, small_data):
    """By hand: 4 P + 4 P (Adagrad) and the histograms of two threads a trainer, two of them on a node with all rows."""
    config = read(tmp_path, small_data, "topology.trainers=2", "topology.threads=2", "sync.algorithm=ma")
    rows = 17 * 4 * sum(placement_of(config).cardinalities)
    counts = 2 * 2 * 2 * 16_384 * 8
    text = plan.describe(config, Site(Node(cores=8, memory_gb=8), SitePlacement(trainers_per_node=2)))
    (most,) = re.findall(r"memory files: at most ([\d.]+) MB a node, /dev/shm has 4 GB by default", text)
    assert float(most) == pytest.approx((2 * 8 * config.network.parameters + rows + counts) / 1e6, rel=0.02)
    tight = Site(Node(cores=8, memory_gb=0.001), SitePlacement(trainers_per_node=2))
    layout = lay_out(config.topology, tight, dict.fromkeys(Role, 0.0))
    text = plan.memory_files(config, placement_of(config), layout, tight)
    assert re.search(r"node 0 keeps [\d.]+ MB in /dev/shm, more than the 500 kB that it has by default", text)
    off = read(tmp_path, small_data, "recovery.mode=off")
    assert "none (recovery.mode = 'off')" in plan.describe(off, Site(Node(cores=8, memory_gb=8)))
    assert "to outlive a kill" not in plan.describe(off)


def test_memory_of_dynamic_tables_is_told_at_first_and_at_the_limit(tmp_path, small_data):
    """By hand, for one of two PSs: a row has 68 bytes, a key and a date 8 each, a slot of the map 16; there are
    two or more a row, a power of two. And as a PS takes it.
    """
    settings = ("embedding.dynamic.keys=1_000_000", "topology.embedding_ps=2")
    config = read(tmp_path, small_data, *settings)
    placement = place([0, 50], 2, config.embedding.dynamic, ["user"])
    limit = 500_000 + 4_243 + 2  # its share, six standard deviations, the reserved rows
    assert [part.rows for part in placement.parts_of(1)][:1] == [limit]
    first = (68 + 16) * 16_384 + 16 * 2**15 + 128 + 68 * 25
    full = (68 + 16) * limit + 16 * 2**20 + 128 + 68 * 25
    assert (row_memory(config, placement, 1, first=True), row_memory(config, placement, 1)) == (first, full)
    text = plan.tables(config, placement, Features.numbered(0, 2))
    assert f"    embedding_ps 1: {in_units(first)} at first, {in_units(full)} at the limit\n" in text
    text = plan.memory(config, placement)
    grown = memory_of_ranks(config, placement)[Role.EMBEDDING_PS]
    assert (
        f"  embedding_ps: about {in_units(grown)}, {in_units(grown - full + first)} until dynamic tables grow\n" in text
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        memory = MemoryFile(Path(folder) / "memory" / "ps", Origin("run", "embedding_ps 1", 1))
        arena = Arena(config.rows, placement, 1, 7, *(memory.part(name, shared=True) for name in ("rows", "keys")))
        there = memory.path.stat()
        assert 0 <= 512 * there.st_blocks - HEADER - first < 8 * mmap.PAGESIZE
        assert there.st_size - HEADER >= full
        assert arena.used == 25 + 1, "of two reserved rows it has one"


def test_it_says_how_many_values_pass(tmp_path, small_data):
    config = read(tmp_path, small_data, 'model.top_k=["bottom.2: 0.95"]')
    assert "  bottom.2.top_k keeps 13 of 256 values\n" in plan.describe(config)
