"""How much memory this process may still allocate, within the limits of the machine and of its control groups."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that this process may still allocate: the least of what the machine and each of its control groups (the
    memory limit of a batch job) have left; infinite if none of them can be read. The idle page cache counts as free.
    """
    found = []
    with contextlib.suppress(OSError):
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    for group, names in control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no limit
            limit, used = (int((group / name).read_text(encoding="ascii")) for name in names[:2])
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            found.append(limit - used + int(stat.get(names[2], 0)))
    return max(0.0, min(found, default=float("inf")))


def control_groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's control group and all above it, with what its limit, its use and its idle file pages are called
    there.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            top, names = mounted, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = mounted / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = top / place.strip("/")
        yield from ((each, names) for each in (group, *group.parents) if each.is_relative_to(top))
