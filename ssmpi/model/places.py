"""Assigns a network's operators to the members of a group: by ordered rules such as ``top.*: 1 bf16``, of which the
first match decides, or by plans, which derive such rules from any network.
"""

from __future__ import annotations

import glob
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import ClassVar, NamedTuple

from ssmpi.model import custom_network
from ssmpi.model.network import DENSE, ROWS, WEIGHTS, Network, Operator
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import suggestion

NEAR = 1.1  # times the busiest stage of the best balance: among such cuts ``stages`` takes the narrowest
ROUNDED = "bf16"


class OpPlacement(ABC):
    """Where an operator is computed. A new kind of place is a subclass: rules can name it as soon as it is defined."""

    written: ClassVar[str]  # what a rule calls it
    dealt: ClassVar[bool] = False  # its parameters are dealt to all members; otherwise whoever uses them owns them

    @classmethod
    @abstractmethod
    def named(cls, word: str) -> OpPlacement | None:
        """The place that a rule calls ``word``, if it is of this kind."""

    @abstractmethod
    def member(self, home: int) -> int:
        """Who computes the operator for the lanes of ``home``."""

    def misfit(self, group: int) -> str:
        """Why no operator of a group of this size can be here, and the remedy; empty if it can."""
        return ""

    def __str__(self) -> str:
        return self.written


class AtHome(OpPlacement):
    """Each home computes it for its own batches."""

    written, dealt = "home", True

    @classmethod
    def named(cls, word: str) -> AtHome | None:
        """``home``."""
        return cls() if word == cls.written else None

    def member(self, home: int) -> int:
        """The home."""
        return home


@dataclass(frozen=True)
class AtMember(OpPlacement):
    """One member computes it for all lanes."""

    written = "a member's number"
    number: int

    def __str__(self) -> str:
        return f"member {self.number}"

    @classmethod
    def named(cls, word: str) -> AtMember | None:
        """A number."""
        return cls(int(word)) if word.isdecimal() else None

    def member(self, home: int) -> int:
        """That member."""
        return self.number

    def misfit(self, group: int) -> str:
        """Members are numbered from 0."""
        if self.number < group:
            return ""
        return f"topology.group = {group} has members 0 to {group - 1}: name one of them"


class Rule(NamedTuple):
    """``text`` as it was written; operators whose name matches ``pattern`` are at ``place``, and their outputs leave
    for other members ``rounded`` to bfloat16 or not.
    """

    text: str
    pattern: str
    place: OpPlacement
    rounded: bool


@dataclass(frozen=True)
class Places:
    """Every operator's place by its name, in a group of ``group`` members; values that are ``rounded`` to bfloat16 on
    their way to other members, as are their gradients on their way back.
    """

    group: int
    of: dict[str, OpPlacement]
    rounded: frozenset[str] = frozenset()


def rule_of(text: str) -> Rule:
    """A rule ``PATTERN: PLACE [bf16]``; SettingsError if it is none."""
    pattern, _, words = text.rpartition(":")
    word, *more = words.split() or [""]
    if not pattern.strip() or more not in ([], [ROUNDED]):
        raise SettingsError(f"rule {text!r} is not of the form 'PATTERN: PLACE' or 'PATTERN: PLACE {ROUNDED}'")
    for kind in OpPlacement.__subclasses__():
        if place := kind.named(word):
            return Rule(text, pattern.strip(), place, bool(more))
    known = ", ".join(kind.written for kind in OpPlacement.__subclasses__())
    raise SettingsError(f"rule {text!r}: {word!r} is not a place: write one of {known}")


def places_of(texts: Sequence[str], network: Network, group: int) -> Places:
    """The places that ordered rules give the network's operators. Operators without parameters that no rule matches are
    at home. SettingsError names rule and operator.
    """
    if own := custom_network.own_operators(network.operators):
        raise SettingsError(
            f"operator {own[0].name!r} ({custom_network.kinds_of(own[:1])}) is a custom one, which torch computes, and "
            "a group's members compute compiled ones only: set topology.group = 1"
        )
    rules = [rule_of(text) for text in texts]
    names = [operator.name for operator in network.operators]
    for rule in rules:
        if not any(fnmatchcase(name, rule.pattern) for name in names):
            raise SettingsError(f"rule {rule.text!r} matches no operator{suggestion(rule.pattern, names)}")
    used, of, rounded = set[str](), dict[str, OpPlacement](), set[str]()
    for operator in network.operators:
        rule = _first(rules, network, operator)
        if why := rule.place.misfit(group):
            raise SettingsError(f"rule {rule.text!r}: operator {operator.name!r}: {why}")
        used.add(rule.text)
        of[operator.name] = rule.place
        if rule.rounded:
            rounded.add(operator.name)
    if hidden := [rule.text for rule in rules if rule.text not in used]:
        raise SettingsError(f"rule {hidden[0]!r}: rules before it match all its operators: remove it, or put it first")
    return Places(group, of, frozenset(rounded))


