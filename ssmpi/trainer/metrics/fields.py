"""Every field of ``metrics.jsonl``: the kinds of lines that have it and its meaning, also as a table for the
documentation. Then metrics in words, and the progress bar. ``metric_logger`` writes the lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from ssmpi.runtime.files.log import shape, terminal
from ssmpi.runtime.words import counted

KINDS = ("train", "evaluation", "checkpoint", "row_save", "recovery", "keys")
TRAIN, EVALUATION, CHECKPOINT, ROW_SAVE, RECOVERY, KEYS = KINDS
EPS_BY_TRAINER, STEPS_BY_TRAINER = "eps_by_trainer", "steps_by_trainer"
ALL, SCORED, SAVED = KINDS, (TRAIN, EVALUATION), (CHECKPOINT, ROW_SAVE)

FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "kind": (ALL, "`train` for a window of training, `evaluation`, `checkpoint`, `row_save`, `recovery`, or `keys`"),
    "examples": (ALL, "examples of all trainers so far, earlier jobs of the run included"),
    "seconds": (ALL, "seconds of training so far, earlier jobs included, evaluations and saves excluded"),
    "eps": ((TRAIN,), "examples per second in this window, all trainers, pauses between parts excluded"),
    EPS_BY_TRAINER: ((TRAIN,), "the same for each trainer, a list"),
    STEPS_BY_TRAINER: ((TRAIN,), "iterations per second of each trainer in this window, a list"),
    "rate_factor": ((TRAIN,), "factor of both learning rates at the end of this window, with a `[schedule]`"),
    "log_loss": (
        SCORED,
        "mean log-loss in nats; for a window, before each update: of rows not yet trained on in this pass",
    ),
    "ne": (SCORED, "normalized entropy: log-loss over that of always predicting the mean label of these rows"),
    "auc": (SCORED, "area under the ROC curve, from 16,384 bins of the logit"),
    "auc_error": (SCORED, "bound on the error of `auc` due to the bins"),
    "accuracy": (SCORED, "share of rows whose score is on the right side of 0.5"),
    "calibration": (SCORED, "predicted over actual clicks"),
    "gauc": (
        (EVALUATION,),
        "AUC within a group's rows, averaged over groups by their rows, if the schema of the data names a `group`",
    ),
    "gauc_share": (
        (EVALUATION,),
        "share of the rows in `gauc`; the others have a missing or rare group, or one label only in their group",
    ),
    "sync_gap_trainer": ((TRAIN,), "iterations of a replica between two rounds"),
    "sync_gap_thread": ((TRAIN,), "iterations of a worker thread between two rounds"),
    "round_seconds": ((TRAIN,), "seconds per round"),
    "staleness": ((TRAIN,), "iterations of a replica during a round"),
    "divergence": (
        (TRAIN,),
        "last measured distance of a replica from the reference of its round, relative to the reference's norm",
    ),
    **{
        f"bytes_{link}": ((TRAIN,), f"payload bytes in this window, all trainers: {meaning}")
        for link, meaning in {
            "embedding_pull": "pulls: row numbers to embedding PSs, rows back",
            "embedding_push": "pushes: row gradients to embedding PSs",
            "center_push": "snapshots or gradients to sync PSs",
            "center_pull": "their answers",
            "trainers": "among trainers; an all-reduce of n counts 2 (n - 1) / n of its vector on each",
            "control": "blocks of rows assigned, reports, drains",
            "group": "among the members of groups, by MPI",
        }.items()
    },
    "rows_in_place": ((TRAIN,), "rows read or updated in this host's memory in this window, without messages"),
    "entries_group": (
        (TRAIN,),
        "numbers sent over edges of groups in this window, by MPI: `jobs/guide/groups.md`",
    ),
    "density": (
        (TRAIN,),
        "share of the entries sent by pushes in this window, if `sync.codec` is not `dense`",
    ),
    "split": (
        (EVALUATION,),
        "what was scored; `progressive`: a part of the data before training on it (`evaluate.progressive`)",
    ),
    "weights": ((EVALUATION,), "always `model`"),
    "rows": ((EVALUATION, ROW_SAVE, KEYS), "rows scored; rows saved; rows available to keys of the feature"),
    "feature": ((KEYS,), "feature of the dynamic table; each has a line at every pause of training"),
    "keys": ((KEYS,), "keys with rows after the pause"),
    "admitted": ((KEYS,), "keys that got rows so far"),
    "expired": ((KEYS,), "keys that lost their rows because they were not looked up for long"),
    "evicted": ((KEYS,), "keys that lost their rows because the table was full"),
    "refused": ((KEYS,), "how often so far a new key got no row because the table was full"),
    "room": ((KEYS,), "keys that fit into the memory so far, which grows in steps up to `rows`"),
    "name": ((CHECKPOINT,), "folder of the checkpoint"),
    "O_save": ((CHECKPOINT,), "seconds that training was paused for it"),
    "write_seconds": (SAVED, "seconds from its start to its commit"),
    "bytes": (SAVED, "size of its files; for saved rows, bytes written"),
    "position": (SAVED, "examples when it was taken; `examples` is when it was committed or reported"),
    "error": (SAVED, "why it could not be saved; such a line otherwise has only seconds of training, or `ps`"),
    "ps": ((ROW_SAVE,), "the embedding PS that saved rows"),
    "covered": (
        (ROW_SAVE,),
        "share of the changes since the last save covered by the saved rows: accesses (`mfu`), sampled accesses"
        " (`ssu`), squared change (`scar`)",
    ),
    "start": ((RECOVERY,), "the number of the start, within its launch"),
    "at": ((RECOVERY,), "time of the decision, in UTC"),
    "why": ((RECOVERY,), "why the previous start ended, as logged by a rank; may be empty"),
    "how": (
        (RECOVERY,),
        "how the run resumed: from `memory`, `partial`, from a checkpoint (its name) or from the `beginning`",
    ),
    "lost": ((RECOVERY,), "ranks whose memory was lost, and why; empty if none"),
    "batches_repeated": ((RECOVERY,), "batches in flight at the kill, which are repeated"),
    "pushes_lost": ((RECOVERY,), "row gradients sent by message that no embedding PS has applied"),
    "center_pushes_lost": ((RECOVERY,), "pushes of dense gradients that no sync PS has applied (`async_ps`)"),
    "rows_reloaded": (
        (RECOVERY,),
        "embedding rows reloaded; this field and those up to `pls` exist only for `partial`",
    ),
    "sources": ((RECOVERY,), "the source of each lost embedding PS's rows"),
    "samples_lost": ((RECOVERY,), "samples missing from those rows, summed over the lost embedding PSs"),
    "updates_lost": (
        (RECOVERY,),
        "lookups whose updates those rows lack, for each row since its own save; null with `ssu` and `scar`, which do"
        " not count all lookups",
    ),
    "rows_dealt_again": ((RECOVERY,), "rows assigned to lost trainers and assigned again, whether trained on or not"),
    "accounts_lost": ((RECOVERY,), "threads of lost trainers whose gradients were not all pushed (`async_ps`)"),
    "pls": ((RECOVERY,), "portion of lost samples so far"),
    "seconds_ranks": ((RECOVERY,), "from the end of the previous start to the decision"),
    "seconds_process": ((RECOVERY,), "of these, since the first rank's process started"),
    "seconds_load": ((RECOVERY,), "for loading rows"),
    "seconds_restore": ((RECOVERY,), "from the decision to training"),
}


def markdown() -> str:
    """The table for the documentation."""
    lines = [f"| `{name}` | {', '.join(kinds)} | {meaning} |" for name, (kinds, meaning) in FIELDS.items()]
    return "\n".join(["| field | in lines | meaning |", "|---|---|---|", *lines])


def bar(rows: int, earlier: int) -> Any:
    """A progress bar over ``rows`` examples, of which ``earlier`` were trained on before this job and do not count in
    its rate; disabled without a terminal.
    """
    there = terminal()
    if there is None:
        return tqdm(total=rows, initial=earlier, disable=True)
    columns, lines = shape(there)
    found = tqdm(total=rows, initial=earlier, unit="ex", unit_scale=True, ncols=columns, nrows=lines, file=there)
    found.dynamic_ncols = shape  # asked before each drawing; tqdm's own takes 0 rows for no room
    return found


def keys_of(feature: str, counts: Mapping[str, int]) -> str:
    """What the dynamic table of a feature holds, in one line."""
    refused = f", {counts['refused']:,} lookups refused" if counts["refused"] else ""
    room = f" (memory for {counts['room']:,})" if "room" in counts else ""  # older ones had it all
    return (
        f"{feature}: {counts['keys']:,} of at most {counts['rows']:,} keys{room}: {counts['admitted']:,} admitted,"
        f" {counts['expired']:,} expired, {counts['evicted']:,} evicted{refused}"
    )


def describe(metrics: dict[str, float]) -> str:
    """Metrics in one line."""
    by_group = f", GAUC {metrics['gauc']:.5f} (of {metrics['gauc_share']:.1%} of the rows)" if "gauc" in metrics else ""
    why = f"; {reason}" if (reason := why_undefined(metrics)) else ""
    return (
        f"NE {metrics['ne']:.5f}, log-loss {metrics['log_loss']:.5f}, AUC {metrics['auc']:.5f}"
        f" (+-{metrics['auc_error']:.1e}), accuracy {metrics['accuracy']:.4f}, calibration"
        f" {metrics['calibration']:.4f}, {counted(int(metrics['rows']), 'row')}{by_group}{why}"
    )


def why_undefined(metrics: Mapping[str, float | None]) -> str:
    """Why NE and AUC are not numbers, NaN or in a file null, although the log-loss is one; else empty."""
    log_loss, ne = metrics.get("log_loss"), metrics.get("ne")
    if log_loss is None or math.isnan(log_loss) or not (ne is None or math.isnan(ne)):
        return ""
    return "all labels of these rows are equal, so NE and AUC are not defined: score rows with both labels"
