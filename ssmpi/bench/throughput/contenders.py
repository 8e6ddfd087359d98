"""The names, topologies and settings of all contenders, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

BARE, GEMM, PYTORCH, TUNED, SSMPI = "bare step", "gemm", "pytorch", "tuned pytorch", "ssmpi"

SHADOWS = ("easgd", "ma", "bmuf")
ADAGRAD = ("embedding.optimizer=rowwise_adagrad", "dense.optimizer=adagrad")
# Row saves take a tenth of the time, the maximum.
AS_OFTEN_AS_CAN_BE = ("recovery.mtbf_hours=1e-9", "recovery.mode=partial")
EXTRA_THREADS = 4  # more than there are cores, for the over-subscribed contender


@dataclass(frozen=True)
class Contender:
    """``threads`` are Hogwild threads of a trainer (bare step, gemm, ssmpi), threads inside an operator (pytorch) or
    processes of one thread that exchange nothing (tuned pytorch). ``network`` is one of ``zoo.NETWORKS``, trained with
    Adagrad; "" takes network and optimizer from the run file.
    """

    kind: str
    batch: int
    threads: int = 1
    precision: str = "fp32"
    trainers: int = 1
    algorithm: str = "none"
    transport: str = field(default="auto", kw_only=True)
    network: str = field(default="", kw_only=True)
    priority: str = field(default="none", kw_only=True)

    @property
    def short_name(self) -> str:
        """The name without batch and precision: ``ssmpi 2x1 ma``."""
        if self.kind == SSMPI:
            far = "" if self.transport == "auto" else f" by {self.transport}"
            saving = "" if self.priority == "none" else f" saving by {self.priority}"
            return f"{SSMPI} {self.trainers}x{self.threads} {self.algorithm}{far}{saving}"
        return f"{self.kind} {self.threads}{'p' if self.kind == TUNED else 't'}"

    @property
    def name(self) -> str:
        """The name in results, messages and for ``--only``: ``ssmpi 2x1 ma, 128, fp32``, and its network."""
        return ", ".join(filter(None, (self.short_name, str(self.batch), self.precision, self.network)))

    @property
    def ranks(self) -> int:
        """The number of ranks of its MPI job."""
        return self.trainers + 1 + (self.algorithm == "easgd")

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings of this contender, on top of the common run file."""
        return (
            f"data.batch_size={self.batch}",
            f"topology.trainers={self.trainers}",
            f"topology.threads={self.threads}",
            "topology.embedding_ps=1",
            "recovery.max_lost_fraction=1",  # else a single PS saves no rows
            f"topology.sync_ps={int(self.algorithm == 'easgd')}",
            f"sync.algorithm={self.algorithm}",
            "sync.pace=shadow",
            f"model.precision={self.precision}",
            f"embedding.transport={self.transport}",
            *((f"model.name={self.network}", *ADAGRAD) if self.network else ()),
            f"checkpoint.priority={self.priority}",
            *(() if self.priority == "none" else AS_OFTEN_AS_CAN_BE),
        )


def grid(batches: Sequence[int], cores: int, short: bool) -> list[Contender]:
    """All contenders for these batch sizes and this number of cores; only the essential ones if ``short``."""
    if short:
        return [contender for batch in batches for contender in essential(batch, cores)]
    most = Contender(SSMPI, min(batches), cores + EXTRA_THREADS)
    return [*(contender for batch in batches for contender in of_batch(batch, cores)), most]


def of_batch(batch: int, cores: int) -> list[Contender]:
    """The contenders of one batch size: ceilings and one trainer with 1 core and with all cores, two trainers with
    every algorithm; fewer in bf16.

    All are on one host and share the PS's memory, except one contender that exchanges messages.
    """
    ladder, half = sorted({1, cores}), max(1, cores // 2)
    found = [Contender(kind, batch, threads) for kind in (BARE, GEMM, SSMPI) for threads in ladder]
    found += [Contender(kind, batch, cores, "bf16") for kind in (BARE, GEMM, SSMPI)]
    found.append(Contender(SSMPI, batch, cores, transport="messages"))
    found += [Contender(SSMPI, batch, half, "fp32", 2, algorithm) for algorithm in ("none", *SHADOWS)]
    found += [Contender(SSMPI, batch, half, "bf16", 2, algorithm) for algorithm in ("none", "ma")]
    return [*found, *(Contender(kind, batch, cores) for kind in (PYTORCH, TUNED))]


def essential(batch: int, cores: int) -> list[Contender]:
    """One contender of each kind, and one with a shadow thread and a sync PS."""
    one = Contender(SSMPI, batch, cores)
    two = Contender(SSMPI, batch, max(1, cores // 2), "fp32", 2, "easgd")
    return [*(Contender(kind, batch, cores) for kind in (BARE, GEMM, PYTORCH, TUNED)), one, two]
