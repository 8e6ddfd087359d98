"""The files that folders and patterns stand for, in the order of the numbers in their names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssmpi.runtime.errors import DataError


def expand(given: Sequence[Path]) -> list[Path]:
    """The given files, and those of given folders and patterns. Left out, and printed, are empty files of these, and
    names that begin with ``.`` or ``_``, as Spark's markers do, unless such a file is given alone. DataError for a
    folder or a pattern without files.
    """
    paths: list[Path] = []
    left_out: list[Path] = []
    for path in given:
        if not path.is_dir() and (path.exists() or not glob.has_magic(str(path))):
            spare = len(given) > 1 and _is_hidden(path.name)
            (left_out if spare else paths).append(path)
            continue
        found = _files_of(path)
        empty = [one for one in found if not one.stat().st_size]
        if len(found) == len(empty):
            what = "this folder has no file with data" if path.is_dir() else "no file with data has such a name"
            raise DataError(f"{path}: {what}; check the path")
        paths += [one for one in found if one not in empty]
        left_out += empty
    if left_out:
        names = ", ".join(str(path) for path in left_out[:3]) + ", ..." * (len(left_out) > 3)
        print(f"left out, because they hold no data: {names}", flush=True)
    return paths


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sorted by name, numbers in names by value: part 2 before part 10."""
    return sorted(
        paths, key=lambda path: [int(s) if i % 2 else s for i, s in enumerate(re.split("([0-9]+)", str(path)))]
    )


def _files_of(path: Path) -> list[Path]:
    """Those of a folder and its folders, or of all that a pattern matches."""
    if path.is_dir():
        files = (one for one in path.rglob("*") if not any(map(_is_hidden, one.relative_to(path).parts)))
        return in_order(one for one in files if one.is_file())
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - of absolute patterns too
    matches = in_order(Path(name) for name in names if not _is_hidden(Path(name).name))
    return [file for one in matches for file in ([one] if one.is_file() else _files_of(one))]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
