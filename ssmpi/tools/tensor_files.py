"""Files of tensors for other programs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ssmpi.core.errors import UserError

MODEL_KEY = "model"  # in a file's metadata: SHA-256 of the manifest of the model that is in it
NOTHING: Mapping[str, str] = MappingProxyType({})
BEGIN = re.compile(rb"PK\x03\x04|.{4}\x00{4}\{", re.DOTALL)  # how torch's files begin, and safetensors': size, JSON


def write_torch(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str] = NOTHING) -> None:
    """For ``torch.load(path, weights_only=True)``, which has no place for what is said ``about`` it."""
    import torch

    with path.open("wb") as out:
        try:
            torch.save({name: torch.from_numpy(values.copy()) for name, values in arrays.items()}, out)
        except RuntimeError as error:  # for instance a full disk, which torch does not report
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def safetensors() -> Any:
    """The library; UserError if it is not installed."""
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError("safetensors is not installed: pip install 'ssmpi[safetensors]'") from None
    return safetensors


def write_safetensors(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str] = NOTHING) -> None:
    """For ``safetensors.torch.load_file(path)``; what is said ``about`` it goes into its metadata."""
    library, whole = safetensors(), {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    try:
        library.numpy.save_file(whole, path, {"format": "pt", **about})
    except library.SafetensorError as error:
        raise UserError(
            f"{path.parent}: the model cannot be written there ({error}); free some space, or name another folder"
        ) from error
