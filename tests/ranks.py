"""Ranks for tests: real ones under ``mpirun``, and pretended ones, which are threads of this process.

A body is a function ``body(world, *arguments) -> result``, run by every rank; ``over_threads`` returns all results by
rank, as does ``rank_pool.over_mpi``, and the test asserts over those: an assertion that failed on one rank would hang
the others.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ssmpi.cluster.child_process import session_folder
from ssmpi.runtime.host.mpi_environment import environment
from ssmpi.runtime.mpi.in_process import InProcessChannel, InProcessConversation
from ssmpi.runtime.topology import CONVERSATIONS, Directory
from ssmpi.runtime.traffic import Traffic, meter

TESTS = Path(__file__).parent
# What only extras of ssmpi bring is hidden from ranks, as where none is installed: numba imports scipy if it is there,
# which takes 0.3 s, and a run draws its plot with matplotlib, which takes a second.
WITHOUT_SCIPY, WITHOUT_MATPLOTLIB = TESTS / "hidden" / "scipy", TESTS / "hidden" / "matplotlib"
WITHOUT_EXTRAS = (WITHOUT_SCIPY, WITHOUT_MATPLOTLIB)
PATIENCE = 120  # seconds until something counts as hung: twenty times what it takes on an idle machine


# Real ranks


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    def check(self):
        """Return self if the command succeeded; else fail with its output."""
        assert self.code == 0, f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        return self


class TimeLimitError(AssertionError):
    """A command or a body has not ended in time."""


class Running:
    """A command in a session of its own, so that all its processes can be found and killed."""

    def __init__(self, command, environ):
        self._out, self._err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 - see close
        self._session = contextlib.ExitStack()
        session = self._session.enter_context(session_folder())
        environ = {**environ, **session.variables}
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            pass_fds=(session.lock,),
        )

    def wait(self, timeout):
        """Wait for the end; TimeLimitError, with standard error so far, if it does not come."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeLimitError(f"not done after {timeout} s\n--- stderr\n{self.read(self._err)}") from None
        return Finished(code, self.read(self._out), self.read(self._err))

    def read_so_far(self):
        """Standard error up to now."""
        return self.read(self._err)

    @staticmethod
    def read(file):
        file.flush()
        text = Path(f"/proc/self/fd/{file.fileno()}").read_text(errors="replace")
        return text.replace("\0", "")  # Open MPI ends what it says of an abort with one

    def pids(self):
        """All living processes of the session: mpirun, its ranks, and what those started. One of which only the first
        thread has ended still holds its files.
        """
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(") ")[2].split()[:4]
                if int(session) == self.process.pid and (
                    state != "Z" or len(list((stat.parent / "task").iterdir())) > 1
                ):
                    found.append(int(stat.parent.name))
        return found

    def close(self):
        """Kill every process that is left, and wait until they hold nothing any more."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.wait()
        self._out.close()
        self._err.close()
        self._session.close()


@contextlib.contextmanager
def running(n, *arguments, environ=None):
    """``mpirun -n N python ARGUMENTS`` in the recommended environment while the block runs, to interfere with it."""
    job = Running([mpirun_path(), "-n", str(n), sys.executable, *map(str, arguments)], full_environment(environ))
    try:
        yield job
    finally:
        job.close()


def mpirun(n, *arguments, timeout=PATIENCE, environ=None):
    """Run ``mpirun -n N python ARGUMENTS`` to its end."""
    with running(n, *arguments, environ=environ) as job:
        return job.wait(timeout)


def ssmpi(*arguments, ranks=None, timeout=PATIENCE, environ=None):
    """Run ``ssmpi ARGUMENTS`` under mpirun, or as a single process without it."""
    if ranks is not None:
        return mpirun(ranks, "-m", "ssmpi", *arguments, timeout=timeout, environ=environ)
    job = Running([sys.executable, "-m", "ssmpi", *map(str, arguments)], full_environment(environ))
    try:
        return job.wait(timeout)
    finally:
        job.close()


def full_environment(extra=None):
    """This process's environment with what ``ssmpi launch`` adds, and with the tests' own modules to import."""
    return {**os.environ, **environment(), "PYTHONPATH": python_path(*WITHOUT_EXTRAS, TESTS), **(extra or {})}


def with_plots():
    """What lets a process of ``full_environment`` draw."""
    return {"PYTHONPATH": python_path(WITHOUT_SCIPY, TESTS)}


def python_path(*folders):
    """``PYTHONPATH`` with ``folders`` first."""
    return os.pathsep.join(filter(None, (*map(str, folders), os.environ.get("PYTHONPATH"))))


def mpirun_path():
    """Where mpirun is: beside this interpreter, or on the path."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, "no mpirun: pip install 'ssmpi[mpi]'"
    return found


def address_of(file):
    """The address of memory of which this process has the file."""
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "file": file})


# Pretended ranks


