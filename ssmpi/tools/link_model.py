"""The arithmetic of ``ssmpi plan --predict``: the rate for any number of trainers, from step time, rounds and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ssmpi.core.settings import require
from ssmpi.sync import ALL_TRAINERS, SYNC_PS

STEP, SYNC, EMBEDDING = "dense step", "sync PS link", "embedding PS link"
BACK_TO_BACK = 2.0  # trainers that saturate a link in both directions: each waits for its answer


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
    """Predicts any number of trainers. ``iteration_bytes`` go over the link of the busiest embedding PS."""

    compute: Compute
    links: LinkSpeeds
    rounds: Rounds = field(default_factory=Rounds)
    iteration_bytes: float = 0.0

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
        if not self.rounds.partner or (trainers == 1 and self.rounds.partner != SYNC_PS):
            return 0.0
        return sum(self.rounds.there_and_back) * (1 - 1 / trainers if self.rounds.partner == ALL_TRAINERS else 1)

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
        """Examples per second of one trainer that only its step and its own rounds slow down."""
        pause = self.round_seconds(trainers) / self.rounds.period if self.rounds.period else 0.0
        return self.compute.threads * self.compute.batch / (self.compute.step + pause)

    @property
    def link_capacity(self) -> dict[str, float]:
        """Examples per second that each kind of server link carries."""
        threads = self.compute.threads if self.rounds.together else 1
        sync = (
            self.round_capacity * self.rounds.period * threads * self.compute.batch if self.rounds.period else math.inf
        )
        return {SYNC: sync, EMBEDDING: self.compute.batch * ratio(self.links.embedding_ps, self.iteration_bytes)}

    def of(self, trainers: int) -> Prediction:
        """The prediction for a number of trainers."""
        one = self.trainer_eps(trainers)
        rates = {STEP: trainers * one, **self.link_capacity}
        full = min(rates, key=lambda name: rates[name])
        return Prediction(trainers, rates[full], trainers * one, self._gap(trainers, rates[full]), full)

    def _gap(self, trainers: int, eps: float) -> float | None:
        if self.rounds.period:
            return self.rounds.period * self.rounds.fragments
        alone = self.round_seconds(trainers)
        if not alone:
            return None
        rounds = min(1 / alone, self.round_capacity / trainers) / self.rounds.fragments
        return eps / (trainers * self.compute.threads * self.compute.batch) / rounds


def ratio(speed: float, size: float) -> float:
    """How often per second a link of this ``speed`` carries ``size`` bytes."""
    return speed / size if size else math.inf
