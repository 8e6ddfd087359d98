"""A study file of ``jobs.lab equivalence``: the algorithms, gaps, numbers of trainers or sizes, candidates for
tuning, seeds, and the margin within which results count as equal. All of it is fixed before the first run.

Every algorithm runs at two paces. In the *foreground* training stops for a round, so its staleness is 0. In the
*shadow* rounds run back to back: each takes the whole gap, so its result is stale by the gap.

A study of *trainers* asks what rounds lose: every replica takes the same number of steps for any number of trainers.
Two references see the same rows: one trainer, which takes the steps of all, and the same number of trainers without
rounds. A study of *sizes*, trainers x threads, asks how workers are best divided among replicas: all sizes see the same
rows, and each is compared with each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from jobs.lab.lockstep.rounds import check_algorithm
from jobs.lab.lockstep.run import LARGEST_SEED, Lockstep
from ssmpi.config import Config
from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import COUNT, EXAMPLES, flat, nested, positive, require, within
from ssmpi.runtime.topology import MAX_RANKS

ONE, UNSYNCED = REFERENCES = ("one trainer", "no rounds")
SHADOW: Literal["S"] = "S"  # prefixes of the paper's names: S-EASGD, FR-EASGD
FOREGROUND: Literal["FR"] = "FR"
NAME = "lockstep study"  # the name of the file in messages
Choice = dict[str, Any]  # tuned setting to value


@dataclass(frozen=True, kw_only=True)
class DesignOptions:
    """The ``[study]`` section.

    All results are written to ``folder``. ``run_file``, relative to the study file, has the base settings. Either
    ``trainers`` or ``sizes``, pairs of trainers and threads, are studied. Every replica takes ``steps``; of ``sizes``,
    every thread of the first, and the others as many as see the same rows. The rates fall to 0 over the last
    ``decay_share`` of the examples. Seeds 1 to ``seeds`` are reported; ``tuning_seeds`` only choose settings, cycling
    through paces and gaps. Two results are equal within ``margin`` of NE, tested at ``level``.
    """

    folder: str
    steps: int
    gaps: tuple[float, ...]
    tuning_seeds: tuple[int, ...]
    trainers: tuple[int, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    paces: tuple[Literal["S", "FR"], ...] = (SHADOW, FOREGROUND)
    title: str = "Equivalence"
    run_file: str = ""
    seeds: int = 30
    decay_share: float = 1 / 3
    margin: float = 0.003
    level: float = 0.05

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty")
        within("steps", self.steps, 1, COUNT)
        within("seeds", self.seeds, 2, COUNT)  # a single one is no comparison
        positive("margin", self.margin, 1.0)
        positive("level", self.level, 0.5)
        require(0 <= self.decay_share <= 1, f"decay_share must be in [0, 1], got {self.decay_share}")
        require(bool(self.trainers) != bool(self.sizes), "set either trainers or sizes")
        for name in ("sizes" if self.sizes else "trainers", "paces", "gaps", "tuning_seeds"):
            values = getattr(self, name)
            require(len(values) > 0 and len(set(values)) == len(values), f"{name} = {values} must be different values")
        for name, least, most in (("trainers", 2, MAX_RANKS), ("gaps", 1, EXAMPLES), ("tuning_seeds", 1, LARGEST_SEED)):
            for value in getattr(self, name):
                within(name, value, least, most)
        for size in self.sizes:
            self._check_size(size)
        reported = [seed for seed in self.tuning_seeds if seed <= self.seeds]
        require(
            not reported, f"tuning_seeds = {self.tuning_seeds}: {reported} are reported, choose others to tune with"
        )

    def _check_size(self, size: tuple[int, ...]) -> None:
        require(
            len(size) == 2 and min(size) >= 1 and max(size) <= MAX_RANKS,
            f"sizes: {list(size)} is not [trainers, threads of each], from 1 to {MAX_RANKS}",
        )
        first, workers = self.sizes[0], math.prod(size)
        require(
            self.steps * math.prod(first) % workers == 0,
            f"sizes: {size[0]} x {size[1]} cannot divide the {self.steps:,} steps of {first[0]} x {first[1]}: make "
            f"steps a multiple of {workers}",
        )


@dataclass(frozen=True)
class DesignFile:
    """The content of a study file. ``[settings]`` is a run file; ``[algorithms.NAME]`` and ``[references]`` are run
    files too, with lists of candidates for tuned settings.
    """

    study: DesignOptions
    settings: dict = field(default_factory=dict)
    references: dict = field(default_factory=dict)
    algorithms: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """The unit of tuning: an algorithm, or a reference, with a number of trainers (ONE: one trainer on all rows) and
    the ``threads`` of each (0: as the settings say).
    """

    algorithm: str
    trainers: int
    threads: int = 0

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference, without pace and gap."""
        return self.algorithm in REFERENCES

    @property
    def size(self) -> str:
        """In words."""
        return f"{self.trainers} x {self.threads}" if self.threads else f"{self.trainers} trainers"

    @property
    def key(self) -> dict[str, int]:
        """The size on disk."""
        return {"trainers": self.trainers} | ({"threads": self.threads} if self.threads else {})


@dataclass(frozen=True)
class Arm:
    """The unit of comparison: a subject at a pace and a gap; ("", 0) for a reference."""

    subject: Subject
    pace: str = ""
    gap: float = 0.0

    @property
    def name(self) -> str:
        """As in the paper, with the gap: ``S-EASGD-5``."""
        algorithm = self.subject.algorithm
        return algorithm if self.subject.is_reference else f"{self.pace}-{algorithm}-{self.gap:g}"


