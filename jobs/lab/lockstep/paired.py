"""``python -m jobs.lab lockstep --case``: the same run with other settings, paired by seed. Runs with the same seed
start from the same weights and see the same rows in the same order, so the effect of the seed cancels in their
differences.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.lab.lockstep.lockstep import CURVE, one
from jobs.lab.lockstep.rounds import check_algorithm
from jobs.lab.lockstep.run import Lockstep
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files import atomic_file

if TYPE_CHECKING:
    from ssmpi.config import Config

NO_FEEDBACK, TO_NEAREST, GAP = "feedback=off", "rounding=nearest", "gap="  # words of a case that are not settings
AS_GIVEN = "as given"
PLACES = "data.folder", "run.folder"


@dataclasses.dataclass(frozen=True)
class Case:
    """The settings that a case changes, as words, and its ``lockstep`` settings."""

    name: str
    config: Config
    lockstep: Lockstep


def cases_of(texts: Sequence[str], load: Callable[[list[str]], Config], lockstep: Lockstep) -> list[Case]:
    """The given run, then one case for each of ``texts``: settings, ``gap=NUMBER``, ``feedback=off`` and
    ``rounding=nearest`` (of rows in 16 bits). SettingsError if two are the same.
    """
    found = []
    for text in ("", *texts):
        words = text.split()
        gaps = [word.removeprefix(GAP) for word in words if word.startswith(GAP)]
        try:
            gap = float(gaps[-1]) if gaps else lockstep.gap
        except ValueError:
            raise SettingsError(f"--case: gap is a number, got '{gaps[-1]}'") from None
        feedback = lockstep.feedback and NO_FEEDBACK not in words
        own = dataclasses.replace(lockstep, gap=gap, feedback=feedback, nearest=TO_NEAREST in words)
        settings = [word for word in words if word not in (NO_FEEDBACK, TO_NEAREST) and not word.startswith(GAP)]
        config = load(settings).with_code()
        check_algorithm(config.sync)
        found.append(Case(text or AS_GIVEN, config, own))
    names = [case.name for case in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(f"--case: '{twice[0]}' is there twice")
    return found


def measure(cases: Sequence[Case], split: str, runs: int, out: Path | None) -> list[dict[str, Any]]:
    """Run every case with ``runs`` seeds, from the first case's on, cases interleaved. Prints the table and writes all
    of it as JSON to ``out``, whose runs are not repeated if it exists.
    """
    if runs < 2:
        raise SettingsError(f"--case compares by seeds: --runs must be at least 2, got {runs}")
    if out:
        atomic_file.check(out)
        atomic_file.check_replaceable(out, re.compile(rb'\{\s*"settings": \{\s*"([^"\\]|\\.)*": \{'))
    settings = {case.name: case.config.flat() for case in cases}
    known = earlier(out, cases, split) if out and out.exists() else []
    results: list[dict[str, Any]] = []
    first = cases[0].lockstep.dense
    for seed in range(first, first + runs):
        for case in cases:
            own = dataclasses.replace(case.lockstep, dense=seed, embedding=seed, order=seed)
            found = next((run for run in known if (run["case"], run["seed"]) == (case.name, seed)), None)
            results.append(found or {"case": case.name, "seed": seed, **timed(case.config, own, split)})
            print(f"seed {seed}, {case.name}: NE {results[-1][split]['ne']:.5f}", flush=True)
            if out and not found:
                kept = [*results, *(run for run in known if run not in results)]
                atomic_file.write(out, json.dumps({"settings": settings, "runs": kept}, indent=1) + "\n")
    print(table(results, [case.name for case in cases], split))
    return results


def timed(config: Config, lockstep: Lockstep, split: str) -> dict[str, Any]:
    """Train once, with the CPU seconds that it took."""
    began = time.process_time()
    found = one(config, lockstep, [split])
    return {"cpu_seconds": time.process_time() - began, **found}


def earlier(out: Path, cases: Sequence[Case], split: str) -> list[dict[str, Any]]:
    """The runs in ``out`` of these cases, scored on ``split``. SettingsError if one of them ran with other settings;
    where data and runs lie does not count.
    """
    body = json.loads(out.read_text(encoding="utf-8"))
    for case in cases:
        before, now = body["settings"].get(case.name, {}), json.loads(json.dumps(case.config.flat()))
        both = (name for name in before if name in now and name not in PLACES)  # others came or went since
        if changed := next((name for name in both if before[name] != now[name]), None):
            raise SettingsError(
                f"{out}: '{case.name}' ran with {changed} = {before[changed]}, not {now[changed]}: name another"
                " --output"
            )
    paces = {case.name: (case.lockstep.gap, case.lockstep.staleness) for case in cases}
    return [run for run in body["runs"] if split in run and paces.get(run["case"]) == (run["gap"], run["staleness"])]


def table(results: Sequence[dict[str, Any]], names: Sequence[str], split: str) -> str:
    """One line per case: the differences from the first case in NE and in training loss (the mean over the last quarter
    of the run, before rows are trained on), paired by seed, with the standard error of the mean; then the median of CPU
    seconds.
    """
    width, of = max(map(len, names)), {name: [r for r in results if r["case"] == name] for name in names}
    first = of[names[0]]
    heads = "relative NE (pairs)  training loss (pairs)   density  push MB  pull MB"
    heads += "  times less: push    pull    both  CPU s"
    lines = [f"{'':{width}}  {split + ' NE':>10}  {heads}"]
    for name in names:
        ne, reference = (np.array([r[split]["ne"] for r in runs]) for runs in (of[name], first))
        loss, losses = (np.array([np.mean(r["losses"][-CURVE // 4 :]) for r in runs]) for runs in (of[name], first))
        density = float(np.mean([r.get("density", 1.0) for r in of[name]]))
        cpu = float(np.median([r.get("cpu_seconds", math.nan) for r in of[name]]))  # the first run compiles
        relative, fit = (
            "reference" if name == names[0] else _change(own, other) for own, other in ((ne, reference), (loss, losses))
        )
        quality = f"{name:{width}}  {ne.mean():10.5f}  {relative:>19}  {fit:>21}  {density:8.4f}"
        lines.append(f"{quality}  {_traffic(of[name], first)}  {cpu:5.1f}")
    return "\n".join(lines)


def _change(own: np.ndarray, other: np.ndarray) -> str:
    """The mean of the relative differences of pairs, with its standard error."""
    change = 100 * (own / other - 1)
    return f"{change.mean():+.3f} ± {change.std(ddof=1) / math.sqrt(len(change)):.3f} %"


def _traffic(runs: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]]) -> str:
    """Bytes pushed and pulled, and the reduction of each and of their sum relative to the first case."""
    own, before = (
        np.array([np.mean([r.get(name, 0.0) for r in of]) for name in ("push_bytes", "pull_bytes")])
        for of in (runs, first)
    )
    less = [b / a if a else math.nan for a, b in zip((*own, own.sum()), (*before, before.sum()), strict=True)]
    return f"{own[0] / 1e6:7.2f}  {own[1] / 1e6:7.2f}  {less[0]:16.1f}  {less[1]:6.1f}  {less[2]:6.1f}"
