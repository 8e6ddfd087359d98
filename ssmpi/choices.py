"""Settings chosen for the network, the optimizers, the ranks and the data of a run, where it does not set them. The
resolved run file has them, so a run that is resumed keeps them. ``jobs/studies/DEFAULTS.md`` says how they were found.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ssmpi.data.schema import DatasetManifest
from ssmpi.model.optimizers import DENSE_OPTIMIZERS
from ssmpi.runtime.settings import COUNT

WITH_FACTORIZATION_MACHINE = ("deepfm",)
ROW_BOUND, RATE_TIMES_FIELDS = 0.03, 2.0  # for these: of initial values; the most that the product may be
ADAMS, ADAM_RATE = ("adam", "adamw", "partial_rowwise_adam"), 0.001
WARMUP_STEPS = 100  # of each thread
EXAMPLES, MOST_PASSES = 400_000, 5  # of a run that has few rows
DECIDED_BY_USER = {"data.passes", "evaluate.split", "evaluate.keep", "evaluate.patience", "evaluate.progressive"}
CHOSEN = (
    "embedding.initial_bound", "embedding.rate", "dense.rate", "schedule.warmup_examples", "data.passes",
    "schedule.decay_start_examples", "schedule.decay_examples", "schedule.power", "evaluate.keep",
)  # fmt: skip


class Choice(NamedTuple):
    """The ``value`` chosen for the setting ``name``, and why."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r}".replace("'", '"') + f": {self.reason}"


def choose(values: Mapping[str, Any], given: Collection[str], manifest: DatasetManifest | None) -> list[Choice]:
    """What is chosen for settings that are not ``given``. ``values`` are all settings by name; the ``manifest`` is that
    of the data, None if there is none yet. In an order in which they can be set one by one.
    """
    found = [*_factorization_machine(values, manifest), *_adam(values)]
    if not any(name.startswith("schedule.") for name in given) and not values["run.continue_from"]:
        found += _schedule(values, given, manifest)
    return [choice for choice in found if choice.name not in given]


def _factorization_machine(values: Mapping[str, Any], manifest: DatasetManifest | None) -> Iterator[Choice]:
    """For a network with a factorization machine, whose sum has a product of every pair of fields."""
    if values["model.name"] not in WITH_FACTORIZATION_MACHINE:
        return
    fields = len(manifest.features.dense) + len(manifest.features.sparse) if manifest else 0
    why = f"{values['model.name']} adds up the products of all pairs of {fields or 'the'} fields"
    yield Choice("embedding.initial_bound", ROW_BOUND, why)
    if fields * values["embedding.rate"] > RATE_TIMES_FIELDS and values["embedding.optimizer"] not in ADAMS:
        yield Choice("embedding.rate", round(RATE_TIMES_FIELDS / fields, 3), why)


def _adam(values: Mapping[str, Any]) -> Iterator[Choice]:
    for section in ("embedding", "dense"):
        if (optimizer := values[f"{section}.optimizer"]) in ADAMS:
            yield Choice(f"{section}.rate", ADAM_RATE, f"the usual one of {optimizer}")


def _schedule(values: Mapping[str, Any], given: Collection[str], manifest: DatasetManifest | None) -> Iterator[Choice]:
    """A warm-up where several threads step one replica; for few rows several passes, with rates that fall."""
    warmup, optimizer, lanes = 0, values["dense.optimizer"], values["topology.threads"] * values["topology.trainers"]
    rows, scored = (_rows(manifest, values[name]) for name in ("data.train_split", "evaluate.split"))
    few = scored and 0 < rows < EXAMPLES and not DECIDED_BY_USER & set(given)
    passes = min(math.ceil(EXAMPLES / rows), MOST_PASSES) if few else values["data.passes"]
    examples = rows * passes
    if max(values["topology.threads"], values["topology.group"]) > 1 and DENSE_OPTIMIZERS[optimizer].full_first_step:
        warmup = min(WARMUP_STEPS * lanes * values["data.batch_size"], examples // 10 or COUNT)
        why = f"threads that share a replica take the long first steps of {optimizer} at once"
        yield Choice("schedule.warmup_examples", warmup, why)
    if few:
        yield Choice("data.passes", passes, f"for {EXAMPLES:,} examples of {rows:,} rows, at most {MOST_PASSES} passes")
        if warmup:
            yield Choice("schedule.decay_start_examples", warmup, "after the warm-up")
        yield Choice("schedule.decay_examples", examples - warmup, "with few rows, rates that fall to 0 overfit less")
        yield Choice("schedule.power", 1.0, "they fall along a line")
        yield Choice("evaluate.keep", "best", "more passes may overfit")


def _rows(manifest: DatasetManifest | None, split: str) -> int:
    return manifest.splits[split].rows if manifest and split in manifest.splits else 0
