"""What must not change between the jobs of one run: a resumed job that differs in it would be another run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ssmpi.core.errors import SettingsError

if TYPE_CHECKING:
    from ssmpi.data.schema import Manifest

SAME = (
    "run.seed", "data.train_split", "data.shuffle", "evaluate.per_pass", "model.name", "model.bottom", "model.top",
    "embedding.dim", "embedding.optimizer", "dense.optimizer",
)  # fmt: skip
DATA = "data.folder (its contents)"


def fingerprint(settings: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Some of a run's ``settings`` by name, and a digest of its training data, as JSON has them."""
    names = (*SAME, *(name for name in settings if name.startswith(f"model.{settings['model.name']}.")))
    found = {name: list(value) if isinstance(value := settings[name], tuple) else value for name in names}
    shards = [(shard.rows, shard.checksum) for shard in manifest.split(settings["data.train_split"]).shards]
    found[DATA] = hashlib.sha256(repr((manifest.cardinalities, shards)).encode()).hexdigest()[:16]
    return found


def check_fingerprint(name: str, saved: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise SettingsError if a job with ``found`` cannot resume from the checkpoint ``name``."""
    for key, value in saved.items():
        if found.get(key) != value:
            raise SettingsError(
                f"{key} is {found.get(key)}, checkpoint {name} was made with {value}: set it back, or start a new run"
                " in another run.folder"
            )
