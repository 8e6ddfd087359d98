"""Checks that a run folder can be written before anything else does, because later errors would be less clear."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from ssmpi.runtime.errors import SettingsError

FULL = (errno.ENOSPC, errno.EDQUOT)


def check_writable(folder: Path) -> None:
    """Raise SettingsError unless a file can be made in ``folder``, or in its nearest existing parent.

    A full disk passes: the check of the space that is needed names figures.
    """
    there = folder
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        if error.errno not in FULL:
            raise SettingsError(
                f"{folder}: cannot be written ({there}: {error.strerror}): choose another run.folder, or make that one "
                "writable"
            ) from None
