"""Decay of whole tables, lazily, against dense optimizers of torch that step every row every time."""

import threading

import numpy as np
import pytest
import torch
from oracle import RowwiseAdagrad
from rows import row_options
from test_bag_lookup import FEATURES, bags_of, pooled, summed
from test_bag_lookup import drawn as drawn_lists
from test_lookup import CARDINALITIES, whole_table
from test_row_optimizers import BETAS, LAYOUTS, ROWS, arena_of

from ssmpi.embedding.client import Lookups
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.shards import LocalShard, Tables, local_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.table_decay import BEGIN
from ssmpi.state.checkpoint.rows.row_store import RowStore
from ssmpi.sync.synchronous_rows import SERVER, SummedRows

RATE, EPSILON, DECAY, STEPS = 0.02, 1e-6, 0.05, 300
ALL = np.arange(ROWS, dtype=np.int32)


def dense_optimizer(name, tables, rate, decay, epsilon, initial=0.0, betas=(0.8, 0.95)):
    if name == "rowwise_adagrad":
        return RowwiseAdagrad(tables, rate, epsilon, initial, decay)
    if name == "sgd":
        return torch.optim.SGD(tables, rate, weight_decay=decay)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](
        tables, rate, betas, epsilon, weight_decay=decay
    )


class Dense:
    """The same rows, all of which step every time; a parameter for each group of columns."""

    def __init__(self, arena, name, kind=torch.float32, **settings):
        vector = arena.options.layout.vector
        groups = (group for group in np.split(arena.weights, [vector], axis=1) if group.size)
        self.tables = [torch.nn.Parameter(torch.tensor(group, dtype=kind)) for group in groups]
        self.optimizer = dense_optimizer(name, self.tables, **settings)
        self.rate = settings["rate"]

    def step(self, rows, gradients, factor):
        self.optimizer.param_groups[0]["lr"] = self.rate * factor
        for table, given in zip(self.tables, np.split(gradients, [self.tables[0].shape[1]], axis=1), strict=False):
            table.grad = torch.zeros_like(table)
            table.grad[rows] = torch.from_numpy(given).to(table.dtype)
        self.optimizer.step()

    @property
    def rows(self):
        return np.concatenate([table.detach().numpy() for table in self.tables], axis=1)


def now(arena, rows=ALL):
    out = np.empty((len(rows), arena.weights.shape[1]), np.float32)
    arena.read(rows, out)
    return out


def drawn(generator, width, scale=1.0):
    """Some of the first rows, which are looked up often, seldom, or once, and gradients; never the last one."""
    rows = np.flatnonzero(generator.random(ROWS - 1) < 0.5 ** np.arange(1, ROWS)).astype(np.int32)
    return rows, scale * generator.normal(size=(len(rows), width)).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "initial"),
    [("sgd", 0.0), ("rowwise_adagrad", 3e-4), ("rowwise_adagrad", 0.0), ("adam", 0.0), ("adamw", 0.0)],
)
def test_rows_are_at_any_time_as_if_all_had_stepped(name, initial, layout):
    """Whenever they are read, over two pauses; the rate is cut at the first one."""
    arena = arena_of(layout, optimizer=name, table_decay=DECAY, initial_state=initial, **BETAS)
    dense = Dense(arena, name, rate=RATE, decay=DECAY, epsilon=EPSILON, initial=initial)
    generator = np.random.default_rng(6)
    untouched = arena.weights[-1].copy()
    for step in range(STEPS):
        factor = 0.1 if step >= STEPS // 2 else 1.0
        if step == STEPS // 2:
            np.testing.assert_array_equal(arena.weights[-1], untouched)
            arena.settle(0)
        rows, gradients = drawn(generator, arena.weights.shape[1])
        dense.step(rows, gradients, factor)
        arena.update(rows, gradients.copy(), factor)
        np.testing.assert_allclose(now(arena), dense.rows, rtol=2e-4, atol=2e-5, err_msg=f"step {step}")
    before = now(arena)
    arena.settle(0)
    np.testing.assert_array_equal(arena.weights, before)
    np.testing.assert_array_equal(arena.clocks, [BEGIN] * (ROWS + 1))
    if name.startswith("adam"):
        of = [dense.optimizer.state[table] for table in dense.tables]
        moments = [np.concatenate([each[key] for each in of], axis=1) for key in ("exp_avg", "exp_avg_sq")]
        np.testing.assert_allclose(arena.state[:, :-1], np.concatenate(moments, axis=1), rtol=1e-3, atol=1e-6)
        np.testing.assert_array_equal(arena.state[:, -1], STEPS)


