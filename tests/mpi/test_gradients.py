"""Algorithms that exchange gradients, in whole runs: synchronous steps are those of one process with the concatenated
batch, and a single trainer on parameter servers is one that trains alone.
"""

from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import train_plainly
from runs import assert_same_model, train_over_threads
from strength import in_soak, one_at_a_time

from ssmpi.config import load
from ssmpi.data.block_dispatcher import block_order
from ssmpi.data.reader import SplitReader, batches_in, shuffled, suit_block_rows

EXACT = ("embedding.prefetch=false", "data.passes=2", "data.handout=static", "data.batch_size=48")
SGD = ("embedding.optimizer=sgd", "embedding.rate=0.5", "dense.optimizer=sgd", "dense.rate=0.1")
SYNCHRONOUS = (*EXACT, "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1")
# From the default accumulator of 1e-8 the first step of a unit has the size of the rate, however small its gradient:
# whether it woke in this batch or the next is then a matter of rounding. Here it is not.
ADAGRAD = ("dense.initial_state=0.01",)
ADAM = tuple(
    f"{part}.{key}" for part in ("dense", "embedding") for key in ("optimizer=adam", "rate=0.002", "epsilon=1e-4")
)
DECAY = "embedding.table_decay=0.02"
OTHERS = [(SGD, 2, 1, "true"), (ADAGRAD, 3, 2, "false")]


def batches_of(config, reader, blocks, a_pass=0):
    """The batches of some blocks, as a trainer is dealt them."""
    for number in blocks:
        block = reader.blocks[number]
        order = shuffled(config.run.seed, 2, a_pass, number, size=block.rows)
        yield from batches_in(order, reader.read(block), config.data.batch_size)


def concatenated(config, reader, weights):
    """The batches of a static handout, those of one step as one, however many trainers still have any.

    ``weights`` gets the numbers of examples by step and trainer.
    """
    data, trainers = config.data, config.topology.trainers
    for a_pass in range(data.passes):
        order = block_order(data, config.run.seed, a_pass, len(reader.blocks))
        for step in zip_longest(*(batches_of(config, reader, order[n::trainers], a_pass) for n in range(trainers))):
            weights.append([0 if batch is None else len(batch) for batch in step])
            there = [batch for batch in step if batch is not None]
            yield SimpleNamespace(
                **{name: np.concatenate([getattr(b, name) for b in there]) for name in ("dense", "ids", "labels")}
            )


def mean_losses(run, weights):
    """Loss of every step's whole batch, from what each trainer saw of it."""
    losses, sums = [iter(run.losses(trainer)) for trainer in range(len(weights[0]))], []
    for step in weights:
        sums.append(sum(n * next(losses[trainer]) for trainer, n in enumerate(step) if n) / sum(step))
    assert all(next(rest, None) is None for rest in losses)
    return np.array(sums)


def check_one_process(run):
    config = load(run.folder / "run.toml")
    data, trainers = config.data, config.topology.trainers
    whole = SplitReader(Path(data.folder), "train", data.block_rows)
    reader = SplitReader(Path(data.folder), "train", suit_block_rows(data, whole.rows, trainers))
    weights = []
    model, losses = train_plainly(config, reader.manifest.cardinalities, concatenated(config, reader, weights))
    assert any(0 in step for step in weights), "trainers have unequal numbers of batches"
    assert any(len(set(step)) > 1 and 0 not in step for step in weights), "and a step unequal batches"
    np.testing.assert_allclose(mean_losses(run, weights), losses, rtol=2e-5, atol=0)
    for name, value in model.dense_parameters_by_name().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=5e-5, err_msg=name)
    for f, (table, plain) in enumerate(zip(run.tables(), model.rows, strict=True)):
        np.testing.assert_allclose(table, plain, rtol=0, atol=5e-5, err_msg=f"C{f + 1}")


@pytest.mark.parametrize(
    ("optimizer", "trainers", "servers", "shared"),
    [
        (ADAGRAD, 2, 1, "true"), (SGD, 3, 2, "false"), ((*ADAGRAD, DECAY), 2, 2, "true"),
        *in_soak(*OTHERS, ((*SGD, DECAY), 3, 2, "false")),
    ],
    ids=str,
)  # fmt: skip
def test_synchronous_steps_are_those_of_one_process(tmp_path, small_data, optimizer, trainers, servers, shared):
    """Rows that several trainers met in a step too, for either optimizer; and rows that none met decay once a step."""
    ranks = (f"topology.trainers={trainers}", f"topology.embedding_ps={servers}", f"run.shared_memory={shared}")
    passes = (f"data.passes={2 if trainers == 2 else 1}",)
    check_one_process(train_over_threads(tmp_path, small_data, *SYNCHRONOUS, *optimizer, *ranks, *passes))


@pytest.mark.parametrize(
    ("rows", "decay", "trainers", "servers"),
    [("adam", 0, 2, 1), ("adam", 0.001, 3, 2), *in_soak(("partial_rowwise_adam", 0, 2, 1), ("adamw", 0.01, 2, 2))],
)
def test_synchronous_steps_of_adam_are_those_of_one_process(tmp_path, small_data, rows, decay, trainers, servers):
    """A row that several trainers met in a step counts one step; and so does one that none met, if tables decay."""
    ranks = (
        f"topology.trainers={trainers}", f"topology.embedding_ps={servers}", f"embedding.optimizer={rows}",
        f"embedding.table_decay={decay}", "data.passes=1", f"run.shared_memory={str(not decay).lower()}",
    )  # fmt: skip
    check_one_process(train_over_threads(tmp_path, small_data, *SYNCHRONOUS, *ADAM, *ranks))


def test_synchronous_steps_of_rows_with_weights(tmp_path, small_data):
    deepfm = ("model.name=deepfm", "model.deepfm.deep=[16]", "embedding.rate=0.05", *ADAGRAD)
    check_one_process(train_over_threads(tmp_path, small_data, *SYNCHRONOUS, *deepfm, "topology.trainers=2"))


def test_synchronous_steps_are_the_same_bits_however_messages_travel(tmp_path, small_data):
    one, other = (
        train_over_threads(
            tmp_path / str(servers), small_data, *SYNCHRONOUS, "topology.trainers=3", f"topology.embedding_ps={servers}"
        )
        for servers in (1, 3)
    )
    for trainer in range(3):
        np.testing.assert_array_equal(one.losses(trainer), other.losses(trainer))
    assert_same_model(one, other)


@pytest.mark.parametrize(("optimizer", "servers"), one_at_a_time([SGD, ADAGRAD], [2, 1]), ids=str)
def test_one_trainer_on_sync_ps_trains_as_alone(tmp_path, small_data, optimizer, servers):
    """Up to rounding: the sync PSs take the steps, the trainer only follows."""
    settings = (*EXACT, *optimizer, "topology.embedding_ps=0")
    alone = train_over_threads(tmp_path / "alone", small_data, *settings)
    center = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1")
    run = train_over_threads(tmp_path / "ps", small_data, *settings, *center, f"topology.sync_ps={servers}")
    np.testing.assert_allclose(run.losses(), alone.losses(), rtol=2e-5, atol=0)
    for name, value in alone.dense().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=2e-5, err_msg=name)
