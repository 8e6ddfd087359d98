"""Runs that differ only in their seed form a group; a group becomes one row of a table: means and standard errors, and
relative NE against a reference group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.runtime.files.result_marker import COMPLETE
from ssmpi.tools.report.record import Record

SEED = "run.seed"
NOT_SETTINGS = (SEED, "run.folder", "run.tensorboard", "run.log_seconds", "run.record_losses")  # change no result
NEVER = object()
SEVERAL = 3  # names of runs that are listed
RUN, CASE = NAMES = ("run", "case")  # labels whose values need no name


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error, which is NaN for a single value; both NaN without values."""

    mean: float = math.nan
    error: float = math.nan

    def relative_to(self, reference: Estimate) -> Estimate:
        """``mean / reference.mean - 1``; the error to first order (delta method), the two means being independent."""
        ratio = self.mean / reference.mean
        return Estimate(ratio - 1, abs(ratio) * math.hypot(self.error / self.mean, reference.error / reference.mean))


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error of the mean (n - 1 in the variance), of the finite values."""
    known = np.array([value for value in values if math.isfinite(value)])
    if not known.size:
        return Estimate()
    error = float(known.std(ddof=1)) / math.sqrt(known.size) if known.size > 1 else math.nan
    return Estimate(float(known.mean()), error)


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but for the seed. ``labels`` tell groups apart, heading to value:
    ``trainers`` to 4.
    """

    labels: dict[str, Any]
    records: list[Record]

    @property
    def name(self) -> str:
        """The labels as a phrase: ``S-MA, trainers 4``."""
        return name_of(self.labels)

    def estimate(self, metric: str, split: str = "") -> Estimate:
        """Over the seeds; of metrics on ``split`` alone if it is given."""
        return estimate([record.number(metric, split) for record in self.records])

    @property
    def elp(self) -> int | None:
        """Example-level parallelism."""
        return self.records[0].elp


def relative(group: Group, reference: Group, metric: str, split: str = "") -> Estimate:
    """``group / reference - 1`` with its standard error.

    If the reference has one run for each seed, paired by seed: such runs share initial weights and data order, which
    cancels their effect. Otherwise the two are taken as independent.
    """
    mine, theirs = (
        {record.settings.get(SEED): record.number(metric, split) for record in g.records} for g in (group, reference)
    )
    each_once = len(mine) == len(group.records) and len(theirs) == len(reference.records)
    if each_once and mine.keys() <= theirs.keys():
        return estimate([value / theirs[seed] - 1 for seed, value in mine.items()])
    return group.estimate(metric, split).relative_to(reference.estimate(metric, split))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the final table."""

    labels: dict[str, Any]
    runs: int
    complete: int
    elp: int | None
    ne: Estimate
    relative_ne: Estimate | None  # None: nothing to compare with
    is_reference: bool
    auc: Estimate
    log_loss: Estimate
    eps: Estimate
    gap_thread: Estimate
    gap_trainer: Estimate
    best: Estimate = Estimate()  # NE of evaluations while training
    last: Estimate = Estimate()


def row(group: Group, reference: Group | None, split: str = "") -> Row:
    """``reference`` is the group to compare with, maybe ``group`` itself; None leaves the comparison out. ``split``
    leaves out the quality of runs that were scored last on another.
    """
    itself = reference is group
    return Row(
        labels=group.labels,
        runs=len(group.records),
        complete=sum(record.status == COMPLETE for record in group.records),
        elp=group.elp,
        ne=group.estimate("ne", split),
        relative_ne=None if reference is None or itself else relative(group, reference, "ne", split),
        is_reference=itself,
        auc=group.estimate("auc", split),
        log_loss=group.estimate("log_loss", split),
        eps=group.estimate("eps"),
        gap_thread=group.estimate("sync_gap_thread"),
        gap_trainer=group.estimate("sync_gap_trainer"),
        best=estimate([record.validation("best") for record in group.records]),
        last=estimate([record.validation("last") for record in group.records]),
    )


def by_settings(records: Sequence[Record]) -> list[Group]:
    """Group runs by their settings, in order of appearance, named by their folders. A run without settings is a group
    of its own.
    """
    found: dict[object, list[Record]] = {}
    for record in records:
        key = tuple(sorted((k, repr(v)) for k, v in _compared(record).items())) or record.folder
        found.setdefault(key, []).append(record)
    groups = list(found.values())
    names = iter(_short([record.folder for group in groups for record in group]))
    return [Group({RUN: _together([next(names) for _ in group])}, group) for group in groups]


def differing(records: Sequence[Record]) -> list[str]:
    """Settings that are not the same in all runs whose settings are known, in the order of the run file."""
    known = [record.settings for record in records if record.settings]
    names = dict.fromkeys(name for settings in known for name in settings)
    return [n for n in names if any(s.get(n, NEVER) != known[0].get(n, NEVER) for s in known)]


def scored_unlike(records: Sequence[Record]) -> str:
    """A sentence that says so if these runs were scored on different rows, as far as they tell; else empty."""
    runs: dict[tuple[object, str, object], list[Path]] = {}
    for record in records:
        split, metrics = record.final
        if metrics:
            scored = record.settings.get("data.folder", "unknown data"), split, metrics.get("rows")
            runs.setdefault(scored, []).append(record.folder)
    if len(runs) < 2:
        return ""
    rows = [
        f"{_together(list(map(str, folders)))}: {f'{count:,.0f}' if isinstance(count, (int, float)) else 'the'} rows of"
        f" the split {split} in {data}"
        for (data, split, count), folders in runs.items()
    ]
    return f"these runs were scored on different rows, so their NE and AUC cannot be compared. {'; '.join(rows)}"


def name_of(values: Mapping[str, Any]) -> str:
    """Settings as a phrase: ``algorithm ma, trainers 4``; of a name only the value."""
    phrases = [f"{short(key)} {_text(value)}" if key not in NAMES else _text(value) for key, value in values.items()]
    return ", ".join(phrases)


def short(setting: str) -> str:
    """A setting's key in words: ``embedding ps`` for ``topology.embedding_ps``."""
    return setting.rpartition(".")[2].replace("_", " ")


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _compared(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.settings.items() if name not in NOT_SETTINGS}


def _together(names: Sequence[str]) -> str:
    """The runs of a group: all names if they are few, else the first and the number of the others."""
    return ", ".join(names) if len(names) <= SEVERAL else f"{names[0]} and {len(names) - 1} more"


def _short(folders: Sequence[Path]) -> list[str]:
    """The folders, shortened to the last path components that distinguish them."""
    paths = [folder.absolute() for folder in folders]
    for depth in range(1, 20):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
