"""The targets, and whether they are met: ratios of medians, so they are comparable between machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ssmpi.bench.throughput.contenders import EXTRA_THREADS, GEMM, PYTORCH, SSMPI, TUNED, Contender
from ssmpi.bench.throughput.frontier import AS_SHIPPED, WORTH, Frontier, cost_of_a_round
from ssmpi.model import processor


@dataclass(frozen=True)
class Target:
    """``measured`` is NaN if a figure is missing; with ``at_most`` the target is an upper limit."""

    what: str
    measured: float
    wanted: float
    at_most: bool = False
    note: str = ""
    best_quarter: float = math.nan

    @property
    def met(self) -> bool | None:
        """None if it was not measured."""
        if math.isnan(self.measured):
            return None
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


class Figures:
    """The contenders' figures by name, in the form of ``throughput``."""

    def __init__(self, contenders: Mapping[str, Any]) -> None:
        self._contenders = contenders

    def ratio(self, what: str, wanted: float, over: Contender, under: Contender, note: str = "") -> Target:
        """A target for the ratio of two contenders' examples per second."""
        found = []
        for figure in ("median", "best_quarter"):
            above, below = (self._contenders.get(c.name, {}).get(figure, math.nan) for c in (over, under))
            found.append(above / below if below else math.nan)
        return Target(what, found[0], wanted, note=note, best_quarter=found[1])

    def median(self, contender: Contender) -> float:
        """A contender's median examples per second; NaN if it was not measured."""
        return float(self._contenders.get(contender.name, {}).get("median", math.nan))

    def fastest_gemm(self, cores: int) -> float:
        """The rate of the matrix products at their fastest batch size: a step may split its batch into such pieces."""
        products = ("kind", "threads", "precision")
        found = [f for f in self._contenders.values() if tuple(f.get(p) for p in products) == (GEMM, cores, "fp32")]
        return max((f["median"] for f in found), default=math.nan)


def judge(contenders: Mapping[str, Any], sections: Mapping[str, Any], batches: list[int], cores: int) -> list[Target]:
    """All targets with figures, the most important first."""
    figures = Figures(contenders)
    found = [target for batch in batches for target in of_rates(figures, batch, cores)]
    most = Contender(SSMPI, min(batches), cores + EXTRA_THREADS)
    warned = contenders.get(most.name, {}).get("warned")
    found.append(
        figures.ratio(
            f"{cores + EXTRA_THREADS} threads / {cores} threads on {cores} cores, batch {min(batches)}", 0.8,
            most, Contender(SSMPI, min(batches), cores), f"warning given: {'yes' if warned else 'NO'}",
        )
    )  # fmt: skip
    return [target for target in [*found, *of_parts(sections, cores)] if target.met is not None]


# By kind and batch size, the wanted ratio to plain PyTorch.
PLAIN = {PYTORCH: {128: 2.0, 2048: 1.35}, TUNED: {128: 1.0, 2048: 1.0}}


def of_rates(figures: Figures, batch: int, cores: int) -> list[Target]:
    """Ratios of examples per second at one batch size."""
    ours = Contender(SSMPI, batch, cores)
    low = Contender(SSMPI, batch, cores, "bf16")
    found = []
    for kind, words in ((PYTORCH, "plain PyTorch"), (TUNED, "tuned PyTorch")):
        if batch in PLAIN[kind]:
            plain = Contender(kind, batch, cores)
            found.append(figures.ratio(f"ssmpi / {words}, batch {batch}", PLAIN[kind][batch], ours, plain))
    if batch == 2048:
        how = "; no bfloat16 instructions on this processor" if processor.without_bfloat16() else ""
        fastest = figures.median(ours) / figures.fastest_gemm(cores)
        note = f"{fastest:.3f} of it at its fastest batch size"
        found += [
            figures.ratio("ssmpi / GEMM bound, batch 2048", 0.65, ours, Contender(GEMM, batch, cores), note),
            figures.ratio("bf16 / fp32, batch 2048", 1.6, low, ours, f"NE is not measured here{how}"),
        ]
    return found


GAPS = {128: 5.0, 2048: 2.0}  # by batch size, the wanted iterations of a trainer between two of its rounds


def of_rounds(frontiers: Mapping[str, Frontier]) -> list[Target]:
    """The cost of background rounds with the defaults, and the smallest gap at which they are nearly free."""
    found = []
    for name, frontier in frontiers.items():
        found += [
            Target(f"rounds in the background / none, {name}", p["ratio"], WORTH, note=f"+- {p['error']:.3f}")
            for p in frontier["points"]
            if p["cpu_share"] == AS_SHIPPED
        ]
        if frontier["batch"] in GAPS:
            what = f"iterations between rounds that leave {WORTH:.0%} of the rate, {name}"
            found.append(
                Target(what, cost_of_a_round(frontier["points"])["gap"], GAPS[frontier["batch"]], at_most=True)
            )
    return found


WHOLE = {128: 0.88, 2048: 0.93}  # by batch size, relative to the bare step
HALF = {128: 0.65, 2048: 0.72}  # the same in bfloat16, relative to torch's products
NETWORK = {128: 2.0, 2048: 1.3}  # relative to PyTorch's step of the same network
NETWORKS = ("dcn_v2", "deepfm")


def in_turns(cores: int) -> Iterator[tuple[str, str, Contender, float]]:
    """The targets of alternating jobs: section, words, contender, wanted ratio."""
    for batch, wanted in WHOLE.items():
        yield "bare", "whole loop / bare dense step", Contender(SSMPI, batch, cores), wanted
    for batch, wanted in HALF.items():
        yield "half", "whole loop / torch's bf16 products", Contender(SSMPI, batch, cores, "bf16"), wanted
    for network in NETWORKS:
        for batch, wanted in NETWORK.items():
            yield "networks", "whole loop / PyTorch's step", Contender(SSMPI, batch, network=network), wanted


def of_turns(sections: Mapping[str, Any], cores: int) -> Iterator[Target]:
    """The targets of the sections that alternate within one job."""
    for section, what, contender, wanted in in_turns(cores):
        if turns := sections.get(section, {}).get(contender.name):
            yield Target(f"{what}, {contender.name}", turns["ratio"], wanted, note=f"+- {turns['error']:.3f}")
    for section, what, wanted in (
        ("threads", f"{cores} threads / 1 thread", 0.95 * cores),
        ("priority", "saves by priority / none", 0.97),
    ):
        for name, turns in sections.get(section, {}).items():
            yield Target(f"{what}, {name}", turns["ratio"], wanted, note=f"+- {turns['error']:.3f}")


def of_parts(sections: Mapping[str, Any], cores: int) -> list[Target]:
    """The targets of the other sections."""
    found = [*of_turns(sections, cores), *of_rounds(sections.get("shadow", {}))]
    for name, seen in sections.get("gil", {}).items():
        if "share" in seen and not name.endswith("logistic"):  # a step of 0.3 ms: what is left is calls
            found.append(Target(f"GIL held, share of a step, {name}", seen["share"], 0.03, at_most=True))
    if memory := sections.get("memory"):
        note = f"over {memory['seconds']:.0f} s only"
        found += [
            Target("trainer memory, end / start", memory["trainer_growth"], 1.01, at_most=True, note=note),
            Target(
                "embedding PS memory / (rows + state)",
                memory["ps_ratio"],
                1.1,
                at_most=True,
                note="slope over two table sizes",
            ),
        ]
    return found
