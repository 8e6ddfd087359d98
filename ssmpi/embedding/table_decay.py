"""Decay of whole tables (``embedding.table_decay``): in every step of its table a row decays, looked up or not, as the
weights of a dense optimizer do. FuxiCTR's ``embedding_regularizer`` is the same term.

A row catches up when it is looked up. What happens to it without a gradient depends on nothing but itself, so that the
steps that it missed can be taken then. The clock of a table has the number of its steps and the sum of their factors of
the learning rate, and so has that of each row, as of the step that it took last; 0 for a row that has not begun. A push
is a step of the table: its rows catch up, and take that step with their gradients. A step that several trainers take
together is one, though each pushes rows of its own, in any order: a push has the clock before it. A pull computes what
a row is now, and writes nothing. While training pauses, all rows catch up, and clocks begin anew: whatever reads rows
then, or afterwards in a file, needs no clocks.

* ``sgd`` by a closed form; ``rowwise_adagrad`` too, for as many steps as add next to nothing to a sum of squares;
* ``adam``, ``adamw`` step by step: at most twice the work of a dense optimizer, once for the pull and once for the
  push. A column comes to rest early if it moves by less than TINY a step, and with ``adam`` is below TINY itself.

Missed steps are taken at the mean of their rates: exact as long as the rate is constant between two pauses.
"""

from __future__ import annotations

import math

import numpy as np

from ssmpi.embedding.precision import narrow, row_key, second_key, widen
from ssmpi.embedding.row_optimizers import ADAGRAD, SGD, TABLE_DECAY, VECTOR, shares
from ssmpi.runtime.compiled.cache_lines import ask_for_row
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.optimizer_options import BETA1, BETA2, EPSILON, KIND, RATE, SHRINK

CLOCK = 2  # float64 of a clock: steps, sum of factors
BEGIN = 1.0, 0.0
OWN = np.zeros(CLOCK)  # instead of a clock: that of the table
TINY = 1e-12
TOGETHER = 1e-3  # share of a sum of squares that steps may add which are taken together
CHECK = 16  # steps between two checks of what has ended


@njit(cache=True, nogil=True)
def read(
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, clocks: np.ndarray, rows: np.ndarray, out: np.ndarray
) -> None:
    """out[k] = weights[rows[k]] as it is now. ``clocks`` float64 (rows + 1, CLOCK), the last of which is the table's;
    ``numbers`` are the optimizer's.
    """
    own, now = np.empty(state.shape[1], np.float32), clocks[-1].copy()
    for k in range(rows.size):
        ask_for_row(weights, rows, k)
        r = rows[k]
        for j in range(weights.shape[1]):
            out[k, j] = widen(weights[r, j])
        missed, factors = behind(clocks[r], now)
        if missed > 0.0:
            own[:] = state[r]
            catch_up(numbers, missed, factors, out[k], own)


@njit(cache=True, nogil=True)
def begin_step(
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, clocks: np.ndarray, rows: np.ndarray, factor: float,
    push_number: int, before: np.ndarray,
) -> None:  # fmt: skip
    """Begin the table's next step, at ``factor`` times the learning rate: unique ``rows`` catch up, and count it as
    theirs. ``push_number`` as in ``row_optimizers.update``. ``before`` float64 (CLOCK,) is the table's clock before a
    step that several trainers take together, or OWN. Lock-free: those trainers write the same; if two threads begin
    steps of their own at the same instant, they may count once.
    """
    steps, factors = clocks[-1, 0], clocks[-1, 1]
    if before[0] > 0.0:
        steps, factors = before[0], before[1]
    clocks[-1, 0], clocks[-1, 1] = steps + 1.0, factors + factor
    now, after = np.array((steps, factors)), np.array((steps + 1.0, factors + factor))
    values = np.empty(weights.shape[1], np.float32)
    for k in range(rows.size):
        ask_for_row(weights, rows, k)
        ask_for_row(state, rows, k)
        r = rows[k]
        missed, factors = behind(clocks[r], now)
        if missed > 0.0:
            key = second_key(second_key(row_key(push_number, r)))
            _catch_up(numbers, missed, factors, weights[r], state[r], values, key)
        if clocks[r, 0] < after[0]:  # else another thread has begun a later step
            clocks[r] = after


@njit(cache=True, nogil=True)
def settle(
    numbers: np.ndarray, weights: np.ndarray, state: np.ndarray, clocks: np.ndarray, now: np.ndarray, number: int
) -> None:
    """Let all of some rows, with a clock each, catch up with that of the table. They are rounded by a ``number``."""
    values = np.empty(weights.shape[1], np.float32)
    for r in range(clocks.shape[0]):
        missed, factors = behind(clocks[r], now)
        if missed > 0.0:
            _catch_up(numbers, missed, factors, weights[r], state[r], values, row_key(number, r))
            clocks[r] = now  # a kill may come at any moment


