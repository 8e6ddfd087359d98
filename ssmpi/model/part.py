"""What each member of a group computes for the lanes of one home. ``transform`` cuts a network at its places: operators
in the network's order, with a ``Send`` right behind the operator whose value another member reads, and a ``Receive``
right before the first operator that reads a value from elsewhere. Pure: neither MPI nor compiled code.

Nothing can deadlock: all parts keep the network's order, a ``Send`` does not wait, and a ``Receive`` waits for one that
comes before it in that order. The backward pass is the mirror: the gradient of what a ``Receive`` received goes back,
and each ``Send`` adds the gradient of what it sent to that of its own readers, in a fixed order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ssmpi.model.edges import Edge, Mailbox, Receive, Send
from ssmpi.model.network import DENSE, Inputs, Linear, Network, Operator, Parameter, floats_in
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.places import Places, Shares
from ssmpi.model.top_k import TopK
from ssmpi.runtime.errors import SettingsError

Item = Operator | Send | Receive

FACTOR = 2  # floats that hold a rate's factor, a float64, or a number of examples
LINE = 16  # floats of a cache line, at which copies begin


@dataclass(frozen=True, kw_only=True)
class Part:
    """What ``member`` of a ``group`` computes for the lanes of ``home``, and what it has ``owned`` whatever the home.
    ``edges`` are all edges of the home's lanes. ``lent``, by owner: the parameters with which the home computes, but
    which another member owns and steps.
    """

    network: Network
    group: int = 1
    member: int = 0
    home: int = 0
    operators: tuple[Item, ...]
    edges: tuple[Edge, ...] = ()
    owned: OwnedParameters
    lent: Mapping[int, Sequence[Parameter]] = field(default_factory=dict)

    @property
    def at_home(self) -> bool:
        """Whether this member reads the batches."""
        return self.member == self.home

    @property
    def inputs(self) -> Inputs:
        """What it is given; a helper only receives."""
        return self.network.inputs if self.at_home else Inputs(0, 0, 0)

    @property
    def helpers(self) -> list[int]:
        """The members that have work for the home's lanes, in order."""
        ends = {member for edge in self.edges for member in (edge.source, edge.reader)}
        return sorted((ends | self.lent.keys()) - {self.home})

    @cached_property
    def _memory(self) -> tuple[list[Parameter], dict[int, int]]:
        """The layout of its parameters, and where the copies of each helper's begin."""
        layout, copies = list(self.owned.layout), dict[int, int]()
        for helper in self.helpers if self.at_home else ():
            room = -floats_in(layout) % LINE
            copies[helper] = floats_in(layout) + room
            layout += [(f"room for {helper}", (room,)), *self.lent.get(helper, ()), (f"rate of {helper}", (FACTOR,))]
        return layout, copies

    @property
    def layout(self) -> list[Parameter]:
        """Names and shapes of its parameters in memory: what it owns, in the network's order; at home, copies of what
        helpers lend, each helper's followed by room for a rate's factor, so that a STEP message is contiguous.
        """
        return self._memory[0]

    @property
    def copies(self) -> dict[int, int]:
        """Where in the home's memory the copies of each helper's parameters begin."""
        return self._memory[1]

    @cached_property
    def widths(self) -> dict[str, int]:
        """Floats per example of every value here, in the order of computation."""
        widths = self.inputs.widths() if self.at_home else {}
        for item in self.operators:
            if isinstance(item, Receive):
                widths[item.name] = item.width
            elif isinstance(item, Operator):
                widths[item.name] = item.form(*(widths[name] for name in item.inputs)).width
        return widths

    def mailboxes(self, examples: int) -> list[Mailbox]:
        """Those of one lane whose messages are for at most so many examples, in an order that all members share: the
        edges', forward; the edges', backward (of 0 bytes if no gradient comes back); then BEGIN (an int64, the size of
        the batch), STEP (the gradients of lent parameters, and a float64, the rate's factor) and WEIGHTS (these
        parameters) of each helper.
        """
        found = [Mailbox(e.source, e.reader, e.message * examples, e.entries * examples) for e in self.edges]
        found += [Mailbox(e.reader, e.source, e.back * examples, e.entries_back * examples) for e in self.edges]
        for member in self.helpers:
            size = 4 * floats_in(self.lent.get(member, ()))
            found += [Mailbox(self.home, member, 8), Mailbox(self.home, member, 8 + size)]
            found.append(Mailbox(member, self.home, size))
        return found

    def moved(self, examples: int, steps: int, parts: int = 0) -> int:
        """Bytes of all messages of one lane, both directions: in so many ``steps`` on so many ``examples`` in all, and
        in so many ``parts`` of a run, at whose ends helpers lend once more, and are closed.
        """
        lent, helpers = 4 * sum(map(floats_in, self.lent.values())), len(self.helpers)
        edges = sum(edge.message + edge.back for edge in self.edges)
        return examples * edges + steps * (2 * lent + 16 * helpers) + parts * (lent + 8 * helpers)

    def begin(self, helper: int) -> int:
        """The number of the mailbox in which a helper takes BEGIN; those for STEP and WEIGHTS follow it."""
        return 2 * len(self.edges) + 3 * self.helpers.index(helper)


def whole(network: Network) -> Part:
    """The part of a group of one: everything."""
    return Part(network=network, operators=network.operators, owned=OwnedParameters(network))


def transform(network: Network, places: Places, member: int, home: int) -> Part:
    """What ``member`` computes for the lanes of ``home``."""
    shares = _shares(network, places, home)
    edges, owners = _edges(network, places, shares, home), owned_rows(network, places)
    return Part(
        network=network, group=places.group, member=member, home=home, edges=edges,
        operators=tuple(_Cut(network, shares, edges, member, home).operators()),
        owned=OwnedParameters(network, owners[member]), lent=_lent(network, places, owners, home),
    )  # fmt: skip


