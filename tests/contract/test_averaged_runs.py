"""Whole runs whose replicas meet in their mean, against plain torch and the formula of the rounds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import CARDINALITIES, make_dataset
from oracle import plain_model
from runs import train_over_threads
from strength import in_soak

from ssmpi.config import load
from ssmpi.data.block_dispatcher import block_order
from ssmpi.data.reader import SplitReader, batches_in, shuffled, suit_block_rows

TRAINERS, EVERY, ALPHA, ETA, MOMENTUM = 2, 3, 0.7, 0.9, 0.4
SETTINGS = (
    f"topology.trainers={TRAINERS}", "topology.embedding_ps=1", "data.handout=static", "data.batch_size=48",
    "data.passes=2", "evaluate.split=none",
    "embedding.optimizer=sgd", "embedding.rate=1e-30",  # which changes no row: trainers then meet in rounds alone
    "dense.optimizer=adam", "dense.rate=0.01", "dense.epsilon=1e-4",
    "sync.algorithm=bmuf", "sync.pace=fixed_rate", f"sync.every_iterations={EVERY}", f"sync.alpha={ALPHA}",
    f"sync.bmuf.eta={ETA}", f"sync.bmuf.momentum={MOMENTUM}",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """As many batches for each trainer."""
    return make_dataset(tmp_path_factory.mktemp("even"), 1_536)


def steps_of(config, a_pass):
    """The batches of both trainers, step by step."""
    data, seed = config.data, config.run.seed
    whole = SplitReader(Path(data.folder), "train", data.block_rows)
    reader = SplitReader(Path(data.folder), "train", suit_block_rows(data, whole.rows, TRAINERS))
    order = block_order(data, seed, a_pass, len(reader.blocks))

    def mine(trainer):
        for number in order[trainer::TRAINERS]:
            block = reader.blocks[number]
            rows = shuffled(seed, 2, a_pass, number, size=block.rows)
            yield from batches_in(rows, reader.read(block), data.batch_size)

    return zip(*(mine(trainer) for trainer in range(TRAINERS)), strict=True)


class Blocks:
    """BMUF in torch: rounds of replicas, by the formula at the head of ``ssmpi/sync/bmuf.py``."""

    def __init__(self, models, nesterov):
        self.models, self.ahead = models, MOMENTUM if nesterov else 0.0
        self.model = self.reference = self.vector(models[0])
        self.delta = torch.zeros_like(self.model)

    @staticmethod
    def vector(model):
        return torch.nn.utils.parameters_to_vector(model.dense_parameters).detach()

    def round(self):
        mean = torch.stack([self.vector(model) for model in self.models]).mean(dim=0)
        self.delta = MOMENTUM * self.delta + ETA * (mean - self.reference)
        self.model = self.model + self.delta
        self.reference = self.model + self.ahead * self.delta
        for model in self.models:
            moved = torch.lerp(self.vector(model), self.reference, ALPHA)
            torch.nn.utils.vector_to_parameters(moved, model.dense_parameters)


def optimizers_of(config, model):
    own, rows = config.dense, [table.weight for table in model.tables]
    adam = torch.optim.Adam(model.dense_parameters, own.rate, (own.beta1, own.beta2), own.epsilon)
    return adam, torch.optim.SGD(rows, config.embedding.rate)


@pytest.mark.parametrize("nesterov", [True, *in_soak(False)], ids=["nesterov", "classical"])
def test_bmuf_with_adam_is_that_of_its_formula(tmp_path, data, nesterov):
    """Replicas keep moments of their own through rounds and pauses; a part ends with a round."""
    run = train_over_threads(tmp_path, data, *SETTINGS, f"sync.bmuf.nesterov={str(nesterov).lower()}")
    config = load(run.folder / "run.toml")
    models = [plain_model(config, CARDINALITIES) for _ in range(TRAINERS)]
    optimizers = [optimizers_of(config, model) for model in models]
    blocks, losses = Blocks(models, nesterov), []
    for a_pass in range(2):
        for step, batches in enumerate(steps_of(config, a_pass), 1):
            each = zip(models, batches, optimizers, strict=True)
            losses.append([model.train_on([batch], own, config.schedule)[0] for model, batch, own in each])
            if step % EVERY == 0:
                blocks.round()
        assert step % EVERY
        blocks.round()
    for trainer, expected in enumerate(np.transpose(losses)):
        np.testing.assert_allclose(run.losses(trainer), expected, rtol=2e-5, atol=0)
    torch.nn.utils.vector_to_parameters(blocks.model, models[0].dense_parameters)
    for name, value in models[0].dense_parameters_by_name().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=5e-5, err_msg=name)
