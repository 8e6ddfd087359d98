"""CPU seconds and resident memory of processes and their threads, from ``/proc``, without the servers' cooperation."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection
from pathlib import Path

from ssmpi.bench.windows import Readings

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PARTS = {"worker": "workers", "helper": "workers", "shadow": "shadow", "mover": "mover"}  # by a thread's first word


def threads_cpu(pid: int) -> dict[int, float]:
    """CPU seconds, user and system, of every thread of a process, by thread id. The resolution is 10 ms if the kernel
    keeps no scheduler statistics.
    """
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it may have ended
            found[int(task.name)] = _cpu_of_thread(task)
    return found


def _cpu_of_thread(place: Path) -> float:
    try:
        return int((place / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return _cpu(place)


def _cpu(place: Path) -> float:
    fields = (place / "stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> int:
    """Resident bytes of a process; shared memory counts in full for every process that maps it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def private_memory() -> int:
    """Resident bytes of this process without shared memory, such as the mapped rows of a PS."""
    _, all_pages, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(all_pages) - int(shared)) * PAGE


def own_cpu() -> Readings:
    """CPU seconds of this trainer's process: workers and helpers, shadow thread, mover, and the rest.

    Ended threads count as workers: workers end with their pass, and other threads that end have done little work.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    live = threads_cpu(os.getpid())
    ended = max(0.0, _cpu(Path("/proc/self")) - sum(live.values()))
    found = {"cpu/workers": ended, "cpu/shadow": 0.0, "cpu/supervision": 0.0}
    for number, seconds in live.items():
        part = f"cpu/{PARTS.get(names.get(number, '').partition(' ')[0], 'supervision')}"
        found[part] = found.get(part, 0.0) + seconds
    return found


def of_servers(pids: dict[str, int]) -> Readings:
    """CPU seconds by role, and memory by rank, of server processes on this host; ``pids`` is by rank name."""
    found: Readings = {}
    for name, pid in pids.items():
        role = f"cpu/{name.split()[0]}"
        found[role] = found.get(role, 0.0) + sum(threads_cpu(pid).values())
        found[f"rss/{name}"] = float(resident(pid))
    return found


def host_busy() -> float:
    """Busy CPU seconds of the cores that this process may use, for any process, including time stolen by a
    hypervisor.
    """
    return busy(Path("/proc/stat").read_text(encoding="ascii"), os.sched_getaffinity(0))


def busy(stat: str, cores: Collection[int]) -> float:
    """The same of some cores, from the content of ``/proc/stat``."""
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu"))
    counts = [list(map(int, fields)) for name, *fields in lines if name in {f"cpu{core}" for core in cores}]
    return sum(sum(fields[:8]) - fields[3] - fields[4] for fields in counts) / TICKS  # without idle and iowait
