"""The trials of a lockstep study, run and recorded: one JSON object per line, so a killed study can be resumed."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jobs.lab.lockstep.design import Choice, StudyDesign, Subject, Trial
from jobs.lab.lockstep.run import LockstepRun
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError, SettingsError, TrainingError
from ssmpi.runtime.files.log import during, log
from ssmpi.runtime.host.versions import commit
from ssmpi.trainer.metrics.log_files import JsonlFile
from ssmpi.trainer.metrics.results import plain

TRIALS = "trials.jsonl"
VALIDATION, TEST = "validation", "test"


@dataclass(frozen=True)
class TrialResult:
    """NE by scored split (tuning trials do not score test rows). ``seconds`` are CPU seconds."""

    ne: dict[str, float]
    seconds: float
    commit: str

    @staticmethod
    def of(values: dict[str, Any]) -> TrialResult:
        """Parse a line of the file."""
        found = {split: values[split] for split in (VALIDATION, TEST) if split in values}
        ne = {split: math.inf if value is None else float(value) for split, value in found.items()}
        return TrialResult(ne, float(values["seconds"]), str(values["commit"]))


class TrialLog:
    """All finished trials, keyed by all their settings, so a changed study file needs new trials; and so do other rows
    in the same data folder.
    """

    def __init__(self, design: StudyDesign) -> None:
        self._design, self._path, self._done = design, design.folder / TRIALS, dict[str, TrialResult]()
        self._data = digest_of_data(design)
        self._whole = self._read() if self._path.exists() else 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: JsonlFile | None = None  # opening it removes a torn line, which another process may be writing

    def find(self, trial: Trial, split: str = VALIDATION) -> TrialResult | None:
        """The result of a trial; None if it has not run, or did not score ``split``."""
        found = self._done.get(self._design.fingerprint(trial))
        return found if found and split in found.ne else None

    def note(self, trial: Trial, outcome: TrialResult) -> None:
        """Append one result."""
        known = self._design.fingerprint(trial)
        self._done[known] = outcome
        self._file = self._file or JsonlFile(self._path, self._whole)
        self._file.write(
            json.dumps(
                {
                    "trial": trial.key,
                    **plain(outcome.ne),
                    "seconds": outcome.seconds,
                    "commit": outcome.commit,
                    "settings": known,
                    "data": self._data,
                }
            )
        )

    def _read(self) -> int:
        """Read all complete lines and return their bytes; the last line may be torn. Trials of other data are left out;
        older lines do not say what theirs was.
        """
        whole = others = 0
        for number, line in enumerate(self._path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                values = json.loads(line)
                outcome = TrialResult.of(values)
                if values.get("data", self._data) == self._data:
                    self._done[values["settings"]] = outcome
                else:
                    others += 1
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{self._path}, line {number}: not the record of a trial; remove that line, and it is run again"
                ) from error
            whole += len(line)
        if others:
            log.info("%s: %d trials are of other rows than those now in the data folder, left out", self._path, others)
        return whole


class RecordedTrials:
    """The trials of a file of published ones, by what they are: algorithm, pace, gap, trainers, threads, seed, tuned
    settings. Unlike ``TrialLog`` it needs no rows, and settings that have come since do not matter. DataError if it
    cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._done = dict[str, TrialResult]()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}: --trials takes a file as trials.jsonl in a study's folder") from None
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                self._done[_text(values["trial"])] = TrialResult.of(values)
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}, line {number}: not the record of a trial") from error

    def find(self, trial: Trial, split: str = VALIDATION) -> TrialResult | None:
        """The result of a trial; None if it is not there, or did not score ``split``."""
        found = self._done.get(_text(trial.key))
        return found if found and split in found.ne else None


def _text(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def digest_of_data(design: StudyDesign) -> str:
    """A digest of all splits of the study's data set."""
    subject = design.subjects[0]
    manifest = read_manifest(Path(design.config(subject, design.candidates(subject)[0]).data.folder))
    shards = {name: [shard.checksum for shard in split.shards] for name, split in sorted(manifest.splits.items())}
    return hashlib.sha256(json.dumps([manifest.cardinalities, shards]).encode()).hexdigest()[:12]


def run(design: StudyDesign, trial: Trial, splits: Sequence[str]) -> TrialResult:
    """Run one trial on this thread; returns NE on the splits. One that only tunes and diverges has infinite NE, so that
    another candidate wins; TrainingError of a reported one.
    """
    config = design.config(trial.arm.subject, trial.choice)
    began = time.process_time()
    with during(f"{trial.arm.name}, seed {trial.seed}"):
        one = LockstepRun(config, design.lockstep(trial.arm, trial.seed))
        try:
            one.train()
            ne = {split: one.score(split)["ne"] for split in splits}
        except TrainingError:
            if TEST in splits:
                raise
            ne = dict.fromkeys(splits, math.inf)
    return TrialResult(ne, round(time.process_time() - began, 2), commit())


def check_rows(design: StudyDesign) -> None:
    """SettingsError unless there are enough rows for the largest number of trainers."""
    subject = max(design.subjects, key=lambda subject: subject.trainers)
    config = design.config(subject, design.candidates(subject)[0])
    data, needed = config.data, design.examples(subject, config)
    there = SplitReader(Path(data.folder), data.train_split, data.block_rows).rows * data.passes
    if there < needed:
        raise SettingsError(
            f"{design.path}: {subject.size} take {needed:,} rows in {design.steps(subject):,} steps, and "
            f"{data.folder} has {there:,}: prepare more, or lower steps"
        )


def best(design: StudyDesign, subject: Subject, ledger: TrialLog | RecordedTrials) -> Choice | None:
    """The candidate with the lowest mean NE on the validation split; None until all have run. TrainingError if all
    diverge.
    """
    means = []
    for trials in design.tuning(subject):
        found = [ledger.find(trial) for trial in trials]
        if not all(found):
            return None
        means.append(float(np.mean([outcome.ne[VALIDATION] for outcome in found if outcome])))
    if means and min(means) == math.inf:
        raise TrainingError(
            f"{design.path}: {subject.algorithm}, {subject.size}: every candidate diverges, add lower rates"
        )
    return design.candidates(subject)[int(np.argmin(means)) if means else 0]