def owned_rows(network: Network, places: Places) -> list[dict[str, slice]]:
    """By member, the rows of every parameter that it owns: of operators at members, where they are used; of those at
    home, whole parameters, the largest first, each to the member that owns least.
    """
    owned: list[dict[str, slice]] = [{} for _ in range(places.group)]
    dealt: list[Parameter] = []
    for name, form in network.forms.items():
        if places.of[name].dealt:
            dealt += form.parameters
            continue
        for member, columns in places.of[name].shares(form.width, places.group, 0).items():
            split = columns != slice(0, form.width)
            owned[member] |= {key: columns if split else slice(0, shape[0]) for key, shape in form.parameters}
    loads = [floats_in(OwnedParameters(network, rows).layout) for rows in owned]
    for parameter in sorted(dealt, key=lambda each: -floats_in([each])):
        least = loads.index(min(loads))
        loads[least] += floats_in([parameter])
        name, shape = parameter
        owned[least][name] = slice(0, shape[0])
    return owned


def check_owners(network: Network, places: Places) -> None:
    """SettingsError unless every member owns some parameters: otherwise it has no part in rounds."""
    for member, rows in enumerate(owned_rows(network, places)):
        if not rows:
            raise SettingsError(
                f"member {member} of {places.group} would own no parameters: give it an operator that has some, or "
                "lower topology.group"
            )


def _shares(network: Network, places: Places, home: int) -> dict[str, Shares]:
    """Who has which columns of every value when it is computed, in the order of computation."""
    inputs = {name: {home: slice(0, width)} for name, width in network.inputs.widths().items()}
    return inputs | {
        name: places.of[name].shares(form.width, places.group, home) for name, form in network.forms.items()
    }


def _edges(network: Network, places: Places, shares: Mapping[str, Shares], home: int) -> tuple[Edge, ...]:
    """One for each value, piece of it and member that reads it; the loss reads the last value, at home. What a ``TopK``
    has computed goes as what it has kept, if that is shorter.
    """
    readers = defaultdict[str, set[int]](set, {network.operators[-1].name: {home}})
    for operator in network.operators:
        for name in operator.inputs:
            readers[name] |= shares[operator.name].keys()
    kept = {each.name: each.kept(network.widths[each.name]) for each in network.operators if isinstance(each, TopK)}
    edges = (
        Edge(name, columns, source, reader, bf16=name in places.rounded, gradient=name != DENSE)
        for name, pieces in shares.items()
        for reader in sorted(readers[name])
        for source, columns in sorted(pieces.items())
        if source != reader
    )
    return tuple(
        min((edge, replace(edge, kept=kept.get(edge.value, 0))), key=lambda each: each.message + each.back)
        for edge in edges
    )


def _lent(
    network: Network, places: Places, owners: Sequence[Mapping[str, slice]], home: int
) -> dict[int, list[Parameter]]:
    """The parameters of operators at home that other members own, by owner."""
    used = [each for name, form in network.forms.items() if places.of[name].dealt for each in form.parameters]
    found = {
        member: [parameter for parameter in used if parameter[0] in rows]
        for member, rows in enumerate(owners)
        if member != home
    }
    return {member: parameters for member, parameters in found.items() if parameters}


@dataclass(frozen=True)
class _Cut:
    """A member's share of a network, given everyone's ``shares`` of values and all ``edges``."""

    network: Network
    shares: Mapping[str, Shares]
    edges: Sequence[Edge]
    member: int
    home: int

    def operators(self) -> Iterator[Item]:
        """In the network's order."""
        names: dict[str, str] = {}  # of values that this member has whole
        for name in self.network.inputs.widths():
            yield from self._sent(name)
        for operator in self.network.operators:
            if self.member not in self.shares[operator.name]:
                continue
            for value in operator.inputs:
                yield from self._gathered(value, names)
            yield self._share_of(operator, tuple(names[value] for value in operator.inputs))
            yield from self._sent(operator.name)
        if self.member == self.home:
            yield from self._gathered(self.network.operators[-1].name, names)

    def _sent(self, value: str) -> Iterator[Send]:
        """What leaves of a value that has just been computed."""
        return (
            Send(value, n) for n, edge in enumerate(self.edges) if (edge.value, edge.source) == (value, self.member)
        )

    def _gathered(self, value: str, names: dict[str, str]) -> Iterator[Receive]:
        """What puts a value together here before its first reader, if it was not computed here as a whole."""
        if value in names:
            return
        numbers = tuple(n for n, e in enumerate(self.edges) if (e.value, e.reader) == (value, self.member))
        own = self.shares[value].get(self.member)
        names[value] = f"{value} (whole)" if own and numbers else value
        if numbers:
            width = self.network.widths[value]
            yield Receive(names[value], width, numbers, *((value, own.start) if own else ()))

    def _share_of(self, operator: Operator, inputs: tuple[str, ...]) -> Operator:
        """The operator as it is computed here."""
        columns = self.shares[operator.name][self.member]
        if columns == slice(0, self.network.widths[operator.name]):
            return operator if inputs == operator.inputs else replace(operator, inputs=inputs)
        assert isinstance(operator, Linear), "only linear layers are split"
        return replace(operator, inputs=inputs, outputs=columns.stop - columns.start)


def bytes_of_step(network: Network, places: Places, examples: int, homes: Sequence[int]) -> float:
    """Bytes that a lane's step on a batch of ``examples`` moves within the group, on average over the ``homes``."""
    return sum(transform(network, places, home, home).moved(examples, 1) for home in homes) / len(homes)
