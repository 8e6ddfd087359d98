"""Who is measured: names, topologies and settings of all contenders, as plain values."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from ssmpi.model.options import ModelOptions

BARE, GEMM, PYTORCH, SSMPI = "bare step", "gemm", "pytorch", "ssmpi"

SHADOWS = ("easgd", "ma", "bmuf")
EXTRA_THREADS = 4  # more than there are cores, for the over-subscribed contender


@dataclass(frozen=True)
class Contender:
    """``threads`` are Hogwild threads of a trainer (bare step, gemm, ssmpi) or threads inside an operator (pytorch)."""

    kind: str
    batch: int
    threads: int = 1
    precision: str = "fp32"
    trainers: int = 1
    algorithm: str = "none"

    @property
    def shape(self) -> str:
        """The name without batch and precision: ``ssmpi 2x1 ma``."""
        if self.kind == SSMPI:
            return f"{SSMPI} {self.trainers}x{self.threads} {self.algorithm}"
        return f"{self.kind} {self.threads}t"

    @property
    def name(self) -> str:
        """What results, ``--only`` and messages call it: ``ssmpi 2x1 ma, 128, fp32``."""
        return f"{self.shape}, {self.batch}, {self.precision}"

    @property
    def ranks(self) -> int:
        """Ranks of its MPI job."""
        return self.trainers + 1 + (self.algorithm == "easgd")

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that make the common run file this contender's."""
        found = (
            f"data.batch_size={self.batch}",
            f"topology.trainers={self.trainers}",
            f"topology.threads={self.threads}",
            "topology.embedding_ps=1",
            f"topology.sync_ps={int(self.algorithm == 'easgd')}",
            f"sync.algorithm={self.algorithm}",
            "sync.pace=shadow",
        )
        return found if self.precision == "fp32" else (*found, f"model.precision={self.precision}")


def precisions() -> tuple[str, ...]:
    """What the program can compute in: bf16 contenders exist where the setting for them does."""
    known = any(field.name == "precision" for field in dataclasses.fields(ModelOptions))
    return ("fp32", "bf16") if known else ("fp32",)


def grid(batches: Sequence[int], cores: int, short: bool) -> list[Contender]:
    """All contenders for these batch sizes on this many cores; ``short`` leaves the essential ones."""
    if short:
        return [contender for batch in batches for contender in essential(batch, cores)]
    found = []
    for batch in batches:
        for precision in precisions():
            found += of_batch(batch, cores, precision)
        found.append(Contender(PYTORCH, batch, cores))
    most = Contender(SSMPI, min(batches), cores + EXTRA_THREADS)
    return [*found, most]


def of_batch(batch: int, cores: int, precision: str) -> list[Contender]:
    """One batch size in one precision: ceilings at 1 and at all cores, one trainer, two trainers with every algorithm."""
    ladder = sorted({1, cores})
    found = [Contender(kind, batch, threads, precision) for kind in (BARE, GEMM) for threads in ladder]
    found += [Contender(SSMPI, batch, threads, precision) for threads in ladder]
    half = max(1, cores // 2)
    algorithms = ("none", *SHADOWS) if precision == "fp32" else ("none", "ma")
    return found + [Contender(SSMPI, batch, half, precision, 2, algorithm) for algorithm in algorithms]


def essential(batch: int, cores: int) -> list[Contender]:
    """One of each kind, one with a shadow thread and a sync PS."""
    one = Contender(SSMPI, batch, cores)
    two = Contender(SSMPI, batch, max(1, cores // 2), "fp32", 2, "easgd")
    return [Contender(BARE, batch, cores), Contender(GEMM, batch, cores), Contender(PYTORCH, batch, cores), one, two]


def chosen(name: str, pattern: str) -> bool:
    """Whether ``--only PATTERN`` (shell wildcards, anywhere in the name) lets a contender or a section through."""
    return fnmatch.fnmatch(name, f"*{pattern}*")
