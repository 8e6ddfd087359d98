"""The report of a throughput benchmark as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmpi.bench.throughput.contenders import SSMPI, Contender
from ssmpi.bench.throughput.groups import Beside
from ssmpi.bench.throughput.reading import Reading
from ssmpi.bench.throughput.turns import AS_SHIPPED, WORTH, Frontier, FrontierPoint, Ratio, cost_of_a_round


def table(report: Mapping[str, Any]) -> str:
    """The whole report as text."""
    parts = [header(report["header"])]
    if report["contenders"]:
        parts.append(contenders(report["contenders"]))
    parts += [SECTIONS[name](found) for name, found in report["sections"].items()]
    return "\n\n".join(parts)


def header(found: Mapping[str, Any]) -> str:
    """Machine and time."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    extra = ", ".join(str(found[name]) for name in ("mpi_library", "torch_instructions") if name in found)
    return "\n".join(
        [
            f"{found['when']}, took {found['took_seconds']} s, load before: {found['load_before']:.1f}",
            f"{found['processor']}, {found['cores']} of {found['cores_of_host']} cores, {found['memory_gib']} GiB",
            found["system"],
            versions + (f", {extra}" if extra else ""),
        ]
    )


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column left-aligned, the others right-aligned; the first row is the header."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def contenders(found: Mapping[str, Any]) -> str:
    """Examples per second, median and best quarter, and cores used by part."""
    heads = "examples per second;median;best quarter;windows;ssmpi over it;per core-s;"
    heads += "cores: trainers;shadow;servers;others"
    rows: list[tuple[str, ...]] = [tuple(heads.split(";"))]
    ordered = sorted(found.items(), key=lambda item: (item[1]["batch"], item[1]["precision"] != "fp32"))
    rows += [(name, *contender(figures, over(figures, found))) for name, figures in ordered]
    notes = (
        "ssmpi over it: the median of one trainer with as many threads, over this one's.",
        "ssmpi AxB: A trainers of B threads, 1 embedding PS, 1 sync PS for easgd; it reads its rows from shards, the",
        (
            "others have theirs in memory and are not charged for that. cores: CPU seconds per second; others: other"
            " programs."
        ),
    )
    return "\n".join([grid(rows), *notes])


