"""What the sections of optimizers have in common, ``[dense]`` and ``[embedding]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ssmpi.core.settings import FLOAT32, require, suggestion, within


class OptimizerOptions(Protocol):
    """An ``optimizer`` by name, its learning ``rate`` (the schedule multiplies it), and what Adagrad adds to and begins
    with.
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
        """What sums of squares begin with."""


def check(options: OptimizerOptions, names: Iterable[str]) -> None:
    """SettingsError if an optimizer is none of ``names``, or one of its numbers is out of range."""
    names = list(names)
    require(
        options.optimizer in names, f"optimizer = {options.optimizer!r} is none{suggestion(options.optimizer, names)}"
    )
    within("rate", options.rate, 0.0, FLOAT32)
    within("epsilon", options.epsilon, 1 / FLOAT32, FLOAT32)
    within("initial_state", options.initial_state, 0.0, FLOAT32)
