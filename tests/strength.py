"""How much CI tries of what soak tries whole."""

import itertools

import hypothesis
import pytest


def one_at_a_time(*axes):
    """All combinations of a value from each axis, as parameters. Those that differ from the first one in more than one
    place are left to soak, because what fails for them alone is rare.
    """

    def marks(values):
        others = sum(value != axis[0] for value, axis in zip(values, axes, strict=True))
        return [pytest.mark.soak] * (others > 1)

    return [pytest.param(*values, marks=marks(values)) for values in itertools.product(*axes)]


def in_soak(*cases):
    """Parameters that are left to soak, each a value or a tuple of several."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak) for case in cases]


def at_least(examples):
    """More examples of a property than others have: of one whose violation loses data."""
    return hypothesis.settings(max_examples=max(examples, hypothesis.settings.default.max_examples))
