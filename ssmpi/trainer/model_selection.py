"""Decisions by evaluations: which model to keep, whether the learning rates are cut, and whether training ends early.
``[evaluate]`` and the plateaus of ``[schedule]`` have the rules. Training goes on from the present model after a cut,
as in FuxiCTR and torch's ReduceLROnPlateau.

With ``keep = "best"`` the best model so far is saved in ``best/after-EXAMPLES`` of the run folder and becomes ``model``
at the end. It is scored on the final split right away, so its rows never have to be reloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import BEST, MODEL
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi.failure import cause
from ssmpi.runtime.quality import improves
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.model_files import move_into_place
from ssmpi.state.checkpoint.trainer_state import SELECTION
from ssmpi.trainer.metrics.results import ENDED_BY, PATIENCE, PLATEAU

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.model.options import Schedule
    from ssmpi.runtime.run_options import EvaluateOptions
    from ssmpi.state.checkpoint.manager import CheckpointManager
    from ssmpi.state.checkpoint.trainer_state import Snapshot
    from ssmpi.trainer.evaluate import Evaluations
    from ssmpi.trainer.metrics.results import Scored

RENAMED = {"kept_ne": "kept_value"}  # since earlier versions


@dataclass(frozen=True)
class SelectionState:
    """The result of the evaluations of ``split`` so far; part of a checkpoint's state, and the same on all trainers.
    ``reference`` is the ``metric`` of the last gain, ``kept_value`` that of the best model saved, after ``kept``
    examples; ``plateaus`` counts how often ``schedule.plateau_patience`` was exhausted.
    """

    split: str
    metric: str = "ne"
    reference: float | None = None
    without_gain: int = 0
    plateaus: int = 0
    kept_value: float | None = None
    kept: int | None = None

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> SelectionState:
        """From a checkpoint's; earlier ones had an ``auc`` besides, and called the kept value ``kept_ne``."""
        return cls(**{RENAMED.get(name, name): value for name, value in state.items() if name != "auc"})

    def after(self, value: float, min_gain: float, plateau_patience: int = 0) -> SelectionState:
        """The state after one more evaluation; without a patience there are no plateaus."""
        gain = improves(self.metric, value, self.reference, min_gain)
        without_gain = 0 if gain else self.without_gain + 1
        plateau = plateau_patience > 0 and not gain and without_gain % plateau_patience == 0
        return replace(
            self,
            reference=value if gain else self.reference,
            without_gain=without_gain,
            plateaus=self.plateaus + plateau,
        )

    def is_best(self, value: float) -> bool:
        """Whether a model of this value of the metric is better than the one that was saved."""
        return improves(self.metric, value, self.kept_value)

    def ended_by(self, options: EvaluateOptions, schedule: Schedule) -> str:
        """Which rule ends training now; empty if none does."""
        if options.patience and self.without_gain >= options.patience:
            return PATIENCE
        return PLATEAU if schedule.cuts and self.plateaus > schedule.plateau_cuts else ""


