"""Starts a child process that ends when this process does, even after ``kill -9``."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from ssmpi.runtime.errors import UserError
from ssmpi.runtime.mpi import failure

Output = int | IO[str] | None
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux; execve keeps it

_prctl = ctypes.CDLL(None).prctl  # resolved here: in the child, locks of other threads are never released


def start(
    line: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    stdin: int | None = None,
    stdout: Output = None,
    stderr: Output = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in its own session; it gets SIGTERM when this process ends. Call it on the main thread: the
    kernel watches the thread that starts the child. Raises UserError if the command cannot be started.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        _prctl(SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM))
        if os.getppid() != parent:  # the parent ended before prctl took effect
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        return subprocess.Popen(
            line, env=environ, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise UserError(f"{line[0]}: cannot be started: {failure.out_of_threads()}") from None
        raise UserError(
            f"{line[0]}: cannot be started ({error.strerror}): reinstall it, or put a working one before it on PATH"
        ) from None