@dataclass(frozen=True)
class Trial:
    """One run."""

    arm: Arm
    choice: Choice
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """Its key on disk."""
        return {"arm": self.arm.name, **self.arm.subject.key, "seed": self.seed, "choice": self.choice}


class StudyDesign:
    """A study file, resolved and checked. SettingsError before anything runs if it makes no sense."""

    def __init__(self, path: Path, file: DesignFile) -> None:
        self.path, self.options, self.folder = path, file.study, Path(file.study.folder)
        shared = settings.read(path.parent / file.study.run_file) if file.study.run_file else {}
        self._shared = flat(shared) | flat(file.settings)
        require(bool(file.algorithms), "no [algorithms.NAME]: nothing to study")
        self._own = {name: flat(values) for name, values in file.algorithms.items()}
        for name in self._own:
            require(name not in REFERENCES, f"algorithms.{name}: is the name of a reference, choose another")
        require(not (file.study.sizes and file.references), "[references] are not run with sizes: leave them out")
        self._own |= dict.fromkeys(
            REFERENCES, {"sync.algorithm": "none", "topology.sync_ps": 0} | flat(file.references)
        )
        self.algorithms, self._flat = list(file.algorithms), dict[tuple[Any, ...], dict[str, Any]]()
        for subject in self.subjects:
            for choice in self.candidates(subject):
                self._check(subject, choice)

    @property
    def subjects(self) -> list[Subject]:
        """All subjects, references first."""
        if sizes := self.options.sizes:
            return [Subject(name, *size) for size in sizes for name in self.algorithms]
        return [Subject(name, n) for n in self.options.trainers for name in (*REFERENCES, *self.algorithms)]

    def arms(self, subject: Subject) -> list[Arm]:
        """All arms of a subject."""
        if subject.is_reference:
            return [Arm(subject)]
        return [Arm(subject, pace, gap) for gap in self.options.gaps for pace in self.options.paces]

    def candidates(self, subject: Subject) -> list[Choice]:
        """All combinations of the tuned settings."""
        axes = {name: value for name, value in self._own[subject.algorithm].items() if isinstance(value, list)}
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def tuning(self, subject: Subject) -> list[list[Trial]]:
        """The trials of each candidate, empty if there is only one: seeds cycle through paces and gaps."""
        arms, seeds, paces = self.arms(subject), self.options.tuning_seeds, self.options.paces
        if len(self.candidates(subject)) == 1:
            return []
        if not subject.is_reference:  # both advance with the seed: a diagonal of paces and gaps
            arms = [
                Arm(subject, paces[(k + shift) % len(paces)], gap)
                for shift in range(len(paces))
                for k, gap in enumerate(self.options.gaps)
            ]
        return [
            [Trial(arms[k % len(arms)], choice, seed) for k, seed in enumerate(seeds)]
            for choice in self.candidates(subject)
        ]

    def config(self, subject: Subject, choice: Choice) -> Config:
        """The settings of a subject's runs."""
        fixed = {name: value for name, value in self._own[subject.algorithm].items() if not isinstance(value, list)}
        values = self._shared | fixed | choice
        values["topology.trainers"] = 1 if subject.algorithm == ONE else subject.trainers
        if subject.threads:
            values["topology.threads"] = subject.threads
        values["evaluate.per_pass"] = 1
        config: Config = settings.build(Config, nested(values))
        examples = self.examples(subject, config)
        decay = round(examples * self.options.decay_share)
        if decay:
            schedule = replace(config.schedule, decay_start_examples=examples - decay, decay_examples=decay)
            config = replace(config, schedule=schedule)
        return config

    def examples(self, subject: Subject, config: Config) -> int:
        """The examples of a subject's runs: in a step every worker thread of every trainer takes a batch."""
        return self.steps(subject) * subject.trainers * config.topology.threads * config.data.batch_size

    def steps(self, subject: Subject) -> int:
        """The steps of every thread of a subject's trainers; those whose rows ONE takes have as many."""
        sizes, workers = self.options.sizes, subject.trainers * subject.threads
        return self.options.steps * math.prod(sizes[0]) // workers if sizes else self.options.steps

    def lockstep(self, arm: Arm, seed: int) -> Lockstep:
        """The lockstep settings of a run: one seed for everything."""
        subject = arm.subject
        steps = self.steps(subject) * (subject.trainers if subject.algorithm == ONE else 1)
        stale = round(arm.gap) if arm.pace == SHADOW else 0
        return Lockstep(arm.gap or 1.0, stale, seed, seed, seed, seed, steps=steps)

    def fingerprint(self, trial: Trial) -> str:
        """A fingerprint of all settings of a run, so that a run with other settings is not mistaken for it."""
        subject, arm = trial.arm.subject, trial.arm
        known = subject, repr(trial.choice)
        if known not in self._flat:
            self._flat[known] = self.config(subject, trial.choice).flat() | {"run.folder": ""}
        given = asdict(self.lockstep(arm, trial.seed))
        return hashlib.sha256(json.dumps([self._flat[known], given]).encode()).hexdigest()[:12]

    def _check(self, subject: Subject, choice: Choice) -> None:
        try:
            check_algorithm(self.config(subject, choice).sync)
        except SettingsError as error:
            raise SettingsError(f"{subject.algorithm}, {subject.size}: {error}") from None


def load(path: Path, overrides: Sequence[str] = ()) -> StudyDesign:
    """Read a study file; SettingsError names it."""
    file = settings.load(DesignFile, path, overrides, kind=NAME)
    try:
        return StudyDesign(path, file)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
