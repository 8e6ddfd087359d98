"""What a saved model was made with: its network, which scoring and exporting rebuild from the manifest, without the
user's network function; and the settings and data that must not change between the jobs of one run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.model import graph
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.checkpoint import model_files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ssmpi.config import Config
    from ssmpi.data.schema import DatasetManifest
    from ssmpi.model.network import Network

KEY = "network"  # in the state of a model's or checkpoint's manifest
SAME = (
    "run.seed", "data.train_split", "data.shuffle", "evaluate.per_pass", "evaluate.progressive", "model.name",
    "model.bottom", "model.top", "embedding.dim", "embedding.precision", "embedding.optimizer",
    "dense.optimizer",
)  # fmt: skip
EARLIER = {"embedding.precision": "fp32"}  # settings that earlier versions did not have, as they worked
MODEL = "model."
DATA = "data.folder (its contents)"


def of_model(config: Config, model: Path, data: str | None = None) -> Config:
    """``config`` with the network saved in ``model``; if an older version saved none, the network that ``config``
    names, over the features of its data (in ``data``, by default ``data.folder``).
    """
    saved = store.read_manifest(model).state.get(KEY)
    if saved is None:
        return config.over(DataOrigin.of_model(model, data or config.data.folder).features)
    try:
        announce_code(saved, model)
        return config.with_network(graph.from_json(saved))
    except DataError as error:
        raise DataError(
            f"{model / store.MANIFEST_NAME}: {error}. Read it with the version of ssmpi that saved it, or: "
            f"{model_files.remedy(model)}"
        ) from error


def announce_code(saved: object, model: Path) -> None:
    """Say that code saved with ``model`` is about to run, if its ``saved`` network has some."""
    code = saved.get("code") if isinstance(saved, dict) else None
    if code and isinstance(code, dict):
        say(f"{model}: runs code that was saved with it, of {', '.join(code)}: operators of its network")


def difference(state: Mapping[str, Any], network: Network) -> str:
    """How ``network`` differs from that of a checkpoint with this ``state``, in words; empty if it does not, or if an
    older version saved none.
    """
    saved = state.get(KEY)
    return graph.difference(saved, graph.as_json(network)) if saved else ""


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
    why = difference(state, network)
    of_model = bool(why) or KEY not in state
    for key, value in {**EARLIER, **state["identity"]}.items():
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
