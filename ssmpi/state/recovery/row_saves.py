"""When embedding PSs save rows for partial recovery, and the inputs of that decision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.data.schema import read_manifest
from ssmpi.runtime.files.log import log
from ssmpi.state.checkpoint.rows.saver import SaveSchedule
from ssmpi.state.recovery.decision import PARTIAL
from ssmpi.state.recovery.policy import LEAST_INTERVAL, RecoveryInputs, between_checkpoints, inputs_of

if TYPE_CHECKING:
    from ssmpi.config import Config


def expected_examples(config: Config) -> int:
    """The examples of the whole run."""
    return read_manifest(Path(config.data.folder)).split(config.data.train_split).rows * config.data.passes


def inputs_of_run(config: Config, most_rows: int, options: Mapping[str, float]) -> RecoveryInputs:
    """The inputs of a run whose largest embedding PS has ``most_rows``; ``options`` override its settings."""
    recovery = config.recovery
    settings = {"target_pls": recovery.target_pls}
    if recovery.mtbf_hours:
        settings["mtbf_seconds"] = recovery.mtbf_hours
    size, background = most_rows * config.rows.row_bytes, config.checkpoint.background
    return inputs_of(config.topology.embedding_ps, {**settings, **options}, size, background=background)


def schedule_of(config: Config, most_rows: int, fraction: float, earlier: float) -> SaveSchedule:
    """When a PS saves this ``fraction`` of its rows: every T_save of CPR, 2 PLS N T_fail, and after so many samples
    that a single loss could cost the target PLS. With ``recovery.mode = "auto"`` never, if that does not pay. The
    largest PS has ``most_rows``; ``earlier`` is what a save of all rows took in seconds, 0 before the first one.
    """
    inputs = inputs_of_run(config, most_rows, {"row_save_seconds": earlier} if earlier else {})
    examples, share = expected_examples(config), inputs.target_pls * inputs.servers
    checkpoints = config.checkpoint.seconds_between(examples / inputs.total_seconds)
    saving = between_checkpoints(inputs, checkpoints)
    saved = config.recovery.mode == PARTIAL or saving.pays
    log.debug(
        f"rows are saved {'beside checkpoints' if saved else 'in checkpoints alone'} (recovery.mode ="
        f" '{config.recovery.mode}'): saves of {inputs.row_save_seconds:.3g} s every {saving.interval:,.0f} s take"
        f" {saving.saving:.3%} of the job, training again after losses would take {saving.again:.3%}; see 'ssmpi plan"
        " --recovery'"
    )
    if not saved:
        return SaveSchedule(fraction, math.inf)
    return SaveSchedule(fraction, 2 * share * inputs.mtbf_seconds, LEAST_INTERVAL, share * examples)