def over_threads(topology, body, *arguments, timeout=PATIENCE):
    """Run ``body`` on threads of this process; their results by rank. The first exception is raised here. Compiling
    does not count towards ``timeout``.
    """
    from compiling import CLOCK  # here, because real ranks need no kernels for it

    job = PretendedJob(topology, CLOCK.now() + timeout, CLOCK.now)
    results = [None] * topology.size

    def be_rank(rank):
        try:
            results[rank] = body(PretendedWorld(job, rank), *arguments)
        except BaseException as error:
            job.fail(error)

    threads = [threading.Thread(target=be_rank, args=(rank,), daemon=True) for rank in range(topology.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.1)
        while thread.is_alive() and CLOCK.now() < job.deadline + 2:
            thread.join(0.1)
    if job.error:
        end_shadows(job)
        raise job.error
    stuck = [topology.name_of(rank) for rank, thread in enumerate(threads) if thread.is_alive()]
    if stuck:
        raise TimeLimitError(f"not done after {timeout} s: {', '.join(stuck)}")
    return results


def end_shadows(job):
    """Let shadow threads whose rounds need no messages meet the failure of their job, where their processes would end:
    they would take a third of a core from other tests.
    """
    from ssmpi.sync.pace import Shadow  # here, because real ranks need no kernels for it

    for thread in threading.enumerate():
        frame = sys._current_frames().get(thread.ident) if thread.name == "shadow" else None
        while frame and not isinstance(frame.f_locals.get("self"), Shadow):
            frame = frame.f_back
        if frame:
            frame.f_locals["self"].before_round = job.check
            thread.join(10)
            assert not thread.is_alive()


def end_helpers():
    """Let the helper threads of jobs whose other threads have ended end, as their processes would; they would wait on,
    and end in the midst of another test. Whatever they wait for in a mailbox comes, in a size that they refuse.
    """
    from ssmpi.runtime.mpi import mailbox  # here, because real ranks need no kernels for it

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("helper")]
    lanes = [model for model in map(model_of, threads) if model]
    deadline = time.monotonic() + 10
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        for box in filter(None, {int(box) for model in lanes for box in model.channel.addresses}):
            if mailbox.is_full(box):
                mailbox.mark_empty(box)
            else:
                ctypes.c_int64.from_address(box + mailbox.SIZE).value = -1
                mailbox.mark_full(box)
        time.sleep(0.05)
    assert not any(thread.is_alive() for thread in threads)


def model_of(thread):
    """The model of a helper thread; None if it has none yet or any more."""
    frame = sys._current_frames().get(thread.ident)
    while frame and "model" not in frame.f_locals:
        frame = frame.f_back
    return frame and frame.f_locals["model"]


class PretendedJob:
    """What all pretended ranks share: a lock, a deadline by the clock ``now``, the first error, and a channel per
    conversation.
    """

    def __init__(self, topology, deadline, now=time.monotonic):
        self.topology, self.deadline, self._now = topology, deadline, now
        self.lock = threading.RLock()
        self.error = None
        self._channels = {}
        for name in CONVERSATIONS:
            for rank in range(topology.size):
                ranks = topology.conversation_of(name, rank)
                if rank == ranks[0]:
                    self._channels[name, rank] = InProcessChannel(self, topology.directory(name, rank))
        self.everybody = InProcessChannel(self, Directory(tuple(map(topology.role_of, range(topology.size)))))

    def conversation(self, name, rank, traffic):
        """A rank's end of one."""
        ranks = self.topology.conversation_of(name, rank)
        return InProcessConversation(self._channels[name, ranks[0]], ranks.index(rank), meter(traffic, name))

    def fail(self, error):
        """Remember the first error; every rank then fails at its next call."""
        with self.lock:
            if self.error is None and not isinstance(error, SystemExit):
                self.error = error

    def check(self):
        """Raise if another rank failed or time is up."""
        if self.error is not None:
            raise SystemExit
        if self._now() > self.deadline:
            raise TimeLimitError("a rank was still waiting for another when time was up")


class PretendedWorld:
    """The interface of ``ssmpi.runtime.mpi.world.World`` over threads."""

    def __init__(self, job, rank):
        self.topology, self.rank, self.size = job.topology, rank, job.topology.size
        self.same_role_here, self.oversubscribed = 1, ""
        self.roles_here = [job.topology.role_of(rank)[0]]
        self.shadow_share = 0.2  # of a core: rounds without a pause would take a fifth of all that whole runs take
        self.host, self.hosts, self.who = "here", ["here"] * self.size, job.topology.name_of(rank)
        self.role, self.index = job.topology.role_of(rank)
        self._job, self.traffic = job, Traffic()
        for name in CONVERSATIONS:
            setattr(self, name, job.conversation(name, rank, self.traffic))

    def start_heartbeat(self, waiting):
        """Threads of one process freeze together."""

    def abort(self, text, code=1):
        """Called in the handler of the exception that ends the job."""
        self._job.fail(sys.exception())
        raise SystemExit(text)


class PretendedStart:
    """The interface of ``ssmpi.runtime.mpi.world.Job`` over threads, as far as ranks agree on where they start from."""

    def __init__(self, world):
        self._all = InProcessConversation(world._job.everybody, world.rank, meter(Traffic(), "control"))
        self.rank, self.size = world.rank, world.size

    def gather(self, value):
        return self._all.gather(value)

    on_this_host = gather

    def agree(self, body):
        return self._all.share(body() if self.rank == 0 else None)
