"""The share of time in which the interpreter lock is held, by py-spy."""

from __future__ import annotations

from typing import Any

from ssmpi.bench.harness import gil
from ssmpi.bench.harness.windows import Timing
from ssmpi.bench.throughput.contenders import SSMPI, Contender
from ssmpi.bench.throughput.turns import Harness
from ssmpi.model import processor
from ssmpi.model.zoo import NETWORKS

BATCH = 200  # as in the paper's runs


def gil_share(harness: Harness) -> dict[str, dict[str, Any]]:
    """The share of a single worker's time in which it holds the GIL, by network and precision; bfloat16 only if the
    processor has instructions for it.
    """
    precisions = ("fp32",) if processor.without_bfloat16() else ("fp32", "bf16")
    asked = [Contender(SSMPI, BATCH, 1, precision, network=name) for name in NETWORKS for precision in precisions]
    return held(harness, asked)


def held(harness: Harness, asked: list[Contender]) -> dict[str, dict[str, Any]]:
    """By contender, samples of its first trainer and the share; only of the first one if ``short``."""
    timing = Timing(harness.timing.warmup, 1.0 if harness.short else 10.0, 1)
    return {contender.name: _held(harness, contender, timing) for contender in (asked[:1] if harness.short else asked)}


def _held(harness: Harness, contender: Contender, timing: Timing) -> dict[str, Any]:
    """Samples and share, or why they are ``missing``."""
    if gil.find() is None:
        missing = "py-spy is not installed: pip install 'ssmpi[test]'"
    else:
        seen = harness.job(contender, "gil", timing)["seen"]
        if seen.get("samples"):
            return {**seen, "share": seen["holding"] / seen["samples"]}
        missing = seen.get("failed", "py-spy saw no worker thread")
    return {"missing": f"the GIL was NOT measured: {missing}"}
