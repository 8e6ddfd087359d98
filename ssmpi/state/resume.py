"""``--resume``: one command starts a run, resumes it, or finds it finished, so a requeued job can repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssmpi.config import Config, differences, load
from ssmpi.data.position import Position
from ssmpi.data.schema import DatasetManifest
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.result_marker import damage, is_finished
from ssmpi.runtime.files.run_files import MODEL, PARENT, RESULT_NAME, RUN_FILE, is_run_folder
from ssmpi.runtime.mpi.world import Job
from ssmpi.state import continued, run_folder, run_lock
from ssmpi.state.checkpoint import model_files, store
from ssmpi.state.checkpoint.pending_save import check_room
from ssmpi.state.checkpoint.saved_network import check_fingerprint, fingerprint
from ssmpi.state.recovery import run_record
from ssmpi.state.recovery.run_record import RunRecord
from ssmpi.state.recovery.start import ResumePlan, Supervised
from ssmpi.state.request import RunRequest
from ssmpi.state.requirements import composed

WHOLE = "whole"  # in place of a checkpoint's name: the newest one that is undamaged


def prepare(request: RunRequest, ranks: int, held: ExitStack) -> ResumePlan:
    """Check all that can be checked before training; make the run folder, or find out what is in it.

    ``held`` then holds the run's lock: no other job writes to the run before ``held`` is closed.
    """
    config = request.load()
    run = config.run.path
    again, previous = False, ""
    if supervised := request.supervised:
        record, previous = RunRecord.read(run), run_record.owner(run)
        again = record.launch == supervised.launch and record.start >= supervised.first
    if again:  # the first start has handled the request already, and the files that it read may have changed
        request = replace(request, run_file=None, overrides=(), run=run, overwrite=False, checkpoint=WHOLE)
        config = request.load()
    if request.run and is_finished(run):
        return check_nothing_to_do(request, config)
    if request.run and is_run_folder(run):
        check_marker(run)
    run_lock.check_writable(run)
    reader = run_folder.check(config, ranks, request.overridden())
    config = composed(config, reader.manifest.features)
    begins, anew = not request.run or not is_run_folder(run), killed_before_its_record(request, run)
    parent = continued.parent_of(config, reader.manifest) if begins else None
    config = continued.with_room(config, parent.folder, Path(parent.run)) if parent else config
    rows = sum(config.placement(reader.manifest).cardinalities) * config.rows.row_bytes
    if not again:  # what is in memory must not be lost for a model that is not written yet
        check_room(run, rows, config.checkpoint.keep, overwrite=request.overwrite)
    if begins:
        if request.checkpoint not in (None, WHOLE):
            raise SettingsError(f"{run}: holds no run, so there is no {request.checkpoint}; leave --checkpoint out")
        run_folder.check_overwrite(run, request.overwrite or anew, request.run_file)
        hold(run, held, supervised)
        run_folder.make(run, config, request.overwrite or anew, request.run_file)
        if parent:
            parent.record(run)
        return ResumePlan(config, previous=previous, parent=parent)
    hold(run, held, supervised)
    if is_finished(run):  # by the job that held the lock
        return check_nothing_to_do(request, config)
    found = fitting_checkpoints(run, request.checkpoint, config, reader.manifest)
    left = None if request.checkpoint else run_record.left(run)
    ahead = again or (left is not None and (not supervised or left.launch == supervised.launch))
    begun, asked = bool(found or ahead), "run.continue_from" in request.overridden()
    parent = continued.resumed(run, config, reader.manifest, begun=begun, asked=asked)
    config = continued.with_room(config, found[0], run) if found and not ahead else config
    return ResumePlan(
        config, found, resumed=True, again=again, previous=run_record.owner(run), ahead=ahead,
        parent=None if found else parent,
    )  # fmt: skip


def fitting_checkpoints(run: Path, name: str | None, config: Config, manifest: DatasetManifest) -> tuple[Path, ...]:
    """The checkpoints to resume from, best first; SettingsError if the run has other settings than one of them."""
    found = usable_checkpoints(run, name)
    for path in found:
        saved = store.read_manifest(path).state
        check_fingerprint(path.name, saved, fingerprint(config.flat(), manifest), config.network)
        check_passes(path.name, saved, config)
    return tuple(found)


def killed_before_its_record(request: RunRequest, run: Path) -> bool:
    """Whether an earlier start of this launch has made the run folder, and was killed before ``recoveries.json`` named
    the launch.
    """
    restarted = request.supervised is not None and request.supervised.start > request.supervised.first
    return restarted and run_folder.is_unfinished(run, RUN_FILE, PARENT)


def hold(run: Path, held: ExitStack, supervised: Supervised | None) -> None:
    """Lock the run until ``held`` is closed; SettingsError if another job or another job's launcher holds it."""
    held.enter_context(run_lock.lock(run))
    if not supervised:
        run_lock.check_launch(run)


