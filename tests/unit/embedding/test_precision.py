"""Rows in 16 bits: rounding, and the same bits wherever rows are reached and however they are saved."""

import numpy as np
import pytest
import torch
from rows import row_options, tables_of
from test_bag_lookup import bags_of, drawn
from test_lookup import CARDINALITIES
from test_tables import save

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.placement import place
from ssmpi.embedding.precision import DTYPES, NEAREST, converted
from ssmpi.embedding.table import Arena
from ssmpi.state.checkpoint import model_files
from ssmpi.state.checkpoint.rows.row_store import RowStore
from ssmpi.state.checkpoint.saved_tables import read_keyed

HALVES = ("bf16", "fp16")
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam", "adamw", "partial_rowwise_adam")
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}


def bits_of(values, precision):
    """What torch makes of float32 values, as the project keeps it."""
    return torch.from_numpy(values).to(TORCH[precision]).view(torch.int16).numpy().view(DTYPES[precision])


def one_table(precision, rows=4000, dim=3, **options):
    return Arena(row_options(dim, precision=precision, optimizer="sgd", rate=1.0, **options), place((rows,), 1), 0, 1)


@pytest.mark.parametrize("precision", HALVES)
def test_to_the_nearest_as_torch_rounds_and_back(precision):
    generator = np.random.default_rng(1)
    values = generator.standard_normal(50_000) * 10.0 ** generator.uniform(-9, 4, 50_000)
    values = np.concatenate([values, [0, -0.0, np.inf, -np.inf, 65504, 6e-8, 2**-14, 2**-14 - 2**-26]]).astype("f4")
    halves = converted(values, DTYPES[precision])
    np.testing.assert_array_equal(halves, bits_of(values, precision))
    np.testing.assert_array_equal(converted(converted(halves, np.float32), halves.dtype), halves)
    assert np.isnan(converted(converted(np.full(1, np.nan, "f4"), halves.dtype), np.float32))


def test_fp16_stays_finite_beyond_its_range():
    beyond = np.array([65505, 1e9, -1e30], np.float32)
    assert converted(converted(beyond, np.int16), np.float32).tolist() == [65504, 65504, -65504]


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("value", [1.0003, -0.01234, 3e-5, 1e-7, -2.7e-8])
def test_the_mean_of_many_roundings_is_the_value(precision, value):
    """Within 4 standard errors; each is one of the two values beside it, and rows and columns draw apart."""
    arena, rows = one_table(precision), np.arange(4000, dtype=np.int32)
    rounded = []
    for number in range(0, 5000, 128):
        arena.weights[:] = 0
        arena.update(rows, np.full((4000, 3), -value, np.float32), 1.0, number=number)
        rounded.append(converted(arena.weights, np.float32))
    rounded, exact = np.array(rounded, np.float64), float(np.float32(value))
    low, high = np.unique(rounded)
    assert low < exact < high
    assert np.ptp(converted(np.float32([low, high]), arena.weights.dtype).astype(int)) == 1, "neighbors"
    spread = np.sqrt((exact - low) * (high - exact))
    assert abs(rounded.mean() - exact) < 4 * spread / np.sqrt(rounded.size)
    up = (rounded == high) - (exact - low) / (high - low)
    for shifted in (np.roll(up, 1, axis=0), np.roll(up, 1, axis=1), np.roll(up, 1, axis=2)):
        assert abs((up * shifted).mean()) < 5 * up.var() / np.sqrt(up.size), "they go up together"


@pytest.mark.parametrize("precision", HALVES)
def test_small_steps_add_up_unless_they_are_rounded_to_the_nearest(precision):
    """A thousandth of the last bit, a thousand times: the control shows what the random bits are for."""
    rows, last = np.arange(4000, dtype=np.int32), 2.0 ** {"bf16": -7, "fp16": -10}[precision]
    moved = {}
    for name in ("stochastic", "nearest"):
        arena = one_table(precision)
        arena.weights[:] = converted(np.ones_like(arena.weights, np.float32), arena.weights.dtype)
        for push in range(1000):
            number = NEAREST if name == "nearest" else 128 * push
            arena.update(rows, np.full((4000, 3), -last / 1000, np.float32), 1.0, number=number)
        moved[name] = (converted(arena.weights, np.float32).mean(dtype=np.float64) - 1) / last
    assert moved["nearest"] == 0
    assert moved["stochastic"] == pytest.approx(1, abs=5 / np.sqrt(12_000))


def trained(options, servers, near, *, lists=False, pushes=range(0, 600, 100)):
    """The arenas of PSs, of which those ``near`` are mapped, after some batches, and all values that were pulled."""
    generator, placement = np.random.default_rng(2), place(CARDINALITIES, servers)
    arenas = [Arena(options, placement, server, seed=3) for server in range(servers)]
    lookups, pulled = Lookups(tables_of(arenas, near), 0, PrefetchedRows(lambda: False)), []
    batches = []
    for number in pushes:
        ids = bags_of(*drawn(generator, 9, weighted=True)) if lists else None
        ids = (generator.random((9, len(CARDINALITIES))) ** 2 * CARDINALITIES).astype(np.int32) if ids is None else ids
        batches.append(Batch(ids, np.empty((9, 0), np.float32), np.empty(9, np.float32), first_example=number))
    for _, lookup in lookups.prefetched(batches):
        pulled.append(lookup.values.copy())
        lookups.push(lookup, generator.standard_normal(lookup.values.shape, np.float32))
    return arenas, pulled


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.1, "clip_value": 0.5}, {"table_decay": 0.01}])
def test_mapped_or_by_messages_and_once_more_rows_have_the_same_bits(precision, weight, optimizer, decay):
    """Rows of 4 and 5 numbers; some bits fall otherwise if pushes have other numbers."""
    if optimizer == "partial_rowwise_adam" and "table_decay" in decay:
        pytest.skip("refused")
    options = row_options(4, weight=weight, precision=precision, optimizer=optimizer, rate=0.01, **decay)
    expected, values = trained(options, 3, {0, 1, 2})
    for near in ({0, 1, 2}, {1}, set()):
        found, pulled = trained(options, 3, near)
        np.testing.assert_array_equal(pulled, values)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.weights, other.weights)
            np.testing.assert_array_equal(one.state, other.state)
    others, _ = trained(options, 3, set(), pushes=range(1, 601, 100))
    assert any((one.weights != other.weights).any() for one, other in zip(others, expected, strict=True))
    whole, _ = trained(row_options(4, weight=weight, optimizer=optimizer, rate=0.01, **decay), 3, set())
    for one, other in zip(expected, whole, strict=True):
        np.testing.assert_allclose(converted(one.weights, np.float32), other.weights, atol=0.02)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("pooling", ["trainer", "server"])
