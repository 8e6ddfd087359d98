"""Decisions by evaluations: which model to keep, and whether training ends early. ``[evaluate]`` has the rules.

With ``keep = "best"`` the best model so far is saved in ``best/after-EXAMPLES`` of the run folder and becomes ``model``
at the end. It is scored on the final split right away, so its rows never have to be reloaded.
"""

from __future__ import annotations

import math
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
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.model_files import move_into_place
from ssmpi.state.checkpoint.trainer_state import SELECTION

if TYPE_CHECKING:
    from ssmpi.runtime.run_options import EvaluateOptions
    from ssmpi.state.checkpoint.manager import CheckpointManager
    from ssmpi.state.checkpoint.trainer_state import Snapshot
    from ssmpi.trainer.evaluate import Evaluations
    from ssmpi.trainer.metrics.results import Scored

PATIENCE = "patience"  # why a run ended early, as ``result.json`` says it


@dataclass(frozen=True)
class SelectionState:
    """The result of the evaluations of ``split`` so far; part of a checkpoint's state, and the same on all trainers.
    ``reference`` is the NE of the last gain, ``kept_ne`` that of the best model saved, after ``kept`` examples.
    """

    split: str
    reference: float | None = None
    without_gain: int = 0
    kept_ne: float | None = None
    kept: int | None = None

    @classmethod
    def of_json(cls, state: Mapping[str, Any]) -> SelectionState:
        """From a checkpoint's; until 0.2.0 it had an ``auc`` besides."""
        return cls(**{name: value for name, value in state.items() if name != "auc"})

    def after(self, ne: float, min_gain: float) -> SelectionState:
        """The state after one more evaluation."""
        gain = not math.isnan(ne) and (self.reference is None or ne < self.reference - min_gain)
        return replace(
            self,
            reference=ne if gain else self.reference,
            without_gain=0 if gain else self.without_gain + 1,
        )

    def is_best(self, ne: float) -> bool:
        """Whether a model of this NE is better than the one that was saved."""
        return not math.isnan(ne) and (self.kept_ne is None or ne < self.kept_ne)

    def ended_by(self, options: EvaluateOptions) -> str:
        """Which rule ends training now; empty if none does."""
        return PATIENCE if options.patience and self.without_gain >= options.patience else ""


class ModelSelection:
    """One trainer's part. All trainers make the same decisions, by the first one's numbers. ``model(vector)`` is the
    model that ``checkpoints`` saves, gathered by all; ``state`` is the selection state in the checkpoint that this job
    resumes from.
    """

    def __init__(
        self,
        run: Path,
        evaluations: Evaluations,
        checkpoints: CheckpointManager,
        model: Callable[[np.ndarray], Snapshot],
        state: dict[str, Any] | None,
    ) -> None:
        self._run, self._evaluations, self._checkpoints, self._model_state = run, evaluations, checkpoints, model
        self._options = evaluations.options
        self.state = SelectionState.of_json(state) if state else SelectionState(self._options.split)
        if self.state.split != self._options.split:  # results on another split do not apply to this one
            self.state = SelectionState(self._options.split)
        self._folder = run / BEST
        self.scored_finally = False  # the final split, with the model as it is now
        self.model = "last"  # which one the run keeps

    @property
    def ended_by(self) -> str:
        """The rule that ends training here; empty while none does."""
        return self.state.ended_by(self._options)

    def consider(self, scored: Scored) -> None:
        """Every trainer calls it after an evaluation of ``evaluate.split``, while training is paused. If a stop arrives
        meanwhile, nothing changes.
        """
        evaluations, results = self._evaluations, self._evaluations.results
        examples = results.logbook.totals()["examples"] if results else 0.0
        numbers = np.array([scored.metrics["ne"], examples])
        evaluations.share(numbers, "trainer 0 (to evaluate)")
        ne, at = float(numbers[0]), int(numbers[1])
        best = self._options.keep == "best" and self.state.is_best(ne)
        also = best and self._options.final != self._options.split and evaluations.has(self._options.final)
        final = evaluations.score(self._options.final, scored.vector) if also else None
        if evaluations.stopped:
            return
        meanwhile = final.seconds if final else 0.0  # neither evaluation is training time
        evaluations.record(self._options.split, scored._replace(seconds=scored.seconds + meanwhile))
        self.scored_finally = also
        self.state = self.state.after(ne, self._options.min_gain)
        if best and self._save(scored.vector, at, ne):
            self.state = replace(self.state, kept_ne=ne, kept=at)
        if final:
            evaluations.record(self._options.final, final._replace(seconds=0.0), best=self.state.kept == at)
        if results and self.ended_by:
            evaluated = counted(self.state.without_gain, "evaluation")
            results.logbook.say(f"training ends after {at:,} examples: {evaluated} without gain (evaluate.patience)")

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
        ``evaluate.split`` selected; None to compare NE.
        """
        chosen = self._options.keep == "best" and self.state.kept is not None
        return False if chosen and split != self._options.split else None

    def close(self) -> None:
        """On the first trainer: the run is complete, remove the other models."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _save(self, vector: np.ndarray, at: int, ne: float) -> bool:
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
                results.logbook.say(f"best so far: {self._options.split} NE {ne:.5f}, saved in {clock.wall:.2f} s")
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
