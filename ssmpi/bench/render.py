"""The report of a throughput benchmark as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssmpi.bench.contenders import SSMPI, Contender
from ssmpi.bench.sections import Ratio


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
    trainers = sum(cores.get(part, 0.0) for part in ("process", "workers", "supervision"))
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


def in_turns(what: str, found: Mapping[str, Ratio]) -> str:
    """Ratios of two variants with their standard errors."""
    lines = [f"  {name}: {turns['ratio']:.3f} +- {turns['error']:.3f}" for name, turns in found.items()]
    return "\n".join([f"{what}, in turns within one job", *lines])


SECTIONS = {"stages": stages, "bare": bare, "half": half, "networks": networks, "threads": threads}