def test_lists_are_pooled_to_the_same_bits(precision, pooling):
    options = row_options(5, precision=precision, pooling=pooling, optimizer="sgd", rate=0.01)
    expected, values = trained(options, 1, {0}, lists=True)
    found, pulled = trained(options, 1, set(), lists=True)
    np.testing.assert_array_equal(pulled, values)
    np.testing.assert_array_equal(found[0].weights, expected[0].weights)


def filled(precision, servers=1, seed=5, dim=5):
    """Arenas of random values."""
    generator = np.random.default_rng(seed)
    arenas = [
        Arena(row_options(dim, precision=precision), place((3, 500, 40, 1, 77), servers), k, 1) for k in range(servers)
    ]
    for arena in arenas:
        values = generator.standard_normal(arena.weights.shape, np.float32)
        arena.weights[:], arena.state[:] = converted(values, arena.weights.dtype), generator.random(arena.state.shape)
    return arenas


@pytest.mark.parametrize("saved", DTYPES)
@pytest.mark.parametrize("loaded", DTYPES)
def test_saved_rows_load_in_any_precision(tmp_path, saved, loaded):
    """Of a run that is continued: rounded to the nearest; a model is read as float32."""
    arenas, (again,) = filled(saved, 2), filled(loaded, seed=6)
    save(arenas, tmp_path)
    model_files.load_tables(again, tmp_path)
    for part in again.parts:
        whole = np.empty((part.rows, 5), arenas[0].weights.dtype)
        for arena in arenas:
            for p in arena.parts:
                if p.table == part.table:
                    whole[p.first :: p.stride] = arena.weights[p.base : p.base + p.rows]
        widened = converted(whole, np.float32)
        found = again.weights[part.base : part.base + part.rows]
        np.testing.assert_array_equal(found, widened if loaded == "fp32" else bits_of(widened, loaded))
        read = model_files.read_table(tmp_path, part.table, part.rows, again.options.layout)
        np.testing.assert_array_equal(read, widened)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("dim", [4, 5])
def test_row_saves_keep_rows_as_they_are(tmp_path, precision, dim):
    (arena,), (again,) = filled(precision, dim=dim), filled(precision, seed=6, dim=dim)
    store = RowStore(tmp_path / "rows", arena, 0)
    size = store.save_all(0)
    words = 1 + (dim if precision == "fp32" else (dim + 1) // 2)
    assert 4 * words * len(arena.weights) < size < 4 * words * len(arena.weights) + 200
    rows = np.array([1, 7, 300], np.int32)
    arena.update(rows, np.ones((3, dim), np.float32), 1.0)
    store.save(rows, 10, 0.1)
    store.compact()
    other = RowStore(tmp_path / "rows", again, 0)
    other.restore(other.load())
    np.testing.assert_array_equal(again.weights, arena.weights)
    np.testing.assert_array_equal(again.state, arena.state)


@pytest.mark.parametrize("precision", HALVES)
def test_rows_of_keys(tmp_path, precision):
    """Mapped, by messages, saved and loaded, read by key."""
    dynamic, names = DynamicOptions(keys=60), ("user", "shop")
    options, placement, held = (
        row_options(5, precision=precision, dynamic=dynamic),
        place((0, 30), 1, dynamic, names),
        [],
    )
    for near in ({0}, set()):
        generator, arena = np.random.default_rng(1), Arena(options, placement, 0, seed=3)
        lookups = Lookups(tables_of([arena], near), 0, PrefetchedRows(lambda: False))
        for number in range(0, 300, 30):
            keys = generator.integers(1, 25, (30, 1)) * 7919
            ids, none = generator.integers(0, 30, (30, 1), np.int32), np.empty((30, 0), np.float32)
            ((_, lookup),) = lookups.prefetched(
                [Batch(ids, none, np.empty(30, np.float32), keys, first_example=number)]
            )
            lookups.push(lookup, generator.standard_normal(lookup.values.shape, np.float32))
        held.append(arena)
    used = held[0].keyed[0].in_use()
    assert len(used) == 24
    np.testing.assert_array_equal(held[0].weights[used], held[1].weights[used])
    save(held[:1], tmp_path)
    found = read_keyed(tmp_path, 0, options.layout)
    order = np.argsort(held[0].keyed[0].keys[used])
    np.testing.assert_array_equal(found.values[2:], converted(held[0].weights[used][order], np.float32))
    again = Arena(options, placement, 0, seed=9)
    model_files.load_tables(again, tmp_path)
    mine = again.keyed[0].in_use()
    np.testing.assert_array_equal(np.sort(again.weights[mine], axis=0), np.sort(held[0].weights[used], axis=0))
