"""The settings and data that must not change between the jobs of one run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError
from ssmpi.state.checkpoint import saved_network

if TYPE_CHECKING:
    from ssmpi.data.schema import DatasetManifest
    from ssmpi.model.network import Network

SAME = (
    "run.seed", "data.train_split", "data.shuffle", "evaluate.per_pass", "evaluate.progressive", "model.name",
    "model.bottom", "model.top", "embedding.dim", "embedding.optimizer", "dense.optimizer",
)  # fmt: skip
MODEL = "model."
DATA = "data.folder (its contents)"


def fingerprint(settings: Mapping[str, Any], manifest: DatasetManifest) -> dict[str, Any]:
    """Some of a run's ``settings`` by name, and a digest of its training data, as JSON. The network itself is saved
    beside them.
    """
    name = settings["model.name"]
    names = (*SAME, *(other for other in settings if other.startswith(f"model.{name}.")))
    found = {key: list(value) if isinstance(value := settings[key], tuple) else value for key in names}
    if user_code.names_file(name):  # its function does not see ``[model]``
        found = {key: value for key, value in found.items() if not key.startswith(MODEL)}
        found["model.name"] = user_code.shown(name)
    shards = [(shard.rows, shard.checksum) for shard in manifest.split(settings["data.train_split"]).shards]
    found[DATA] = hashlib.sha256(repr((manifest.cardinalities, shards)).encode()).hexdigest()[:16]
    return found


def check_fingerprint(name: str, state: Mapping[str, Any], found: dict[str, Any], network: Network) -> None:
    """Raise SettingsError if a job with ``found`` and ``network`` cannot resume from the checkpoint ``name`` with this
    ``state``. Networks are compared operator by operator; settings without effect on the network may differ.
    """
    why = saved_network.difference(state, network)
    of_model = bool(why) or saved_network.KEY not in state
    for key, value in state["identity"].items():
        shipped = not user_code.names_file(
            str(found.get(key, user_code.MARK))
        )  # else the differing operator is more informative
        if found.get(key) != value and (not key.startswith(MODEL) or (of_model and (shipped or not why))):
            raise SettingsError(
                f"{key} is {found.get(key)}, checkpoint {name} was made with {value}: set it back, or start a new run"
                " in another run.folder"
            )
    if why:
        raise SettingsError(
            f"checkpoint {name} was made with another network than model.name = '{found['model.name']}' gives: {why}. "
            "Set it back, or start a new run in another run.folder"
        )
