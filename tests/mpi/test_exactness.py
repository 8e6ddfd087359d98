"""Results that must be exact: one trainer, one thread, no synchronization; and what several trainers must still agree
on. ``test_real_ranks`` shows that threads stand for real ranks.
"""

import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import write_counts
from oracle import train_plainly
from ranks import ssmpi
from runs import assert_same_bits, batches, train, train_over_threads
from strength import in_soak, one_at_a_time

from ssmpi import cli
from ssmpi.config import load
from ssmpi.data.reader import SplitReader, suit_block_rows
from ssmpi.data.schema import read_manifest
from ssmpi.state import memory_needs
from ssmpi.tools.export import state_dict

ADAGRAD = ("embedding.prefetch=false", "data.passes=2")
SGD = (
    "embedding.prefetch=false",
    "data.passes=2",
    "embedding.optimizer=sgd",
    "embedding.rate=0.5",
    "dense.optimizer=sgd",
    "dense.rate=0.1",
)
ADAM = (  # an epsilon below which a gradient, the sign of which may be a matter of rounding, moves little
    *SGD[:1],
    *(f"{part}.{key}" for part in ("dense", "embedding") for key in ("optimizer=adam", "rate=0.002", "epsilon=1e-4")),
)
SCHEDULE = (
    "schedule.warmup_examples=3000",
    "schedule.decay_start_examples=5000",
    "schedule.decay_examples=8000",
    "schedule.power=1.0",
)


@pytest.fixture(scope="module")
def over_threads(tmp_path_factory, small_data):
    """``over_threads(*overrides)``: the same without an embedding PS, in this process, each made once."""

    @cache
    def run(*overrides):
        return train_over_threads(tmp_path_factory.mktemp("run"), small_data, *overrides, "topology.embedding_ps=0")

    return run


@pytest.mark.parametrize(
    ("optimizer", "prefetch", "servers", "handout"),
    one_at_a_time(["adagrad", "sgd"], ["true", "false"], [2, 1, 5], ["dynamic", "static"]),
)
def test_neither_servers_nor_handout_change_a_bit(
    tmp_path, small_data, over_threads, optimizer, prefetch, servers, handout
):
    """With prefetch the rows are one batch old, everywhere the same."""
    settings = (*(ADAGRAD if optimizer == "adagrad" else SGD), f"embedding.prefetch={prefetch}")
    spread = (f"topology.embedding_ps={servers}", f"data.handout={handout}")
    assert_same_bits(train_over_threads(tmp_path, small_data, *settings, *spread), over_threads(*settings))


