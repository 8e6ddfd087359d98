"""Real ranks that stay: one ``mpirun`` of a session, started when a test first needs it. Its ranks run the bodies of
tests one after another, because they take longer to start than most bodies take.

The test process and each rank talk over a socket. A body that fails, or that is not done in time, ends the ranks; the
next test starts others. Ranks end with the test process, even if that is killed: the kernel then kills ``mpirun``,
without which they exit (``ssmpi.runtime.mpi.failure``).
"""

import contextlib
import copy
import importlib
import pickle
import socket
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path

from ranks import PATIENCE, Running, TimeLimitError, full_environment, mpirun_path


def over_mpi(topology, body, *arguments, timeout=PATIENCE):
    """Run ``body``, a function of any module, a test's too, on real ranks; their results by rank."""
    return POOL.run(topology, body, *arguments, timeout=timeout)


class RankPool:
    """Real ranks; none before the first ``run``. A body runs on the first so many."""

    def __init__(self, size):
        self._size, self._job, self._links = size, None, []

    def run(self, topology, body, *arguments, timeout=PATIENCE):
        """See ``over_mpi``."""
        place = str(Path(sys.modules[body.__module__].__file__).parent), body.__module__, body.__qualname__
        try:
            if self._job is None:
                self._start()
            return self._ask(self._links[: topology.size], (topology, place, pickle.dumps(arguments)), timeout)
        except BaseException:
            self._kill()  # what it has left must not meet the next test
            raise

    def close(self):
        """All ranks leave."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(None)
        if self._job:
            with contextlib.suppress(TimeLimitError):
                self._job.wait(PATIENCE)
        self._kill()

    def _kill(self):
        for link in self._links:
            link.close()
        if self._job:
            self._job.close()
        self._job, self._links = None, []

    def _start(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen(self._size)
            listener.settimeout(PATIENCE)
            command = [
                mpirun_path(),
                "-n",
                str(self._size),
                sys.executable,
                "-m",
                "mpi4py",
                __file__,
                f"{folder}/socket",
            ]
            self._job = Running(["setpriv", "--pdeathsig", "KILL", *command], full_environment())
            self._links = [Connection(listener.accept()[0].detach()) for _ in range(self._size)]
        ranks = [link.recv() for link in self._links]
        self._links = [self._links[ranks.index(rank)] for rank in range(self._size)]

    def _ask(self, links, message, timeout):
        """What the ranks at these ``links`` answer."""
        for link in links:
            link.send(message)
        answers, deadline = {}, time.monotonic() + timeout
        while len(answers) < len(links):
            ready = wait([link for link in links if link not in answers], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeLimitError(f"not done after {timeout} s\n--- stderr\n{self._job.read_so_far()}")
            for link in ready:
                try:
                    answers[link], error = link.recv()
                except (EOFError, ConnectionError):
                    error = f"a rank has ended\n--- stderr\n{self._job.read_so_far()}"
                assert not error, error
        return [answers[link] for link in links]


POOL = RankPool(8)  # as many as the largest topology of a test has


def be_a_rank(address):
    """What each rank does: it runs the bodies that it is sent, each in a world of its own, until it is sent None."""
    from ssmpi.runtime.mpi.world import World, join

    job = join()
    with Client(address) as link:
        link.send(job.rank)
        while (message := link.recv()) is not None:
            topology, (home, module, name), arguments = message
            if home not in sys.path:
                sys.path.insert(0, home)
            try:
                part = first_ranks(job, topology.size)
                body = getattr(importlib.import_module(module), name)
                result = body(World(part, topology), *pickle.loads(arguments))
                if part.heartbeat:
                    part.heartbeat.stop()
            except BaseException:
                link.send((None, f"rank {job.rank}: {traceback.format_exc()}"))
                raise
            link.send((result, ""))
    job.leave()


def first_ranks(job, number):
    """The first ``number`` ranks, as a job of their own."""
    part = copy.copy(job)
    part.comm = job.comm.Create_group(job.comm.group.Incl(range(number)))
    part.size, part.names = number, job.names[:number]
    return part


if __name__ == "__main__":
    be_a_rank(sys.argv[1])
