"""``njit`` as numba has it, with a cache on disk that never gives code of other sources than these.

Numba compiles what a kernel calls, and the constants that it reads, into the kernel, but only looks at the kernel's
own file to tell whether cached code is out of date. Here the names of cached files carry a checksum of that file and of
all that it imports of this project, directly or not. So processes that run different sources never meet each other's
files, and no file is loaded that refers to a class which is gone.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache

KERNELS: list[Any] = []  # of all imported modules
ROOT, PACKAGES = str(Path(__file__).parents[2]), ("ssmpi", "data_prep")
# Imports precede the first definition: nothing that a function imports when it is called is in compiled code.
FIRST_DEFINITION = re.compile(r"\n(?:def |class |@)")
IMPORT = re.compile(r"\n *(?:from|import) +([\w.]+)(?: +import +(\([^)]*\)|[^\n#]*))?")


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """The decorator ``numba.njit(cache=cache, **options)``."""

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        KERNELS.append(dispatcher)
        if cache:
            dispatcher._cache = _Cache(function)  # as numba's enable_caching() does, with another class
        return dispatcher

    return compiled


class _FileNames(CompileResultCacheImpl):
    def __init__(self, function: Callable[..., Any]) -> None:
        self._sources = sources_checksum(inspect.getfile(function))
        super().__init__(function)

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        """What the names of this function's files begin with; ``of_any_sources`` without the checksum."""
        self.of_any_sources = super().get_filename_base(fullname, abiflags)
        return f"{self.of_any_sources}-{self._sources}"


class _Cache(FunctionCache):
    _impl_class = _FileNames

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
