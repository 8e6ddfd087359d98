"""Measurements besides the contenders: time by stage, variants in turns, the GIL, memory, the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssmpi.bench.harness.windows import Timing, median
from ssmpi.bench.throughput.contenders import BARE, GEMM, PYTORCH, SSMPI, Contender
from ssmpi.bench.throughput.groups import lock, plans, ways
from ssmpi.bench.throughput.lock import gil_share
from ssmpi.bench.throughput.reading import reading
from ssmpi.bench.throughput.turns import Harness, Ratio, frontiers, in_turns
from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.model import processor
from ssmpi.model.zoo import NETWORKS

LONG = Timing(3.0, 3.0, 20)  # for the memory section: it must not grow
TOLD_SECONDS = 4.0
LONG_STEPS, SLOW = 25, 25_000.0  # steps per window, at this number of examples per second and thread


def where_time_goes(harness: Harness) -> dict[str, Any]:
    """Shares of a worker's and of the servers' time by stage, smallest and largest batch, also with a shadow thread."""
    found = {}
    for contender in to_break_down(harness):
        job = harness.job(contender, "stages", replace(harness.timing, windows=2 * harness.timing.windows))
        threads = contender.threads * contender.trainers
        found[contender.name] = {
            "eps": median(job["eps"]),
            "trainer": shares(job["stages"], threads * job["seconds"]),
            "shadow round ms": 1e3 * sum(job["growth"]["rounds/seconds"]) / max(sum(job["growth"]["rounds/all"]), 1),
            "rounds": job["rounds"],
            **{name.partition("-")[0]: shares(server["stages"]) for name, server in job["servers"].items()},
        }
    return found


def to_break_down(harness: Harness) -> list[Contender]:
    """One trainer, with shared memory and with messages, and two trainers with a shadow thread; if ``short``, one
    contender with all of it.
    """
    half = max(1, harness.cores // 2)
    if harness.short:
        return [Contender(SSMPI, min(harness.batches), half, "fp32", 2, "ma", transport="messages")]
    found = []
    for batch in sorted({min(harness.batches), max(harness.batches)}):
        found += [Contender(SSMPI, batch, harness.cores, transport=transport) for transport in ("auto", "messages")]
        found.append(Contender(SSMPI, batch, half, "fp32", 2, "ma"))
    return found


def shares(seconds: dict[str, float], whole: float | None = None) -> dict[str, float]:
    """Shares of ``whole`` (default: the sum); time in no stage is ``rest``."""
    total = whole or sum(seconds.values()) or 1.0
    found = {name: value / total for name, value in seconds.items()}
    if whole:
        found["rest"] = max(0.0, 1.0 - sum(found.values()))
    return found


def bare_share(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of the whole loop relative to the bare dense step, all threads, within one job."""
    return in_turns(harness, BARE, of_all_threads(harness))


def half_share(harness: Harness) -> Mapping[str, object]:
    """Examples per second of the whole loop in bfloat16 relative to torch's products alone, as ``bare_share``."""
    if processor.without_bfloat16():
        return {"missing": f"bfloat16 was NOT measured: {processor.name()} has no instructions for it"}
    return in_turns(harness, GEMM, [replace(contender, precision="bf16") for contender in of_all_threads(harness)])


def networks(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of the whole loop relative to PyTorch's step of the same network, one thread each."""
    sizes = {contender.batch for contender in of_all_threads(harness)}
    asked = [Contender(SSMPI, size, network=name) for name in NETWORKS for size in sorted(sizes)]
    return in_turns(harness, PYTORCH, asked)


def thread_gain(harness: Harness) -> dict[str, Ratio]:
    """Examples per second of all threads relative to the first thread alone, within one job; empty on a single core.

    A thread finishes its batch before it rests; windows are long enough to make this less than a percent.
    """
    found: dict[str, Ratio] = {}
    for contender in of_all_threads(harness) if harness.cores > 1 else ():
        seconds = max(harness.timing.seconds, 0.0 if harness.short else LONG_STEPS * contender.batch / SLOW)
        found |= in_turns(replace(harness, timing=replace(harness.timing, seconds=seconds)), "threads", [contender])
    return found


def priority_cost(harness: Harness) -> dict[str, Ratio]:
    """Examples per second with priority saves at their maximum rate relative to those without, within one job. Windows
    are long, because the PSs learn of a turn only from the first trainer's messages, one per second.
    """
    timing = replace(harness.timing, seconds=max(harness.timing.seconds, 0.0 if harness.short else TOLD_SECONDS))
    batch, cores = max(harness.batches), harness.cores
    found = [Contender(SSMPI, batch, cores, priority=kind) for kind in ("mfu", "ssu")]
    return in_turns(replace(harness, timing=timing), "priority", found)


def of_all_threads(harness: Harness) -> list[Contender]:
    """One trainer with a thread for each core, smallest and largest batch."""
    sizes = {min(harness.batches)} if harness.short else {min(harness.batches), max(harness.batches)}
    return [Contender(SSMPI, size, harness.cores) for size in sorted(sizes)]


def memory(harness: Harness) -> dict[str, Any]:
    """Resident memory of a trainer over a longer run, and the memory of an embedding PS per byte of rows and state.

    The latter is the slope between a small and a large table, which excludes Python and the libraries.
    """
    contender = Contender(SSMPI, max(harness.batches), harness.cores)
    config = load(harness.run_file, contender.overrides)
    rows = sum(read_manifest(Path(config.data.folder)).cardinalities)
    dims = (config.embedding.dim, 4 * config.embedding.dim)
    servers, tables = [], []
    for dim in dims:
        sizes = [*config.model.bottom[:-1], dim]
        overrides = (*contender.overrides, f"embedding.dim={dim}", f"model.bottom={sizes}")
        job = harness.jobs.run(contender.ranks, overrides, LONG if dim == dims[0] else replace(LONG, windows=1))
        if dim == dims[0]:
            seconds, (start, end) = job["seconds"], job["rss"]["trainer 0"]
        servers.append(job["rss"]["embedding_ps 0"][1])
        tables.append(rows * load(harness.run_file, overrides).rows.row_bytes)
    return {
        "seconds": seconds, "trainer_start": start, "trainer_end": end, "trainer_growth": end / start,
        "ps": servers, "ps_tables": tables, "ps_ratio": (servers[1] - servers[0]) / (tables[1] - tables[0]),
    }  # fmt: skip


SECTIONS: dict[str, Callable[[Harness], Mapping[str, object]]] = {
    "stages": where_time_goes,
    "bare": bare_share,
    "half": half_share,
    "networks": networks,
    "threads": thread_gain,
    "priority": priority_cost,
    "shadow": frontiers,
    "gil": gil_share,
    "memory": memory,
    "reader": reading,
    "group plans": plans,
    "group ways": ways,
    "group lock": lock,
}
# "half", "networks", "threads" and "priority" work as "bare" does, the others need a minute each
NOT_SHORT = ("half", "networks", "threads", "priority", "memory", "reader", "group plans", "group ways", "group lock")