def over(figures: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The examples per second of ssmpi with as many threads, relative to those of another program."""
    kept = {name: figures[name] for name in ("batch", "threads", "precision", "optimizers")}
    same = Contender(SSMPI, **kept).name
    if figures["kind"] == SSMPI or same not in found:
        return "-"
    return f"{found[same]['median'] / figures['median']:.2f}" if figures["median"] else "-"


def contender(figures: Mapping[str, Any], ratio: str) -> tuple[str, ...]:
    """One contender's row."""
    cores = figures["cores"]
    trainers = sum(cores.get(part, 0.0) for part in ("process", "workers", "mover", "supervision"))
    servers = sum(cores.get(part, 0.0) for part in ("embedding_ps", "sync_ps"))
    return (
        f"{figures['median']:,.0f}",
        f"{figures['best_quarter']:,.0f}",
        str(len(figures["windows"])),
        ratio,
        f"{figures['per_core_second']:,.0f}",
        f"{trainers:.2f}",
        f"{cores['shadow']:.2f}" if cores.get("shadow") else "-",
        f"{servers:.2f}" if figures["kind"] == SSMPI else "-",
        f"{figures['others']:.2f}",
    )


def stages(found: Mapping[str, Any]) -> str:
    """The time by stage."""
    blocks = []
    for name, job in found.items():
        lines = [f"where time goes, {name} (stopwatches on: {job['eps']:,.0f} EPS)"]
        lines.append(f"  worker threads: {percentages(job['trainer'])}")
        lines += [f"  {role}: {percentages(job[role])}" for role in ("embedding_ps", "sync_ps") if role in job]
        if job["rounds"]:
            lines.append(f"  shadow: {job['rounds']:.0f} rounds of {job['shadow round ms']:.1f} ms each")
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def percentages(shares: Mapping[str, float]) -> str:
    """Shares as percentages, largest first."""
    return ", ".join(f"{name} {share:.1%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))


def shadow(found: Mapping[str, Frontier]) -> str:
    """The cost of background rounds by pace."""
    heads = "frontier of rounds in the background;cpu_share;gap;EPS on / off;+-;processor ms;wall ms"
    rows = [tuple(heads.split(";"))]
    for name, frontier in found.items():
        rows += [point(name if k == 0 else "", each) for k, each in enumerate(frontier["points"])]
    notes = (
        "gap: iterations of a trainer between two of its rounds; EPS on / off: examples per second with rounds over",
        "without, in turns within one job; processor ms: of a trainer's round, shadow threads and sync PS;",
        "wall ms: of a round.",
    )
    costs = [tuple(f"what a round costs a trainer;iterations;+-;gap that leaves {100 * WORTH:.0f} %;+-".split(";"))]
    for name, frontier in found.items():
        cost = cost_of_a_round(frontier["points"])
        costs.append((name, *(f"{cost[part]:.3f}" for part in ("iterations", "error", "gap", "gap_error"))))
    return "\n".join([grid(rows), *notes, "", grid(costs)])


def point(name: str, found: FrontierPoint) -> tuple[str, ...]:
    """One row of a frontier."""
    share = "as shipped" if found["cpu_share"] == AS_SHIPPED else f"{found['cpu_share']:g}"
    gap, cpu, wall = (
        "-" if value is None else f"{value:,.2f}" for value in (found["gap"], found["cpu_ms"], found["wall_ms"])
    )
    return name, share, gap, f"{found['ratio']:.3f}", f"{found['error']:.3f}", cpu, wall


def bare(found: Mapping[str, Ratio]) -> str:
    """The whole loop relative to its upper bound."""
    return in_turns("examples per second of the whole loop over those of the bare dense step", found)


def half(found: Mapping[str, Any]) -> str:
    """The bfloat16 loop relative to its upper bound, or a notice that it was not measured."""
    if "missing" in found:
        return f"!!! {found['missing']}"
    return in_turns("examples per second of the whole loop over those of torch's bfloat16 products alone", found)


def networks(found: Mapping[str, Ratio]) -> str:
    """Every network relative to PyTorch's step of it."""
    what = "examples per second of the whole loop over those of PyTorch's step, one thread, Adagrad (of rows: PyTorch's"
    return in_turns(f"{what} by weight, the loop's by row)", found)


def threads(found: Mapping[str, Ratio]) -> str:
    """The gain from threads."""
    return in_turns("examples per second of all threads over those of one", found)


def priority(found: Mapping[str, Ratio]) -> str:
    """The cost of priority saves."""
    return in_turns("examples per second while rows are saved by priority over those without", found)


def in_turns(what: str, found: Mapping[str, Ratio]) -> str:
    """Ratios of two variants with their standard errors."""
    lines = [f"  {name}: {turns['ratio']:.3f} +- {turns['error']:.3f}" for name, turns in found.items()]
    return "\n".join([f"{what}, in turns within one job", *lines])


def gil(found: Mapping[str, Any]) -> str:
    """The share of time with the GIL, or a notice that it was not measured."""
    lines = ["GIL: share of a worker's time in which it is held"]
    for name, seen in found.items():
        told = f"!!! {seen['missing']}" if "missing" in seen else f"{seen['share']:.1%} ({seen['samples']:.0f} samples)"
        lines.append(f"  {name}: {told}")
    return "\n".join(lines)


def groups(found: Mapping[str, Beside]) -> str:
    """Groups beside the same trainers apart."""
    heads = "a group over its trainers apart;EPS / EPS;rounds from;to;per core-s;EPS;EPS apart;"
    heads += "cores: lanes;mover;servers;others;apart: lanes;servers;others"
    rows = [tuple(heads.split(";"))]
    for name, each in found.items():
        cores = {
            part: each["cores"].get(part, (0.0, 0.0)) for part in ("workers", "mover", "embedding_ps", "supervision")
        }
        figures = (
            f"{each['ratio']:.3f}",
            f"{min(each['ratios']):.3f}",
            f"{max(each['ratios']):.3f}",
            f"{each['by_cpu']:.3f}",
        )
        used = [f"{mine:.2f}" for mine, _ in cores.values()] + [
            f"{cores[part][1]:.2f}" for part in cores if part != "mover"
        ]
        rows.append((name, *figures, *(f"{eps:,.0f}" for eps in each["eps"]), *used))
    notes = (
        "medians of rounds of jobs in turns; per core-s: the same of examples per CPU second of all ranks;",
        "cores: CPU seconds per second; lanes: workers and helpers; apart: trainers of one thread, a replica each.",
    )
    return "\n".join([grid(rows), *notes])


def memory(found: Mapping[str, Any]) -> str:
    """Resident memory."""
    (small, large), (less, more) = (mega(values) for values in (found["ps"], found["ps_tables"]))
    start, end = mega((found["trainer_start"], found["trainer_end"]))
    return (
        f"memory: trainer {start} MB, after {found['seconds']:.0f} s {end} MB; "
        f"embedding PS {small} MB for {less} MB of rows and state, {large} MB for {more} MB"
    )


def reader(found: Mapping[str, Reading]) -> str:
    """What a worker thread reads."""
    lines = [
        f"  {name}: {each['rows']:,.0f} rows, {each['bytes'] / 1e9:.2f} GB; {each['row_bytes']:,.0f} bytes a row"
        for name, each in found.items()
    ]
    return "\n".join(["a worker's reading, shuffled and cut into batches, per core-second", *lines])


def mega(values: Iterable[float]) -> list[str]:
    """Bytes in MB."""
    return [f"{value / 1e6:,.0f}" for value in values]


SECTIONS = {
    "stages": stages, "bare": bare, "half": half, "networks": networks, "threads": threads, "priority": priority,
    "shadow": shadow, "gil": gil, "memory": memory, "reader": reader, "group plans": groups, "group ways": groups,
    "group lock": gil,
}  # fmt: skip
