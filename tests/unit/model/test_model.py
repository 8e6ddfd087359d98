"""The dense model: one flat vector, models that share it, and optimizers against torch's own."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from oracle import PlainDLRM
from runs import train_over_threads

from ssmpi.model import blas, processor, reference
from ssmpi.model.executor import PIECE
from ssmpi.model.member_program import MemberProgram
from ssmpi.model.network import Inputs
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import DenseOptions, ModelOptions
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import files

OPTIONS = ModelOptions(bottom=(8, 4), top=(6, 1))


def replica(seed=1, options=OPTIONS):
    return Replica(network_of(options, Inputs(13, 26, 4)), options.precision, seed)


def batch(rows=9, seed=0):
    generator = np.random.default_rng(seed)
    dense, tables = (generator.normal(size=s).astype(np.float32) for s in ((rows, 13), (rows, 26, 4)))
    return dense, tables, (generator.random(rows) < 0.5).astype(np.float32)


def test_starts_from_the_documented_values():
    plain = PlainDLRM(OPTIONS.bottom, OPTIONS.top, (2,) * 26, 4, seed=7)
    expected = np.concatenate([p.detach().numpy().ravel() for p in plain.dense_parameters])
    np.testing.assert_array_equal(replica(7).vector, expected)


def test_centered_inputs_are_a_matter_of_the_first_biases(tmp_path, small_data):
    """What a run of two trainers begins with, as it saves it when it learns nothing: each first unit gets, where the
    inputs are their means, its bias and nothing else.
    """
    nothing = ("dense.rate=0", "embedding.rate=0", "topology.trainers=2", "sync.algorithm=ma", "data.block_rows=512")
    plain = train_over_threads(tmp_path / "plain", small_data, *nothing).dense()
    centered = train_over_threads(tmp_path / "centered", small_data, *nothing, "model.center_inputs=true").dense()
    with h5py.File(small_data / "train/shard-00000.h5") as shard:
        means = shard["dense"][:].mean(axis=0)
    bias = centered.pop("bottom.0.bias")
    np.testing.assert_allclose(plain["bottom.0.weight"] @ means + bias, plain.pop("bottom.0.bias"), atol=1e-5)
    assert np.abs(plain["bottom.0.weight"] @ means).max() > 0.1
    for name, values in plain.items():
        np.testing.assert_array_equal(centered[name], values, err_msg=name)


def test_scores_like_the_plain_model():
    ids = torch.arange(9)[:, None].repeat(1, 26)
    dense, tables, _ = batch()
    plain = PlainDLRM(OPTIONS.bottom, OPTIONS.top, (9,) * 26, 4, seed=1)
    for f, table in enumerate(plain.tables):
        table.weight.data = torch.from_numpy(tables[:, f].copy())
    expected = plain(torch.from_numpy(dense), ids).detach()
    np.testing.assert_allclose(replica().thread_model().score(dense, tables), expected, rtol=1e-5, atol=1e-6)


def test_threads_see_each_others_steps():
    """Hogwild: the weights are shared, the gradients each thread's own."""
    shared = replica()
    one, other = shared.thread_model(), shared.thread_model()
    dense, tables, labels = batch()
    logits = one.score(dense, tables)
    other.forward_backward(dense, tables.copy(), labels)
    other.weights -= 0.1 * other.gradients
    assert np.any(one.score(dense, tables) != logits)
    assert not one.gradients.any()
    assert np.shares_memory(one.weights, shared.vector)


def test_gradients_are_those_of_the_mean_loss_by_finite_differences():
    """Of the fifty strongest; where a unit wakes or falls asleep in between, a difference is none, which few meet."""
    model = replica().thread_model()
    dense, tables, labels = batch(4)

    def loss(rows):
        logits = torch.from_numpy(model.score(dense, rows)).double()
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels).double()).item()

    _, gradients = model.forward_backward(dense, tables.copy(), labels)
    gradients, step, agreeing = gradients.copy(), 3e-4, 0
    strongest = np.argsort(np.abs(gradients), axis=None)[-50:]
    for position in zip(*np.unravel_index(strongest, gradients.shape), strict=True):
        up, down = tables.copy(), tables.copy()
        up[position] += step
        down[position] -= step
        agreeing += gradients[position] == pytest.approx((loss(up) - loss(down)) / (2 * step), rel=0.02)
    assert agreeing >= 45


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_optimizers_step_like_torchs(name):
    options = DenseOptions(optimizer=name, rate=0.05, initial_state=0.1, epsilon=1e-6)
    shared = replica()
    model, optimizer = shared.thread_model(), dense_optimizer(options, shared)
    weights = torch.nn.Parameter(torch.from_numpy(shared.vector.copy()))
    if name == "sgd":
        torchs = torch.optim.SGD([weights], lr=0.05)
    else:
        torchs = torch.optim.Adagrad([weights], lr=0.05, initial_accumulator_value=0.1, eps=1e-6)
    for step in range(5):
        model.forward_backward(*batch(seed=step))
        weights.grad = torch.from_numpy(model.gradients.copy())
        optimizer.step(model, 1.0)
        torchs.step()
        np.testing.assert_allclose(shared.vector, weights.detach(), rtol=1e-6, atol=1e-7)