def _first(rules: Sequence[Rule], network: Network, operator: Operator) -> Rule:
    """The first rule that matches the operator, or the default."""
    for rule in rules:
        if fnmatchcase(operator.name, rule.pattern):
            return rule
    if network.forms[operator.name].parameters:
        raise SettingsError(
            f"operator {operator.name!r} has parameters, and none of the rules matches it: add '{operator.name}: home'"
        )
    return Rule("", "", AtHome(), False)


def data(network: Network, group: int) -> list[str]:
    """Everything at home: members share nothing but parameters."""
    return ["*: home"]


def stages(network: Network, group: int) -> list[str]:
    """Consecutive operators at one member each, such that the busiest has as few products as possible; among cuts that
    nearly do, those that the fewest floats cross. Operators without parameters go with those before them, or stay at
    home if they read inputs, which are there. SettingsError if there are fewer operators than members.
    """
    units = list(_units(network))
    if len(units) < group:
        raise SettingsError(
            f"the plan 'stages' cuts a network between operators with parameters, and {len(units)} are too few for "
            f"topology.group = {group}: lower it, or take the plan 'data'"
        )
    products = [sum(network.forms[operator.name].products for operator in unit) for unit in units]
    cuts = _narrowest(products, [_crossing(network, unit[-1]) for unit in units], group)
    bounds = itertools.pairwise([0, *cuts, len(units)])
    return [
        f"{glob.escape(operator.name)}: {member}"
        for member, (first, last) in enumerate(bounds)
        for unit in units[first:last]
        for operator in unit
    ]


PLANS: dict[str, Callable[[Network, int], list[str]]] = {"data": data, "stages": stages}


def _units(network: Network) -> Iterator[list[Operator]]:
    """Operators that a cut may separate: each with parameters, and those without that go with it."""
    unit: list[Operator] = []
    for operator in network.operators:
        owning = bool(network.forms[operator.name].parameters)
        if owning and any(network.forms[other.name].parameters for other in unit):
            yield unit
            unit = []
        if owning or not {DENSE, ROWS, WEIGHTS} & set(operator.inputs):
            unit.append(operator)
    yield unit


def _crossing(network: Network, last: Operator) -> int:
    """Floats an example of the values computed up to ``last`` that operators after it read."""
    place = network.operators.index(last) + 1
    read = {name for operator in network.operators[place:] for name in operator.inputs}
    return sum(network.widths[operator.name] for operator in network.operators[:place] if operator.name in read)


def _narrowest(products: Sequence[int], crossing: Sequence[int], stages: int) -> tuple[int, ...]:
    """Where to cut a list into ``stages``, given each item's ``products`` and the floats ``crossing`` a cut after it:
    how many items come before each cut.
    """
    before = [0, *itertools.accumulate(products)]

    @cache
    def busiest(stages: int, end: int) -> int:
        """The least that the busiest of some stages must do of the first ``end`` items."""
        if stages == 1:
            return before[end]
        return min(max(busiest(stages - 1, cut), before[end] - before[cut]) for cut in range(stages - 1, end))

    limit = NEAR * busiest(stages, len(products))

    @cache
    def best(stages: int, end: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Floats that cross, products of the busiest, and the cuts; None if a stage would be over the limit."""
        if stages == 1:
            return (0, before[end], ()) if before[end] <= limit else None
        found = []
        for cut in range(stages - 1, end):
            head, last = best(stages - 1, cut), before[end] - before[cut]
            if head and last <= limit:
                found.append((head[0] + crossing[cut - 1], max(head[1], last), (*head[2], cut)))
        return min(found, default=None)

    chosen = best(stages, len(products))
    assert chosen, "the best balance is within its own limit"
    return chosen[2]
