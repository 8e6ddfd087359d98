"""What is measured besides the contenders: where time goes, parts alone, the interpreter lock, memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssmpi.bench.harness import gil
from ssmpi.bench.harness.jobs import Jobs
from ssmpi.bench.harness.windows import Timing, median
from ssmpi.bench.throughput import microbench
from ssmpi.bench.throughput.contenders import SHADOWS, SSMPI, Contender
from ssmpi.bench.throughput.local_contenders import in_fresh_process
from ssmpi.config import load
from ssmpi.data.schema import read_manifest

LONG = Timing(3.0, 3.0, 20)  # for memory, which must not grow
LONG_STEPS, SLOW = 25, 25_000.0  # steps of a window, at so many examples per second of a thread
TURNS = 24  # windows of a job that works in two ways, in turns


@dataclass(frozen=True)
class Bench:
    """What every section needs: the run file, the jobs, batch sizes, cores, and how long a window is."""

    run_file: Path
    jobs: Jobs
    batches: tuple[int, ...]
    cores: int
    timing: Timing
    short: bool

    def job(self, contender: Contender, look: str, timing: Timing) -> dict[str, Any]:
        """A measured job of a contender."""
        return self.jobs.run(contender.ranks, contender.overrides, timing, look)


def where_time_goes(bench: Bench) -> dict[str, Any]:
    """Shares of a worker's time by stage and of the servers', smallest and largest batch, with a shadow thread too."""
    found = {}
    for contender in to_break_down(bench):
        job = bench.job(contender, "stages", replace(bench.timing, windows=2 * bench.timing.windows))
        threads = contender.threads * contender.trainers
        found[contender.name] = {
            "eps": median(job["eps"]),
            "trainer": shares(job["stages"], threads * job["seconds"], apart=("shadow round",)),
            "shadow round ms": 1e3
            * job["stages"].get("shadow round", 0.0)
            / contender.trainers
            / max(job["rounds"], 1),
            "rounds": job["rounds"],
            **{name.partition("-")[0]: shares(server["stages"]) for name, server in job["servers"].items()},
        }
    return found


def to_break_down(bench: Bench) -> list[Contender]:
    """One trainer, by shared memory and by messages, and two with a shadow thread; ``short`` has all of it in one."""
    half = max(1, bench.cores // 2)
    if bench.short:
        return [Contender(SSMPI, min(bench.batches), half, "fp32", 2, "ma", "messages")]
    found = []
    for batch in sorted({min(bench.batches), max(bench.batches)}):
        found += [Contender(SSMPI, batch, bench.cores, transport=transport) for transport in ("auto", "messages")]
        found.append(Contender(SSMPI, batch, half, "fp32", 2, "ma"))
    return found


def shares(seconds: dict[str, float], whole: float | None = None, apart: tuple[str, ...] = ()) -> dict[str, float]:
    """Shares of ``whole`` (default: of the sum); what no stage accounts for is ``rest``; ``apart`` are other threads' stages."""
    counted = {name: value for name, value in seconds.items() if name not in apart}
    total = whole or sum(counted.values()) or 1.0
    found = {name: value / total for name, value in counted.items()}
    if whole:
        found["rest"] = max(0.0, 1.0 - sum(found.values()))
    return found


