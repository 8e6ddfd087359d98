"""Operators that pass on only an example's largest values, and the settings that insert them: DCT's for model
parallelism (Gupta et al., arXiv 2010.08899, Algorithm 2), where edges of a group send only what ``TopK`` passes on.
Gradients flow through the positions of the values, without a residual or a selection of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from ssmpi.model.network import Activation, Linear, Network
from ssmpi.model.operators import Form, Operator, exactly
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import suggestion

SUFFIX = ".top_k"  # behind the name of the operator whose output it takes


@dataclass(frozen=True)
class TopK(Operator):
    """Of an example's values, the ``kept`` ones that are largest in size; the others become 0. Of equal ones, those
    that come first; NaN counts as larger than any number.
    """

    share: float  # of the values that become 0

    def kept(self, width: int) -> int:
        """How many of ``width`` values pass: all but ``width`` times the share, rounded down as a decimal number."""
        return width - int(width * Decimal(repr(self.share)))

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (width,) = exactly(1, widths)
        if not 0 <= self.share < 1:
            raise ValueError(f"share is at least 0 and less than 1, got {self.share}: 0.95 drops 95 % of the values")
        return Form(width)


@dataclass(frozen=True)
class Threshold(Operator):
    """Of an example's values, those at least as large as a threshold below which the ``share`` of all values is
    expected; the others become 0. ``estimates`` has the threshold.
    """

    share: float

    form = TopK.form


LAPLACE = "laplace"


def thresholds(network: Network) -> list[Threshold]:
    """The network's operators of that kind."""
    return [operator for operator in network.operators if isinstance(operator, Threshold)]


def check_exact(network: Network) -> None:
    """SettingsError if the network has thresholds: torch, which computes it, has none."""
    if found := [operator.name for operator in thresholds(network)]:
        raise SettingsError(
            f"the thresholds of {', '.join(found)} are known to compiled code only, and torch computes this network "
            f"here (custom operators, or this processor): write model.top_k without '{LAPLACE}'"
        )


def with_top_k(network: Network, texts: Sequence[str]) -> Network:
    """The network with a ``TopK`` or a ``Threshold`` behind operators, each named by a text ``OPERATOR: SHARE`` or
    ``OPERATOR: SHARE laplace``, that all its readers read instead. SettingsError names the text at fault.
    """
    if not texts:
        return network
    inserted = _inserted(texts, [operator.name for operator in network.operators])
    found: list[Operator] = []
    for operator in network.operators:
        inputs = tuple(name + SUFFIX if name in inserted else name for name in operator.inputs)
        found.append(operator if inputs == operator.inputs else replace(operator, inputs=inputs))
        if operator.name in inserted:
            found.append(inserted[operator.name])
    return Network(tuple(found), network.inputs)


def _inserted(texts: Sequence[str], names: Sequence[str]) -> dict[str, TopK | Threshold]:
    """What is behind each operator."""
    found: dict[str, TopK | Threshold] = {}
    for text in texts:
        place = f"model.top_k: {text!r}"
        name, _, words = (part.strip() for part in text.rpartition(":"))
        try:
            share = float(words.removesuffix(LAPLACE))
        except ValueError:
            raise SettingsError(
                f"{place} is not of the form 'OPERATOR: SHARE' or 'OPERATOR: SHARE {LAPLACE}': write, for instance,"
                " 'bottom.2: 0.95'"
            ) from None
        if not 0 <= share < 1:
            raise SettingsError(f"{place}: the share is at least 0 and less than 1: 0.95 drops 95 % of the values")
        if name not in names:
            raise SettingsError(f"{place}: the network has no operator {name!r}{suggestion(name, names)}")
        if name == names[-1]:
            raise SettingsError(f"{place}: the output of {name!r} is the logit: name an operator before it")
        if name in found:
            raise SettingsError(f"{place}: {name!r} is named twice: remove one of them")
        found[name] = (Threshold if words.endswith(LAPLACE) else TopK)(name + SUFFIX, (name,), share)
    return found


def describe(network: Network) -> list[str]:
    """How many values each passes on, one line each."""
    by_name = {operator.name: operator for operator in network.operators}
    lines = []
    for operator in network.operators:
        if isinstance(operator, (TopK, Threshold)):
            source, width = by_name.get(operator.inputs[0]), network.widths[operator.name]
            relu = isinstance(source, (Linear, Activation)) and source.activation == "relu"
            note = "" if relu else f" ({operator.inputs[0]} has no ReLU: large negative values pass, too)"
            if isinstance(operator, TopK):
                lines.append(f"{operator.name} keeps {operator.kept(width)} of {width} values{note}")
            else:
                kept = f"about {width * (1 - operator.share):.3g} of {width} values, by a threshold"
                lines.append(f"{operator.name} keeps {kept}{note}: how many varies, so edges of a group send all")
    return lines
