"""Measures the share of time in which a worker thread, or one that works for it, holds the GIL, with py-spy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

LOOP = "hogwild ("  # the frame in every sample of a worker's loop
HELPING = "help_lane (", "mover.py:"  # of what works for members of a group
RATE = 500  # samples per second, without pausing the process: resuming it wakes threads, which then take the GIL
ANYBODY, SET_PTRACER = ctypes.c_ulong(-1), 0x59616D61  # linux/prctl.h


class Sample(TypedDict, total=False):
    """Sample counts: all of a worker's loop, and those that hold the GIL, of what works for it too; or why there are
    none.
    """

    samples: int
    holding: int
    failed: str


def find() -> str | None:
    """The path of py-spy: beside this interpreter, or on PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def sample(pid: int, seconds: float) -> Sample:
    """Sample the worker loops of a process: all samples, and those that hold the GIL, with its helpers' and mover's; or
    why it ``failed``.
    """
    ctypes.CDLL(None).prctl(SET_PTRACER, ANYBODY, 0, 0, 0)  # for kernels that allow only parents to trace
    try:
        return {
            "samples": count(record(pid, seconds, "--idle"), LOOP),
            "holding": count(record(pid, seconds, "--gil"), LOOP, *HELPING),
        }
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"failed": f"{error}\n{(error.stderr or b'').decode(errors='replace').strip()}"}


def record(pid: int, seconds: float, which: str) -> list[str]:
    """The stacks that py-spy recorded, one per line with its count."""
    spy = find()
    assert spy is not None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stacks"
        asked = ["record", "--pid", str(pid), "--format", "raw", "--output", str(out)]
        asked += ["--rate", str(RATE), "--duration", str(max(1, round(seconds))), "--nonblocking", which]
        subprocess.run([spy, *asked], check=True, capture_output=True, timeout=60 + 10 * seconds)
        return out.read_text(encoding="utf-8").splitlines()


def count(stacks: Iterable[str], *loops: str) -> int:
    """The number of samples in these loops, by their frames; a line is ``frame;frame;frame COUNT``."""
    return sum(int(line.rpartition(" ")[2]) for line in stacks if any(loop in line for loop in loops))
