"""Contenders without MPI. Each visit is a new process, or several, forked from one that has already imported torch."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.managers import ValueProxy
from pathlib import Path
from typing import TypeVar

from ssmpi.bench.harness.process_usage import host_busy, private_memory
from ssmpi.bench.harness.results import Visit
from ssmpi.bench.harness.windows import Readings, Ticks, Timing, clock, spent, watch
from ssmpi.bench.throughput.contenders import PYTORCH, TUNED, Contender
from ssmpi.config import load

T = TypeVar("T")

TIME_LIMIT_SECONDS = 300.0  # for preparing and measuring one contender


def in_fresh_process(body: Callable[..., T], *arguments: object) -> T:
    """Run a function of a module in a new process; its exception is raised here."""
    with _context().Pool(1) as pool:
        return pool.apply_async(body, arguments).get(TIME_LIMIT_SECONDS)


def _context() -> ForkServerContext:
    os.environ["PYTHONSAFEPATH"] = "1"  # like python -P, for the forked process
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ssmpi.bench.harness.dense"])
    return context


def visit(contender: Contender, run_file: Path, timing: Timing) -> Visit:
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

    from ssmpi.bench.harness import dense

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
