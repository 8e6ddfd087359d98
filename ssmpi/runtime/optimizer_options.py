"""Settings that the optimizers of ``[dense]`` and ``[embedding]`` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ssmpi.runtime.settings import FLOAT32, require, suggestion, within

STEP = "step"  # the name of the count of steps in a dense optimizer's state
DECOUPLED = "adamw"  # its weight decay is no part of the gradient


class OptimizerOptions(Protocol):
    """An ``optimizer`` by name, its learning ``rate`` (the schedule multiplies it), and its numbers by torch's names;
    sums of squares begin with ``initial_state``.
    """

    @property
    def optimizer(self) -> str:
        """Its name."""

    @property
    def rate(self) -> float:
        """The learning rate."""

    @property
    def epsilon(self) -> float:
        """Added to a root."""

    @property
    def initial_state(self) -> float:
        """What Adagrad's sums of squares begin with."""

    @property
    def beta1(self) -> float:
        """How much of Adam's mean of gradients a step keeps."""

    @property
    def beta2(self) -> float:
        """How much of Adam's mean of squares a step keeps."""

    @property
    def weight_decay(self) -> float:
        """Times a weight it is added to the gradient, or with ``adamw`` the weight shrinks by rate times it."""


def check(options: OptimizerOptions, names: Iterable[str]) -> None:
    """SettingsError if an optimizer is none of ``names``, or one of its numbers is out of range."""
    names = list(names)
    require(
        options.optimizer in names,
        f"optimizer = {options.optimizer!r} is no optimizer{suggestion(options.optimizer, names)}",
    )
    within("rate", options.rate, 0.0, FLOAT32)
    within("epsilon", options.epsilon, 1 / FLOAT32, FLOAT32)
    within("initial_state", options.initial_state, 0.0, FLOAT32)
    within("weight_decay", options.weight_decay, 0.0, FLOAT32)
    for name, beta in (("beta1", options.beta1), ("beta2", options.beta2)):
        require(0 <= beta < 1, f"{name} must be in [0, 1), got {beta:g}")


def numbers(kind: int, options: OptimizerOptions) -> list[float]:
    """What compiled code needs of them, as the places below say: both kinds of decay, one of which is 0."""
    decoupled = options.optimizer == DECOUPLED
    decays = (0.0, options.weight_decay) if decoupled else (options.weight_decay, 0.0)
    return [kind, options.rate, options.epsilon, options.beta1, options.beta2, *decays]


KIND, RATE, EPSILON, BETA1, BETA2, DECAY, SHRINK = range(7)
