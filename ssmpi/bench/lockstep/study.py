"""``ssmpi bench equivalence``: tune on validation rows, then run every arm with every seed, then say what is equal.

Lockstep runs depend on their seeds alone, so a study may share its processors with anything, be killed, and go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from ssmpi.bench.lockstep import study_results as results
from ssmpi.bench.lockstep import trials
from ssmpi.bench.lockstep.design import Arm, Choice, Design, Subject, Trial
from ssmpi.bench.lockstep.trials import TEST, VALIDATION, Ledger
from ssmpi.core.log import log


def run_all(design: Design, minutes: float = math.inf) -> int:
    """All trials that are missing, as far as the minutes last, and the results. 0, or 1 if trials are left."""
    trials.check_rows(design)
    ledger, until = Ledger(design), time.monotonic() + 60 * minutes
    left = 0
    for trial, splits in missing(design, ledger):
        if time.monotonic() > until:
            left = 1
            log.info("%g minutes are over; the same command goes on with %s", minutes, _named(trial))
            break
        outcome = trials.run(design, trial, splits)
        ledger.note(trial, outcome)
        split = splits[-1]
        log.info("%s: %s NE %.5f, %.1f s", _named(trial), split, outcome.ne[split], outcome.seconds)
    conclude(design, ledger)
    return left


def missing(design: Design, ledger: Ledger) -> Iterator[tuple[Trial, tuple[str, ...]]]:
    """What is to be run and on which splits it is scored: all tuning, then one seed after the other."""
    chosen: dict[Subject, Choice] = {}
    for subject in design.subjects:
        for trial in (trial for candidate in design.tuning(subject) for trial in candidate):
            if not ledger.find(trial):
                yield trial, (VALIDATION,)
        found = trials.best(design, subject, ledger)
        if found is None:
            return  # whoever asks has not run what was to be run
        chosen[subject] = found
    for seed in range(1, design.options.seeds + 1):
        for subject, choice in chosen.items():
            for trial in (Trial(arm, choice, seed) for arm in design.arms(subject)):
                if not ledger.find(trial):
                    yield trial, (VALIDATION, TEST)


def conclude(design: Design, ledger: Ledger) -> None:
    """Write and print the results of all complete seeds."""
    chosen = {subject: trials.best(design, subject, ledger) for subject in design.subjects}
    found: dict[Arm, dict[int, float]] = {}
    for subject, choice in chosen.items():
        for arm in design.arms(subject) if choice is not None else ():
            outcomes = {
                seed: ledger.find(Trial(arm, choice or {}, seed)) for seed in range(1, design.options.seeds + 1)
            }
            found[arm] = {seed: outcome.ne[TEST] for seed, outcome in outcomes.items() if outcome}
    seeds = set.intersection(*map(set, found.values())) if found and None not in chosen.values() else set()
    if len(seeds) < 2:
        log.info("%d seeds are complete: no table before there are 2", len(seeds))
        return
    complete = {arm: [by_seed[seed] for seed in sorted(seeds)] for arm, by_seed in found.items()}
    text, files = results.write(design, {s: c for s, c in chosen.items() if c is not None}, sorted(seeds), complete)
    print(text)
    log.info("written: %s", ", ".join(map(str, files)))


def _named(trial: Trial) -> str:
    choice = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in trial.choice.items())
    return (
        f"{trial.arm.name}, {trial.arm.subject.trainers} trainers, seed {trial.seed}{f', {choice}' if choice else ''}"
    )
