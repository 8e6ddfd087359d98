"""A network of one's own: ``model.name = "net.py:network"`` is the function ``network`` of a file beside the run file.

The first rank calls it once, with the ``Inputs`` of the data; what it returns is all that others, checkpoints and
models get.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

from ssmpi.core.errors import SettingsError
from ssmpi.model.network import Inputs, Network

MARK = ".py:"
EXAMPLE = "README.md has one under 'Your own network'"


def is_own(name: str) -> bool:
    """Whether ``model.name`` is a file's function."""
    return MARK in name


def parts(name: str) -> tuple[Path, str]:
    """File and function of ``name``."""
    file, _, function = name.rpartition(":")
    return Path(file), function


def resolved(name: str, folder: Path) -> str:
    """The same with an absolute path; relative ones begin in ``folder``."""
    file, function = parts(name)
    return f"{(folder / file).resolve()}:{function}"


def text_of(name: str) -> bytes | None:
    """The file's text, None for a network that is shipped; SettingsError where it cannot be read."""
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
    """The same without the file's folder."""
    path, function = parts(name)
    return f"{path.name}:{function}"


def identity(name: str) -> str:
    """The same with the beginning of the file's SHA-256: what tells two of them apart wherever they lie."""
    return f"{shown(name)} (SHA-256 {hashlib.sha256(source(name)).hexdigest()[:12]}...)"


def network_of(name: str, inputs: Inputs) -> Network:
    """What the function gives for ``inputs``; SettingsError says what is wrong with it, and where."""
    path, function = parts(name)
    network = _in_words(path, function, lambda: _function(path, function, source(name))(inputs))
    if not isinstance(network, Network):
        raise SettingsError(
            f"{path}: '{function}' gave {network!r:.60} ({type(network).__name__}), not a Network: let it return "
            f"Network((operator, ...), inputs); {EXAMPLE}"
        )
    if network.inputs != inputs:
        raise SettingsError(
            f"{path}: '{function}' gave a network over {network.inputs}, but the data has {inputs}: give Network the "
            "inputs that the function is called with"
        )
    return network


def _function(path: Path, function: str, text: bytes) -> Callable[[Inputs], object]:
    names = vars(_module(path, text))
    found: object = names.get(function)
    if not callable(found):
        there = [name for name, value in names.items() if isinstance(value, types.FunctionType)]
        close = difflib.get_close_matches(function, there, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(there) or 'none'}; {EXAMPLE}"
        what = "is no function" if function in names else "is not in it"
        raise SettingsError(f"{path}: '{function}', which model.name names, {what}; {hint}")
    return found


def _module(path: Path, text: bytes) -> types.ModuleType:
    """The file's names. Files of one text are one module, so that its classes are the same; nothing is written."""
    name = f"ssmpi_own_{hashlib.sha256(text).hexdigest()[:16]}"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses look there for what annotations mean
        try:
            exec(compile(text, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _in_words(path: Path, function: str, body: Callable[[], object]) -> object:
    """What ``body``, the user's code, gives; what it raises as SettingsError with its line."""
    try:
        return body()
    except SettingsError as error:
        if not _lines(error, path):
            raise
        raise SettingsError(f"{path}, line {_lines(error, path)[-1]}: '{function}': {error}") from error
    except SyntaxError as error:
        where = error.filename or path
        raise SettingsError(f"{where}, line {error.lineno}: {error.msg}; 'python {where}' shows the place") from error
    except (Exception, SystemExit) as error:
        lines = _lines(error, path)
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise SettingsError(f"{where}: {said}; '{function}' is called with {Inputs.__name__}; {EXAMPLE}") from error


def _lines(error: BaseException, path: Path) -> list[int]:
    """The lines of the file that were under way, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == str(path) and frame.lineno]
