"""Which packages a result depends on, and their installed versions: for run folders, benchmarks and ``ssmpi
doctor``.
"""

from __future__ import annotations

from importlib import metadata

PACKAGES = ("torch", "numpy", "h5py", "numba", "mpi4py")


def package_versions() -> dict[str, str]:
    """The installed version of each."""
    return {name: metadata.version(name) for name in PACKAGES}
