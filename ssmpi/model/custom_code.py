"""User-defined Python files: loads modules from their text, and turns errors in them into messages. Nothing is written
to disk.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from ssmpi.core.errors import SettingsError
from ssmpi.model.network import Operator

PREFIX = "ssmpi_own_"  # of the modules' names
REMEDY = "jobs/guide/networks.md has an example under 'Custom networks'"

T = TypeVar("T")


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


def is_own(kind: type[Operator]) -> bool:
    """Whether an operator's class is defined in a user's file."""
    return kind.__module__.startswith(PREFIX)


def own_operators(operators: Iterable[Operator]) -> list[Operator]:
    """The custom operators among ``operators``."""
    return [operator for operator in operators if is_own(type(operator))]


def path_of(kind: type[Operator]) -> Path:
    """The file of a custom operator."""
    return Path(str(sys.modules[kind.__module__].__file__))


def kind_of(kind: type[Operator]) -> str:
    """``net.py:Cube``: the file and the class."""
    return f"{path_of(kind).name}:{kind.__qualname__}"


def kinds_of(operators: Iterable[Operator]) -> str:
    """The kinds of the custom operators among ``operators``, for messages."""
    return ", ".join(dict.fromkeys(kind_of(type(operator)) for operator in own_operators(operators)))


def texts_of(operators: Iterable[Operator]) -> dict[str, str]:
    """The files of the custom operators among ``operators``: names and texts."""
    modules = [sys.modules[type(operator).__module__] for operator in own_operators(operators)]
    return {Path(str(module.__file__)).name: vars(module)["__source__"] for module in modules}


def meaning(text: str) -> str:
    """A file's code without comments and layout."""
    return ast.dump(ast.parse(text))


def run_user_code(path: Path, what: str, body: Callable[[], T], remedy: str = REMEDY) -> T:
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


def _lines(error: BaseException, path: Path) -> list[int]:
    """The lines of the file in the traceback of ``error`` and its causes, the innermost last."""
    found: list[int] = []
    cause: BaseException | None = error
    while cause:
        frames = traceback.extract_tb(cause.__traceback__)
        found += [frame.lineno for frame in frames if Path(frame.filename).name == path.name and frame.lineno]
        cause = cause.__cause__
    return found
