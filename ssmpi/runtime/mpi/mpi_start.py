"""Starts MPI without holding the interpreter lock, which mpi4py holds in ``MPI_Init``: other threads could not end a
process that waits there for a rank that does not come.
"""

from __future__ import annotations

import atexit
import ctypes

import mpi4py

from ssmpi.runtime.host.mpi_environment import leaving_nothing

WANTED = mpi4py.rc.initialize  # a process that imports ssmpi need not be a rank
mpi4py.rc.initialize = False  # before mpi4py.MPI is imported


def _initialize() -> None:
    try:
        init = ctypes.CDLL(MPI.__file__).MPI_Init_thread  # of the MPI library that mpi4py is linked to
    except (OSError, AttributeError):  # linked statically, or its names are hidden: only the launcher ends a hung start
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    else:
        init(None, None, ctypes.c_int(MPI.THREAD_MULTIPLE), ctypes.byref(ctypes.c_int()))
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py raises them


def _finalize() -> None:
    if not MPI.Is_finalized():
        MPI.Finalize()


with leaving_nothing():
    from mpi4py import MPI

    if WANTED and not MPI.Is_initialized():  # 'python -m mpi4py' has started it
        _initialize()
        atexit.register(_finalize)