def test_the_schedules_factor_scales_the_step():
    shared = replica()
    model, optimizer = shared.thread_model(), dense_optimizer(DenseOptions(optimizer="sgd", rate=0.5), shared)
    before = shared.vector.copy()
    model.forward_backward(*batch())
    gradients = model.gradients.copy()
    optimizer.step(model, 0.25)
    np.testing.assert_allclose(shared.vector, before - 0.125 * gradients, rtol=1e-6, atol=1e-7)


def test_weights_survive_being_saved_and_loaded(tmp_path):
    one, other = replica(1), replica(2)
    files.write(tmp_path / "dense.h5", one.datasets(one.vector))
    np.testing.assert_array_equal(other.load(tmp_path / "dense.h5"), one.vector)
    with h5py.File(tmp_path / "dense.h5") as saved:
        assert saved["bottom.0.weight"].shape == (8, 13)


SPLIT = (
    {"bottom.0.weight", "top.0.bias", "top.2.weight"},
    {"bottom.0.bias", "top.2.bias"},
    {"bottom.2.weight", "bottom.2.bias", "top.0.weight"},
)


def test_owners_of_a_part_each_are_one_replica(tmp_path):
    """They begin, step and load what they own as one owner of all does, to the bit."""
    whole, options = replica(1), DenseOptions(optimizer="adagrad", rate=0.05)
    owned = [OwnedParameters(whole.network, names) for names in SPLIT]
    parts = [MemberProgram(network=whole.network, operators=whole.network.operators, owned=each) for each in owned]
    owners = [Replica(whole.network, "fp32", 1, part=part) for part in parts]
    optimizers = [dense_optimizer(options, each) for each in (whole, *owners)]
    assert [each.owned.complete for each in (whole, *owners)] == [True, False, False, False]
    assert owners[0].owned.borders == (8 * 13, 8 * 13 + 6, 8 * 13 + 2 * 6)
    model = whole.thread_model()
    with pytest.raises(AssertionError, match="another rank owns some"):
        owners[0].thread_model()
    for seed in range(3):
        model.forward_backward(*batch(seed=seed))
        gradients = model.gradients.copy()
        optimizers[0].step(model, 0.5)
        for owner, optimizer in zip(owners, optimizers[1:], strict=True):
            optimizer.step(SimpleNamespace(arrays=(owner.vector, owner.owned.of(gradients))), 0.5)
    sums = [optimizer.state()["sums"] for optimizer in optimizers]
    files.write(tmp_path / "dense.h5", whole.datasets(whole.vector))
    for owner, own_sums in zip(owners, sums[1:], strict=True):
        np.testing.assert_array_equal(owner.vector, owner.owned.of(whole.vector))
        np.testing.assert_array_equal(own_sums, owner.owned.of(sums[0]))
        np.testing.assert_array_equal(owner.load(tmp_path / "dense.h5"), owner.vector)


def test_weights_of_another_model_are_refused(tmp_path):
    other = replica(1, ModelOptions(bottom=(9, 4), top=(6, 1)))
    files.write(tmp_path / "dense.h5", other.datasets(other.vector))
    with pytest.raises(DataError, match=r"parameter bottom.0.weight is \(9, 13\), this model's is \(8, 13\)"):
        replica().load(tmp_path / "dense.h5")


def autograd(network, vector, dense, rows, labels, kind=torch.float64, first_example=None):
    """Logits, gradients by rows and by the vector, by torch."""
    flat, leaf = (torch.from_numpy(values).to(kind).requires_grad_() for values in (vector, rows))
    sizes = [int(np.prod(shape)) for _, shape in network.layout]
    parts = zip(network.layout, flat.split(sizes), strict=True)
    named, dense = {name: part.view(shape) for (name, shape), part in parts}, torch.from_numpy(dense).to(kind)
    logits = reference.logits(network, named, dense, leaf, first_example=first_example)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels).to(logits.dtype))
    by_rows, by_vector = torch.autograd.grad(loss, [leaf, flat])
    return logits.detach().float().numpy(), by_rows.numpy(), by_vector.numpy()


def gradients(size, precision="fp32", options=None):
    """Logits, gradients by rows and dense ones, by hand and by autograd in float32; the model and the batch."""
    options = replace(options or ModelOptions(bottom=(24, 8), top=(16, 1)), precision=precision)
    dim = options.bottom[-1]
    network = network_of(options, Inputs(13, 5, dim))
    model = Replica(network, precision, seed=3).thread_model()
    generator = np.random.default_rng(size)
    dense = generator.normal(size=(size, 13)).astype(np.float32)
    rows = generator.normal(size=(size, 5, dim)).astype(np.float32)
    labels = (generator.random(size) < 0.4).astype(np.float32)
    logits, by_rows = model.forward_backward(dense, rows, labels)
    by_hand = logits.copy(), by_rows.copy(), model.gradients.copy()
    return by_hand, autograd(network, model.weights, dense, rows, labels), (network, model.weights, dense, rows, labels)


