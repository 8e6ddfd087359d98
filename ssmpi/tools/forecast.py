"""Examples per second and sync gap of any number of trainers, by step time and links.

The slowest part decides: the dense step (of a group: see ``group_forecast``), the links of the sync PSs, or the links
of the embedding PSs. The model leaves out latency, queues, switches between hosts, the servers' processors, and rows on
the trainers' own links. ``python -m jobs.lab cluster`` checks the same formulas against real ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ssmpi.config import Config
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import SECONDS, positive, require
from ssmpi.runtime.traffic import Link
from ssmpi.state.requirements import dense_parameters
from ssmpi.sync import ALL_TRAINERS, SYNC_PS, algorithm_of
from ssmpi.sync.options import DENSE
from ssmpi.tools.distinct_rows import sent_bytes
from ssmpi.tools.group_forecast import GroupWork, work_of

STEP, SYNC, EMBEDDING = "dense step", "sync PS link", "embedding PS link"


@dataclass(frozen=True)
class LinkSpeeds:
    """Bytes per second and direction of every sync PS, embedding PS and, for rounds without servers, trainer."""

    sync_ps: float = math.inf
    embedding_ps: float = math.inf
    trainer: float = math.inf

    def __post_init__(self) -> None:
        speeds = (self.sync_ps, self.embedding_ps, self.trainer)
        require(min(speeds) > 0, f"a link must carry more than 0 bytes a second, got {min(speeds)}")


@dataclass(frozen=True)
class Prediction:
    """``eps`` of all trainers; ``gap`` in iterations of a thread, None without rounds; ``full`` limits ``eps``."""

    trainers: int
    eps: float
    linear: float
    gap: float | None
    full: str


@dataclass(frozen=True)
class Compute:
    """What a trainer computes: ``step`` seconds for a batch, on each of its threads."""

    step: float
    batch: int
    threads: int


@dataclass(frozen=True)
class Rounds:
    """How a run synchronizes: ``bytes`` go to one partner, and as many come back; where a codec makes it fewer,
    ``pushed`` and ``pulled``, and takes ``codec_seconds``. With ALL_TRAINERS they hold for infinitely many trainers; n
    trainers send (n - 1) / n of both, and receive as much. ``period`` is in iterations of a thread, 0 in the
    background. With ``together`` all threads of a trainer share a round. A round moves one of ``fragments``.
    """

    partner: str = ""
    bytes: float = 0.0
    period: float = 0.0
    together: bool = False
    fragments: int = 1
    pushed: float | None = None
    pulled: float | None = None
    codec_seconds: float = 0.0

    @property
    def there_and_back(self) -> tuple[float, float]:
        """Bytes to the partner and from it."""
        pushed, pulled = (self.bytes if size is None else size for size in (self.pushed, self.pulled))
        return pushed, pulled

    @property
    def dense(self) -> Rounds:
        """The same rounds without a codec."""
        return replace(self, pushed=None, pulled=None, codec_seconds=0.0)


@dataclass(frozen=True)
class Forecast:
    """Predicts any number of trainers. ``iteration_bytes`` go over the link of the busiest embedding PS. With a
    ``group`` rounds are those of its members, each with its own parameters.
    """

    compute: Compute
    links: LinkSpeeds
    rounds: Rounds = field(default_factory=Rounds)
    iteration_bytes: float = 0.0
    group: GroupWork | None = None

    @property
    def members(self) -> int:
        """Trainers that hold a replica."""
        return self.group.members if self.group else 1

    @property
    def dense(self) -> Forecast:
        """The same run without a codec."""
        return replace(self, rounds=self.rounds.dense)

    @property
    def round_link(self) -> float:
        """Bytes per second and direction of the links that rounds go over."""
        return self.links.sync_ps if self.rounds.partner == SYNC_PS else self.links.trainer

    def round_bytes(self, trainers: int) -> float:
        """What one of ``trainers`` trainers sends and receives in sequence in a round: to the partner and back, or
        around the ring of all trainers, where it receives while it sends.
        """
        replicas = trainers // self.members
        if not self.rounds.partner or (replicas == 1 and self.rounds.partner != SYNC_PS):
            return 0.0
        return sum(self.rounds.there_and_back) * (1 - 1 / replicas if self.rounds.partner == ALL_TRAINERS else 1)

    def round_seconds(self, trainers: int) -> float:
        """Duration of a round that shares no link."""
        size = self.round_bytes(trainers)
        return size / self.round_link + self.rounds.codec_seconds if size else 0.0

    @property
    def round_capacity(self) -> float:
        """Rounds per second that the sync PSs' links carry, of all trainers."""
        size = max(self.rounds.there_and_back)
        return ratio(self.links.sync_ps, size) if self.rounds.partner == SYNC_PS else math.inf

    def trainer_eps(self, trainers: int) -> float:
        """Examples per second of one trainer that only its step, its group and its own rounds slow down."""
        return min(self._own(trainers).values()) / trainers

    def _own(self, trainers: int) -> dict[str, float]:
        """Examples per second of all trainers, by what limits them within their replicas."""
        pause = self.round_seconds(trainers) / self.rounds.period if self.rounds.period else 0.0
        step, threads = self.compute.step, self.compute.threads
        rates = {STEP: threads / (step + pause)}
        if self.group:
            rates = self.group.rates(step, pause, threads, self.links.trainer)
        return {name: trainers / self.members * self.compute.batch * rate for name, rate in rates.items()}

    @property
    def link_capacity(self) -> dict[str, float]:
        """Examples per second that each kind of server link carries."""
        threads = self.compute.threads if self.rounds.together else 1
        sync = (
            self.round_capacity / self.members * self.rounds.period * threads * self.compute.batch
            if self.rounds.period
            else math.inf
        )
        return {SYNC: sync, EMBEDDING: self.compute.batch * ratio(self.links.embedding_ps, self.iteration_bytes)}

    def of(self, trainers: int) -> Prediction:
        """The prediction for a number of trainers."""
        require(trainers % self.members == 0, f"{trainers} trainers are not groups of {self.members}: see --trainers")
        own = self._own(trainers)
        rates = own | self.link_capacity
        full = min(rates, key=lambda name: rates[name])
        return Prediction(trainers, rates[full], min(own.values()), self._gap(trainers, rates[full]), full)

    def _gap(self, trainers: int, eps: float) -> float | None:
        if self.rounds.period:
            return self.rounds.period * self.rounds.fragments
        alone = self.round_seconds(trainers)
        if not alone:
            return None
        rounds = min(1 / alone, self.round_capacity / trainers) / self.rounds.fragments
        lanes = trainers * self.compute.threads * (self.group.homes / self.members if self.group else 1)
        return eps / (lanes * self.compute.batch) / rounds