def check_passes(name: str, state: Mapping[str, Any], config: Config) -> None:
    """Raise SettingsError if the run is to end before the place of the checkpoint ``name`` with this ``state``."""
    begun = Position.of_state(state["position"]).passes(config.evaluate.per_pass)
    if config.data.passes < begun:
        raise SettingsError(
            f"data.passes is {config.data.passes}, checkpoint {name} was made in pass {begun}: set it to {begun} or "
            "more, or start a new run in another run.folder"
        )


def check_marker(run: Path) -> None:
    """Raise DataError if ``result.json`` is damaged: the run may be finished, and would be trained anew."""
    if problem := damage(run):
        raise DataError(
            f"{run / RESULT_NAME}: damaged: {problem}, so it is unknown how this run ended. Restore an intact"
            " copy, or remove the file: the run then resumes from its newest checkpoint, or starts over without one"
        )


def check_nothing_to_do(request: RunRequest, config: Config) -> ResumePlan:
    """The run is finished; SettingsError if the request differs from it, by settings or by a checkpoint."""
    assert request.run
    try:
        saved = load(request.run / RUN_FILE)
    except SettingsError as error:
        raise SettingsError(f"{request.run}: this run is finished, but its settings cannot be read: {error}") from None
    other = differences(saved, config)
    if request.checkpoint not in (None, WHOLE):
        other.append(f"--checkpoint {request.checkpoint} would resume from there")
    if other:
        raise SettingsError(
            f"{request.run}: this run is finished, and differs from the request: {'; '.join(other)}. Leave that out, "
            "or start a new run in another run.folder"
        )
    return ResumePlan(config, finished=True)


def check_model(job: Job, run: Path) -> None:
    """Read the model of a finished run, a share on every rank; if it is damaged all ranks end with one message."""

    def remedy() -> str:
        return f"This run is finished, and its model is damaged: {store.remedy_for_model(run)}"

    model_files.check(job, run / MODEL, remedy)


def usable_checkpoints(run: Path, name: str | None) -> list[Path]:
    """The checkpoints to resume from, best first; DataError if there are some, but none with a valid manifest."""
    there = store.Store(run).committed()
    found = there[::-1] if name == WHOLE else [store.Store(run).named(name)] if name else there[-1:]
    damaged = {path: error for path in found if (error := manifest_error(path))}
    if damaged and len(damaged) == len(found):
        path, error = next(iter(damaged.items()))
        raise DataError(f"{error}; {store.remedy_for_checkpoint(run, path, found)}")
    for path, error in damaged.items():
        log.warning(f"{path.name} cannot be used: {error}")
    return [path for path in found if path not in damaged]


def manifest_error(path: Path) -> str:
    """What is wrong with a checkpoint's manifest; empty if it is valid."""
    try:
        store.read_manifest(path)
    except DataError as error:
        return str(error)
    return ""
