"""How dense parameters are stepped, by name. An optimizer is a class, which says what state a parameter has and how it
begins, a line in ``DENSE_OPTIMIZERS``, and a line in ``update``, which compiled code calls.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ssmpi.compiled.jit import njit
from ssmpi.core.optimizer_options import OptimizerOptions
from ssmpi.model import kernels

KIND, RATE, EPSILON = range(3)  # places in an optimizer's ``numbers``


class Optimizer:
    """``numbers`` float64 tell ``update`` what to do. The state are ``vectors`` by name, float32 (parameters,), all
    ``initial`` at first. ``full_first_step``: the first one is as large as the rate in every parameter.
    """

    kind: ClassVar[int]
    vectors: ClassVar[tuple[str, ...]] = ()
    full_first_step = False
    initial = 0.0

    def __init__(self, options: OptimizerOptions) -> None:
        self.numbers = np.array([self.kind, options.rate, options.epsilon])


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


DENSE_OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adagrad": Adagrad}
OF_SGD, OF_ADAGRAD = SGD.kind, Adagrad.kind  # as compiled code needs them


def optimizer_of(options: OptimizerOptions) -> Optimizer:
    """The optimizer that these options name."""
    return DENSE_OPTIMIZERS[options.optimizer](options)


@njit(cache=True, nogil=True)
def at_step(numbers: np.ndarray, factor: float) -> np.ndarray:
    """The numbers for ``update`` in one step, at ``factor`` times the learning rate."""
    now = numbers.copy()
    now[RATE] *= factor
    return now


@njit(cache=True, nogil=True)
def update(now: np.ndarray, weights: np.ndarray, gradients: np.ndarray, state: np.ndarray, place: int) -> None:
    """Step some ``weights`` (n,) by their ``gradients``, which may be longer; theirs in ``state`` (vectors, parameters)
    begins at a ``place``.
    """
    if now[KIND] == OF_SGD:
        kernels.sgd(weights, gradients, now[RATE])
    elif now[KIND] == OF_ADAGRAD:
        kernels.adagrad(weights, gradients, state[0, place:], now[RATE], now[EPSILON])
