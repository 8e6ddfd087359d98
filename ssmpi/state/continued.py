"""``run.continue_from``: whether a finished run can be continued by this one, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ssmpi.config import Config, load
from ssmpi.data.schema import DatasetManifest
from ssmpi.embedding.table import KEYS
from ssmpi.model.optimizers import optimizer_of
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files import result_marker, run_files
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import MODEL, OPTIMIZER, RUN_FILE
from ssmpi.state.checkpoint import saved_network, saved_tables, store
from ssmpi.state.checkpoint.data_origin import KEY, DataOrigin
from ssmpi.state.checkpoint.parent import Parent

OPTIMIZERS = "dense.optimizer", "embedding.optimizer"
FRESH = "run.fresh_optimizer = true starts the optimizers anew"


def parent_of(config: Config, manifest: DatasetManifest) -> Parent | None:
    """The run that one with ``config``, which has its network, continues on the data of this ``manifest``; None if it
    continues none. UserError if it cannot be continued.
    """
    if not config.run.continue_from:
        return None
    run = Path(config.run.continue_from)
    check_finished(run, config.run.path)
    state = store.read_manifest(run / MODEL).state
    check_settings(run, config)
    if KEY not in state:
        raise DataError(f"{run / MODEL}: an older version saved it, without a record of its data: train it again")
    origin = DataOrigin.of_model(run / MODEL, "")
    origin.check_extended(Path(config.data.folder), manifest)
    saved_network.announce_code(state.get(saved_network.KEY) or {}, run / MODEL)
    if why := saved_network.difference(state, config.network):
        raise SettingsError(
            f"run.continue_from = '{run}': its network is another one than model.name = '{config.model.name}' gives:"
            f" {why}. Set [model] as it was there, or train without continue_from"
        )
    check_optimizer(run, config)
    kept = check_keys(run, state.get(KEYS, {}), with_room(config, run / MODEL, run))
    parent, new = Parent.of(run), sum(manifest.cardinalities) - sum(origin.cardinalities)
    keys = f", {kept:,} keys keep their rows" if kept else ""
    log.info(
        f"continuing from {parent}, {'without' if config.run.fresh_optimizer else 'with'} the state of its optimizers;"
        f" {new:,} of {sum(manifest.cardinalities):,} rows are new{keys}; passes and the schedule of learning rates are"
        " this run's own and begin at 0 examples"
    )
    return parent


def with_room(config: Config, model: Path, run: Path) -> Config:
    """``config``, which has its network, with room for all keys that ``run`` has saved in the folder ``model``."""
    return saved_tables.with_room(config, model, load(run / RUN_FILE, to_train=False)).with_network(config.network)


def resumed(run: Path, config: Config, manifest: DatasetManifest, *, begun: bool, asked: bool) -> Parent | None:
    """The parent of the run in the folder ``run``, which is resumed; None if it continues none. The parent itself is
    looked at only until training has ``begun``: then there may be a checkpoint, or memory. SettingsError for another
    one, which the command line may have ``asked`` for.
    """
    recorded = Parent.recorded(run)
    if not begun:
        found = parent_of(config, manifest)
        if found and not recorded:
            found.record(run)
            return found
    elif asked and config.run.continue_from:
        check_finished(Path(config.run.continue_from), run)
        found = Parent.of(Path(config.run.continue_from))
    else:
        return recorded
    if found != recorded:
        began = f"from {recorded} (SHA-256 {recorded.model[:12]}...)" if recorded else "from no other run's model"
        raise SettingsError(
            f"run.continue_from = '{config.run.continue_from}': the run in {run} began {began}: set it back, or start a"
            " new run in another run.folder"
        )
    return recorded


def check_finished(run: Path, here: Path) -> None:
    """Raise UserError unless ``run`` is a finished run, and another one than that in the folder ``here``."""
    run_files.check(run, RUN_FILE)
    if run.resolve() == here.resolve():
        raise SettingsError(f"run.continue_from = '{run}': is run.folder itself: choose another run.folder")
    if result_marker.is_finished(run):
        return
    if problem := result_marker.damage(run):
        raise DataError(f"{run / run_files.RESULT_NAME}: damaged: {problem}: restore an intact copy")
    raise SettingsError(
        f"run.continue_from = '{run}': this run is not finished ({result_marker.status(run) or 'no result.json'}):"
        f" finish it first ('ssmpi launch --resume {run}'), or name another one"
    )


def check_settings(run: Path, config: Config) -> None:
    """Raise SettingsError if rows or optimizer state of ``run`` would not fit this run."""
    before, now = load(run / RUN_FILE, to_train=False).flat(), config.flat()
    remedies = {"embedding.dim": "set it back", **dict.fromkeys(OPTIMIZERS, f"set it back, or {FRESH}")}
    for name, remedy in remedies.items():
        if before[name] != now[name] and not (config.run.fresh_optimizer and name in OPTIMIZERS):
            raise SettingsError(f"{name} is {now[name]!r}, {run} was trained with {before[name]!r}: {remedy}")


def check_keys(run: Path, there: Mapping[str, Mapping[str, int]], config: Config) -> int:
    """How many keys the dynamic tables of ``run`` have, whose counts are ``there`` by feature; SettingsError if they
    would find no room.
    """
    options = config.embedding.dynamic
    for feature, counts in there.items():
        room, own = options.of(feature).keys, options.features.get(feature)
        if counts["keys"] > room:
            setting = f"embedding.dynamic.features.{feature}.keys" if own and own.keys else "embedding.dynamic.keys"
            raise SettingsError(
                f"{setting} = {room:,}: {run} has {counts['keys']:,} keys of {feature}: set it to that or more"
            )
    return sum(counts["keys"] for counts in there.values())


def check_optimizer(run: Path, config: Config) -> None:
    """Raise DataError if the model has no dense optimizer state, and this run needs some."""
    names = [entry.file for entry in store.read_manifest(run / MODEL).files]
    if OPTIMIZER not in names and optimizer_of(config.dense).vectors and not config.run.fresh_optimizer:
        raise DataError(
            f"{run / MODEL}: no {OPTIMIZER} in it: an older version saved it, without the state of its dense optimizer:"
            f" {FRESH}"
        )
