"""``python -m jobs.lab equivalence``: tunes on validation rows, runs every arm with every seed, then tests which
results are equal.

Lockstep runs depend on their seeds alone, so a study may share its processors, be killed, and be resumed.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import IO

from jobs.lab.lockstep import study_results as results
from jobs.lab.lockstep import trials
from jobs.lab.lockstep.design import Arm, StudyDesign, Trial
from jobs.lab.lockstep.trials import TEST, VALIDATION, TrialLog, TrialResult
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.settings import positive
from ssmpi.runtime.topology import MAX_RANKS
from ssmpi.state import run_lock
from ssmpi.tools.report.groups import name_of

LOCK = "study.lock"
Task = tuple[Trial, tuple[str, ...]]  # with the splits to score


def run_all(design: StudyDesign, minutes: float = math.inf, jobs: int = 1) -> int:
    """Run all missing trials within ``minutes``, ``jobs`` in parallel, then write the results. Returns 0, or 1 if
    trials are left. SettingsError if another process runs this study, unless ``minutes`` is 0.
    """
    positive("--jobs", jobs, MAX_RANKS)
    trials.check_rows(design)
    with _lock(design) if minutes > 0 else contextlib.nullcontext():
        ledger, until = TrialLog(design), time.monotonic() + 60 * minutes
        for _ in ("tuning", "reporting"):
            for (trial, splits), outcome in outcomes(design, missing(design, ledger), jobs, until):
                ledger.note(trial, outcome)
                split = splits[-1]
                log.info("%s: %s NE %.5f, %.1f s", _named(trial), split, outcome.ne[split], outcome.seconds)
    conclude(design, ledger)
    left = missing(design, ledger)
    if left:
        log.info("%g minutes are over; the same command resumes with %s", minutes, _named(left[0][0]))
    return int(bool(left))


def missing(design: StudyDesign, ledger: TrialLog) -> list[Task]:
    """The next trials: all of tuning, and after that all arms, seed by seed."""
    tuning = [
        trial for subject in design.subjects for trials_of_one in design.tuning(subject) for trial in trials_of_one
    ]
    if any(not ledger.find(trial) for trial in tuning):
        return [(trial, (VALIDATION,)) for trial in tuning if not ledger.find(trial)]
    chosen = {subject: trials.best(design, subject, ledger) or {} for subject in design.subjects}
    reported = (
        Trial(arm, choice, seed)
        for seed in range(1, design.options.seeds + 1)
        for subject, choice in chosen.items()
        for arm in design.arms(subject)
    )
    return [(trial, (VALIDATION, TEST)) for trial in reported if not ledger.find(trial, TEST)]


def outcomes(design: StudyDesign, todo: list[Task], jobs: int, until: float) -> Iterator[tuple[Task, TrialResult]]:
    """The results of the tasks that begin before ``until`` (monotonic seconds), in separate processes if
    ``jobs`` > 1.
    """
    if jobs == 1:
        for task in todo:
            if time.monotonic() >= until:
                return
            yield task, trials.run(design, *task)
        return
    waiting, running = deque(todo), dict[Future[TrialResult], Task]()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            while waiting and len(running) < jobs and time.monotonic() < until:
                task = waiting.popleft()
                running[pool.submit(trials.run, design, *task)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def conclude(design: StudyDesign, ledger: TrialLog) -> None:
    """Write and print the results of all complete seeds."""
    if found := findings(design, ledger):
        text, files = results.write(design, found)
        print(text)
        log.info("written: %s", ", ".join(map(str, files)))


def print_recorded(design: StudyDesign, path: Path) -> int:
    """Print the results of the trials recorded in a file. Returns 0, or 1 if they are too few."""
    found = findings(design, trials.RecordedTrials(path))
    if found:
        print(results.markdown(design, found, results.verdicts(design, found)))
    return int(not found)


def findings(design: StudyDesign, ledger: TrialLog | trials.RecordedTrials) -> results.Findings | None:
    """The tuned settings and the NE of all complete seeds; None, with a message, if those are fewer than two."""
    chosen = {subject: trials.best(design, subject, ledger) for subject in design.subjects}
    found: dict[Arm, dict[int, TrialResult]] = {}
    for subject, choice in chosen.items():
        for arm in design.arms(subject) if choice is not None else ():
            outcomes = {
                seed: ledger.find(Trial(arm, choice or {}, seed), TEST) for seed in range(1, design.options.seeds + 1)
            }
            found[arm] = {seed: outcome for seed, outcome in outcomes.items() if outcome}
    seeds = set.intersection(*map(set, found.values())) if found and None not in chosen.values() else set()
    if len(seeds) < 2:
        log.info("%d seeds are complete: no table before there are 2", len(seeds))
        return None
    complete = {arm: [by_seed[seed].ne[TEST] for seed in sorted(seeds)] for arm, by_seed in found.items()}
    commits = sorted({by_seed[seed].commit for by_seed in found.values() for seed in seeds})
    tuned = {subject: choice for subject, choice in chosen.items() if choice is not None}
    return results.Findings(tuned, sorted(seeds), complete, commits)


def _lock(design: StudyDesign) -> IO[str]:
    design.folder.mkdir(parents=True, exist_ok=True)
    try:
        return run_lock.acquire(design.folder / LOCK, lambda _: 0.0)
    except run_lock.LockHeldError as error:
        raise SettingsError(
            f"{design.folder}: another process is running this study ({error}): wait for it to end, or print what is "
            "there with --minutes 0"
        ) from None


def _named(trial: Trial) -> str:
    words = trial.arm.name, trial.arm.subject.size, f"seed {trial.seed}", name_of(trial.choice)
    return ", ".join(filter(None, words))