@pytest.mark.parametrize("servers", [0, 2])
def test_rows_on_disk_have_the_same_bits(tmp_path, small_data, over_threads, disk, servers, monkeypatch):
    """With half of each table in memory, the first rows."""
    data, found = Path(shutil.copytree(small_data, tmp_path / "data")), []
    write_counts(data, read_manifest(data).cardinalities)

    def halves(tables, parts, most):
        found.append([min(most, part.rows // 2) for part in parts])
        return found[-1]

    monkeypatch.setattr(memory_needs, "hot_rows", halves)
    spread = (f"topology.embedding_ps={servers}", f"embedding.storage={disk}")
    assert_same_bits(train_over_threads(tmp_path, data, *ADAGRAD, *spread), over_threads(*ADAGRAD))
    assert min(map(max, found)) > 1_000
    assert list(disk.iterdir()) == []


def plain_training(config):
    """The same run in plain PyTorch: its model and losses."""
    return train_plainly(config, read_manifest(Path(config.data.folder)).cardinalities, batches(config))


@pytest.mark.parametrize(
    "settings",
    [
        ADAGRAD,
        (*SGD, *SCHEDULE),
        (*ADAM, *SCHEDULE),
        (*SGD, *SCHEDULE, "embedding.table_decay=0.02"),
        (*ADAM, "embedding.table_decay=0.001", "run.shared_memory=false"),
        *in_soak(
            ((*ADAM, "embedding.optimizer=partial_rowwise_adam"),),
            ((*ADAM, "embedding.table_decay=0.01", "embedding.optimizer=adamw"),),
            ((*ADAGRAD, "embedding.table_decay=0.02"),),
        ),
    ],
    ids=[
        "adagrad",
        "scheduled sgd",
        "scheduled adam",
        "sgd with decay of tables",
        "adam with decay of tables",
        "partial row-wise adam",
        "adamw with decay of tables",
        "adagrad with decay of tables",
    ],
)
def test_equals_plain_pytorch(tmp_path, small_data, settings):
    """Within float32 rounding over 94 iterations: sums run in another order, nothing else differs."""
    run = train_over_threads(tmp_path, small_data, *settings, "topology.embedding_ps=2")
    model, losses = plain_training(load(run.folder / "run.toml"))
    np.testing.assert_allclose(run.losses(), losses, rtol=2e-5, atol=0)
    for name, value in model.dense_parameters_by_name().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=5e-5, err_msg=name)
    for f, (table, plain) in enumerate(zip(run.tables(), model.rows, strict=True)):
        np.testing.assert_allclose(table, plain, rtol=0, atol=5e-5, err_msg=f"C{f + 1}")


def command(*words):
    """``ssmpi WORDS`` in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    assert not ended.value.code


def log_loss(labels, probabilities):
    return -np.mean(np.log(np.where(labels == 1, probabilities, 1 - probabilities)))


def plain_log_loss(model, data, split):
    reader = SplitReader(data, split, 600)
    batch = reader.read(reader.blocks[0])
    with torch.inference_mode():
        logits = model(torch.from_numpy(batch.dense), torch.from_numpy(batch.ids))
    return log_loss(batch.labels, torch.sigmoid(logits.double()).numpy())


@pytest.mark.parametrize(
    "settings", [ADAGRAD, *in_soak(((*SGD, "embedding.rate=0.1"),), (ADAM,))], ids=["adagrad", "sgd", "adam"]
)
def test_deepfm_equals_plain_pytorch(tmp_path, small_data, settings):
    """A vector and a first-order weight in one row are what two tables with optimizers of their own are."""
    deepfm = ("model.name=deepfm", "model.deepfm.deep=[32,16]", "topology.embedding_ps=2")
    rate = ("embedding.rate=0.05",) if settings is ADAGRAD else ()
    run = train_over_threads(tmp_path, small_data, *settings, *deepfm, *rate)
    model, losses = plain_training(load(run.folder / "run.toml"))
    np.testing.assert_allclose(run.losses(), losses, rtol=2e-5, atol=0)
    for name, value in model.dense_parameters_by_name().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=5e-5, err_msg=name)
    for f, (table, plain) in enumerate(zip(run.tables(), model.rows, strict=True)):
        np.testing.assert_allclose(table, plain, rtol=0, atol=5e-5, err_msg=f"C{f + 1}")
        assert plain[:, -1].any(), "first-order weights have learned"
    assert run.quality("test")["log_loss"] == pytest.approx(plain_log_loss(model, small_data, "test"), rel=1e-4)
    exported = state_dict(load(run.folder / "run.toml"), run.folder / "model")
    np.testing.assert_array_equal(exported["emb_l.3.weight"], run.tables()[3][:, :8])
    np.testing.assert_array_equal(exported["first_l.3.weight"], run.tables()[3][:, 8:])


# Several trainers

MANY = ("topology.trainers=2", "topology.threads=2", "sync.algorithm=ma", "data.passes=2")


@pytest.fixture(scope="module")
def many(tmp_path_factory, small_data):
    """The command's run by real ranks."""
    return train(tmp_path_factory.mktemp("many"), small_data, *MANY)


@pytest.mark.parametrize("handout", ["dynamic", "static"])
def test_every_row_is_trained_on_once_a_pass(many, tmp_path, small_data, handout):
    run = many
    if handout == "static":
        run = train_over_threads(tmp_path, small_data, *MANY, "data.handout=static")
    config = load(run.folder / "run.toml")
    rows = suit_block_rows(config.data, 6_000, 4)
    blocks = SplitReader(small_data, "train", rows).blocks
    assert run.result["examples"] == run.result["expected_examples"] == 12_000
    assert run.result["status"] == "complete"
    iterations = len(run.losses(0)) + len(run.losses(1))
    assert iterations == run.result["iterations"] == 2 * sum(-(-block.rows // 128) for block in blocks)


@pytest.mark.soak
def test_real_ranks_score_as_one_process(many, alone, capsys):
    command("evaluate", many.folder)
    assert ssmpi("evaluate", many.folder, ranks=3).check().out == capsys.readouterr().out


def test_evaluating_in_the_run_or_later_or_by_hand_is_the_same(many, tmp_path, small_data, alone, capsys):
    of_the_run = many.quality("test")
    command("evaluate", many.folder)
    by_one = capsys.readouterr().out
    ne, loss, auc = (float(re.search(rf"{name} ([\d.]+)", by_one)[1]) for name in ("NE", "log-loss", "AUC"))
    assert (ne, loss, auc) == pytest.approx([of_the_run[k] for k in ("ne", "log_loss", "auc")], abs=6e-6)
    assert of_the_run["rows"] == 600

    scores_file = tmp_path / "scores"
    command("predict", many.folder, small_data, "--output", scores_file)
    reader = SplitReader(small_data, "test", 600)
    labels = reader.read(reader.blocks[0]).labels
    assert log_loss(labels, np.loadtxt(scores_file)) == pytest.approx(of_the_run["log_loss"], rel=1e-6)
