"""Remedies for damaged checkpoints and models, for error messages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ssmpi.runtime.files.run_files import ASIDE, BEST, CHECKPOINTS, MODEL, RESULT_NAME
from ssmpi.state.checkpoint.store import Store, find_error

START_OVER = "launch the run file with --overwrite"


def for_damaged_checkpoint(run: Path, damaged: Path, tried: Collection[Path] = ()) -> str:
    """What to do if the checkpoint ``damaged`` cannot be used, and those ``tried`` before are damaged too: use another
    checkpoint or a kept model, or start over. Does not read the files of other checkpoints.
    """
    store = Store(run)
    others = [path.name for path in store.committed() if path != damaged and path not in tried]
    older = [name for name in others if name < damaged.name]
    if older:
        return f"an older one is used with --checkpoint {older[-1]}, the newest whole one with --checkpoint whole"
    if others:
        return f"there is no older one, but newer ones: leave out --checkpoint to use {others[-1]}"
    ways = [f"there is no other one: to start from the beginning, remove {run / CHECKPOINTS} and resume again, or "]
    ways[0] += START_OVER
    if aside := store.set_aside():
        before = aside[-1].name.removeprefix(ASIDE)
        ways += [f"{aside[-1]} was set aside when the run resumed from this one: rename it to {before} to use it"]
    if best := sorted((run / BEST).glob("after-*"), key=lambda path: path.stat().st_mtime):
        ways += [f"{best[-1]} is the best model so far: copy it to {run / MODEL} to score or export it"]
    return "; ".join(ways)


def for_damaged_model(run: Path) -> str:
    """What to do if the model of a finished run is damaged."""
    newest = Store(run).committed()[-1:]
    if not newest or find_error(newest[0], 0, 1):
        return f"put a whole copy in its place, or train again: {START_OVER}"
    return (
        f"put a whole copy in its place, or remove {run / RESULT_NAME} and resume again: the run then resumes from"
        f" {newest[0].name} and saves its model again"
    )
