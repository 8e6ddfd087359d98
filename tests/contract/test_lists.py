"""Training on rows with lists of ids: equal to plain torch, whatever holds the rows and pools them."""

import numpy as np
import pytest
from datasets import LIST_CARDINALITIES, make_lists_dataset
from oracle import PlainListDLRM, train_plainly
from runs import batches, train_over_threads

from ssmpi.config import load

ONE = ("embedding.prefetch=false", "data.batch_size=32", "data.passes=2", "evaluate.split=none")
RATES = ("dense.optimizer=sgd", "dense.rate=0.05", "embedding.optimizer=sgd", "embedding.rate=0.1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_lists_dataset(tmp_path_factory.mktemp("lists"), 900)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """Rows in the trainer itself."""
    return train_over_threads(tmp_path_factory.mktemp("alone"), data, *ONE, *RATES, "topology.embedding_ps=0")


def same(one, other):
    np.testing.assert_array_equal(one.losses(), other.losses())
    for name, values in one.dense().items():
        np.testing.assert_array_equal(values, other.dense()[name], err_msg=name)
    for values, others in zip(one.tables(), other.tables(), strict=True):
        np.testing.assert_array_equal(values, others)


def plain_training(config):
    model = PlainListDLRM(config.model.bottom, config.model.top, LIST_CARDINALITIES, 8, config.run.seed, dense=2)
    return train_plainly(config, LIST_CARDINALITIES, batches(config), model=model)


def test_equals_plain_pytorch(alone):
    """Mean, sum and weighted lists beside features with one id, over 60 iterations."""
    model, losses = plain_training(load(alone.folder / "run.toml"))
    assert len(losses) == len(alone.losses()) >= 57
    np.testing.assert_allclose(alone.losses(), losses, rtol=2e-5, atol=0)
    for name, value in model.dense_parameters_by_name().items():
        np.testing.assert_allclose(alone.dense()[name], value, rtol=0, atol=5e-5, err_msg=name)
    for f, (table, plain) in enumerate(zip(alone.tables(), model.rows, strict=True)):
        np.testing.assert_allclose(table, plain, rtol=0, atol=5e-5, err_msg=f"table {f}")


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("transport", ["shared", "messages"])
def test_where_rows_are_changes_no_bit(alone, data, tmp_path, servers, transport):
    """Messages bring rows."""
    overrides = (f"topology.embedding_ps={servers}", f"embedding.transport={transport}", "embedding.pooling=trainer")
    same(train_over_threads(tmp_path, data, *ONE, *RATES, *overrides), alone)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_one_server_that_pools_changes_no_bit(data, tmp_path, optimizer):
    found = [
        train_over_threads(
            tmp_path / pooling, data, *ONE, *RATES, f"embedding.optimizer={optimizer}", "topology.embedding_ps=1",
            "embedding.transport=messages", f"embedding.pooling={pooling}",
        )
        for pooling in ("trainer", "server")
    ]  # fmt: skip
    same(*found)
    pulled = [run.result["bytes"]["embedding_pull"] for run in found]
    assert pulled[0] != pulled[1]


def test_several_servers_that_pool_differ_by_rounding(alone, data, tmp_path):
    """A list whose table lies on both is a sum of two sums."""
    overrides = ("topology.embedding_ps=2", "embedding.transport=messages", "embedding.pooling=server")
    run = train_over_threads(tmp_path, data, *ONE, *RATES, *overrides)
    np.testing.assert_allclose(run.losses(), alone.losses(), rtol=2e-5, atol=0)
    for f, (table, other) in enumerate(zip(run.tables(), alone.tables(), strict=True)):
        np.testing.assert_allclose(table, other, rtol=0, atol=5e-5, err_msg=f"table {f}")