def error_over(steps, factor_of, **settings):
    """The largest error of any row at any time against dense Adam in float64, at the scale of a recipe for Criteo:
    small gradients, some thousand steps between two lookups.
    """
    recipe = {"rate": 1e-3, "epsilon": 1e-8, **settings}
    arena = arena_of("vectors and weights", optimizer="adam", table_decay=1e-5, **recipe)
    generator = np.random.default_rng(7)
    arena.weights[:] *= 0.05
    dense, largest = Dense(arena, "adam", torch.float64, decay=1e-5, betas=(0.9, 0.999), **recipe), 0.0
    for step in range(steps):
        rows, gradients = drawn(generator, arena.weights.shape[1], 1e-5)
        dense.step(rows, gradients, factor_of(step))
        arena.update(rows, gradients, factor_of(step))
        if step % 50 == 0:
            largest = max(largest, np.abs(now(arena) - dense.rows).max())
    assert not now(arena)[-1].any(), "a row that nobody looks up has vanished"
    return largest


def test_missed_steps_of_adam_are_exact_at_a_constant_rate():
    assert error_over(4000, lambda step: 1.0) < 1e-6


def test_missed_steps_at_the_mean_of_rates_that_rise_and_fall_differ_by_little():
    """In a warm-up over 1,000 steps and a decay over 2,000: by less than five steps at the full rate."""
    found = error_over(4000, lambda step: min(1.0, (step + 1) / 1000, (4001 - step) / 2000))
    print(f"largest error: {found:.2e}")
    assert found < 5e-3


def test_columns_that_adam_does_not_let_come_to_rest_are_followed_to_the_end():
    """A rate so high that a weight swings about 0, further and further: by a factor of 2 a step, as long as squares are
    small beside epsilon.
    """
    own, betas = {"rate": 0.02, "epsilon": 0.02 * 0.1 / 3}, (0.0, 0.5)
    arena = arena_of("vectors", optimizer="adam", table_decay=0.1, beta1=betas[0], beta2=betas[1], **own)
    arena.weights[:] = 1e-20
    dense = Dense(arena, "adam", decay=0.1, betas=betas, **own)
    for _ in range(100):
        dense.step([], np.empty((0, 5), np.float32), 1.0)
        arena.update(ALL[:0], np.empty((0, 5), np.float32), 1.0)
    assert np.abs(dense.rows).max() > 1e-4
    np.testing.assert_allclose(now(arena), dense.rows, rtol=1e-3)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_step_that_needs_no_row_of_a_ps_is_a_step_there_too(mapped):
    options, placement = row_options(4, table_decay=0.1), place((30, 40), 2)
    arenas = [Arena(options, placement, server, 1) for server in range(2)]
    tables = local_tables(*arenas, mapped=mapped)
    for server in (0, 1, 0):
        tables.update(SummedRows(np.array([server * SERVER + 3]), 2, 0), np.ones((1, 4), np.float32), 0.5, 0)
    tables.drain()
    assert [arena.clocks[-1].tolist() for arena in arenas] == [[4.0, 1.5]] * 2


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad", "adam", "adamw"])
def test_a_step_that_trainers_take_together_is_one(name, mapped):
    """Each pushes rows of its own, to some PSs or none, in any order, and reaches PSs in its own way; over a pause, at
    which the rate is cut. In turns of two PSs there is a step in which one of them gets no row.
    """
    options = row_options(4, optimizer=name, rate=RATE, epsilon=EPSILON, table_decay=DECAY, initial_state=3e-4, **BETAS)
    arenas = [Arena(options, place((ROWS, ROWS), 2), server, 1) for server in range(2)]
    dense = [Dense(arena, name, rate=RATE, decay=DECAY, epsilon=EPSILON, initial=3e-4) for arena in arenas]
    ways = [mapped, mapped[::-1], mapped]
    trainers = [
        Tables([LocalShard(arena, mapped=here) for arena, here in zip(arenas, way, strict=True)], arenas[0].placement,
               options)
        for way in ways
    ]  # fmt: skip
    generator = np.random.default_rng(3)
    for step in range(60):
        factor = 1.0 if step < 30 else 0.3
        if step == 30:
            trainers[0].sweep(0)
            for other in trainers[1:]:
                other.begin_clocks()
        given = [drawn(generator, 4) if step % 3 != server else (ALL[:0], np.empty((0, 4), "f4")) for server in (0, 1)]
        for model, (rows, gradients) in zip(dense, given, strict=True):
            model.step(rows, gradients, factor)
        keys = np.concatenate([server * SERVER + rows.astype(np.int64) for server, (rows, _) in enumerate(given)])
        gradients = np.concatenate([each for _, each in given])
        for trainer in generator.permutation(len(trainers)):
            own = keys % 2 == trainer  # the last one has none
            trainers[trainer].update(SummedRows(keys[own], 2, step), gradients[own], factor, 0)
            trainers[trainer].drain()
        for arena, model in zip(arenas, dense, strict=True):
            np.testing.assert_allclose(now(arena), model.rows, rtol=2e-4, atol=2e-5, err_msg=f"step {step}")
    for arena in arenas:
        np.testing.assert_allclose(arena.clocks[-1], [31.0, 9.0], rtol=1e-6)


