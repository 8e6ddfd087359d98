"""The settings of ``[sync]`` that all algorithms share. Those of one algorithm lie beside it, in a section of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ssmpi.runtime import settings, user_code
from ssmpi.runtime.settings import NO_TRANSPORT

T = TypeVar("T")
DENSE = "dense"  # the setting for no codec
OWN = "algorithm", "codec", "pull_codec"  # settings that may name a class in a file of the user's own


@dataclass(frozen=True)
class RoundOptions:
    """The common fields of ``[sync]``; ``ssmpi.sync`` adds the algorithms' sections."""

    REMOVED: ClassVar = {"by": ("thread", ""), "transport": ("auto", NO_TRANSPORT)}
    algorithm: str = "ma"
    """What a round does: ``none``, ``easgd``, ``ma``, ``bmuf``, ``slowmo``, ``gossip``, ``async_ps``, ``synchronous``,
    or ``FILE.py:CLASS``, a class of your own.
    """
    pace: str = "shadow"
    """When rounds run: ``shadow``, back to back in the background, or ``fixed_rate``, in the training loop,
    ``every_iterations`` or ``every_seconds``: with a center of every worker thread, which counts its own iterations (as
    in the paper), else one for the trainer.
    """
    alpha: float = 0.5
    """Elastic weight: the share of the way that a round moves a replica."""
    merge: str = "difference"
    """How the result of a background round is merged into live weights: ``difference`` adds what the round changed,
    ``interpolate`` moves them towards the result.
    """
    cpu_share: float = 0.0
    """Most of a core that the shadow thread takes, sleeping between rounds; 0: a full core if the host has one for
    every thread, else all shadow threads together take 1 % of its cores.
    """
    every_iterations: int = 0
    """At a fixed rate: iterations from one round to the next."""
    every_seconds: float = 0.0
    """At a fixed rate: seconds from one round to the next."""
    fragments: int = 1
    """Parts of the vector; a round exchanges one of them, in turn."""
    warmup_steps: int = 0
    """First steps that all worker threads take together, with the mean of their gradients; 0: none."""
    codec: str = DENSE
    """Encodes the pushes of ``async_ps`` and, both ways, the rounds of ``easgd`` and ``ma``, which then use messages
    also within a host: ``dense`` (float32), ``bf16``, ``threshold:0.99``, which drops 99 % of the entries and keeps
    them for later, or ``random-k:0.99``, the control for it. ``:bf16`` behind it sends values in 16 bits, ``:whole``
    uses one threshold for all layers.
    """
    life_span: int = 1000
    """Pushes or rounds for which a codec's threshold is used."""
    refresh: str = "doubling"
    """``doubling`` also computes the threshold again at pushes 1, 2, 4, 8, ...; ``plain`` does not."""
    pull_codec: str = DENSE
    """The same as ``codec`` for the weights that ``async_ps`` pulls: a sync PS answers with the entries that differ
    most from the trainer's copy; with ``threshold:0`` with all that have changed, which are few if pushes are encoded.
    """
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
