"""Every field of ``metrics.jsonl``: in which kinds of lines it is, and what it means. The documentation has
this table.
"""

from __future__ import annotations

TRAIN, EVALUATION, CHECKPOINT, ROW_SAVE = KINDS = ("train", "evaluation", "checkpoint", "row_save")
ALL, SCORED, SAVED = KINDS, (TRAIN, EVALUATION), (CHECKPOINT, ROW_SAVE)

FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "kind": (ALL, "`train` for a window of training, `evaluation`, `checkpoint`, or `row_save`"),
    "examples": (ALL, "examples of all trainers so far, earlier jobs of the run included"),
    "seconds": (ALL, "seconds of training so far, earlier jobs included; evaluations and saves are left out"),
    "eps": ((TRAIN,), "examples a second in this window, all trainers"),
    "log_loss": (
        SCORED,
        "mean log-loss in nats; of a window before each update, so of rows not yet trained on in this pass",
    ),
    "ne": (SCORED, "normalized entropy: log-loss over that of always predicting the mean label of these rows"),
    "auc": (SCORED, "area under the ROC curve, from 16,384 bins of the logit"),
    "auc_error": (SCORED, "bound of the error that the bins make in `auc`"),
    "accuracy": (SCORED, "share of rows whose score is on the right side of 0.5"),
    "calibration": (SCORED, "expected over counted clicks"),
    "sync_gap_trainer": ((TRAIN,), "iterations of a trainer between two rounds"),
    "sync_gap_thread": ((TRAIN,), "iterations of a worker thread between two rounds"),
    "round_seconds": ((TRAIN,), "seconds that a round takes"),
    "staleness": ((TRAIN,), "iterations of a trainer during a round"),
    "divergence": (
        (TRAIN,),
        "distance of a replica from the reference of its round, relative to that one's length, last seen",
    ),
    "split": ((EVALUATION,), "what was scored"),
    "weights": ((EVALUATION,), "`model`: the common model; `replica 0`: the first trainer's own (`evaluate.replica`)"),
    "rows": ((EVALUATION, ROW_SAVE), "rows scored, or saved"),
    "name": ((CHECKPOINT,), "folder of the checkpoint"),
    "O_save": ((CHECKPOINT,), "seconds that training stood still for it"),
    "write_seconds": (SAVED, "seconds from its start to its commit"),
    "bytes": (SAVED, "size of its files; of saved rows, what was written"),
    "position": (SAVED, "examples after which it was taken; `examples` is when it was committed, or heard of"),
    "error": (SAVED, "why it could not be saved; then only `O_save`, or `ps`, is there besides"),
    "ps": ((ROW_SAVE,), "the embedding PS that has saved rows by itself"),
    "covered": (
        (ROW_SAVE,),
        "share of what has happened since the last save that the saved rows have: accesses (`mfu`), sampled accesses"
        " (`ssu`), squared change (`scar`)",
    ),
}


def markdown() -> str:
    """The table for the documentation."""
    lines = [f"| `{name}` | {', '.join(kinds)} | {meaning} |" for name, (kinds, meaning) in FIELDS.items()]
    return "\n".join(["| field | in lines | meaning |", "|---|---|---|", *lines])
