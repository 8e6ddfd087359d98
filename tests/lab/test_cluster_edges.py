"""``python -m jobs.lab cluster --edges``: its edges take as long as it says, and its table compares with dense ones."""

import numpy as np
import pytest

from jobs.lab.cluster import cluster
from jobs.lab.cluster import edges as cluster_edges
from jobs.lab.cluster.emulation import Emulation
from jobs.lab.cluster.scenarios import WHOLE
from ssmpi.config import load
from ssmpi.model.part import transform
from ssmpi.runtime.errors import SettingsError

OPTIONS = cluster.ClusterOptions(edges=(0.25, 2.0), trainers=(3, 4))


@pytest.fixture
def base(tmp_path, small_data):
    path = tmp_path / "base.toml"
    path.write_text("")
    return lambda *settings: load(path, (f"data.folder={small_data}", *WHOLE, *settings))


def test_an_edges_bytes_take_so_many_steps(base):
    """There and back, by a member's link, where the edge is dense; a sparse one has 13 of 256 values."""
    found = cluster_edges.visits(OPTIONS)
    assert [n for _, n in found] == [4] * len(found)
    assert len(found) == 2 * len(cluster_edges.KINDS)
    for scenario, trainers in found:
        config = base(*scenario.overrides(trainers))
        edges = {edge.value: edge for edge in transform(config.network, config.places, 0, 0).edges}
        sparse = scenario.kind.startswith("sparse")
        assert list(edges) == ["dense", "bottom.2.top_k" if sparse else "bottom.2"]
        edge = list(edges.values())[1]
        seconds = (edge.message + edge.back) * config.data.batch_size / (1e6 * scenario.link_mb)
        assert seconds == pytest.approx(0.05 * scenario.steps * ((65 + 52) / 2048 if sparse else 1))
        assert (config.sync.codec == "dense") == (scenario.kind != "sparse, sparse pushes")
        link = 1e6 * scenario.link_mb
        assert cluster.emulation(OPTIONS, scenario) == Emulation(0.05, link, None, link)


def test_the_table_compares_each_with_dense_ones_at_the_same_ratio():
    rows = [
        {"shape": f"{steps:g} steps: {kind}", "eps": 100.0 * (1 + number), "predicted_eps": 100.0}
        for steps in (0.25, 1.0)
        for number, kind in enumerate(cluster_edges.KINDS)
    ]
    assert cluster_edges.gains(rows[:-1], "eps") == {
        "0.25": {"sparse": 2.0, "sparse, pushes": 4 / 3, "sparse, sparse pushes": 5 / 3},
        "1": {"sparse": 2.0, "sparse, pushes": 4 / 3},
    }
    lines = cluster_edges.table(rows[:-1]).splitlines()
    assert lines[-2].split() == ["0.25", "2.00", "(1.00)", "1.33", "(1.00)", "1.67", "(1.00)"]
    assert lines[-1].split() == ["1", "2.00", "(1.00)", "1.33", "(1.00)", "-"]


def test_the_forecast_expects_more_of_fewer_bytes_the_longer_they_take(base):
    """Edges alone: nearly (1 + steps) times as much; with pushes, the more of both is sparse."""
    found = cluster_edges.visits(OPTIONS)
    eps = {}
    for scenario, trainers in found:
        links = cluster.LinkSpeeds(cluster.sync_link(OPTIONS, scenario), trainer=1e6 * scenario.link_mb)
        predicted = cluster.forecast(base(*scenario.overrides(trainers)), 0.05, links).of(trainers).eps
        eps[scenario.steps, scenario.kind] = predicted
    for steps in OPTIONS.edges:
        assert eps[steps, "sparse"] / eps[steps, "dense"] == pytest.approx(1 + steps, rel=0.2)
        pushing = [eps[steps, kind] for kind in list(cluster_edges.KINDS)[2:]]
        assert np.all(np.diff(pushing) > 0)


@pytest.mark.parametrize("wrong", [(0.0,), (-1.0,)])
def test_edges_take_some_time(wrong):
    with pytest.raises(SettingsError, match="--edges"):
        cluster.ClusterOptions(edges=wrong)