@pytest.mark.parametrize("size", [1, 7, 128, PIECE, PIECE + 1, 2 * PIECE + 77])
def test_gradients_by_hand_are_those_of_autograd(size):
    by_hand, expected, *_ = gradients(size)
    for ours, theirs, tolerance in zip(by_hand, expected, (2e-6, 1e-7, 1e-6), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
        assert np.abs(ours).max() > 0


@pytest.mark.parametrize("size", [7, PIECE + 50])
def test_where_torchs_blas_is_not_found_its_operators_give_the_same(size, monkeypatch):
    compiled, *_ = gradients(size)
    monkeypatch.setattr(blas, "LIBRARY", Path("/no/such/library"))
    assert blas.sgemm() is None
    by_hand, expected, *_ = gradients(size)
    for ours, theirs, others in zip(by_hand, expected, compiled, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(ours, others, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 1, 1), (5, 3, 7), (64, 33, 129)])
def test_compiled_products_are_numpys(rows, n, k):
    generator = np.random.default_rng(rows)
    values, weight, by_out, held = (
        generator.normal(size=size).astype(np.float32) for size in ((rows, k), (n, k), (rows, n), (n, k))
    )
    flat = [array.ravel() for array in (values, weight, by_out)]
    found = [np.full(size, np.nan, np.float32) for size in ((rows, n), (n, k), (rows, k))]
    added = held.copy()
    blas.outputs(blas.sgemm(), flat[0], flat[1], found[0].ravel(), rows, n, k)
    blas.by_weight(blas.sgemm(), flat[2], flat[0], found[1].ravel(), rows, n, k, True)
    blas.by_weight(blas.sgemm(), flat[2], flat[0], added.ravel(), rows, n, k, False)
    blas.by_values(blas.sgemm(), flat[2], flat[1], found[2].ravel(), rows, n, k, True)
    expected = (values @ weight.T, by_out.T @ values, by_out @ weight, held + by_out.T @ values)
    for ours, theirs in zip((*found, added), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_an_mlp_may_have_no_hidden_layer():
    by_hand, expected, *_ = gradients(9, options=ModelOptions(bottom=(4,), top=(1,)))
    for ours, theirs in zip(by_hand, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("size", [7, PIECE + 50])
def test_bfloat16_is_as_near_as_autocasts(size):
    """Eight bits of mantissa cost some percent of a gradient's length here; torch's own mixed precision is the
    measure.
    """
    by_hand, expected, arrays = gradients(size, "bf16", ModelOptions())
    with torch.autocast("cpu", torch.bfloat16):
        autocast = autograd(*arrays, torch.float32)
    for ours, exact, torchs in zip(by_hand, expected, autocast, strict=True):
        assert 0 < np.linalg.norm(ours - exact) < 1.3 * np.linalg.norm(torchs - exact)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_batch_of_another_size_in_between_changes_nothing(precision):
    options = ModelOptions(bottom=(24, 4), top=(16, 1), precision=precision)
    one, other = replica(options=options).thread_model(), replica(options=options).thread_model()
    for size in (5, 9, 3, 9, 5, 11, 9):
        one.forward_backward(*batch(size))
    logits, by_rows = one.forward_backward(*batch(9))
    fresh_logits, fresh_by_rows = other.forward_backward(*batch(9))
    np.testing.assert_array_equal(logits, fresh_logits)
    np.testing.assert_array_equal(by_rows, fresh_by_rows)
    np.testing.assert_array_equal(one.gradients, other.gradients)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_not_finite_stays_so(precision):
    """Compiled sums must not lose a NaN: the loss is checked for it, and that check ends a run that diverged."""
    model = replica(options=ModelOptions(bottom=(24, 4), top=(16, 1), precision=precision)).thread_model()
    dense, rows, labels = batch()
    rows[3, 5, 1] = np.nan
    logits, by_rows = model.forward_backward(dense, rows, labels)
    assert np.isnan(logits[3])
    assert np.isnan(by_rows[3]).any()
    assert np.isnan(model.gradients).any()


@pytest.mark.parametrize(
    ("line", "without"),
    [
        ("flags\t\t: fpu avx512f avx512_vnni", True),
        ("flags\t\t: fpu avx512f avx512_bf16", False),
        ("flags\t\t: fpu amx_bf16 amx_tile", False),
        ("Features\t: fp asimd", True),
        ("Features\t: fp asimd bf16", False),
        ("model name\t: unheard of", False),  # not known
    ],
)
def test_a_processor_without_bfloat16_is_told_by_what_linux_says_of_it(tmp_path, line, without):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\nbugs\t: bf16\n")
    assert processor.without_bfloat16(tmp_path / "cpuinfo") == without
    assert not processor.without_bfloat16(tmp_path / "none")