@pytest.mark.parametrize("mapped", [(True, True), (True, False), (False, False)])
def test_lists_are_pooled_from_rows_as_they_are_now(mapped):
    """Whoever pools: also mapped rows where the rows of the same bags come from PSs that pool."""
    options = row_options(4, optimizer="sgd", rate=0.1, table_decay=0.5, pooling="server")
    arenas = [Arena(options, place(CARDINALITIES, 2), server, 1) for server in range(2)]
    shards = [LocalShard(arena, mapped=here) for arena, here in zip(arenas, mapped, strict=True)]
    tables = Tables(shards, arenas[0].placement, options)
    lookups, generator = Lookups(tables, 0), np.random.default_rng(5)
    dense = [whole_table(arenas, table).astype(float) for table in range(FEATURES)]
    for _ in range(30):
        lists, weights = drawn_lists(generator, weighted=True)
        lookup = lookups.pull(bags_of(lists, weights))
        np.testing.assert_allclose(lookup.values, pooled(dense, lists, weights, 4), rtol=1e-4, atol=1e-5)
        gradients = generator.normal(size=lookup.values.shape).astype(np.float32)
        lookups.push(lookup, gradients)
        for feature, table in enumerate(dense):
            table *= 1 - 0.1 * 0.5
            for row, gradient in summed(gradients, lists, weights, feature).items():
                table[row] -= 0.1 * gradient
        tables.drain()


def missing_steps(options, placement, seed=1):
    """Rows of which all but a few have missed steps."""
    arena, generator = Arena(options, placement, 0, seed), np.random.default_rng(4)
    arena.weights[:] = generator.normal(size=arena.weights.shape)
    for _ in range(20):
        rows = generator.permutation(len(arena.weights))[:2].astype(np.int32)
        arena.update(rows, generator.normal(size=(2, arena.weights.shape[1])).astype(np.float32), 1.0)
    return arena


def test_rows_are_saved_as_they_are_now(tmp_path):
    """During training, for partial recovery, which goes on from there: steps between save and loss are lost, those of
    decay as well.
    """
    options, placement = row_options(3, optimizer="adam", table_decay=0.1), place((ROWS,), 1)
    arena = missing_steps(options, placement)
    behind = arena.weights.copy()
    RowStore(tmp_path / "rows", arena, 0).save_all(0)
    np.testing.assert_array_equal(arena.weights, behind)
    again = Arena(options, placement, 0, 2)
    store = RowStore(tmp_path / "rows", again, 0)
    store.restore(store.load())
    np.testing.assert_array_equal(again.weights, now(arena))
    np.testing.assert_array_equal(again.weights, now(again))
    arena.settle(0)
    np.testing.assert_array_equal(again.state, arena.state)


