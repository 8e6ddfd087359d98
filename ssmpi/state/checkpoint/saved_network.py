"""The network of a saved model: scoring and exporting rebuild it from the manifest, without the user's network
function.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.model import graph
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.checkpoint import model_files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ssmpi.config import Config
    from ssmpi.model.network import Network

KEY = "network"  # in the state of a model's or checkpoint's manifest


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
