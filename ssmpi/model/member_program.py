"""The program of each member of a group for the lanes of one home. ``transform`` cuts a network at its places:
operators in the network's order, with a ``Send`` right behind the operator whose value another member reads, and a
``Receive`` right before the first operator that reads a value from elsewhere. Pure: neither MPI nor compiled code.

Nothing can deadlock: all parts keep the network's order, a ``Send`` does not wait, and a ``Receive`` waits for one that
comes before it in that order. The backward pass is the mirror: the gradient of what a ``Receive`` received goes back,
and each ``Send`` adds the gradient of what it sent to that of its own readers, in a fixed order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ssmpi.model.edges import Edge, Mailbox, Receive, Send
from ssmpi.model.network import DENSE, Inputs, Network, Operator, Parameter, floats_in
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.places import Places
from ssmpi.model.top_k import TopK
from ssmpi.runtime.errors import SettingsError

Item = Operator | Send | Receive

FACTOR = 2  # floats that hold a rate's factor, a float64, or a number of examples
LINE = 16  # floats of a cache line, at which copies begin


@dataclass(frozen=True, kw_only=True)
class MemberProgram:
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


def whole(network: Network) -> MemberProgram:
    """The part of a group of one: everything."""
    return MemberProgram(network=network, operators=network.operators, owned=OwnedParameters(network))


def transform(network: Network, places: Places, member: int, home: int) -> MemberProgram:
    """What ``member`` computes for the lanes of ``home``."""
    sources = _sources(network, places, home)
    edges, owners = _edges(network, places, sources, home), owned_names(network, places)
    return MemberProgram(
        network=network, group=places.group, member=member, home=home, edges=edges,
        operators=tuple(_items(network, sources, edges, member, home)),
        owned=OwnedParameters(network, owners[member]), lent=_lent(network, places, owners, home),
    )  # fmt: skip


def owned_names(network: Network, places: Places) -> list[set[str]]:
    """By member, the names of the parameters that it owns: of operators at members, where they are used; of those at
    home the largest first, each to the member that owns least.
    """
    owned: list[set[str]] = [set() for _ in range(places.group)]
    dealt: list[Parameter] = []
    for name, form in network.forms.items():
        if places.of[name].dealt:
            dealt += form.parameters
        else:
            owned[places.of[name].member(0)] |= {parameter for parameter, _ in form.parameters}
    loads = [floats_in(OwnedParameters(network, names).layout) for names in owned]
    for parameter in sorted(dealt, key=lambda each: -floats_in([each])):
        least = loads.index(min(loads))
        loads[least] += floats_in([parameter])
        owned[least].add(parameter[0])
    return owned


def check_owners(network: Network, places: Places) -> None:
    """SettingsError unless every member owns some parameters: otherwise it has no part in rounds."""
    for member, names in enumerate(owned_names(network, places)):
        if not names:
            raise SettingsError(
                f"member {member} of {places.group} would own no parameters: give it an operator that has some, or "
                "lower topology.group"
            )


def _sources(network: Network, places: Places, home: int) -> dict[str, int]:
    """Who computes every value, in the order of computation; the home has the inputs."""
    return dict.fromkeys(network.inputs.widths(), home) | {name: places.of[name].member(home) for name in network.forms}


def _edges(network: Network, places: Places, sources: Mapping[str, int], home: int) -> tuple[Edge, ...]:
    """One for each value and member that reads it from elsewhere; the loss reads the last value, at home. What a
    ``TopK`` has computed goes as what it has kept, if that is shorter.
    """
    readers = defaultdict[str, set[int]](set, {network.operators[-1].name: {home}})
    for operator in network.operators:
        for name in operator.inputs:
            readers[name].add(sources[operator.name])
    kept = {each.name: each.kept(network.widths[each.name]) for each in network.operators if isinstance(each, TopK)}
    edges = (
        Edge(name, network.widths[name], source, reader, bf16=name in places.rounded, gradient=name != DENSE)
        for name, source in sources.items()
        for reader in sorted(readers[name] - {source})
    )
    return tuple(
        min((edge, replace(edge, kept=kept.get(edge.value, 0))), key=lambda each: each.message + each.back)
        for edge in edges
    )


def _lent(network: Network, places: Places, owners: Sequence[Container[str]], home: int) -> dict[int, list[Parameter]]:
    """The parameters of operators at home that other members own, by owner."""
    used = [each for name, form in network.forms.items() if places.of[name].dealt for each in form.parameters]
    found = {
        member: [parameter for parameter in used if parameter[0] in names]
        for member, names in enumerate(owners)
        if member != home
    }
    return {member: parameters for member, parameters in found.items() if parameters}


def _items(
    network: Network, sources: Mapping[str, int], edges: Sequence[Edge], member: int, home: int
) -> Iterator[Item]:
    """What a member computes, sends and receives, in the network's order."""
    here = {name for name, source in sources.items() if source == member}

    def sent(value: str) -> Iterator[Send]:
        return (Send(value, n) for n, edge in enumerate(edges) if (edge.value, edge.source) == (value, member))

    def received(value: str) -> Iterator[Receive]:
        """Before its first reader."""
        if value not in here:
            here.add(value)
            number = next(n for n, edge in enumerate(edges) if (edge.value, edge.reader) == (value, member))
            yield Receive(value, network.widths[value], number)

    for name in network.inputs.widths():
        yield from sent(name)
    for operator in network.operators:
        if sources[operator.name] == member:
            for value in operator.inputs:
                yield from received(value)
            yield operator
            yield from sent(operator.name)
    if member == home:
        yield from received(network.operators[-1].name)


def bytes_of_step(network: Network, places: Places, examples: int, homes: Sequence[int]) -> float:
    """Bytes that a lane's step on a batch of ``examples`` moves within the group, on average over the ``homes``."""
    return sum(transform(network, places, home, home).moved(examples, 1) for home in homes) / len(homes)
