"""Every field of ``metrics.jsonl``: in which kinds of lines it is, and what it means, which the documentation has as a
table; and metrics in words, with a progress bar. ``metric_logger`` writes them; what a trainer measures comes to it as
a ``trainer_report``.
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
    "seconds": (ALL, "seconds of training so far, earlier jobs included; evaluations and saves are left out"),
    "eps": ((TRAIN,), "examples a second in this window, all trainers; pauses between parts are left out"),
    EPS_BY_TRAINER: ((TRAIN,), "the same of each trainer, a list"),
    STEPS_BY_TRAINER: ((TRAIN,), "iterations a second of each trainer in this window, a list"),
    "log_loss": (
        SCORED,
        "mean log-loss in nats; of a window before each update, so of rows not yet trained on in this pass",
    ),
    "ne": (SCORED, "normalized entropy: log-loss over that of always predicting the mean label of these rows"),
    "auc": (SCORED, "area under the ROC curve, from 16,384 bins of the logit"),
    "auc_error": (SCORED, "bound of the error that the bins make in `auc`"),
    "accuracy": (SCORED, "share of rows whose score is on the right side of 0.5"),
    "calibration": (SCORED, "predicted over actual clicks"),
    "gauc": (
        (EVALUATION,),
        "AUC within a group's rows, averaged over groups by their rows, if the schema of the data names a `group`",
    ),
    "gauc_share": (
        (EVALUATION,),
        "share of the rows that `gauc` is over: others have no group or a rare one, or their group has one label only",
    ),
    "sync_gap_trainer": ((TRAIN,), "iterations of a replica between two rounds"),
    "sync_gap_thread": ((TRAIN,), "iterations of a worker thread between two rounds"),
    "round_seconds": ((TRAIN,), "seconds per round"),
    "staleness": ((TRAIN,), "iterations of a replica during a round"),
    "divergence": (
        (TRAIN,),
        "distance of a replica from the reference of its round, relative to the reference's norm, last measured",
    ),
    **{
        f"bytes_{link}": ((TRAIN,), f"payload bytes in this window, all trainers: {meaning}")
        for link, meaning in {
            "embedding_pull": "pulls: row numbers to embedding PSs, rows back",
            "embedding_push": "pushes: row gradients to embedding PSs",
            "center_push": "snapshots or gradients to sync PSs",
            "center_pull": "what they return",
            "trainers": "among trainers; an all-reduce of n counts 2 (n - 1) / n of its vector on each",
            "control": "row blocks dealt, reports, drains",
            "group": "among the members of groups, by MPI",
        }.items()
    },
    "rows_in_place": ((TRAIN,), "rows read or updated in memory of this host in this window, without messages"),
    "entries_group": (
        (TRAIN,),
        "numbers that the edges of groups carried in this window, by MPI: `jobs/guide/groups.md`",
    ),
    "density": (
        (TRAIN,),
        "share of the entries that pushes sent in this window, if `sync.codec` is not `dense`",
    ),
    "split": (
        (EVALUATION,),
        "what was scored; `progressive`: a part of the data before training on it (`evaluate.progressive`)",
    ),
    "weights": ((EVALUATION,), "always `model`"),
    "rows": ((EVALUATION, ROW_SAVE, KEYS), "rows scored, or saved, or that there are for keys of the feature"),
    "feature": ((KEYS,), "whose dynamic table it is; there is a line for each at every pause of training"),
    "keys": ((KEYS,), "keys that have rows after the pause"),
    "admitted": ((KEYS,), "keys that were given rows so far"),
    "expired": ((KEYS,), "those of them that lost their rows because they were not looked up for long"),
    "evicted": ((KEYS,), "those that lost them because the table was full"),
    "refused": ((KEYS,), "how often a new key got no row so far, because the table was full"),
    "room": ((KEYS,), "keys that there is memory for so far: it comes in steps up to `rows`"),
    "name": ((CHECKPOINT,), "folder of the checkpoint"),
    "O_save": ((CHECKPOINT,), "seconds that training was paused for it"),
    "write_seconds": (SAVED, "seconds from its start to its commit"),
    "bytes": (SAVED, "size of its files; of saved rows, what was written"),
    "position": (SAVED, "examples after which it was taken; `examples` is when it was committed, or reported"),
    "error": (SAVED, "why it could not be saved; the line then has only seconds of training, or `ps`, besides"),
    "ps": ((ROW_SAVE,), "the embedding PS that saved rows"),
    "covered": (
        (ROW_SAVE,),
        "share of the changes since the last save that the saved rows cover: accesses (`mfu`), sampled accesses"
        " (`ssu`), squared change (`scar`)",
    ),
    "start": ((RECOVERY,), "the number of the start, within its launch"),
    "at": ((RECOVERY,), "time of the decision, in UTC"),
    "why": ((RECOVERY,), "why the previous start ended, as logged by a rank; may be empty"),
    "how": (
        (RECOVERY,),
        "how the run resumed: from `memory`, `partial`, from a checkpoint (its name) or from the `beginning`",
    ),
    "lost": ((RECOVERY,), "whose memory was lost, and why; empty if nobody's"),
    "batches_repeated": ((RECOVERY,), "batches in flight, which are repeated"),
    "pushes_lost": ((RECOVERY,), "row gradients sent by message that no embedding PS has applied"),
    "center_pushes_lost": ((RECOVERY,), "pushes of dense gradients that no sync PS has applied (`async_ps`)"),
    "rows_reloaded": (
        (RECOVERY,),
        "embedding rows reloaded; this and the next fields up to `pls` only for `partial`",
    ),
    "sources": ((RECOVERY,), "the source of each lost embedding PS's rows"),
    "samples_lost": ((RECOVERY,), "samples that those rows miss, summed over the lost embedding PSs"),
    "updates_lost": (
        (RECOVERY,),
        "lookups of examples whose updates those rows miss, each row's since its own save; null where `ssu` or `scar`"
        " saves: they do not count all",
    ),
    "rows_dealt_again": ((RECOVERY,), "rows assigned to lost trainers, which are repeated, trained on or not"),
    "accounts_lost": ((RECOVERY,), "threads of lost trainers whose gradients were not all pushed (`async_ps`)"),
    "pls": ((RECOVERY,), "portion of lost samples so far"),
    "seconds_ranks": ((RECOVERY,), "from the end of the previous start to the decision"),
    "seconds_process": ((RECOVERY,), "of these, since the process of the first rank was started"),
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
