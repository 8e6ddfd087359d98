"""Finds the bottleneck of a run from the time of a step and the speed of links, and how to relieve it.

Every part of the job limits the examples per second: the steps of the trainers with the rounds in between, the links
that rows and rounds go over, and in a group its busiest member and link. The slowest part wins. The arithmetic leaves
out latency, queues, the servers' processors, and who waits for whom in a group; rows count as if all ids of a batch
differ. ``python -m jobs.lab cluster`` checks it against real ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ssmpi.config import Config
from ssmpi.embedding.placement import Placement
from ssmpi.model.member_program import bytes_of_step, transform
from ssmpi.model.network import floats_in
from ssmpi.runtime.settings import SECONDS, positive
from ssmpi.runtime.traffic import Link
from ssmpi.state.memory_needs import round_cost
from ssmpi.sync import SYNC_PS, algorithm_of
from ssmpi.tools.group_plan import products_of
from ssmpi.tools.plan import row_bytes

STEP, SYNC, EMBEDDING = "steps and rounds", "sync PS links", "embedding PS links"
TRAINER, MEMBER, GROUP = "trainers' links", "busiest member of a group", "busiest link of a group"
REMEDIES = {
    STEP: "more trainers or threads; where rounds are in the foreground, rarer ones or a codec",
    SYNC: "more sync PSs, rarer rounds, a codec, or sync.pace = 'shadow'",
    EMBEDDING: "more embedding PSs",
    TRAINER: "more trainers of fewer threads",
    MEMBER: "another hierarchy.plan, or tags that share the products more evenly",
    GROUP: "another hierarchy.plan, larger batches, bf16 edges or model.top_k",
}


@dataclass(frozen=True)
class LinkSpeeds:
    """Bytes per second and direction of every sync PS, embedding PS and trainer."""

    sync_ps: float = math.inf
    embedding_ps: float = math.inf
    trainer: float = math.inf


@dataclass(frozen=True)
class Estimate:
    """Examples per second of the whole run that each part allows, by name; iterations of a thread between two rounds of
    its trainer (None without rounds).
    """

    limits: dict[str, float]
    gap: float | None

    @property
    def slowest(self) -> str:
        """The part that limits the run."""
        return min(self.limits, key=lambda name: self.limits[name])

    @property
    def eps(self) -> float:
        """Examples per second of the run."""
        return self.limits[self.slowest]

    def describe(self) -> str:
        """A line for each part, then the slowest one and how far a remedy goes."""
        lines = ["speed, from that step and these links (no latency, no queues; all ids of a batch differ):"]
        lines += [f"  {name:26} {eps:14,.0f} EPS" for name, eps in self.limits.items() if math.isfinite(eps)]
        lines.append(f"  slowest: {self.slowest}. To relieve: {REMEDIES[self.slowest]}")
        grow = (STEP, TRAINER, MEMBER, GROUP) if self.slowest == STEP else (self.slowest,)  # with the remedy
        others = {name: eps for name, eps in self.limits.items() if name not in grow and math.isfinite(eps)}
        if others:
            following = min(others, key=lambda name: others[name])
            lines.append(f"  the next limit, {following}, is at {others[following] / self.eps:,.3g} times that speed")
        if self.gap is not None:
            lines.append(f"  gap between two rounds, in iterations of a thread: {self.gap:,.3g}")
        return "\n".join(lines)


def estimate(config: Config, placement: Placement, step: float, links: LinkSpeeds) -> Estimate:
    """The estimate for a run whose threads take ``step`` seconds for a batch. SettingsError for a step or a link that
    is not above 0.
    """
    positive("--step-ms", 1e3 * step, SECONDS)
    for speed in (links.sync_ps, links.embedding_ps, links.trainer):
        positive("--link-mb", speed, math.inf)
    topology, batch = config.topology, config.data.batch_size
    rounds = Rounds.of(config, step, links)
    limits = _of_trainers(config, step, rounds.pause, links.trainer)
    if topology.embedding_ps:
        most = max(map(placement.lookups_of, range(placement.servers))) / sum(placement.lengths)
        busier = max(row_bytes(config, placement))  # each with the row numbers; pulls come back, pushes go there
        limits[EMBEDDING] = batch * links.embedding_ps / (most * busier)
        limits[TRAINER] = topology.home_trainers * batch * links.trainer / busier
    if rounds.period and rounds.capacity < math.inf:
        limits[SYNC] = rounds.capacity / topology.group * rounds.period * batch  # each thread has rounds of its own
    found = Estimate(limits, rounds.period or None)
    if rounds.period or not rounds.seconds:
        return found
    per_second = min(1 / rounds.seconds, rounds.capacity / topology.trainers)  # of a trainer, in the background
    return Estimate(limits, found.eps / (topology.lanes * batch) / per_second)


@dataclass(frozen=True)
class Rounds:
    """``seconds`` of a round of one trainer that shares no link, 0 without rounds; the ``period`` of foreground rounds
    in iterations, 0 in the background; rounds per second that all sync PSs' links carry.
    """

    seconds: float
    period: float
    capacity: float

    @property
    def pause(self) -> float:
        """Seconds by which rounds prolong an iteration."""
        return self.seconds / self.period if self.period else 0.0

    @classmethod
    def of(cls, config: Config, step: float, links: LinkSpeeds) -> Rounds:
        """The rounds of a run; those of an algorithm inside the step follow each iteration."""
        sync, kind, cost = config.sync, algorithm_of(config.sync), round_cost(config)
        size, servers, capacity = sum(cost.sent.values()), config.topology.sync_ps, math.inf
        if not size:
            return cls(0.0, 0.0, capacity)
        seconds = size / links.trainer
        if kind.partner == SYNC_PS:
            seconds = max(seconds, size / servers / links.sync_ps)
            capacity = servers * links.sync_ps / max(cost.sent[Link.CENTER_PUSH], cost.sent[Link.CENTER_PULL])
        period = 1.0 if kind.in_the_step else 0.0
        if sync.pace == "fixed_rate":
            period = sync.every_iterations or max(1.0, sync.every_seconds / step)
        return cls(seconds + cost.codec_seconds, period, capacity)


def _of_trainers(config: Config, step: float, pause: float, link: float) -> dict[str, float]:
    """What the trainers allow: alone, or as groups whose lanes wait for the messages of each step."""
    topology, batch = config.topology, config.data.batch_size
    if topology.group == 1:
        return {STEP: topology.lanes * batch / (step + pause)}
    network, places = config.network, config.places
    homes = [member for member in range(topology.group) if topology.is_home(member)]
    products = products_of(network, places, homes)
    waits = bytes_of_step(network, places, batch, homes) / link
    carried = np.zeros((2, topology.group))  # sent, received
    for home in homes:
        part = transform(network, places, home, home)
        messages = [(edge.source, edge.reader, batch * edge.message) for edge in part.edges]
        messages += [(edge.reader, edge.source, batch * edge.back) for edge in part.edges]
        for owner, parameters in part.lent.items():
            size = 4 * floats_in(parameters)
            messages += [(home, owner, size), (owner, home, size)]
        for sender, reader, size in messages:
            carried[0, sender] += size
            carried[1, reader] += size
    most = float(carried.max()) / len(homes)
    whole = topology.replicas * batch
    return {
        STEP: topology.lanes * batch / (step + pause + waits),
        MEMBER: whole * topology.threads * sum(products) / (max(products) * step),
        GROUP: whole * link / most if most else math.inf,
    }