def test_a_kill_while_rows_catch_up_does_no_harm(monkeypatch):
    """Some have caught up, or all, and not all clocks have begun anew."""
    options, placement = row_options(3, optimizer="adam", table_decay=0.1), place((ROWS, 5), 1)
    whole, killed = (missing_steps(options, placement) for _ in range(2))
    whole.settle(0)
    rows = slice(killed.parts[0].base, killed.parts[0].base + killed.parts[0].rows)
    killed.weights[rows], killed.state[rows], killed.clocks[rows] = (
        whole.weights[rows],
        whole.state[rows],
        killed.clocks[-1],
    )
    killed.settle(0)
    np.testing.assert_array_equal(killed.weights, whole.weights)
    killed.clocks[rows] = 30.0, 30.0
    EmbeddingServer(killed, service=None)
    np.testing.assert_array_equal(killed.weights, whole.weights)
    np.testing.assert_array_equal(killed.clocks, [BEGIN] * len(killed.clocks))


def test_the_row_of_a_key_decays_from_its_first_update_until_it_is_freed(tmp_path):
    dynamic = DynamicOptions(keys=12, expire_after_examples=30)
    options = row_options(3, optimizer="sgd", rate=0.1, table_decay=0.5, dynamic=dynamic)
    placement = place((0,), 1, dynamic, ("user",))
    arena = Arena(options, placement, 0, 1)
    (table,) = arena.keyed.values()

    def step(*keys):
        rows = table.resolve(np.array(keys, np.int64), np.ones(len(keys), np.int64)).astype(np.int32)
        arena.update(rows, np.zeros((len(rows), 3), np.float32), 1.0)
        return rows

    def pause(examples):
        table.sweep(examples)
        arena.settle(0)

    step(1)
    (row,) = step(2)
    first, begun = arena.weights[row].copy(), now(arena, np.array([row]))
    np.testing.assert_array_equal(first, begun[0])
    step(3), step(3)
    np.testing.assert_allclose(now(arena, np.array([row]))[0], first * 0.95**2, rtol=1e-6)
    pause(10)
    np.testing.assert_allclose(arena.weights[row], first * 0.95**2, rtol=1e-6)
    step(3)
    pause(41)  # frees all but 3, which was seen
    assert table.in_use().tolist() == [r for r in range(len(table.keys)) if table.keys[r] == 3]
    assert arena.clocks[row].tolist() == [0.0, 0.0]
    (again,) = step(7)
    assert again in (row, row - 1), "a freed row"
    step(3)
    assert arena.clocks[again, 0] == 2.0
    store = RowStore(tmp_path / "rows", arena, 0)
    store.save_all(0)
    later = Arena(options, placement, 0, 2)
    RowStore(tmp_path / "rows", later, 0).restore(store.load())
    EmbeddingServer(later, service=None)
    (keyed,) = later.keyed.values()
    (found,) = keyed.resolve(np.array([7]), np.array([0]))
    np.testing.assert_array_equal(later.weights[found], now(arena, np.array([again]))[0])
    assert later.clocks[found].tolist() == list(BEGIN)


def test_tables_that_do_not_decay_have_no_clocks():
    options = row_options(16)
    assert options.bytes_for(10) == 10 * 4 * 17
    assert not Arena(options, place((10,), 1), 0, 1).clocks.size


def test_threads_may_update_rows_while_others_read_them():
    """Lock-free: the clock of a row may change while it catches up, and steps may overlap."""
    arena = Arena(row_options(4, optimizer="sgd", rate=0.1, table_decay=0.1), place((4000,), 1), 0, 1)
    rows = np.arange(4000, dtype=np.int32)

    def push(thread):
        for _ in range(500):
            arena.update(rows[thread::2], np.zeros((2000, 4), np.float32), 1.0)

    pushing = [threading.Thread(target=push, args=(thread,)) for thread in range(2)]
    for thread in pushing:
        thread.start()
    while any(thread.is_alive() for thread in pushing):
        assert np.isfinite(now(arena, rows)).all()
    assert 990 <= arena.clocks[-1, 0] <= 1001, "next to no step is lost"
