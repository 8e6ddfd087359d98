"""What ``ssmpi plan --step-ms --link-mb`` says of the slowest part, against sums by hand."""

import pytest

from ssmpi import cli, compress
from ssmpi.config import load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.topology import Topology
from ssmpi.state.memory_needs import dense_parameters
from ssmpi.state.requirements import placement_of
from ssmpi.sync import ALGORITHMS, SYNC_PS, easgd
from ssmpi.sync.options import RoundOptions
from ssmpi.tools.bottleneck import EMBEDDING, GROUP, MEMBER, STEP, SYNC, TRAINER, LinkSpeeds, estimate

STEP_SECONDS, BATCH = 0.02, 100
EASGD = ("topology.trainers=8", "topology.sync_ps=2", "sync.algorithm=easgd")
FOREGROUND = ("sync.pace=fixed_rate", "sync.every_iterations=5")


@pytest.fixture
def of(tmp_path, small_data):
    """The estimate for a run with some settings, and its parameters in bytes."""

    def make(*overrides, **links):
        path = tmp_path / "run.toml"
        path.write_text(f'[data]\nfolder = "{small_data}"\nbatch_size = {BATCH}\n[topology]\nthreads = 1\n')
        config = load(path, overrides)
        return estimate(config, placement_of(config), STEP_SECONDS, LinkSpeeds(**links)), 4 * dense_parameters(config)

    return make


def test_steps_decide_where_links_carry_anything(of):
    found, _ = of("topology.trainers=3", "topology.threads=2", "sync.algorithm=none")
    assert (found.slowest, found.eps, found.gap) == (STEP, pytest.approx(6 * BATCH / STEP_SECONDS), None)


def test_foreground_rounds_prolong_steps_and_fill_the_links_of_sync_pss(of):
    """A round goes there and back, half of it to each PS; each of 8 threads has one every 5 iterations."""
    found, size = of(*EASGD, *FOREGROUND, sync_ps=10e6)
    pause = 2 * size / 2 / 10e6 / 5
    assert found.limits[STEP] == pytest.approx(8 * BATCH / (STEP_SECONDS + pause))
    assert found.limits[SYNC] == pytest.approx(2 * 10e6 / size * 5 * BATCH)
    assert (found.slowest, found.gap) == (SYNC, 5)


def test_background_rounds_cost_gap_and_no_speed(of):
    found, size = of(*EASGD, sync_ps=10e6)
    assert SYNC not in found.limits
    assert found.eps == pytest.approx(8 * BATCH / STEP_SECONDS)
    assert found.gap == pytest.approx(size * 8 / 2 / 10e6 / STEP_SECONDS)


def test_a_ring_sends_what_an_all_reduce_of_that_many_does(of):
    found, size = of("topology.trainers=4", "sync.algorithm=ma", *FOREGROUND, trainer=10e6)
    pause = 2 * 3 / 4 * size / 10e6 / 5
    assert found.limits[STEP] == pytest.approx(4 * BATCH / (STEP_SECONDS + pause), rel=1e-4)


def test_rows_fill_the_link_of_the_busiest_embedding_ps(of):
    """26 rows an example, each of 16 floats and its number; 14 of them at one of two PSs."""
    found, _ = of("topology.embedding_ps=2", "sync.algorithm=none", embedding_ps=1e5, trainer=1e6)
    row = 26 * (4 + 4 * 16)
    assert found.limits[EMBEDDING] == pytest.approx(26 / 14 * 1e5 / row, rel=0.01)
    assert found.limits[TRAINER] == pytest.approx(1e6 / row, rel=0.01)
    assert found.slowest == EMBEDDING


def test_the_slowest_of_lanes_member_and_link_decides_in_a_group(of):
    """Kaggle's DLRM in stages: 67 % of the products at one member; 1,562 bytes an example there and back."""
    group = ("topology.trainers=4", "topology.group=2", "sync.algorithm=none", "hierarchy.plan=stages")
    found, _ = of(*group)
    assert (found.slowest, found.eps) == (MEMBER, pytest.approx(2 * BATCH / STEP_SECONDS / 0.671, rel=0.01))
    narrow, _ = of(*group, trainer=1e5)
    assert narrow.limits[STEP] == pytest.approx(4 * BATCH / (STEP_SECONDS + BATCH * 1562 / 1e5), rel=0.01)
    assert 1e5 / 1562 <= narrow.limits[GROUP] / 2 <= 2 * 1e5 / 1562


def test_a_codec_shortens_rounds_by_both_directions(of):
    dense, coded = (of(*EASGD, *FOREGROUND, f"sync.codec={c}", sync_ps=1e6)[0] for c in ("dense", "threshold:0.99"))
    assert 30 < coded.limits[SYNC] / dense.limits[SYNC] < 100


def test_rounds_inside_the_step_are_one_an_iteration(of):
    found, size = of(
        "topology.trainers=2", "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1",
        trainer=10e6,
    )  # fmt: skip
    assert found.limits[STEP] < 2 * BATCH / (STEP_SECONDS + size / 10e6)
    assert found.gap == 1


@pytest.mark.parametrize(("step", "link"), [(0.0, 1.0), (0.01, 0.0), (0.01, -1.0)])
def test_steps_and_links_are_above_0(tmp_path, small_data, step, link):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\n')
    config = load(path)
    with pytest.raises(SettingsError, match="must be positive"):
        estimate(config, placement_of(config), step, LinkSpeeds(link, link, link))


def test_plan_names_the_slowest_part_and_the_next(tmp_path, small_data, capsys):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\n')
    words = [
        "plan",
        str(path),
        *EASGD,
        *FOREGROUND,
        "topology.trainers=32",
        "topology.embedding_ps=8",
        "--step-ms",
        "20",
        "--link-mb",
    ]
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([*words, "10"])
    said = capsys.readouterr().out.partition("speed, from that step and these links")[2]
    assert "slowest: sync PS links. To relieve: more sync PSs" in said
    assert "the next limit, " in said
    assert "in iterations of a thread: 5" in said
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(words[:-1])
    assert "belong together: give both" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.no_codec])
def test_whoever_takes_a_codec_says_what_it_takes_of_the_processors(name):
    """And nothing where there is none."""
    topology = Topology(trainers=2, sync_ps=int(ALGORITHMS[name].partner == SYNC_PS))
    for codec, cost in compress.CODECS.items():
        options = RoundOptions(algorithm=name, codec=f"{codec}:0.9" if cost.takes_share else codec)
        seconds = ALGORITHMS[name].cost(options, topology, 1_000).codec_seconds
        assert (seconds > 0) == (codec != "dense")


def test_elastic_rounds_take_two_mirrors_at_both_ends():
    """And both mirrors are moved at both ends."""
    topology = Topology(trainers=2, sync_ps=1)
    for codec in ("threshold:0.99", "bf16"):
        mirror = compress.parse(codec)[0].nanoseconds
        elastic = ALGORITHMS["easgd"].cost(RoundOptions(codec=codec), topology, 10**9).codec_seconds
        assert elastic == pytest.approx(2 * (mirror.send + mirror.receive) + easgd.PASSES)
        assert easgd.PASSES > 0
