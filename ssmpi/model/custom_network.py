"""Custom networks: ``model.name = "net.py:network"`` is the function ``network`` in a file beside the run file. The
first rank calls it once, with the ``Inputs`` of the data; the other ranks, checkpoints and models get the network that
it returns.
"""

from __future__ import annotations

import difflib
import hashlib
import types
from collections.abc import Callable, Mapping
from importlib.util import decode_source
from pathlib import Path

from ssmpi.core.errors import SettingsError
from ssmpi.model import custom_code
from ssmpi.model.network import Inputs, Network

MARK = ".py:"


def is_own(name: str) -> bool:
    """Whether ``model.name`` names a function in a file."""
    return MARK in name


def parts(name: str) -> tuple[Path, str]:
    """File and function of ``name``."""
    file, _, function = name.rpartition(":")
    return Path(file), function


def resolved(name: str, folder: Path) -> str:
    """The name with an absolute path; relative paths start from ``folder``."""
    file, function = parts(name)
    return f"{(folder / file).resolve()}:{function}"


def text_of(name: str) -> bytes | None:
    """The file's text, None for a built-in network; SettingsError if it cannot be read."""
    return source(name) if is_own(name) else None


def source(name: str) -> bytes:
    """The file's text."""
    path, _ = parts(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(
            f"model.name = '{name}': no such file; a relative path begins in the folder of the run file"
        ) from None
    except OSError as error:
        raise SettingsError(f"model.name = '{name}': cannot be read: {error.strerror}") from error


def shown(name: str) -> str:
    """The name without the file's folder."""
    path, function = parts(name)
    return f"{path.name}:{function}"


def identity(name: str) -> str:
    """The name with the start of the file's SHA-256: identifies a network regardless of its path."""
    return f"{shown(name)} (SHA-256 {hashlib.sha256(source(name)).hexdigest()[:12]}...)"


def network_of(name: str, inputs: Inputs) -> Network:
    """The network that the function returns for ``inputs``; SettingsError says what is wrong with it, and where."""
    path, function = parts(name)
    what, text = f"'{function}', called with {Inputs.__name__}", source(name)
    module = custom_code.run_user_code(path, "the file", lambda: custom_code.module_of(path, decode_source(text)))
    network = custom_code.run_user_code(path, what, lambda: _function(path, function, vars(module))(inputs))
    if not isinstance(network, Network):
        raise SettingsError(
            f"{path}: '{function}' returned {network!r:.60} ({type(network).__name__}), not a Network: return "
            f"Network((operator, ...), inputs); {custom_code.REMEDY}"
        )
    if network.inputs != inputs:
        raise SettingsError(
            f"{path}: '{function}' returned a network over {network.inputs}, but the data has {inputs}: pass "
            "Network the inputs that the function is called with"
        )
    return network


def _function(path: Path, function: str, names: Mapping[str, object]) -> Callable[[Inputs], object]:
    found = names.get(function)
    if not callable(found):
        functions = {name: value for name, value in names.items() if isinstance(value, types.FunctionType)}
        there = [name for name, value in functions.items() if value.__module__ == names["__name__"]]  # not imported
        close = difflib.get_close_matches(function, there, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(there) or 'none'}; {custom_code.REMEDY}"
        what = "is not a function" if function in names else "is not in it"
        raise SettingsError(f"{path}: '{function}', which model.name names, {what}; {hint}")
    return found
