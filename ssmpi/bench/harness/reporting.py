"""Selecting, printing and writing for all benchmarks."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.files import atomic_file
from ssmpi.metrics import results

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Report = Mapping[str, Any]  # the content of the JSON file


def chosen(name: str, pattern: str) -> bool:
    """Whether ``--only PATTERN`` (shell wildcards, anywhere in the name) selects a contender or a section; ``a|b`` is
    either.
    """
    return any(fnmatch.fnmatch(name, f"*{either}*") for either in pattern.split("|"))


def plain(value: DataclassInstance) -> dict[str, object]:
    """A settings class as JSON."""
    return {key: str(item) if isinstance(item, Path) else item for key, item in dataclasses.asdict(value).items()}


def say(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def publish(target: Path, report: Report, text: str) -> Path:
    """Write JSON to ``target``, with null for what is not finite, and the text beside it; print the text."""
    atomic_file.write(target, json.dumps(results.plain(report), indent=1) + "\n")
    atomic_file.write(target.with_suffix(".txt"), text + "\n")
    print(text)
    say(f"in {target.parent}: {target.name}, {target.with_suffix('.txt').name}")
    return target
