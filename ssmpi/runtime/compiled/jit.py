"""Numba's ``njit``, which compiles once for all constants, with a cache on disk that never returns code compiled from
other sources.

Numba compiles what a kernel calls, and the constants that it reads, into the kernel, but only looks at the kernel's
own file to tell whether cached code is out of date. Here the names of cached files carry a checksum of that file and of
all that it imports of this project, directly or not. So processes that run different sources never meet each other's
files, and no file is loaded that refers to a class which is gone.

Numba keeps code in the first folder that it can write to: ``NUMBA_CACHE_DIR``, one beside the sources, one in the
user's home; without any it fails. Here a folder of the user's own beside temporary files comes last, and code is also
loaded from the first two if they are read-only, as in an installation for all users.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import inspect
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba import types
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator, _SourceFileBackedLocatorMixin
from numba.core.registry import CPUDispatcher

ROOT, PACKAGES = str(Path(__file__).parents[3]), ("ssmpi", "data_prep")
# Imports precede the first definition: nothing that a function imports when it is called is in compiled code.
FIRST_DEFINITION = re.compile(r"\n(?:def |class |@)")
IMPORT = re.compile(r"\n *(?:from|import) +([\w.]+)(?: +import +(\([^)]*\)|[^\n#]*))?")


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """The decorator ``numba.njit(cache=cache, **options)``."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = _Kernel(
            function, targetoptions={**options, "nopython": True, "boundscheck": None, "no_cfunc_wrapper": True}
        )
        if cache:
            try:
                dispatcher._cache = _Cache(function)  # as numba's enable_caching() does, with another class
            except RuntimeError:  # no folder can be written
                say_uncached()
        return dispatcher

    return compiled


class _Kernel(CPUDispatcher):
    """A compiled function. Other kernels call the same code whatever constants they pass, where numba would compile it
    for each.
    """

    _cache: Any

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """How another kernel calls it, which compiles it if need be."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template([types.unliteral(kind) for kind in args], plain)


class _Folder(_SourceFileBackedLocatorMixin, _CacheLocator):
    """A folder for the code of a function; ``ensure_cache_path`` raises OSError where it cannot be used."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._py_file, self._lineno = path, function.__code__.co_firstlineno

    def get_cache_path(self) -> str:
        """Within the folder that this process makes for all functions."""
        return f"{private_folder()}/{self.get_suitable_cache_subpath(self._py_file)}"


class _ReadOnlyFolder(_Folder):
    def get_cache_path(self) -> str:
        """``NUMBA_CACHE_DIR`` or that beside the sources, whichever can only be read; "" if none is so."""
        chosen, sources = config.CACHE_DIR, Path(self._py_file).parent  # type: ignore[attr-defined]
        folders = [Path(chosen) / self.get_suitable_cache_subpath(self._py_file)] if chosen else []
        folders += [sources / "__pycache__"]
        return next((str(path) for path in folders if path.is_dir() and not os.access(path, os.W_OK)), "")

    def ensure_cache_path(self) -> None:
        """Raise OSError if there is none."""
        if not self.get_cache_path():
            raise FileNotFoundError


@functools.cache
def private_folder() -> str:
    """This user's own folder in that of temporary files, which all users may write to; says so when it makes it.
    PermissionError if another user could read it or put code there.
    """
    folder = Path(tempfile.gettempdir()) / f"ssmpi-kernels-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        say(
            f"compiled kernels are kept in {folder}, because neither the installation nor your home can be written: set"
            " NUMBA_CACHE_DIR to a folder that lasts"
        )
    found, above = folder.lstat(), folder.parent.stat()
    others = stat.S_IRWXG | stat.S_IRWXO
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder.parent} has no sticky bit: every user may replace what is in it")
    return str(folder)


@functools.cache
def say_uncached() -> None:
    """Say, once, why code is not kept."""
    try:
        private_folder()
    except OSError as error:
        say(f"warning: every process compiles its kernels anew ({error}): set NUMBA_CACHE_DIR to a folder of your own")


def say(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


class _FileNames(CompileResultCacheImpl):
    _locator_classes = [*CompileResultCacheImpl._locator_classes, _Folder]  # noqa: RUF012 - as in its base

    def __init__(self, function: Callable[..., Any]) -> None:
        self._sources = sources_checksum(inspect.getfile(function))
        super().__init__(function)

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        """What the names of this function's files begin with; ``of_any_sources`` without the checksum."""
        self.of_any_sources = super().get_filename_base(fullname, abiflags)
        return f"{self.of_any_sources}-{self._sources}"


class _ReadOnlyNames(_FileNames):
    _locator_classes = [_ReadOnlyFolder]  # noqa: RUF012


class _ReadOnlyCache(FunctionCache):
    _impl_class = _ReadOnlyNames


class _Cache(FunctionCache):
    _impl_class = _FileNames

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._others = None
        with contextlib.suppress(RuntimeError):  # no such folder
            self._others = _ReadOnlyCache(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Compiled code, of others where they have compiled it; None if there is none."""
        found = None
        if self._others:
            with contextlib.suppress(OSError):  # their files may not be for all
                found = self._others.load_overload(sig, target_context)
        return found or super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code, and remove that of the function's other sources."""
        super().save_overload(sig, data)
        for path in Path(self.cache_path).glob(f"{glob.escape(self._impl.of_any_sources)}-*.nb[ic]"):
            if not path.name.startswith(self._impl.filename_base):
                path.unlink(missing_ok=True)


@functools.cache
def sources_checksum(path: str) -> str:
    """Of a file and of all files of this project that it imports, directly or not."""
    found, left = {path}, [path]
    while left:
        new = _source(left.pop())[1] - found
        found |= new
        left.extend(new)
    return hashlib.sha256(b"".join(sorted(_source(each)[0] for each in found))).hexdigest()[:16]


@functools.cache
def _source(path: str) -> tuple[bytes, frozenset[str]]:
    """A file's SHA-256, and the files of this project that it imports."""
    content = Path(path).read_bytes()
    head = FIRST_DEFINITION.split(f"\n{content.decode()}", maxsplit=1)[0]
    imports = (path for module, names in IMPORT.findall(head) for path in _files(module, names))
    return hashlib.sha256(content).digest(), frozenset(imports)


def _files(module: str, names: str) -> Iterator[str]:
    """Those of ``import module``, or of ``from module import names``, where a name may be a module itself."""
    if module.partition(".")[0] in PACKAGES:
        yield (path := _file(module))
        if path.endswith("__init__.py"):
            yield from filter(None, (_file(f"{module}.{name}") for name in re.findall(r"\w+", names)))


@functools.cache
def _file(module: str) -> str:
    """Where a module is; empty for a name that is none of a module."""
    path = f"{ROOT}/{module.replace('.', '/')}"
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if Path(file).is_file()), "")
