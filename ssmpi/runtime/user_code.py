"""A user's own Python files, which settings such as ``model.name = "net.py:network"`` name. Loads modules from their
text, and turns their errors into messages. Nothing is written to disk.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import sys
import traceback
import types
from collections.abc import Callable
from importlib.util import decode_source
from pathlib import Path
from typing import Any, TypeVar

from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import require

MARK = ".py:"
PREFIX = "ssmpi_own_"  # of the modules' names

GUIDE = "jobs/guide/own_algorithm.md has an example"  # of algorithms and codecs

T = TypeVar("T")


def names_file(name: str) -> bool:
    """Whether a setting names something in a file."""
    return MARK in name


def parts(name: str) -> tuple[Path, str]:
    """The file of ``name``, and what follows it."""
    file, _, rest = name.partition(MARK)
    return Path(f"{file}.py"), rest


def resolved(name: str, folder: Path) -> str:
    """The name with an absolute path; relative paths start from ``folder``."""
    file, rest = parts(name)
    return f"{(folder / file).resolve()}:{rest}"


def shown(name: str) -> str:
    """The name without the file's folder."""
    path, rest = parts(name)
    return f"{path.name}:{rest}"


def identity(name: str, text: bytes) -> str:
    """The name with the start of its file's SHA-256: the same wherever the file is."""
    return f"{shown(name)} (SHA-256 {hashlib.sha256(text).hexdigest()[:12]}...)"


def source(name: str, setting: str) -> bytes:
    """The text of the file that ``setting`` names; SettingsError if it cannot be read."""
    path, _ = parts(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(
            f"{setting} = '{name}': no such file; a relative path begins in the folder of the run file"
        ) from None
    except OSError as error:
        raise SettingsError(f"{setting} = '{name}': cannot be read: {error.strerror}") from error


def load(path: Path, text: bytes, remedy: str) -> types.ModuleType:
    """The file's module; SettingsError with the line and ``remedy`` if it cannot be executed."""
    return run_user_code(path, "the file", lambda: module_of(path, decode_source(text)), remedy)


def member(path: Path, name: str, module: types.ModuleType, setting: str, remedy: str, kind: type) -> Any:
    """The function or class ``name`` of a module, as ``kind`` is ``types.FunctionType`` or ``type``; any callable
    passes for a function. SettingsError if there is none.
    """
    names, what = vars(module), "class" if kind is type else "function"
    found = names.get(name)
    if isinstance(found, kind) or (callable(found) and kind is not type):
        return found
    own = [n for n, value in names.items() if isinstance(value, kind) and value.__module__ == module.__name__]
    close = difflib.get_close_matches(name, own, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(own) or 'none'}; {remedy}"
    wrong = f"is not a {what}" if name in names else "is not in it"
    raise SettingsError(f"{path}: '{name}', which {setting} names, {wrong}; {hint}")


def subclass(path: Path, name: str, text: bytes, setting: str, base: type, what: str) -> Any:
    """The class ``name`` of a file with this ``text``; SettingsError if there is none, or it is not a whole ``base``.
    ``what`` says what that is, and what to derive from.
    """
    kind: type = member(path, name, load(path, text, GUIDE), setting, GUIDE, type)
    why = f"{path}: '{name}', which {setting} names"
    require(issubclass(kind, base), f"{why}, is not {what}; {GUIDE}")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    require(not missing, f"{why}, lacks {' and '.join(missing)}; {GUIDE}")
    return kind


def module_of(path: Path, text: str) -> types.ModuleType:
    """The file's namespace. Files with the same text are one module, so that their classes are identical."""
    name = PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__, vars(module)["__source__"] = str(path), text
        sys.modules[name] = module  # dataclasses look there for what annotations mean
        try:
            exec(compile(text, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def is_own(kind: type) -> bool:
    """Whether a class is defined in a user's file."""
    return kind.__module__.startswith(PREFIX)


def path_of(kind: type) -> Path:
    """The file of a user's class."""
    return Path(str(sys.modules[kind.__module__].__file__))


def kind_of(kind: type) -> str:
    """``net.py:Cube``: the file and the class."""
    return f"{path_of(kind).name}:{kind.__qualname__}"


def meaning(text: str) -> str:
    """A file's code without comments and layout."""
    return ast.dump(ast.parse(text))


def run_user_code(path: Path, what: str, body: Callable[[], T], remedy: str) -> T:
    """Run ``body``, the user's code, and return its result; an exception becomes a SettingsError with the line and
    ``remedy``. ``what`` describes the call.
    """
    try:
        return body()
    except SettingsError as error:
        if not _lines(error, path):
            raise
        raise SettingsError(f"{path}, line {_lines(error, path)[-1]}: {what}: {error}") from error
    except SyntaxError as error:
        where = error.filename or path
        line = f", line {error.lineno}" if error.lineno else ""
        raise SettingsError(f"{where}{line}: {error.msg}; 'python {where}' shows the place") from error
    except (Exception, SystemExit) as error:
        lines = _lines(error, path)
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise SettingsError(f"{where}: {what}: {said}; {remedy}") from error


def place_of(error: BaseException) -> str:
    """The file and the line of a user's own code in which ``error`` came up, the innermost; empty if there is none."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in frames
        if str(frame.f_globals.get("__name__")).startswith(PREFIX)
    ]
    return own[-1] if own else ""


def _lines(error: BaseException, path: Path) -> list[int]:
    """The lines of the file in the traceback of ``error`` and its causes, the innermost last."""
    found: list[int] = []
    cause: BaseException | None = error
    while cause:
        frames = traceback.extract_tb(cause.__traceback__)
        found += [frame.lineno for frame in frames if Path(frame.filename).name == path.name and frame.lineno]
        cause = cause.__cause__
    return found
