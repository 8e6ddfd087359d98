"""What the processor can do that decides how fast training is."""

from __future__ import annotations

import platform
from pathlib import Path

BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "asimdbf16"})  # what Linux calls it on x86 and ARM


def name(path: Path = Path("/proc/cpuinfo")) -> str:
    """What it is called, by Linux where that knows."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, "") or platform.processor() or platform.machine()


def has_bfloat16(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to have products of bfloat16 numbers."""
    return not BFLOAT16.isdisjoint(_flags(path))


def without_bfloat16(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to have no products of bfloat16 numbers: each is then computed by several
    steps.
    """
    flags = _flags(path)
    return bool(flags) and BFLOAT16.isdisjoint(flags)


def _flags(path: Path) -> list[str]:
    """What Linux says that the processor can; nothing where it does not say."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next((line.split() for line in lines if line.lower().startswith(("flags", "features"))), [])


SLOW_BFLOAT16 = (
    "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16): model.precision = 'bf16' is slower here than "
    "'fp32' (a quarter of its examples per second on a Skylake)"
)
