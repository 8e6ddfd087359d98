"""Selecting, printing, writing and drawing for all benchmarks."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.files import atomic_file
from ssmpi.files.log import log
from ssmpi.metrics import results

if TYPE_CHECKING:
    from types import ModuleType

    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

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


def publish(target: Path, report: Report, text: str, draw: Callable[[Report, Path], Path | None]) -> Path:
    """Write JSON to ``target``, with null for what is not finite, and text and picture beside it; print the text."""
    atomic_file.write(target, json.dumps(results.plain(report), indent=1) + "\n")
    atomic_file.write(target.with_suffix(".txt"), text + "\n")
    print(text)
    files = [target, target.with_suffix(".txt"), draw(report, target.with_suffix(".png"))]
    say(f"in {target.parent}: {', '.join(file.name for file in files if file)}")
    return target


def pyplot() -> ModuleType | None:
    """Matplotlib's ``pyplot``, for files only; None, with a message, if it is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        log.info("no plot: pip install 'ssmpi[plots]' to have one")
        return None
    return plt


def save(figure: Figure, target: Path) -> Path:
    """Write a figure of ``pyplot`` and close it."""
    import matplotlib.pyplot as plt

    with atomic_file.whole(target) as beside:
        figure.savefig(beside, dpi=110, format="png")
    plt.close(figure)
    return target
