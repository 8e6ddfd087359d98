"""``ssmpi inspect``: the contents of a run folder: the run's status, its checkpoints, and whether they are intact."""

from __future__ import annotations

from pathlib import Path

from ssmpi.embedding.table import KEYS
from ssmpi.runtime.errors import DataError, json_problem
from ssmpi.runtime.files import result_marker, run_files
from ssmpi.runtime.files.run_files import MODEL, PARENT, RESULT_NAME, ROWS, RUN_FILE, VERSIONS
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint import store
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.checkpoint.rows.records import read_rows
from ssmpi.trainer.metrics.fields import keys_of


def describe(run: Path, *, checksums: bool) -> tuple[str, bool]:
    """The text, and whether all is well. With ``checksums``, reads every byte of model and checkpoints."""
    run_files.check(run, RUN_FILE, VERSIONS)
    lines, damaged = [f"{run}: {run_status(run)}"], list[Path]()
    if problem := result_marker.damage(run):
        lines, damaged = [f"{run}: {RESULT_NAME}: DAMAGED: {problem}: how the run ended is not known"], [run]
    continued, known = parent_of(run)
    lines, damaged = [*lines, *continued], [*damaged, *([] if known else [run / PARENT])]
    finished, there = result_marker.is_finished(run), store.Store(run).committed()
    for path in [*there, *([run / MODEL] if finished or (run / MODEL).is_dir() else [])]:
        found = damage_in(path, checksums=checksums)
        lines += [f"{path.name}: {found or contents(path)}"]
        if found:
            damaged.append(path)
        else:
            lines[-1] += ", checksums ok" if checksums else ", checksums not read"
            lines += _keys(path)
    lines += [
        f"{path.name}: does not count: newer than the checkpoint that the run resumed from"
        for path in store.Store(run).set_aside()
    ]
    for path in sorted((run / ROWS).glob("*.rows")):
        found, whole = rows_in(path) if checksums else ("checksums not read", True)
        damaged += [] if whole else [path]
        lines.append(f"{path.name}: {found}")
    if finished and run / MODEL in damaged:
        lines.append(f"what to do about {MODEL}: {store.remedy_for_model(run)}")
    if not finished and there and there[-1] in damaged:
        lines.append(f"what to do about {there[-1].name}: {store.remedy_for_checkpoint(run, there[-1])}")
    if not there and not problem:
        coming = "the run is finished" if finished else "--resume starts from the beginning"
        lines.append(f"no checkpoint: {coming}")
    return "\n".join(lines), not damaged


def rows_in(path: Path) -> tuple[str, bool]:
    """One line about an embedding PS's row saves, and whether they can be read."""
    try:
        found = read_rows(path)
    except DataError as error:
        return f"DAMAGED: {error}", False
    if found is None:
        return "gone", True
    saved, dropped = found
    base, increments, newest = saved.base.header, len(saved.records) - 1, saved.records[-1].header.samples
    torn = f"; {dropped:,} bytes at its end are an incomplete record" if dropped else ""
    text = f"{base.count:,} rows, all saved after {base.samples:,} samples, {increments:,} increments up to {newest:,}"
    return f"{text}, checksums ok{torn}", True


def run_status(run: Path) -> str:
    """How the run ended, according to its result marker."""
    try:
        result = result_marker.read(run)
        return f"{result['status']}, {result['examples']:,.0f} of {result['expected_examples']:,} examples"
    except (KeyError, TypeError, ValueError):
        return "complete" if result_marker.is_finished(run) else "not ended: running, or killed"


def damage_in(path: Path, *, checksums: bool) -> str:
    """What is wrong with a checkpoint or a model; empty if nothing is."""
    try:
        if checksums:
            store.check(path)
        contents(path)
        _keys(path)
    except DataError as error:
        return f"DAMAGED: {error}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"DAMAGED: {path / store.MANIFEST_NAME}: its state: {json_problem(error)}"
    return ""


def contents(path: Path) -> str:
    """One line about an undamaged checkpoint or model."""
    manifest = store.read_manifest(path)
    state = manifest.state
    size = f"{counted(len(manifest.files), 'file')}, {manifest.bytes / 1e6:,.1f} MB"
    if "topology" not in state:
        return f"after {state['examples']:,} examples, {size}"
    done, ranks = state["examples"] / max(state["expected_examples"], 1), state["topology"]
    servers = f"{counted(ranks['embedding_ps'], 'embedding PS')}, {counted(ranks['sync_ps'], 'sync PS')}"
    groups = f" in groups of {ranks['group']}" if ranks.get("group", 1) > 1 else ""
    made_by = f"{ranks['trainers']} x {counted(ranks['threads'], 'thread')}{groups}, {servers}"
    a_pass = state["position"]["part"] // state["identity"]["evaluate.per_pass"] + 1
    last = {split: kept["last"]["ne"] for split, kept in state["evaluations"].items()}
    scores = "".join(f", {split} NE {'not known' if ne is None else f'{ne:.5f}'}" for split, ne in last.items())
    return (
        f"after {state['examples']:,} examples ({done:.1%}, pass {a_pass}){scores}, {size}, by {made_by} "
        f"({state['algorithm']}), seed {state['identity']['run.seed']}"
    )


def _keys(path: Path) -> list[str]:
    """What the dynamic tables of an undamaged checkpoint or model hold, a line for each feature."""
    return [
        f"  {keys_of(feature, counts)}" for feature, counts in store.read_manifest(path).state.get(KEYS, {}).items()
    ]


def parent_of(run: Path) -> tuple[list[str], bool]:
    """The run that this one continues, if it continues one, and whether its record can be read."""
    try:
        parent = Parent.recorded(run)
    except DataError as error:
        return [f"{PARENT}: DAMAGED: {error}"], False
    return [f"continues {parent} (SHA-256 {parent.model[:12]}...)"] if parent else [], True
