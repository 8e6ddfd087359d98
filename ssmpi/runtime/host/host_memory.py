"""How much memory this process may allocate, within the limits of the machine and of its control groups, and whether
the system has killed processes for lack of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that this process may still allocate: the least of what the machine and each of its control groups (the
    memory limit of a batch job) have left; infinite if none of them can be read. The page cache counts as free, in use
    or not.
    """
    found = _of_machine(root, "MemAvailable:")
    for group, names in control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
            limit, used = (int((group / name).read_text(encoding="ascii")) for name in names[:2])
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            found.append(limit - used + sum(int(stat.get(name, 0)) for name in names[2:]))
    return max(0.0, min(found, default=float("inf")))


def memory_limit(root: Path = Path("/")) -> float:
    """Bytes that all processes of this one's control group may have together: the least of the machine's memory and the
    limits of its control groups; infinite if none of them can be read.
    """
    found = _of_machine(root, "MemTotal:")
    for group, names in control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # as above
            found.append(int((group / names[0]).read_text(encoding="ascii")))
    return min(found, default=float("inf"))


def _of_machine(root: Path, name: str) -> list[float]:
    """Bytes of a line of ``/proc/meminfo``; none if it cannot be read."""
    with contextlib.suppress(OSError):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        return [1024.0 * int(line.split()[1]) for line in lines if line.startswith(name)]
    return []


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes of this one's control group the system has killed so far because memory ran out; of the whole
    machine where no group counts them. 0 if nothing does.
    """
    counters = [group / name for group, _ in control_groups(root) for name in ("memory.events", "memory.oom_control")]
    for path in (*counters, root / "proc/vmstat"):
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def control_groups(root: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """This process's control group and all above it, with what its limit, its use and its pages of files, idle and in
    use, are called there.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            top, names = mounted, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            top = mounted / "memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
        else:
            continue
        group = top / place.strip("/")
        yield from ((each, names) for each in (group, *group.parents) if each.is_relative_to(top))