def ratio(speed: float, size: float) -> float:
    """How often per second a link of this ``speed`` carries ``size`` bytes."""
    return speed / size if size else math.inf


def forecast(config: Config, step: float, links: LinkSpeeds) -> Forecast:
    """The forecast for a run; reads a few batches of its data. SettingsError for algorithms that it does not cover."""
    positive("--step-ms", 1e3 * step, SECONDS)
    sync, kind = config.sync, algorithm_of(config.sync)
    if kind.in_the_step:
        raise SettingsError(f"no forecast for sync.algorithm = '{sync.algorithm}': it has no rounds beside its steps")
    servers = config.topology.sync_ps if kind.partner == SYNC_PS else 1
    foreground = kind.partner and sync.pace == "fixed_rate"
    rounds = Rounds(
        kind.partner,
        4 * dense_parameters(config) / servers / sync.fragments,
        (sync.every_iterations or max(1.0, sync.every_seconds / step)) if foreground else 0.0,
        not (kind.partner == SYNC_PS and sync.by_thread),
        sync.fragments,
        *_by_codec(config, servers * sync.fragments),
    )
    rows = max(sent_bytes(config)) if config.topology.embedding_ps else 0.0
    return Forecast(
        Compute(step, config.data.batch_size, config.topology.threads), links, rounds, rows, group_of(config)
    )


def group_of(config: Config) -> GroupWork | None:
    """What the members of a group do for each other; None without groups."""
    topology = config.topology
    if topology.group == 1:
        return None
    homes = [member for member in range(topology.group) if topology.is_home(member)]
    return work_of(config.network, config.places, config.data.batch_size, homes)


def _by_codec(config: Config, messages: int) -> tuple[float | None, float | None, float]:
    """The bytes that the partner receives and sends in a round of one fragment, given the ``messages`` of a round over
    the whole vector, None each without a codec; and the codec's processor seconds. Assumes at least two replicas.
    """
    sync, parameters, kind = config.sync, dense_parameters(config), algorithm_of(config.sync)
    if sync.codec == sync.pull_codec == DENSE:
        return None, None, 0.0
    topology = replace(config.topology, trainers=max(2 * config.topology.group, config.topology.trainers))
    cost = kind.cost(sync, topology, parameters)
    if kind.partner == SYNC_PS:
        there, back = cost.sent[Link.CENTER_PUSH], cost.sent[Link.CENTER_PULL]
    else:
        there = back = cost.sent[Link.TRAINERS] / (2 - 2 / topology.replicas)
    return there / messages, back / messages, cost.codec_seconds / sync.fragments
