"""The contenders: names, topologies and settings as plain values; visits to those without MPI. Each such visit is a
new process, or several, forked from one that has already imported torch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from multiprocessing.managers import ValueProxy
from pathlib import Path
from typing import TypeVar

from ssmpi.bench.jobs import Visit
from ssmpi.bench.process_usage import host_busy, private_memory
from ssmpi.bench.windows import Readings, Ticks, Timing, clock, spent, watch
from ssmpi.config import load

T = TypeVar("T")

TIME_LIMIT_SECONDS = 300.0  # for preparing and measuring one contender
BARE, GEMM, PYTORCH, TUNED, SSMPI = "bare step", "gemm", "pytorch", "tuned pytorch", "ssmpi"

SHADOWS = ("easgd", "ma", "bmuf")
OPTIMIZERS = {  # settings of rows and of the network, by the name in results
    "adagrad": ("embedding.optimizer=rowwise_adagrad", "dense.optimizer=adagrad"),
    "adam": ("embedding.optimizer=adam", "embedding.rate=0.001", "dense.optimizer=adam", "dense.rate=0.001"),
}


@dataclass(frozen=True)
class Contender:
    """``threads`` are Hogwild threads of a trainer (bare step, gemm, ssmpi), threads inside an operator (pytorch) or
    processes of one thread that exchange nothing (tuned pytorch). ``network`` is one of ``zoo.NETWORKS``, trained with
    Adagrad, and ``optimizers`` one of ``OPTIMIZERS``; "" takes either from the run file.
    """

    kind: str
    batch: int
    threads: int = 1
    precision: str = "fp32"
    trainers: int = 1
    algorithm: str = "none"
    shared_memory: bool = field(default=True, kw_only=True)
    network: str = field(default="", kw_only=True)
    optimizers: str = field(default="", kw_only=True)

    @property
    def short_name(self) -> str:
        """The name without batch and precision: ``ssmpi 2x1 ma``."""
        if self.kind == SSMPI:
            far = "" if self.shared_memory else " by messages"
            return f"{SSMPI} {self.trainers}x{self.threads} {self.algorithm}{far}"
        return f"{self.kind} {self.threads}{'p' if self.kind == TUNED else 't'}"

    @property
    def name(self) -> str:
        """The name in results, messages and for ``--only``: ``ssmpi 2x1 ma, 128, fp32``, its network and optimizers."""
        parts = (self.short_name, str(self.batch), self.precision, self.network, self.optimizers)
        return ", ".join(filter(None, parts))

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
            f"topology.sync_ps={int(self.algorithm == 'easgd')}",
            f"sync.algorithm={self.algorithm}",
            "sync.pace=shadow",
            f"model.precision={self.precision}",
            f"run.shared_memory={json.dumps(self.shared_memory)}",
            *((f"model.name={self.network}", *OPTIMIZERS["adagrad"]) if self.network else ()),
            *OPTIMIZERS.get(self.optimizers, ()),
        )


def grid(batches: Sequence[int], cores: int, short: bool) -> list[Contender]:
    """All contenders for these batch sizes and this number of cores; only the essential ones if ``short``."""
    if short:
        return [contender for batch in batches for contender in essential(batch, cores)]
    return [contender for batch in batches for contender in of_batch(batch, cores)]


def of_batch(batch: int, cores: int) -> list[Contender]:
    """The contenders of one batch size: ceilings and one trainer with 1 core and with all cores, two trainers with
    every algorithm; fewer in bf16; with each kind of optimizers one trainer, its bare step and PyTorch's, with 1 core.

    All are on one host and share the PS's memory, except one contender that exchanges messages.
    """
    ladder, half = sorted({1, cores}), max(1, cores // 2)
    found = [Contender(kind, batch, threads) for kind in (BARE, GEMM, SSMPI) for threads in ladder]
    found += [Contender(kind, batch, cores, "bf16") for kind in (BARE, GEMM, SSMPI)]
    found.append(Contender(SSMPI, batch, cores, shared_memory=False))
    found += [Contender(SSMPI, batch, half, "fp32", 2, algorithm) for algorithm in ("none", *SHADOWS)]
    found += [Contender(SSMPI, batch, half, "bf16", 2, algorithm) for algorithm in ("none", "ma")]
    found += [Contender(kind, batch, optimizers=name) for name in OPTIMIZERS for kind in (BARE, SSMPI, PYTORCH)]
    return [*found, *(Contender(kind, batch, cores) for kind in (PYTORCH, TUNED))]


def essential(batch: int, cores: int) -> list[Contender]:
    """One contender of each kind, and one with a shadow thread and a sync PS."""
    one = Contender(SSMPI, batch, cores)
    two = Contender(SSMPI, batch, max(1, cores // 2), "fp32", 2, "easgd")
    return [*(Contender(kind, batch, cores) for kind in (BARE, GEMM, PYTORCH, TUNED)), one, two]


def in_fresh_process(body: Callable[..., T], *arguments: object) -> T:
    """Run a function of a module in a new process; its exception is raised here."""
    with _context().Pool(1) as pool:
        return pool.apply_async(body, arguments).get(TIME_LIMIT_SECONDS)


def _context() -> ForkServerContext:
    os.environ["PYTHONSAFEPATH"] = "1"  # like python -P, for the forked process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ssmpi.bench.dense"])
    return context


def visit_local(contender: Contender, run_file: Path, timing: Timing) -> Visit:
    """Measure a contender in processes of its own: examples per second by window, CPU seconds and memory."""
    if contender.kind != TUNED:
        return in_fresh_process(measure, contender, run_file, timing, 0)
    context = _context()
    with context.Manager() as manager, context.Pool(contender.threads) as pool:
        start = CommonStart(manager.Barrier(contender.threads, timeout=TIME_LIMIT_SECONDS), manager.Value("d", 0.0))
        asked = [(contender, run_file, timing, process, start) for process in range(contender.threads)]
        return side_by_side(pool.starmap_async(measure, asked, chunksize=1).get(2 * TIME_LIMIT_SECONDS))


@dataclass(frozen=True)
class CommonStart:
    """A time, on ``clock``, at which several processes start together."""

    all_here: threading.Barrier
    time: ValueProxy[float]

    def __call__(self) -> float:
        """Wait for all processes; the same time for each."""
        if self.all_here.wait() == 0:
            self.time.value = clock()
        self.all_here.wait()
        return self.time.value


def side_by_side(visits: Sequence[Visit]) -> Visit:
    """Processes measured in the same windows, as one contender."""
    parts = dict.fromkeys(part for found in visits for part in found["cpu"])
    return {
        **visits[0],
        "eps": [sum(rates) for rates in zip(*(found["eps"] for found in visits), strict=True)],
        "cpu": {part: sum(found["cpu"][part] for found in visits) for part in parts},
        "rss": {f"process {k}": found["rss"]["process"] for k, found in enumerate(visits)},
    }


def measure(
    contender: Contender, run_file: Path, timing: Timing, process: int, start: Callable[[], float] = clock
) -> Visit:
    """Measure a contender, or one of its processes, in this process. ``start`` is asked for the beginning of the
    warm-up once the first step is done.
    """
    import torch  # here, because the parent process does not need it

    from ssmpi.bench import dense

    config = load(run_file, contender.overrides)
    inside = contender.threads if contender.kind == PYTORCH else 1

    def begin() -> None:
        torch.set_num_threads(inside)  # OpenMP keeps this per thread; a new thread starts from OMP_NUM_THREADS

    begin()
    edges, ticks, readings = run(dense.steps_of(contender.kind, config, process), timing, begin, start)
    return {
        "eps": [rate * contender.batch for rate in ticks.rates(edges)],
        "cpu": spent(readings, "cpu"),
        "host": spent(readings, "host"),
        "seconds": edges[-1] - edges[0],
        "rounds": 0.0,
        "rss": {"process": [readings[0]["rss"], readings[-1]["rss"]]},
    }


def run(
    steps: Sequence[Callable[[], object]],
    timing: Timing,
    begin: Callable[[], object] = object,
    start: Callable[[], float] = clock,
) -> tuple[list[float], Ticks, list[Readings]]:
    """Repeat each step on a separate thread, which first calls ``begin``; returns edges, ticks and readings at the
    edges.
    """
    for step in steps:
        step()  # errors surface here
    ticks, stop = Ticks(len(steps)), threading.Event()

    def repeat(thread: int) -> None:
        begin()
        over = False
        while not over:
            over = stop.is_set()  # one more step: the last edge then lies within a step
            steps[thread]()
            ticks.tick(thread)

    edges = timing.edges(start())
    readings: list[Readings] = []

    def watch_edges() -> None:
        try:
            readings.extend(watch(edges, read))
        finally:
            stop.set()

    def read() -> Readings:
        memory = float(private_memory())
        return {"cpu/process": time.process_time(), "host/busy": host_busy(), "rss": memory}

    threads = [threading.Thread(target=repeat, args=(k,), daemon=True) for k in range(1, len(steps))]
    for thread in [*threads, watcher := threading.Thread(target=watch_edges)]:
        thread.start()
    repeat(0)  # on this thread: OpenMP keeps a team per thread that used it, and two teams halve plain PyTorch's rate
    for thread in [*threads, watcher]:
        thread.join(TIME_LIMIT_SECONDS)
    return edges, ticks, readings
