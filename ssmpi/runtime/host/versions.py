"""Which code is running: the commit of the git checkout that contains this package, if there is one, and the installed
versions of the packages that a result depends on.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

LIMIT_SECONDS = 10.0  # for git, which may look at a slow disk
DIGITS = 12
PACKAGES = ("torch", "numpy", "h5py", "numba", "mpi4py")


@cache
def commit(package: Path = Path(__file__).parents[2]) -> str:
    """``3d04bdb2a1c0``, or ``3d04bdb2a1c0, modified`` where files of the package differ from it; empty where the
    package is installed elsewhere, or git cannot say: it is missing, or the checkout belongs to another user.
    """
    if not _git(package, "ls-files", "--", "__init__.py"):
        return ""  # no checkout, or one of something else that this package was only put into
    found = _git(package, "rev-parse", f"--short={DIGITS}", "HEAD")
    return f"{found}, modified" if found and _git(package, "status", "--porcelain", "--", ".") else found


def package_versions() -> dict[str, str]:
    """The installed version of each of ``PACKAGES``."""
    return {name: metadata.version(name) for name in PACKAGES}


def _git(folder: Path, *words: str) -> str:
    """What git says, empty if it cannot. Variables that point it to another repository are not passed on."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    line = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()
