"""Data without dense features: every built-in network is planned, trains alone and in a group, and is exported."""

import numpy as np
import pytest
from datasets import make_dataset, make_lists_dataset
from runs import train_over_threads
from safetensors.numpy import load_file
from strength import in_soak
from test_group_runs import ONE, PAIR, SMALL_NETWORKS, assert_same

from ssmpi.config import load
from ssmpi.data.features import Features, ListOptions
from ssmpi.model.networks.zoo import NETWORKS
from ssmpi.tools import plan
from ssmpi.tools.export import export

SIZES = (40, 300, 9)
LISTS = {"tags": ListOptions("mean", longest=4, mean_length=2.0), "genres": ListOptions("sum", longest=3)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Ids alone, one column of ids, lists alone."""
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder / "ids", 1_000, cardinalities=SIZES, features=Features((), ("user", "item", "shop")))
    make_dataset(folder / "one", 1_000, cardinalities=SIZES[:1], features=Features((), ("user",)))
    features = Features((), ("tags", "genres"), LISTS)
    make_lists_dataset(folder / "lists", 1_000, features=features, cardinalities=SIZES[1:])
    return folder


OTHERS = [*((name, "ids") for name in NETWORKS if name != "dcn_v2"), ("dlrm", "lists")]


@pytest.mark.parametrize(
    ("name", "of"),
    [("dcn_v2", "ids"), ("dlrm", "one"), ("deepfm", "lists"), ("masknet", "lists"), *in_soak(*OTHERS)],
)
def test_a_network_without_dense_features_trains_alone_and_in_a_group(tmp_path, data, name, of, capsys):
    """A bottom MLP that would not fit is none."""
    settings = (*ONE, f"model.name={name}", "model.bottom=[32,5]", *SMALL_NETWORKS, "topology.embedding_ps=2")
    run = train_over_threads(tmp_path / "alone", data / of, *settings)
    assert run.result["status"] == "complete"
    assert f"network: {name}" in plan.describe(load(run.folder / "run.toml"))
    if name != "logistic":  # a single parameter, which a group cannot share
        assert_same(train_over_threads(tmp_path / "group", data / of, *settings, *PAIR), run)
    assert export(run.folder, "safetensors", tmp_path / "exported") == 0
    assert f"{name} without dense features: facebookresearch/dlrm has no such" in capsys.readouterr().out
    exported = load_file(tmp_path / "exported")
    dense = {key.replace("bot_l", "bottom").replace("top_l", "top"): exported[key] for key in exported}
    for key, values in run.dense().items():
        np.testing.assert_array_equal(dense[key], values)
