"""Common parts of all benchmark reports: the machine, the files, and the choice of contenders."""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi import __version__
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.host.versions import package_versions
from ssmpi.trainer.metrics import results

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


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, object]:
    """The header of a report."""
    return {
        "when": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": cores(),
        "cores_of_host": os.cpu_count(),
        "memory_gib": round(int((_field("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "versions": {
            "ssmpi": __version__,
            "python": platform.python_version(),
            **package_versions(),
        },
    }


def torch_facts() -> dict[str, str]:
    """PyTorch's version and settings; call it in a separate process, because importing torch takes seconds."""
    import torch

    return {"torch_instructions": torch.backends.cpu.get_cpu_capability()}


def _field(path: str, name: str) -> str | None:
    """The value of the first line ``name : value`` of a file under /proc."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
