"""Settings chosen for the network, the optimizers, the ranks and the data of a run, where it does not set them. The
resolved run file has them, so a run that is resumed keeps them. ``jobs/studies/DEFAULTS.md`` says how they were found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ssmpi.data.schema import DatasetManifest
from ssmpi.model.optimizers import DENSE_OPTIMIZERS
from ssmpi.runtime.settings import COUNT

MULTIPLIES = {"deepfm": 0.03}  # networks that add up products of all rows: the largest initial value of a row
ADAMS, ADAM_RATE = ("adam", "adamw", "partial_rowwise_adam"), 0.001
WARMUP_STEPS = 100  # of each thread
FEW_ROWS, PASSES = 200_000, 3
DECIDED = {"data.passes", "evaluate.split", "evaluate.keep", "evaluate.patience", "evaluate.progressive"}
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
    found = [*_rows(values), *_rates(values)]
    if not any(name.startswith("schedule.") for name in given) and not values["run.continue_from"]:
        found += _schedule(values, given, manifest)
    return [choice for choice in found if choice.name not in given]


def _rows(values: Mapping[str, Any]) -> Iterator[Choice]:
    name = values["model.name"]
    if name in MULTIPLIES:
        yield Choice("embedding.initial_bound", MULTIPLIES[name], f"{name} adds up the products of all rows")


def _rates(values: Mapping[str, Any]) -> Iterator[Choice]:
    for section in ("embedding", "dense"):
        if (optimizer := values[f"{section}.optimizer"]) in ADAMS:
            yield Choice(f"{section}.rate", ADAM_RATE, f"what {optimizer} usually has")


def _schedule(values: Mapping[str, Any], given: Collection[str], manifest: DatasetManifest | None) -> Iterator[Choice]:
    """A warm-up where several threads step one replica; for few rows several passes, with rates that fall."""
    warmup, optimizer, lanes = 0, values["dense.optimizer"], values["topology.threads"] * values["topology.trainers"]
    rows = manifest.splits[values["data.train_split"]].rows if manifest else 0
    few = 0 < rows < FEW_ROWS and manifest and manifest.has_rows(values["evaluate.split"]) and not DECIDED & set(given)
    examples = rows * (PASSES if few else values["data.passes"])
    if max(values["topology.threads"], values["topology.group"]) > 1 and DENSE_OPTIMIZERS[optimizer].full_first_step:
        warmup = min(WARMUP_STEPS * lanes * values["data.batch_size"], examples // 10 or COUNT)
        why = f"threads that share a replica take the long first steps of {optimizer} at once"
        yield Choice("schedule.warmup_examples", warmup, why)
    if few:
        yield Choice("data.passes", PASSES, f"{rows:,} rows, fewer than {FEW_ROWS:,}, are not enough for one pass")
        if warmup:
            yield Choice("schedule.decay_start_examples", warmup, "after the warm-up")
        yield Choice("schedule.decay_examples", examples - warmup, "with few rows, rates that fall to 0 overfit less")
        yield Choice("schedule.power", 1.0, "they fall along a line")
        yield Choice("evaluate.keep", "best", "more passes may overfit")
