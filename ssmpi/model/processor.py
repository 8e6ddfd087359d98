"""Processor features that determine the speed of training."""

from __future__ import annotations

import platform
from pathlib import Path

BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "asimdbf16"})  # what Linux calls it on x86 and ARM


def name(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, from Linux if it knows."""
    return _field(path, "model name") or platform.processor() or platform.machine()


def has_bfloat16(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to have products of bfloat16 numbers."""
    return not BFLOAT16.isdisjoint(_flags(path))


def is_amd_with_avx512(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this is an AMD processor with AVX-512, on which MKL is slower than oneDNN."""
    return "avx512f" in _flags(path) and "AuthenticAMD" in _field(path, "vendor_id")


def without_bfloat16(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor is known to have no products of bfloat16 numbers: each is then computed by several
    steps.
    """
    flags = _flags(path)
    return bool(flags) and BFLOAT16.isdisjoint(flags)


def _flags(path: Path) -> list[str]:
    """The processor's feature flags according to Linux; empty if unknown."""
    return _field(path, "flags", "features").split()


def _field(path: Path, *names: str) -> str:
    """A field of the first processor in Linux's list, by any of its lower-case names; "" if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(names)), "")


SLOW_BFLOAT16 = (
    "this processor has no bfloat16 instructions (avx512_bf16, amx_bf16): model.precision = 'bf16' is slower here than "
    "'fp32' (at most a quarter of its examples per second on a Skylake)"
)