class ModelSelection:
    """One trainer's part. All trainers make the same decisions, by the first one's numbers. ``model(vector)`` is the
    model that ``checkpoints`` saves, gathered by all; ``state`` is the selection state in the checkpoint that this job
    resumes from.
    """

    def __init__(
        self,
        config: Config,
        evaluations: Evaluations,
        checkpoints: CheckpointManager,
        model: Callable[[np.ndarray], Snapshot],
        state: dict[str, Any] | None,
    ) -> None:
        self._config, self._evaluations, self._checkpoints, self._model_state = config, evaluations, checkpoints, model
        self._run, self._options = config.run.path, config.evaluate
        fresh = SelectionState(self._options.split, self._options.metric)
        self.state = SelectionState.of_json(state) if state else fresh
        if (self.state.split, self.state.metric) != (fresh.split, fresh.metric):  # other results do not apply to these
            self.state = replace(fresh, plateaus=self.state.plateaus)
        self._folder = self._run / BEST
        self.scored_finally = False  # the final split, with the model as it is now
        self.model = "last"  # which one the run keeps

    @property
    def ended_by(self) -> str:
        """The rule that ends training here; empty while none does."""
        return self.state.ended_by(self._options, self._config.schedule)

    @property
    def cut(self) -> float:
        """The factor of both learning rates because of plateaus."""
        return self._config.schedule.cut(self.state.plateaus)

    def consider(self, scored: Scored) -> None:
        """Every trainer calls it after an evaluation of ``evaluate.split``, while training is paused. If a stop arrives
        meanwhile, nothing changes.
        """
        evaluations, results = self._evaluations, self._evaluations.results
        examples = results.logbook.totals()["examples"] if results else 0.0
        numbers = np.array([scored.metrics[self._options.metric], examples])
        evaluations.share(numbers, "trainer 0 (to evaluate)")
        value, at = float(numbers[0]), int(numbers[1])
        best = self._options.keep == "best" and self.state.is_best(value)
        also = best and self._options.final != self._options.split and evaluations.has(self._options.final)
        final = evaluations.score(self._options.final, scored.vector) if also else None
        if evaluations.stopped:
            return
        meanwhile = final.seconds if final else 0.0  # neither evaluation is training time
        evaluations.record(self._options.split, scored._replace(seconds=scored.seconds + meanwhile))
        self.scored_finally = also
        schedule, before = self._config.schedule, self.cut
        self.state = self.state.after(value, self._options.min_gain, schedule.plateau_patience if schedule.cuts else 0)
        if best and self._save(scored.vector, at, value):
            self.state = replace(self.state, kept_value=value, kept=at)
        if final:
            evaluations.record(self._options.final, final._replace(seconds=0.0), best=self.state.kept == at)
        if results and (self.ended_by or self.cut < before):
            results.logbook.say(self._consequence(at))

    def _consequence(self, at: int) -> str:
        """What follows from evaluations without gain, the last one after ``at`` examples."""
        without = f"{counted(self.state.without_gain, 'evaluation')} without gain"
        if self.ended_by:
            return f"training ends after {at:,} examples: {without} ({ENDED_BY[self.ended_by]})"
        rates = {name: getattr(self._config, name).rate for name in ("dense", "embedding")}
        now = " and ".join(f"{name}.rate = {rate * self.cut:g}" for name, rate in rates.items())
        return f"learning rates cut after {at:,} examples: {without}, training goes on with {now}"

    def put_in_place(self) -> bool:
        """On the first trainer: make the best model the run's model; False, with a message, if there is none."""
        if self._options.keep != "best":
            return False
        kept, place = self.state.kept, self._run / MODEL
        if kept is not None and is_model_after(self._place(kept), kept):
            move_into_place(self._place(kept), place)
        elif kept is None or not is_model_after(place, kept):  # in place already after an interrupted evaluation
            found = "no evaluation had an NE" if kept is None else f"{self._place(kept)} is gone or damaged"
            log.error(f'error: the last model is kept, not the best (evaluate.keep = "best"): {found}')
            return False
        self.model = "best"
        return True

    def best_on(self, split: str) -> bool | None:
        """Whether the last model may become the best one on ``split``: False if that is the model that
        ``evaluate.split`` selected; None to compare them by the metric.
        """
        chosen = self._options.keep == "best" and self.state.kept is not None
        return False if chosen and split != self._options.split else None

    def close(self) -> None:
        """On the first trainer: the run is complete, remove the other models."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _save(self, vector: np.ndarray, at: int, value: float) -> bool:
        """Save the present model; returns whether that succeeded. A failure does not end the run."""
        results, saved, model = self._evaluations.results, np.zeros(1), self._model_state(vector)
        if results:
            clock = Clock()
            try:
                self._checkpoints.save_best(model, self._place(at))
            except (OSError, DataError) as error:
                log.error(f"error: the best model so far could not be saved, training continues: {cause(error)}")
            else:
                saved[0] = 1.0
                best = f"{self._options.split} {self._options.metric.upper()} {value:.5f}"
                results.logbook.say(f"best so far: {best}, saved in {clock.wall:.2f} s")
                self._retire(at)
            results.logbook.pause(clock.wall)
        self._evaluations.share(saved, "the first trainer (to save the best model)", self._checkpoints.wait_options())
        return bool(saved[0])

    def _retire(self, newest: int) -> None:
        """Remove all saved models but the newest and those that a run resumed from a checkpoint may need."""
        needed = {self._place(newest)}
        try:
            for checkpoint in store.Store(self._run).committed():
                kept = store.read_manifest(checkpoint).state.get(SELECTION, {}).get("kept")
                needed |= {self._place(kept)} if kept is not None else set()
            there = set(self._folder.iterdir())
        except (OSError, DataError) as error:
            log.warning(f"older best models stay in {self._folder}: {error}")
            return
        for folder in there - needed:
            shutil.rmtree(folder, ignore_errors=True)

    def _place(self, examples: int) -> Path:
        return self._folder / f"after-{examples}"


def is_model_after(folder: Path, examples: int) -> bool:
    """Whether a folder holds an intact model after that many examples."""
    try:
        return store.read_manifest(folder).state.get("examples") == examples
    except DataError:
        return False
