"""Describes the machine of a measurement: processor, cores, memory, other load, versions."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from ssmpi import __version__
from ssmpi.host.packages import package_versions


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
