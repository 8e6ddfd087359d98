"""Files of tensors for other programs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ssmpi.runtime.errors import UserError

MODEL_KEY = "model"  # in a file's metadata: SHA-256 of the manifest of the model that is in it
NOTHING: Mapping[str, str] = MappingProxyType({})
CHECKSUM = "ssmpi.sha256"  # there: of all else that is in the file
TORCH_MARK = b"exported by ssmpi"  # the comment of the archive
SAFETENSORS = re.compile(rb'.{4}\x00{4}\{"__metadata__":\{.*"(ssmpi\.sha256|model)":"[0-9a-f]{64}"', re.DOTALL)
TORCH = re.compile(rb"PK\x03\x04.*" + TORCH_MARK + rb"\Z", re.DOTALL)


def write_torch(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str] = NOTHING) -> None:
    """For ``torch.load(path, weights_only=True)``, which has no place for what is said ``about`` it."""
    import torch

    with path.open("wb") as out:
        try:
            torch.save({name: torch.from_numpy(values.copy()) for name, values in arrays.items()}, out)
        except RuntimeError as error:  # for instance a full disk, which torch does not report
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        out.seek(-2, os.SEEK_END)  # the length of the comment, which is the end of an archive without one
        out.write(len(TORCH_MARK).to_bytes(2, "little") + TORCH_MARK)


def safetensors() -> Any:
    """The library; UserError if it is not installed."""
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError("safetensors is not installed: pip install 'ssmpi[safetensors]'") from None
    return safetensors


def checksum(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and values of arrays in the order of names, and of what is said about them."""
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, values in sorted(arrays.items()):
        digest.update(json.dumps([name, values.dtype.str, values.shape]).encode())
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_safetensors(arrays: Mapping[str, np.ndarray], path: Path, about: Mapping[str, str] = NOTHING) -> None:
    """For ``safetensors.torch.load_file(path)``; what is said ``about`` it goes into its metadata, with a checksum."""
    library, whole = safetensors(), {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    try:
        path.touch()  # the library alone would let nobody else read it, whatever the umask
        mode = path.stat().st_mode
        library.numpy.save_file(whole, path, {"format": "pt", **about, CHECKSUM: checksum(whole, about)})
        path.chmod(mode)
    except library.SafetensorError as error:
        raise UserError(
            f"{path.parent}: the model cannot be written there ({error}); free some space, or name another folder"
        ) from error
