"""ssmpi trains click-through-rate models on CPU clusters as one MPI job. Read ``train.py`` first."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0.dev0"
__all__ = ["Result", "Run", "__version__"]


def __getattr__(name: str) -> Any:
    """``Run`` and ``Result`` of ``api``, imported when they are asked for: ranks import this package first."""
    if name not in ("Run", "Result"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ssmpi.api"), name)
