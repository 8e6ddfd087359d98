"""The ranks that share the work: one process, or all of an MPI job. The only module of this package that uses MPI.

mpi4py is imported only if a launcher started this process. Ranks work independently and synchronize after each step; a
rank that fails cancels the others, so no rank waits for a dead one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.host import launcher_env

T = TypeVar("T")

CALLED_OFF_TAG = 41


class CalledOff(Exception):  # noqa: N818 - not an error of this rank
    """Another rank has failed: stop working and wait for its error."""


class RawDataError(DataError):
    """Invalid raw files; ``place`` (source, byte) orders the errors of several ranks."""

    def __init__(self, message: str, place: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.place = place


class BadRowError(RawDataError):
    """An invalid raw row, which could be skipped."""


class Ranks:
    """A single process: rank 0 of 1."""

    rank = 0
    size = 1

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank."""
        return [value]

    def barrier(self) -> None:
        """Wait for all ranks."""

    def call_off(self) -> None:
        """Tell the other ranks to leave their work."""

    def check(self) -> None:
        """Raise CalledOff if another rank has failed. Cheap: call it for every block of work."""

    def settle(self, failed: list[int]) -> None:
        """Take in the messages of the ranks that called off."""

    def abort(self, code: int) -> None:
        """End the whole job at once."""
        raise SystemExit(code)

    def together(self, body: Callable[[], T]) -> T:
        """Run ``body`` on every rank. If it fails anywhere, all ranks raise the error that comes first in the input."""
        result: T | None = None
        failure: DataError | None = None
        try:
            result = body()
        except CalledOff:
            pass
        except (UserError, OSError) as error:
            if isinstance(error, BrokenPipeError) and self.size == 1:
                raise  # whoever reads the output has read enough: no error of a file
            failure = error if isinstance(error, RawDataError) else DataError(describe(error))
            self.call_off()
        failures = self.allgather(failure)
        failed = [r for r, found in enumerate(failures) if found is not None]
        self.settle(failed)
        if failed:
            raise min((found for found in failures if found is not None), key=_order)
        return cast(T, result)

    def first(self, body: Callable[[], T]) -> T:
        """Run ``body`` on rank 0 and give its result to all; its failure is everybody's."""
        results = self.allgather(self.together(lambda: body() if self.rank == 0 else None))
        return results[0]  # type: ignore[return-value]


class MPIRanks(Ranks):
    """All ranks of the MPI job that this process was started in."""

    def __init__(self) -> None:
        from mpi4py import MPI

        launcher_env.check(MPI.COMM_WORLD.size, MPI.Get_library_version().split(",")[0])
        launcher_env.delay_first_message()
        self._comm = MPI.COMM_WORLD
        self._pending: list[MPI.Request] = []
        self.rank, self.size = self._comm.rank, self._comm.size

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank."""
        gathered: list[T] = self._comm.allgather(value)
        return gathered

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def call_off(self) -> None:
        """Tell the other ranks to leave their work."""
        others = [r for r in range(self.size) if r != self.rank]
        self._pending += [self._comm.Isend(bytearray(1), dest=r, tag=CALLED_OFF_TAG) for r in others]

    def check(self) -> None:
        """Raise CalledOff if another rank has failed. Cheap: call it for every block of work."""
        if self._comm.Iprobe(tag=CALLED_OFF_TAG):
            raise CalledOff

    def settle(self, failed: list[int]) -> None:
        """Take in the messages of the ranks that called off."""
        for rank in failed:
            if rank != self.rank:
                self._comm.Recv(bytearray(1), source=rank, tag=CALLED_OFF_TAG)
        for request in self._pending:
            request.Wait()
        self._pending.clear()

    def abort(self, code: int) -> None:
        """End the whole job at once."""
        self._comm.Abort(code)


def _order(error: DataError) -> tuple[tuple[int, int], str]:
    """Sort key: errors without a place first, then by place in the input."""
    return getattr(error, "place", (-1, -1)), str(error)


def join() -> Ranks:
    """The ranks of this process: those of the MPI job under a launcher, else a single one."""
    return Ranks() if launcher_env.is_single_process() else MPIRanks()


def describe(error: Exception) -> str:
    """An error as a message; for errors of the operating system with the file and a remedy."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; check the path, its permissions and the free space, then start again"
    return str(error)
