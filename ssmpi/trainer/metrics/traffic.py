"""The traffic of all trainers, as reported to the first one: totals over all jobs of a run, and by window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ssmpi.runtime.traffic import BYTES, COUNTED, ENTRIES, GROUP_ENTRIES, LINKS, MESSAGES, ROWS, SENT, Link


class TrafficLog:
    """Sums over ``trainers``; ``earlier`` are the totals of the jobs that this one continues, by name."""

    def __init__(self, trainers: int, earlier: Mapping[str, float]) -> None:
        self._earlier = np.array([earlier.get(name, 0.0) for name in COUNTED])
        self._reported, self._window = np.zeros((trainers, len(COUNTED))), self._earlier

    def gathered(self, trainer: int, counts: np.ndarray) -> None:
        """What one trainer has counted so far, float64 (COUNTED,)."""
        self._reported[trainer] = counts

    def totals(self) -> dict[str, float]:
        """By name, earlier jobs included."""
        return dict(zip(COUNTED, self._totals().tolist(), strict=True))

    def window(self) -> dict[str, float]:
        """Bytes, rows, entries of groups and, where a codec encodes, density since the last call."""
        before, self._window = self._window, self._totals()
        growth = dict(zip(COUNTED, (self._window - before).tolist(), strict=True))
        return {name: growth[name] for name in (*BYTES, ROWS, GROUP_ENTRIES)} | density(growth)

    def _totals(self) -> np.ndarray:
        total: np.ndarray = self._earlier + self._reported.sum(axis=0)
        return total


def density(counts: Mapping[str, float]) -> dict[str, float]:
    """The share of its entries that a codec has sent; empty if there is no codec."""
    return {"density": counts[SENT] / counts[ENTRIES]} if counts[ENTRIES] else {}


def nested(totals: Mapping[str, float]) -> dict[str, Any]:
    """As ``result.json`` has it: ``bytes`` and ``messages`` by class of link, rows in place among the former; the
    ``entries`` of groups; and the ``density`` of what a codec has sent.
    """
    by_link = [{link: totals[name] for link, name in zip(LINKS, names, strict=True)} for names in (BYTES, MESSAGES)]
    return {
        "bytes": {**by_link[0], ROWS: totals[ROWS]}, "messages": by_link[1],
        "entries": {Link.GROUP.name.lower(): totals[GROUP_ENTRIES]}, **density(totals),
    }  # fmt: skip
