"""What ``plan --predict`` knows of groups. A step of a lane takes as long as the network's operators in turn, wherever
they are computed, and the messages between them; a member computes for all lanes of its replica; and its link carries
what it exchanges for them. The slowest of the three limits a replica, and what lanes wait for each other meanwhile,
which ``group_simulation`` finds, slows it down further.

The model takes products for seconds, and gives a member as many cores as it has worker threads. It leaves out latency,
and that rounds and rows use the same links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ssmpi.model.network import Network, floats_in
from ssmpi.model.part import Part, transform
from ssmpi.model.places import Places
from ssmpi.tools.group_simulation import steps_per_second
from ssmpi.tools.group_walk import Actions, step_of

LANES, MEMBER, GROUP = "lanes' cycle", "busiest member", "busiest link of a group"
WAITS = "members' waits for each other"
NEAR = 0.95  # of the tightest limit: from there on that decides
Messages = list[tuple[int, int, float]]  # sender, reader, bytes


@dataclass(frozen=True, kw_only=True)
class GroupWork:
    """A step of one lane on a batch, on average over the homes of a group of ``members``. Shares of the network's
    products: ``path`` is computed in turn, ``busiest`` by the member that computes most. Bytes: ``waits`` go in turn,
    ``carried`` over the busiest link in its busier direction. ``steps`` has, by home, what every member does.
    """

    members: int
    homes: int
    path: float
    busiest: float
    waits: float
    carried: float
    steps: tuple[tuple[Actions, ...], ...]

    def limits(self, step: float, pause: float, threads: int, link: float) -> dict[str, float]:
        """Most steps per second of a replica by what limits them: ``step`` seconds compute a batch on one thread, which
        rounds ``pause``; a member has so many ``threads``, a ``link`` carries bytes per second and direction.
        """
        return {
            LANES: self.homes * threads / (self.path * step + self.waits / link + pause),
            MEMBER: threads / (self.busiest * step),
            GROUP: link / self.carried if self.carried else math.inf,
        }

    def rates(self, step: float, pause: float, threads: int, link: float) -> dict[str, float]:
        """The same, the least of which is what a replica reaches."""
        limits = self.limits(step, pause, threads, link)
        tightest = min(limits, key=lambda name: limits[name])
        reached = min(limits[tightest], steps_per_second(self.steps, step, pause, threads, link))
        return limits | {tightest if reached >= NEAR * limits[tightest] else WAITS: reached}

    def describe(self, step: float, threads: int, link: float) -> list[str]:
        """The limits, and what is reached, in words."""
        limits = self.limits(step, 0.0, threads, link)
        found = {name: f"{1 / rate * 1e3:,.3g} ms" for name, rate in limits.items()}
        reached = steps_per_second(self.steps, step, 0.0, threads, link)
        return [
            f"  group of {self.members}: a replica steps at best every",
            f"    {found[LANES]} by the cycle of its {self.homes * threads} lanes: {self.path:.0%} of a step, "
            f"{self.waits / 1e6:,.3g} MB to wait for",
            f"    {found[MEMBER]} by its busiest member: {self.busiest:.0%} of a step",
            f"    {found[GROUP]} by its busiest link: {self.carried / 1e6:,.3g} MB",
            f"  and every {1 / reached * 1e3:,.3g} ms with what its lanes wait for each other",
        ]


def work_of(network: Network, places: Places, batch: int, homes: Sequence[int]) -> GroupWork:
    """The work of a group whose members ``homes`` read batches."""
    path, waits, steps = 0.0, 0.0, list[tuple[Actions, ...]]()
    computed, sent, received = np.zeros((3, places.group))
    for home in homes:
        for name, form in network.forms.items():
            shares = places.of[name].shares(form.width, places.group, home)
            each = {m: form.products * (part.stop - part.start) / form.width for m, part in shares.items()}
            path += max(each.values())
            for member, products in each.items():
                computed[member] += products
        parts = [transform(network, places, member, home) for member in range(places.group)]
        steps.append(tuple(step_of(part, batch) for part in parts))
        for turn in _turns(parts[home], batch):
            out, coming = np.zeros((2, places.group))
            for sender, reader, size in turn:
                out[sender] += size
                coming[reader] += size
            waits += max(out.max(), coming.max())
            sent += out
            received += coming
    total, n = sum(form.products for form in network.forms.values()), len(homes)
    return GroupWork(
        members=places.group, homes=n, path=path / total / n, busiest=float(computed.max()) / total / n,
        waits=waits / n, carried=float(max(sent.max(), received.max())) / n, steps=tuple(steps),
    )  # fmt: skip


def _turns(part: Part, batch: int) -> Iterator[Messages]:
    """The messages of a step of a lane of the part's home, those at once together: each value forward, then back, then
    gradients of lent parameters to their owners, and new values back.
    """
    for value in dict.fromkeys(edge.value for edge in part.edges):
        edges = [edge for edge in part.edges if edge.value == value]
        yield [(edge.source, edge.reader, batch * edge.message) for edge in edges]
        yield [(edge.reader, edge.source, batch * edge.back) for edge in edges]
    lent = {owner: 4 * floats_in(parameters) for owner, parameters in part.lent.items()}
    yield [(part.home, owner, size) for owner, size in lent.items()]
    yield [(owner, part.home, size) for owner, size in lent.items()]
