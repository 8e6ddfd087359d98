"""The settings of ``[sync]`` that all algorithms share, and the codec that they name. Settings of a single algorithm
lie beside it, in their own section.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from ssmpi import compress
from ssmpi.compress import Codec, CodecOptions
from ssmpi.runtime import settings, user_code
from ssmpi.runtime.settings import NO_TRANSPORT
from ssmpi.runtime.traffic import Traffic
from ssmpi.runtime.user_code import GUIDE

T = TypeVar("T")
DENSE = "dense"  # the setting for no codec
OWN = "algorithm", "codec"  # settings that may name a class in a file of the user's own


@dataclass(frozen=True)
class RoundOptions:
    """The common fields of ``[sync]``; ``ssmpi.sync`` adds the algorithms' sections."""

    REMOVED: ClassVar = {
        "by": ("thread", ""),
        "transport": ("auto", NO_TRANSPORT),
        "merge": ("difference", ""),
        "fragments": (1, ""),
        "warmup_steps": (0, "set schedule.warmup_examples, which raises the learning rates step by step"),
        "pull_codec": ("dense", "leave it out; pulls of async_ps are whole"),
        "life_span": (1000, "set sync.threshold_interval"),
        "refresh": ("doubling", ""),
    }
    algorithm: str = "ma"
    """What a round does: ``none``, ``easgd``, ``ma``, ``bmuf``, ``slowmo``, ``gossip``, ``async_ps``, ``synchronous``,
    or ``FILE.py:CLASS``, a class of your own.
    """
    pace: str = "shadow"
    """When rounds run: ``shadow``, back to back in the background, or ``fixed_rate``, in the training loop,
    ``every_iterations`` or ``every_seconds``. With sync PSs each worker thread then runs its own rounds and counts its
    own iterations, as in the paper; otherwise a round is for the whole trainer.
    """
    alpha: float = 0.5
    """Elastic weight: how far a round moves a replica, as a share of the way."""
    cpu_share: float = 0.0
    """Share of a core that the shadow thread may use; it sleeps between rounds. 0: a full core if the host has one for
    every thread; otherwise all shadow threads together use 1 % of its cores.
    """
    every_iterations: int = 0
    """With ``fixed_rate``: iterations from one round to the next."""
    every_seconds: float = 0.0
    """With ``fixed_rate``: seconds from one round to the next."""
    codec: str = DENSE
    """Codec for the pushes of ``async_ps`` and for both directions of ``easgd``'s rounds, which then use messages even
    within a host: ``dense`` (float32), ``bf16``, ``threshold:0.99``, which keeps 99 % of the entries back for later, or
    ``random-k:0.99``, its control. The suffix ``:bf16`` sends values in 16 bits, ``:whole`` uses one threshold for all
    layers.
    """
    threshold_interval: int = 1000
    """Pushes or rounds after which a codec recomputes its threshold; at the beginning also after 1, 2, 4, 8, ..."""
    custom: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings of an algorithm from a file of your own, by name."""
    shared_memory: bool = field(default=True, metadata=settings.DERIVED)  # of ``[run]``
    code: tuple[tuple[str, bytes], ...] = field(default=(), metadata=settings.DERIVED)  # texts of own files, by setting

    @property
    def by_thread(self) -> bool:
        """Whether each worker thread runs its own rounds, if the algorithm supports that."""
        return self.pace == "fixed_rate"

    def clients(self, threads: int) -> int:
        """How many clients a trainer of so many ``threads`` is to a sync PS: one per thread, or one."""
        return threads if self.by_thread else 1

    def own(self, section: type[T]) -> T:
        """The section of one algorithm; of the user's own one, what ``[sync.custom]`` sets."""
        found = (value for value in vars(self).values() if isinstance(value, section))
        return next(found, None) or settings.build(section, self.custom, "sync.custom.")

    @property
    def own_names(self) -> dict[str, str]:
        """The settings that name a class in a file of the user's own."""
        return {name: getattr(self, name) for name in OWN if user_code.names_file(getattr(self, name))}

    @property
    def lacks_code(self) -> bool:
        """Whether some of these files have not been read, so that what depends on them cannot be checked."""
        return len(self.own_names) > len(self.code)

    def source(self, name: str) -> bytes:
        """The text of the user's own file that the setting ``name`` names."""
        return dict(self.code).get(name) or user_code.source(getattr(self, name), f"sync.{name}")

    @property
    def identity(self) -> str:
        """The algorithm, as checkpoints record whose state they hold."""
        own = "algorithm" in self.own_names
        return user_code.identity(self.algorithm, self.source("algorithm")) if own else self.algorithm


def codec_of(options: RoundOptions) -> tuple[type[Codec], CodecOptions]:
    """The codec of pushes and rounds; SettingsError if there is none of that name."""
    source = options.source("codec") if user_code.names_file(options.codec) else b""
    return compress.parse(options.codec, CodecOptions(threshold_interval=options.threshold_interval), source)


def try_codec(options: RoundOptions) -> None:
    """Raise SettingsError unless the user's own codec can encode and decode a vector."""
    kind, own = codec_of(options)
    what = f"'{kind.__name__}', tried on a vector"
    user_code.run_user_code(user_code.path_of(kind), what, lambda: compress.compile_kernels((kind, own)), GUIDE)


def expected_bytes(codec: tuple[type[Codec], CodecOptions], shards: Sequence[slice]) -> float:
    """Payload bytes of all shards, at the configured density."""
    kind, own = codec
    return sum(kind.expected_bytes(own, part.stop - part.start) for part in shards)


def count_entries(payloads: Sequence[np.ndarray], traffic: Traffic) -> None:
    """Count the entries that codecs were given and sent."""
    for payload in payloads:
        traffic.add_entries(*compress.count_of(payload))