def shadow_cost(bench: Bench) -> dict[str, Any]:
    """Examples per second with rounds in the background over those without, by algorithm and batch size, within one job."""
    half = max(1, bench.cores // 2)
    if bench.short:
        asked = [Contender(SSMPI, min(bench.batches), half, "fp32", 2, "easgd")]
    else:
        sizes = sorted({min(bench.batches), max(bench.batches)})
        asked = [Contender(SSMPI, size, half, "fp32", 2, algorithm) for size in sizes for algorithm in SHADOWS]
    return in_turns(bench, "shadow", asked)


def bare_share(bench: Bench) -> dict[str, Any]:
    """Examples per second of the whole loop over those of the bare dense step, all threads, within one job."""
    return in_turns(bench, "bare", of_all_threads(bench))


def thread_gain(bench: Bench) -> dict[str, Any]:
    """Examples per second of all threads over those of the first alone, within one job; nothing on a single core.

    A thread rests when its batch is done: windows are long enough for that to make less than a percent of them.
    """
    found: dict[str, Any] = {}
    for contender in of_all_threads(bench) if bench.cores > 1 else ():
        seconds = max(bench.timing.seconds, 0.0 if bench.short else LONG_STEPS * contender.batch / SLOW)
        found |= in_turns(replace(bench, timing=replace(bench.timing, seconds=seconds)), "threads", [contender])
    return found


def of_all_threads(bench: Bench) -> list[Contender]:
    """One trainer with a thread for each core, smallest and largest batch."""
    sizes = {min(bench.batches)} if bench.short else {min(bench.batches), max(bench.batches)}
    return [Contender(SSMPI, size, bench.cores) for size in sorted(sizes)]


def in_turns(bench: Bench, look: str, asked: list[Contender]) -> dict[str, Any]:
    """What a look in turns finds, by contender."""
    timing = replace(bench.timing, windows=4 if bench.short else TURNS)
    return {contender.name: on_over_off(bench.job(contender, look, timing)) for contender in asked}


def on_over_off(job: dict[str, Any]) -> dict[str, float]:
    """From windows on, off, off, on, on, off, ...: the mean of each four's ratio, its standard error, rounds a second. Fours in
    which a pass ended do not count, unless one ended in all of them: a pass over real data takes hours.
    """
    every = range(0, len(job["eps"]) - 3, 4)
    fours = [k for k in every if not any(job["interrupted"][k : k + 4])] or every
    turns = [(on + again) / (off + still) for on, off, still, again in (job["eps"][k : k + 4] for k in fours)]
    error = statistics.stdev(turns) / len(turns) ** 0.5 if len(turns) > 1 else math.nan
    return {"ratio": statistics.fmean(turns), "error": error, "rounds_per_second": job["rounds"] / job["seconds"]}


def server_rate(bench: Bench) -> dict[str, Any]:
    """Rows per core-second of an embedding PS, whose clients do nothing else, beside a bare loop over the same table.

    In place the clients do the PS's work: theirs is the time, with routing and summing of duplicates.
    """
    far, near = (Contender(SSMPI, max(bench.batches), bench.cores, transport=kind) for kind in ("messages", "shared"))
    job = bench.job(far, "exchange", bench.timing)
    rates = in_fresh_process(microbench.table_rates, bench.run_file, far.overrides, bench.timing.seconds)
    rates["by_messages"] = job["rows"] / job["cpu"]["embedding_ps"]
    rates["cores_used"] = job["cpu"]["embedding_ps"] / job["seconds"]
    if not bench.short:
        job = bench.job(near, "exchange", bench.timing)
        rates["in_place"] = job["rows"] / job["cpu"]["workers"]
    return rates


def reader_rate(bench: Bench) -> dict[str, Any]:
    """Rows per core-second, shuffled and cut into the smallest batches."""
    overrides = Contender(SSMPI, min(bench.batches)).overrides
    return in_fresh_process(microbench.reader_rate, bench.run_file, overrides, bench.timing.seconds)


def lock_share(bench: Bench) -> dict[str, Any]:
    """Share of a single worker's time with the interpreter lock in its hands, batch 200 as in the paper's runs."""
    seconds = 1.0 if bench.short else 20.0
    if gil.find() is None:
        missing = "py-spy is not installed: pip install 'ssmpi[test]'"
    else:
        seen = bench.job(Contender(SSMPI, 200), "lock", Timing(bench.timing.warmup, seconds, 1))["seen"]
        if seen.get("samples"):
            return {**seen, "share": seen["holding"] / seen["samples"]}
        missing = seen.get("failed", "py-spy saw no worker thread")
    return {"missing": f"the interpreter lock was NOT measured: {missing}"}


def memory(bench: Bench) -> dict[str, Any]:
    """Resident memory of a trainer over a longer run, and what an embedding PS needs for a byte of rows and state.

    The latter is the slope between a small and a large table, so that neither Python nor the libraries count.
    """
    contender = Contender(SSMPI, max(bench.batches), bench.cores)
    config = load(bench.run_file, contender.overrides)
    rows = sum(read_manifest(Path(config.data.folder)).cardinalities)
    dims = (config.embedding.dim, 4 * config.embedding.dim)
    servers, tables = [], []
    for dim in dims:
        sizes = [*config.model.bottom[:-1], dim]
        overrides = (*contender.overrides, f"embedding.dim={dim}", f"model.bottom={sizes}")
        job = bench.jobs.run(contender.ranks, overrides, LONG if dim == dims[0] else replace(LONG, windows=1))
        if dim == dims[0]:
            seconds, (start, end) = job["seconds"], job["rss"]["trainer 0"]
        servers.append(job["rss"]["embedding_ps 0"][1])
        tables.append(rows * replace(config.embedding, dim=dim).row_bytes)
    return {
        "seconds": seconds, "trainer_start": start, "trainer_end": end, "trainer_growth": end / start,
        "ps": servers, "ps_tables": tables, "ps_ratio": (servers[1] - servers[0]) / (tables[1] - tables[0]),
    }  # fmt: skip


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "stages": where_time_goes,
    "bare": bare_share,
    "threads": thread_gain,
    "shadow": shadow_cost,
    "server": server_rate,
    "reader": reader_rate,
    "lock": lock_share,
    "memory": memory,
}
NOT_SHORT = ("threads", "memory")  # the first works as "bare" does, the second needs a minute for itself
