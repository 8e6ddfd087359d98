"""The table of an emulated cluster: what is emulated, a line per job, and how many jobs match the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.lab.cluster.scenarios import SCENARIOS

WITHIN = 0.2  # of the prediction
FULL_HOST = 0.9  # of its cores: above it, the host limits the speed, not the emulated hardware

BUCKETS = "What limits a link is a token bucket at its rank."
VIRTUAL_HOSTS = (
    "What limits a link is the kernel: each server is on a virtual host of its own (namespaces, tc's token bucket "
    "filter), all "
    "trainers on\none more. TCP gets less through than the link's rate; cores are those of the trainers' host."
)
NO_GROUP = "links of trainers are not limited."
MEMBERS = "links of members as named, for what they send each other."
HEADS = (
    f"{'':34} {'trainers':>8} {'EPS':>9} {'predicted':>9} {'off':>6} {'gap':>7} {'predicted':>9} {'cores':>5} "
    f"{'host':>5}  "
    "limited by"
)
GROUP_HEADS = HEADS.replace(f"{'gap':>7} {'predicted':>9}", f"{'x flat':>7} {'predicted':>9}")


def table(report: Mapping[str, Any]) -> str:
    """The whole report as text."""
    options, header = report["options"], report["header"]
    grouped = max(options["group"]) > 1
    names = [scenario.name for scenario in SCENARIOS]
    rows = sorted(report["rows"], key=lambda row: names.index(row["shape"]) if row["shape"] in names else len(names))
    near = sum(abs(row["deviation"]) <= WITHIN for row in rows)
    full_hosts = sum(row["host_full"] for row in rows)
    lines = [
        f"Emulated on one host ({header['cores']} cores, load {header['load_before']:.1f} before): dense computation "
        "is a wait of "
        f"{options['step_ms']:g} ms a step,",
        f"sync PS links carry {options['link_mb']:g} MB/s and direction, narrow embedding PS links "
        f"{options['embedding_link_mb']:g} MB/s; {MEMBERS if grouped else NO_GROUP}",
        VIRTUAL_HOSTS if options["virtual_hosts"] else BUCKETS,
        "Ranks, messages, rows and rounds are real.",
        "",
        GROUP_HEADS if grouped else HEADS,
        *(line(row, rows) for row in rows),
        "",
        f"EPS within {WITHIN:.0%} of the prediction: {near} of {len(rows)} jobs. "
        + ("x flat: as many times the EPS of a trainer alone for each group." if grouped else GAP),
    ]
    if full_hosts:
        lines.append(
            f"* over {FULL_HOST:.0%} of this host's cores were busy ({full_hosts} of {len(rows)} jobs; cores is their "
            "own part): "
            "such a figure is the host's as much as the emulated cluster's. A longer step with slower links has the "
            "same shape."
        )
    return "\n".join(lines)


GAP = "Gap: iterations of a thread between two rounds of a trainer."
Rows = Sequence[Mapping[str, Any]]


def gain(row: Mapping[str, Any], rows: Rows) -> tuple[float | None, float | None]:
    """EPS of groups over those of as many trainers without groups, measured and predicted; None if not among
    ``rows``.
    """
    for flat in rows:
        if row["group"] > 1 == flat["group"] and flat["trainers"] * row["group"] == row["trainers"]:
            return row["eps"] / flat["eps"], row["predicted_eps"] / flat["predicted_eps"]
    return None, None


def line(row: Mapping[str, Any], rows: Rows) -> str:
    """One of the ``rows``, with its gap or its gain."""
    grouped = row["group"] > 1
    pair = gain(row, rows) if grouped else (row["gap"], row["predicted_gap"])
    found, expected = ("-" if value is None else f"{value:,.{1 + grouped}f}" for value in pair)
    mark = "*" if row["host_full"] else " "
    return (
        f"{row['shape']:34} {row['trainers']:8} {row['eps']:9,.0f} {row['predicted_eps']:9,.0f} "
        f"{row['deviation']:+6.0%} "
        f"{found:>7} {expected:>9} {row['cores']:5.2f} {row['host']:5.0%}{mark} {row['full']}"
    )