@njit(cache=True, nogil=True)
def behind(then: np.ndarray, now: np.ndarray) -> tuple[float, float]:
    """How many steps a row is behind its table, by their clocks, and the sum of their factors; 0 if it has not begun.
    Read once: another thread may write the clock.
    """
    steps, factors = then[0], then[1]
    missed = now[0] - steps if steps > 0.0 else 0.0
    return missed, max(now[1] - factors, 0.0)


@njit(cache=True, nogil=True)
def _catch_up(
    numbers: np.ndarray, missed: float, factors: float, weights: np.ndarray, state: np.ndarray, values: np.ndarray,
    key: int,
) -> None:  # fmt: skip
    """As ``catch_up``, of weights of any type, rounded by a key of their row; there is room for their ``values``."""
    for j in range(weights.size):
        values[j] = widen(weights[j])
    catch_up(numbers, missed, factors, values, state)
    for j in range(weights.size):
        weights[j] = narrow(values[j], weights[j], key, j)


@njit(cache=True, nogil=True)
def catch_up(numbers: np.ndarray, missed: float, factors: float, weights: np.ndarray, state: np.ndarray) -> None:
    """Let a row, ``weights`` float32 (width,) and ``state`` float32 (floats,), take the steps that it ``missed``, whose
    factors of the learning rate add up to ``factors``.
    """
    rate = numbers[RATE] * factors / missed
    if numbers[KIND] == SGD:
        weights *= np.float32(math.exp(missed * math.log1p(-rate * numbers[TABLE_DECAY])))
    elif numbers[KIND] == ADAGRAD:
        for group in range(state.size):
            first = 0 if group == 0 else int(numbers[VECTOR])
            last = int(numbers[VECTOR]) if group + 1 < state.size else weights.size
            state[group] = _adagrad(numbers, missed, rate, weights[first:last], state[group])
    else:
        _adam(numbers, missed, rate, weights, state)


@njit(cache=True, nogil=True, error_model="numpy")
def _adagrad(numbers: np.ndarray, missed: float, rate: float, weights: np.ndarray, total: float) -> float:
    """Of a group of columns, ``weights``, with one sum of squares: its new ``total``. All of them shrink alike. Steps
    are taken together that add next to nothing to the sum, at its mean.
    """
    decay, share, total, square = numbers[TABLE_DECAY], 1.0, np.float64(total), np.float64(0.0)
    for j in range(weights.size):
        square += np.float64(weights[j]) ** 2 / weights.size
    while missed > 0.0 and square > 0.0:
        added = (decay * share) ** 2 * square
        steps = max(1.0, min(missed, math.floor(TOGETHER * total / added)))
        shrink = rate * decay / (math.sqrt(total + 0.5 * (steps + 1.0) * added) + numbers[EPSILON])
        if shrink >= 1.0 or steps == 1.0:
            steps = 1.0
            total += added
            share *= 1.0 - rate * decay / (math.sqrt(total) + numbers[EPSILON])
        else:
            each = math.log1p(-shrink)
            total += added * math.expm1(2.0 * steps * each) / math.expm1(2.0 * each)
            share *= math.exp(steps * each)
        missed -= steps
    weights *= np.float32(share)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _adam(numbers: np.ndarray, missed: float, rate: float, weights: np.ndarray, state: np.ndarray) -> None:
    """As ``row_optimizers.adam`` steps, to the bit, without gradients but that of the decay."""
    width, (take, keep, add) = weights.size, shares(numbers)
    means, squares, epsilon = state[:width], state[width : 2 * width], np.float32(numbers[EPSILON])
    decoupled = numbers[SHRINK] > 0.0
    decay = np.float32(0.0 if decoupled else numbers[TABLE_DECAY])
    kept = np.float32(1.0 - rate * numbers[TABLE_DECAY] if decoupled else 1.0)
    by_mean, by_square = numbers[BETA1] ** state[-1], numbers[BETA2] ** state[-1]
    state[-1] += np.float32(missed)
    # Around 0, where squares are 0, small columns stay small
    stable = rate * decay / numbers[EPSILON] * take < 2.0 + 2.0 * numbers[BETA1]
    left, moving = int(missed), True
    while left > 0 and moving:
        steps = min(left, CHECK)
        left -= steps
        for _ in range(steps):
            by_mean *= numbers[BETA1]
            by_square *= numbers[BETA2]
            step, scale = np.float32(rate / (1.0 - by_mean)), np.float32(1.0 / math.sqrt(1.0 - by_square))
            for j in range(width):
                g = decay * weights[j]
                mean = means[j] + take * (g - means[j])
                square = keep * squares[j] + add * g * g
                means[j], squares[j] = mean, square
                weights[j] = kept * weights[j] - step * mean / (np.sqrt(square) * scale + epsilon)
        moving = not stable
        for j in range(width if stable else 0):
            moves = abs(step * means[j]) > TINY * (np.sqrt(squares[j]) * scale + epsilon)
            if moves or (abs(weights[j]) > TINY and not decoupled):
                moving = True
            else:
                means[j] = 0.0
                if not decoupled:
                    weights[j] = 0.0
    if left > 0:
        squares *= np.float32(numbers[BETA2] ** left)
        weights *= np.float32(math.exp(left * math.log1p(np.float64(kept) - 1.0)))
