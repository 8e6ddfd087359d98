"""Optimizers of dense parameters against torch's of the same name, over the network's own gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_lanes import network_named
from test_model import batch, replica

from ssmpi.model.options import DenseOptions
from ssmpi.model.replica import Replica, dense_optimizer

STEPS = 60
TORCHS = {
    "sgd": lambda w, o: torch.optim.SGD(w, o.rate, weight_decay=o.weight_decay),
    "adagrad": lambda w, o: torch.optim.Adagrad(
        w, o.rate, weight_decay=o.weight_decay, initial_accumulator_value=o.initial_state, eps=o.epsilon
    ),
    "adam": lambda w, o: torch.optim.Adam(w, o.rate, (o.beta1, o.beta2), o.epsilon, o.weight_decay),
    "adamw": lambda w, o: torch.optim.AdamW(w, o.rate, (o.beta1, o.beta2), o.epsilon, o.weight_decay),
}


def options_of(name, **others):
    return DenseOptions(**{"optimizer": name, "rate": 0.01, "initial_state": 0.1, "epsilon": 1e-6, **others})


@pytest.mark.parametrize("clip_norm", [0.0, 0.05], ids=["any norm", "bounded norm"])
@pytest.mark.parametrize("others", [{}, {"weight_decay": 0.1}, {"beta1": 0.5, "beta2": 0.9}], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_steps_are_torchs(name, others, clip_norm):
    """With rates as a schedule has them. Gradients are bounded in some steps and not in others."""
    options, shared = options_of(name, clip_norm=clip_norm, **others), replica()
    model, optimizer = shared.thread_model(), dense_optimizer(options, shared)
    weights = torch.nn.Parameter(torch.from_numpy(shared.vector.copy()))
    torchs, bounded = TORCHS[name]([weights], options), set()
    for step in range(STEPS):
        model.forward_backward(*batch(seed=step))
        model.gradients[:] *= 1e-3 if step % 3 == 0 else 1.0
        weights.grad, factor = torch.from_numpy(model.gradients.copy()), 1.0 - step / 100
        if clip_norm:
            bounded.add(float(torch.nn.utils.clip_grad_norm_([weights], clip_norm)) > clip_norm)
        torchs.param_groups[0]["lr"] = options.rate * factor
        optimizer.step(model, factor)
        torchs.step()
        with torch.no_grad():  # so that rounding does not add up over the steps of a network
            np.testing.assert_allclose(shared.vector, weights, rtol=2e-5, atol=1e-6)
    assert bounded == ({True, False} if clip_norm else set())
    state = optimizer.state()
    for ours, theirs in {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "sums": "sum", "step": "step"}.items():
        if ours in state:
            np.testing.assert_allclose(state[ours].squeeze(), torchs.state[weights][theirs], rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", TORCHS)
def test_deferred_gradients_give_the_same_bits(name):
    """As gradients that were asked for before the step, whatever the processor defers."""
    network, found = network_named("dlrm"), []
    generator = np.random.default_rng(1)
    inputs = network.inputs
    batches = [
        (
            generator.normal(size=(96, inputs.dense)).astype(np.float32),
            generator.normal(size=(96, inputs.tables, network.rows.width)).astype(np.float32),
            generator.integers(0, 2, 96).astype(np.float32),
        )
        for _ in range(3)
    ]
    for asked in (False, True):
        shared = Replica(network, "fp32", 1)
        model, optimizer = shared.thread_model(), dense_optimizer(options_of(name, weight_decay=0.01), shared)
        for each in batches:
            model.forward_backward(*each)
            if asked:
                assert model.gradients.any()
            optimizer.step(model, 0.5)
        found.append([shared.vector.copy(), *(values.copy() for values in optimizer.state().values())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_of_a_replica_count_their_steps_together():
    """Each moves the common means: so two threads in turn are one that does all of it."""
    found = []
    for threads in (1, 2):
        shared = replica()
        optimizer, models = (
            dense_optimizer(options_of("adam"), shared),
            [shared.thread_model() for _ in range(threads)],
        )
        for step in range(6):
            model = models[step % threads]
            model.forward_backward(*batch(seed=step))
            optimizer.step(model, 1.0)
        found.append((shared.vector.copy(), optimizer.state()["step"].copy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == 6


def test_state_that_outlives_its_process_goes_on(tmp_path):
    """A second optimizer over kept memory takes the step that the first one would have taken."""
    memory = SimpleNamespace(kept=False, room=None)

    def allocate(size):
        if memory.room is None:
            memory.room = np.zeros(size, np.uint8)
        return memory.room

    memory.allocate, shared = allocate, replica()
    model, optimizer = shared.thread_model(), dense_optimizer(options_of("adam"), shared, memory)
    for step in range(3):
        model.forward_backward(*batch(seed=step))
        optimizer.step(model, 1.0)
    memory.kept, before, expected = True, shared.vector.copy(), []
    room = memory.room.copy()
    for again in (optimizer, dense_optimizer(options_of("adam"), shared, memory)):
        shared.vector[:], memory.room[:] = before, room
        model.forward_backward(*batch(seed=3))
        again.step(model, 1.0)
        expected.append(shared.vector.copy())
    np.testing.assert_array_equal(*expected)
    assert memory.room.nbytes == 8 * shared.vector.size + 8


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_without_a_norm_stays_visible(bad):
    """As torch has it: bounding does not hide that training diverges."""
    shared = replica()
    gradients = np.full(shared.vector.size, 0.1, np.float32)
    gradients[3] = bad
    theirs = torch.nn.Parameter(torch.zeros(gradients.size))
    theirs.grad = torch.from_numpy(gradients.copy())
    torch.nn.utils.clip_grad_norm_([theirs], 1.0)
    dense_optimizer(options_of("sgd", clip_norm=1.0), shared).step(
        SimpleNamespace(arrays=(shared.vector, gradients)), 1.0
    )
    np.testing.assert_array_equal(gradients, theirs.grad)
