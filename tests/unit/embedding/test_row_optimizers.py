"""Optimizers of rows against torch's, each row a parameter of its own that steps when it is looked up."""

import numpy as np
import pytest
import torch
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena

ROWS, STEPS = 9, 60
LAYOUTS = {"vectors": (5, False), "vectors and weights": (5, True), "weights": (0, True)}
BETAS = {"beta1": 0.8, "beta2": 0.95}


def arena_of(layout, **settings):
    """Rows that are not 0, so that they can decay."""
    dim, weight = LAYOUTS[layout]
    made = Arena(
        row_options(dim, weight=weight, **{"rate": 0.02, "epsilon": 1e-6, **settings}), place((ROWS,), 1), 0, 1
    )
    made.weights[:] = np.random.default_rng(2).normal(size=made.weights.shape)
    return made


def steps_of(arena, most=ROWS):
    """Some rows in each step, their gradients, and the factor of the rate."""
    generator = np.random.default_rng(3)
    for step in range(STEPS):
        rows = generator.permutation(ROWS)[: generator.integers(1, most + 1)].astype(np.int32)
        yield rows, generator.normal(size=(len(rows), arena.weights.shape[1])).astype(np.float32), 1 - step / 100


TORCHS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("others", [{}, {"weight_decay": 0.1}, {"clip_value": 0.7, "weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_a_row_steps_as_torchs_parameter_that_is_it_alone(name, others, layout):
    """Rows that are not looked up stay as they are, to the bit, and so does their state."""
    arena = arena_of(layout, optimizer=name, **others, **BETAS)
    own = {"betas": tuple(BETAS.values()), "eps": 1e-6} if name != "sgd" else {}
    decay = others.get("weight_decay", 0.0)
    alone = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in arena.weights]
    optimizers = [TORCHS[name]([row], lr=0.02, weight_decay=decay, **own) for row in alone]
    for rows, gradients, factor in steps_of(arena, most=4):
        before = arena.weights.copy(), arena.state.copy()
        for row, gradient in zip(rows, gradients, strict=True):
            alone[row].grad = torch.from_numpy(gradient.copy())
            if "clip_value" in others:
                torch.nn.utils.clip_grad_value_([alone[row]], others["clip_value"])
            optimizers[row].param_groups[0]["lr"] = 0.02 * factor
            optimizers[row].step()
        arena.update(rows, gradients.copy(), factor)
        expected = np.stack([row.detach().numpy() for row in alone])
        np.testing.assert_allclose(arena.weights, expected, rtol=1e-5, atol=1e-6)
        others_rows = np.setdiff1d(np.arange(ROWS), rows)
        np.testing.assert_array_equal(arena.weights[others_rows], before[0][others_rows])
        np.testing.assert_array_equal(arena.state[others_rows], before[1][others_rows])


def test_rows_that_are_all_looked_up_step_as_by_sparse_adam():
    """Which counts the steps of the table, and adds epsilon before it corrects: here it is next to nothing."""
    arena = arena_of("vectors", optimizer="adam", epsilon=1e-12)
    table = torch.nn.Parameter(torch.from_numpy(arena.weights.copy()))
    optimizer = torch.optim.SparseAdam([table], lr=0.02, eps=1e-12)
    generator, rows = np.random.default_rng(5), np.arange(ROWS, dtype=np.int32)
    for _ in range(STEPS):
        gradients = generator.normal(size=arena.weights.shape).astype(np.float32)
        table.grad = torch.sparse_coo_tensor(torch.from_numpy(rows[None].astype(np.int64)), torch.tensor(gradients))
        optimizer.step()
        arena.update(rows, gradients, 1.0)
        np.testing.assert_allclose(arena.weights, table.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_partial_rowwise_adam_has_one_mean_of_squares_a_group(layout, decay):
    """The formulas in float64, each group of columns and each row by itself."""
    arena = arena_of(layout, optimizer="partial_rowwise_adam", weight_decay=decay, **BETAS)
    (dim, weight), (beta1, beta2) = LAYOUTS[layout], BETAS.values()
    groups = [slice(0, dim)] * bool(dim) + [slice(dim, dim + 1)] * weight
    assert arena.state.shape == (ROWS, arena.weights.shape[1] + len(groups) + 1)
    weights, mean = arena.weights.astype(float), np.zeros(arena.weights.shape)
    squares, count = np.zeros((ROWS, len(groups))), np.zeros(ROWS)
    for rows, gradients, factor in steps_of(arena, most=4):
        for row, given in zip(rows, gradients.astype(float), strict=True):
            count[row] += 1
            for k, columns in enumerate(groups):
                g = given[columns] + decay * weights[row, columns]
                mean[row, columns] = beta1 * mean[row, columns] + (1 - beta1) * g
                squares[row, k] = beta2 * squares[row, k] + (1 - beta2) * np.mean(g**2)
                root = np.sqrt(squares[row, k] / (1 - beta2 ** count[row])) + 1e-6
                weights[row, columns] -= 0.02 * factor * mean[row, columns] / (1 - beta1 ** count[row]) / root
        arena.update(rows, gradients, factor)
        np.testing.assert_allclose(arena.weights, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(arena.state[:, -1], count)


def test_weight_decay_of_adagrad_is_part_of_its_gradient():
    decayed, plain = arena_of("vectors", weight_decay=0.1), arena_of("vectors")
    for rows, gradients, factor in steps_of(plain):
        whole = gradients + np.float32(0.1) * plain.weights[rows]
        decayed.update(rows, gradients, factor)
        plain.update(rows, whole, factor)
    np.testing.assert_array_equal(decayed.weights, plain.weights)
    np.testing.assert_array_equal(decayed.state, plain.state)


def test_a_gradient_that_is_not_a_number_stays_visible():
    arena = arena_of("vectors", optimizer="sgd", clip_value=1.0)
    arena.update(np.array([4], np.int32), np.full((1, 5), np.nan, np.float32), 1.0)
    assert np.isnan(arena.weights[4]).all()
    assert np.isfinite(np.delete(arena.weights, 4, axis=0)).all()
