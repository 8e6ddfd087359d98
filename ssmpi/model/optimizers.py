"""The optimizers of dense parameters, by name. An optimizer is a class with the state of a parameter and its initial
value, a line in ``DENSE_OPTIMIZERS``, and a line in ``update``, which compiled code calls.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ssmpi.model import kernels
from ssmpi.runtime import optimizer_options
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.optimizer_options import BETA1, BETA2, DECAY, EPSILON, KIND, RATE, SHRINK, OptimizerOptions

# Further places in the numbers of one step: the rate over the correction of Adam's mean, and 1 over the root of that of
# its squares.
STEP, SCALE = SHRINK + 1, SHRINK + 2


class Optimizer:
    """``numbers`` float64 tell ``update`` what to do. The state are ``vectors`` by name, float32 (parameters,), all
    ``initial`` at first, and if it ``counts`` the number of steps. ``full_first_step``: the first one is as large as
    the rate in every parameter.
    """

    kind: ClassVar[int]
    vectors: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[bool] = False
    full_first_step: ClassVar[bool] = False
    initial = 0.0

    def __init__(self, options: OptimizerOptions) -> None:
        self.numbers = np.array(optimizer_options.numbers(self.kind, options))


class SGD(Optimizer):
    """w -= rate * g."""

    kind = 0


class Adagrad(Optimizer):
    """sums += g^2; w -= rate * g / (sqrt(sums) + epsilon) (Duchi et al. 2011)."""

    kind = 1
    vectors = ("sums",)
    full_first_step = True

    def __init__(self, options: OptimizerOptions) -> None:
        super().__init__(options)
        self.initial = options.initial_state


class Adam(Optimizer):
    """``kernels.adam`` (Kingma and Ba, ICLR 2015). It is ``adamw`` too (Loshchilov and Hutter, ICLR 2019)."""

    kind = 2
    vectors = ("exp_avg", "exp_avg_sq")
    counts = True
    full_first_step = True


DENSE_OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam, "adamw": Adam}
OF_SGD, OF_ADAGRAD, OF_ADAM = SGD.kind, Adagrad.kind, Adam.kind  # as compiled code needs them


def optimizer_of(options: OptimizerOptions) -> Optimizer:
    """The optimizer that these options name."""
    return DENSE_OPTIMIZERS[options.optimizer](options)


@njit(cache=True, nogil=True)
def at_step(numbers: np.ndarray, steps: np.ndarray, factor: float) -> np.ndarray:
    """The numbers for ``update`` in the next step, at ``factor`` times the learning rate; ``steps`` float64 (1,) counts
    it.
    """
    steps[0] += 1.0
    now = np.empty(SCALE + 1)
    for place in range(STEP):
        now[place] = numbers[place]
    now[RATE] *= factor
    now[SHRINK] = 1.0 - now[RATE] * numbers[SHRINK]
    if now[KIND] == OF_ADAM:
        now[STEP] = now[RATE] / (1.0 - now[BETA1] ** steps[0])
        now[SCALE] = 1.0 / np.sqrt(1.0 - now[BETA2] ** steps[0])
    return now


@njit(cache=True, nogil=True)
def update(now: np.ndarray, weights: np.ndarray, gradients: np.ndarray, state: np.ndarray, place: int) -> None:
    """Step some ``weights`` (n,) by their ``gradients``, which may be longer; theirs in ``state`` (vectors, parameters)
    begins at a ``place``.
    """
    if now[KIND] == OF_SGD:
        kernels.sgd(weights, gradients, now[RATE], now[DECAY])
    elif now[KIND] == OF_ADAGRAD:
        kernels.adagrad(weights, gradients, state[0, place:], (now[RATE], now[EPSILON], now[DECAY]))
    elif now[KIND] == OF_ADAM:
        kernels.adam(weights, gradients, state[0, place:], state[1, place:], now[EPSILON : SCALE + 1])
