"""One run as reports see it: settings, versions, learning curves, results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

FINAL_SPLITS = ("test", "validation")
CIRCUMSTANCES = ("host", "processor", "started")  # in the file of versions


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. ``missing`` lists in sentences what could not be read; the corresponding fields are empty. ``windows``
    and ``evaluations`` are the lines of ``metrics.jsonl``, ``usage`` the ranks' CPU times, ``recoveries`` those of
    ``recoveries.json``, ``settings`` is flat: ``sync.alpha`` to value. ``circumstances`` are ``CIRCUMSTANCES``, unknown
    in runs of 0.1.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.absolute().name

    @property
    def duration(self) -> float:
        """Seconds from the start of its first job to the end of its last, waiting in a queue included; NaN if not
        known.
        """
        try:
            ends = (str(times[key]) for times, key in ((self.circumstances, "started"), (self.result, "ended")))
            began, ended = map(datetime.fromisoformat, ends)
            return (ended - began).total_seconds()
        except (KeyError, ValueError, TypeError):  # TypeError: one with a time zone, one without
            return math.nan

    @property
    def is_empty(self) -> bool:
        """Whether nothing that it measured can be read: no window, no evaluation and no result."""
        return not (self.windows or self.evaluations or self.result)

    @property
    def status(self) -> str:
        """``complete``, ``stopped``, ``incomplete``; ``unfinished`` where no result was written."""
        return str(self.result.get("status", "unfinished"))

    @property
    def ended_by(self) -> str:
        """The rule that ended it before all passes were done; empty if none did."""
        found = str(self.result.get("ended_by", "passes"))
        return "" if found == "passes" else f"evaluate.{found}"

    @property
    def elp(self) -> int | None:
        """Example-level parallelism: examples in flight at once."""
        values = [self.settings.get(key) for key in ("data.batch_size", "topology.threads", "topology.trainers")]
        known = [value for value in values if isinstance(value, int)]
        homes = self.settings.get("topology.group", 1) if self.settings.get("hierarchy.homes") == "first" else 1
        return math.prod(known) // homes if len(known) == len(values) else None

    @cached_property
    def final(self) -> tuple[str, dict[str, Any]]:
        """The split that was scored last and the metrics of the model that was kept; two empty ones where none was."""
        scored = self.result.get("evaluations", {})
        last, during = (str(self.settings.get(f"evaluate.{name}")) for name in ("final", "split"))
        split = next((s for s in (last, *FINAL_SPLITS, during) if s in scored), "")
        return split, scored[split].get(self.kept, {}) if split else {}

    @property
    def kept(self) -> str:
        """Which model the run left: ``last`` or ``best``."""
        return kept(self.result)

    def validation(self, which: str) -> float:
        """NE of the ``last`` or the ``best`` evaluation while training; NaN where there was none."""
        found = self.result.get("evaluations", {}).get(self.settings.get("evaluate.split", "validation"), {})
        value = found.get(which, {}).get("ne")
        return float(value) if isinstance(value, (int, float)) else math.nan

    def number(self, name: str, split: str = "") -> float:
        """A total of the run, or a metric of the final split; NaN where it is not known, or ``split`` is another."""
        scored, metrics = self.final
        found = self.result.get(name, metrics.get(name) if split in ("", scored) else None)
        return float(found) if isinstance(found, (int, float)) else math.nan

    def by_trainer(self, name: str) -> list[float]:
        """The mean of a rate that windows have for each trainer, weighted by their seconds; empty if none has it, or
        their numbers of trainers differ: since a job with another one.
        """
        found, before = [], 0.0
        for window in self.windows:
            examples, before = window["examples"] - before, window["examples"]
            rates, eps = window.get(name), window.get("eps")
            if isinstance(rates, list) and eps and examples > 0:
                found.append((rates, examples / eps))
        found = [(rates, seconds) for rates, seconds in found if len(rates) == len(found[-1][0])]
        total = sum(seconds for _, seconds in found)
        return [
            sum(rate * seconds for rate, (_, seconds) in zip(rates, found, strict=True)) / total
            for rates in zip(*(rates for rates, _ in found), strict=True)
        ]

    @property
    def job_examples(self) -> float:
        """The examples that ``usage`` is about: the last job's, or the whole run's where results do not say."""
        found = self.number("job_examples")
        return found if math.isfinite(found) else self.number("examples")


def kept(result: Mapping[str, Any]) -> str:
    """Which model a run left, by its ``result.json``; runs of earlier versions left the last."""
    return "best" if result.get("kept") == "best" else "last"
