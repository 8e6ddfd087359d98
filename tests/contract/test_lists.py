"""Training on rows with lists of ids: equal to plain torch, whatever holds the rows and pools them."""

import numpy as np
import pytest
import torch
from datasets import LIST_CARDINALITIES, make_lists_dataset
from oracle import PlainListDeepFM, PlainListDLRM, train_plainly
from own_network import NAMED, write_own
from runs import assert_same_bits, batches, train_over_threads

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


def plain_dlrm(config):
    return PlainListDLRM(config.model.bottom, config.model.top, LIST_CARDINALITIES, 8, config.run.seed, dense=2)


def assert_equal_to(model, losses, run, within=5e-5):
    assert len(losses) == len(run.losses()) >= 57
    np.testing.assert_allclose(run.losses(), losses, rtol=2e-5, atol=0)
    for name, value in model.dense_parameters_by_name().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=within, err_msg=name)
    for f, (table, plain) in enumerate(zip(run.tables(), model.rows, strict=True)):
        np.testing.assert_allclose(table, plain, rtol=0, atol=within, err_msg=f"table {f}")


def assert_equals_plain_training(run, model_of):
    config = load(run.folder / "run.toml")
    assert_equal_to(*train_plainly(config, LIST_CARDINALITIES, batches(config), model=model_of(config)), run)


def test_equals_plain_pytorch(alone):
    """Mean, sum and weighted lists beside features with one id, over 60 iterations."""
    assert_equals_plain_training(alone, plain_dlrm)


@pytest.mark.parametrize(
    ("shared", "pooling", "decay"),
    [("false", "trainer", 0), ("false", "server", 0), ("false", "server", 0.02), ("true", "server", 0.02)],
)
def test_deepfm_equals_plain_pytorch(data, tmp_path, shared, pooling, decay):
    """First-order weights are pooled and learned as vectors are, and decay with them if whole tables do."""
    where = ("topology.embedding_ps=1", f"run.shared_memory={shared}", f"embedding.pooling={pooling}")
    network = ("model.name=deepfm", "model.deepfm.deep=[16,8]", f"embedding.table_decay={decay}")
    run = train_over_threads(tmp_path, data, *ONE, *RATES, *where, *network)
    assert_equals_plain_training(
        run, lambda config: PlainListDeepFM((16, 8), LIST_CARDINALITIES, 8, config.run.seed, 2)
    )
    assert all(table[:, -1].any() for table in run.tables()), "first-order weights have learned"


OWN = """
from ssmpi.model.network import DENSE, ROWS, Concat, Network, mlp

def network(inputs):
    return Network((Concat("all", (DENSE, ROWS)), *mlp("top", "all", [16, 1], last="none")), inputs)
"""


class PlainOwn(PlainListDLRM):
    """``OWN``: dense features and pooled vectors side by side."""

    @staticmethod
    def top_inputs(dense, tables, dim):
        return dense + tables * dim

    def forward(self, dense, ids):
        first, last = self.top
        return last(first(torch.cat([dense, *self.vectors(ids)], dim=1)).relu()).squeeze(1)


def test_a_custom_network_equals_plain_pytorch(data, tmp_path):
    """It reads a list as one vector, as any other feature's."""
    write_own(tmp_path, OWN)
    run = train_over_threads(tmp_path, data, *ONE, *RATES, NAMED, "topology.embedding_ps=2")
    assert_equals_plain_training(run, lambda config: PlainOwn((), (16, 1), LIST_CARDINALITIES, 8, config.run.seed, 2))


class HalfPushes(torch.optim.SGD):
    """Steps by gradients in bfloat16. What rounding takes away is added to the next one."""

    def __init__(self, parameters, rate):
        super().__init__(parameters, rate)
        self.rest = [torch.zeros_like(parameter) for parameter in parameters]

    def step(self):
        (group,) = self.param_groups
        for parameter, rest in zip(group["params"], self.rest, strict=True):
            rest += parameter.grad
            parameter.grad = rest.bfloat16().float()
            rest -= parameter.grad
        super().step()


@pytest.mark.parametrize("codec", ["dense", "threshold:0", "bf16"])
def test_pushes_by_a_codec_are_those_of_its_formula(data, tmp_path, codec):
    """Sync PSs take the steps, embedding PSs pool. Nothing is dropped, or what rounding drops comes with the next: it
    ends 5e-8 from its formula, and 1e-5 from that of the whole gradients.
    """
    center = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1", "topology.sync_ps=2")
    pooled = ("topology.embedding_ps=1", "run.shared_memory=false", "embedding.pooling=server")
    run = train_over_threads(tmp_path, data, *ONE, *RATES, *center, *pooled, f"sync.codec={codec}")
    config = load(run.folder / "run.toml")
    model = plain_dlrm(config)
    kind = HalfPushes if codec == "bf16" else torch.optim.SGD
    dense = kind(model.dense_parameters, config.dense.rate)
    rows = torch.optim.SGD([table.weight for table in model.tables], config.embedding.rate)
    assert_equal_to(model, model.train_on(batches(config), (dense, rows), config.schedule), run, within=3e-6)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_where_rows_are_changes_no_bit(alone, data, tmp_path, servers, shared):
    """Messages bring rows."""
    overrides = (f"topology.embedding_ps={servers}", f"run.shared_memory={shared}", "embedding.pooling=trainer")
    assert_same_bits(train_over_threads(tmp_path, data, *ONE, *RATES, *overrides), alone)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_one_server_that_pools_changes_no_bit(data, tmp_path, optimizer):
    found = [
        train_over_threads(
            tmp_path / pooling, data, *ONE, *RATES, f"embedding.optimizer={optimizer}", "topology.embedding_ps=1",
            "run.shared_memory=false", f"embedding.pooling={pooling}",
        )
        for pooling in ("trainer", "server")
    ]  # fmt: skip
    assert_same_bits(*found)
    pulled = [run.result["bytes"]["embedding_pull"] for run in found]
    assert pulled[0] != pulled[1]


def test_several_servers_that_pool_differ_by_rounding(alone, data, tmp_path):
    """A list whose table lies on both is a sum of two sums."""
    overrides = ("topology.embedding_ps=2", "run.shared_memory=false", "embedding.pooling=server")
    run = train_over_threads(tmp_path, data, *ONE, *RATES, *overrides)
    np.testing.assert_allclose(run.losses(), alone.losses(), rtol=2e-5, atol=0)
    for f, (table, other) in enumerate(zip(run.tables(), alone.tables(), strict=True)):
        np.testing.assert_allclose(table, other, rtol=0, atol=5e-5, err_msg=f"table {f}")
