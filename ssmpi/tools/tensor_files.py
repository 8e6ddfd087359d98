"""Files of tensors for other programs, and the tables to fill them with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ssmpi.checkpoint import model_files
from ssmpi.checkpoint.data_origin import DataOrigin
from ssmpi.config import Config
from ssmpi.core.errors import UserError
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena

BEGIN = re.compile(rb"PK\x03\x04|.{4}\x00{4}\{", re.DOTALL)  # how torch's files begin, and safetensors': size, JSON


def tables(config: Config, folder: Path) -> dict[int, np.ndarray]:
    """The rows of every table of a saved model, float32 (rows, width), by its number; they must fit in memory."""
    cardinalities = DataOrigin.of_model(folder, config.data.folder).cardinalities
    arena = Arena(config.rows, place(cardinalities, 1), 0, config.run.seed)
    model_files.load_tables(arena, folder)
    return {part.table: arena.weights[part.base : part.base + part.rows] for part in arena.parts}


def write_torch(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """For ``torch.load(path, weights_only=True)``."""
    import torch

    with path.open("wb") as out:
        try:
            torch.save({name: torch.from_numpy(values.copy()) for name, values in arrays.items()}, out)
        except RuntimeError as error:  # for instance a full disk, which torch does not report
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def write_safetensors(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """For ``safetensors.torch.load_file(path)``."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError:
        raise UserError("safetensors is not installed: pip install 'ssmpi[safetensors]'") from None
    try:
        save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        raise UserError(
            f"{path.parent}: the model cannot be written there ({error}); free some space, or name another folder"
        ) from error
