"""A training job for a test to spoil, to break, to kill or to stop."""

import contextlib
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

from ranks import PATIENCE, Running, full_environment

from ssmpi.runtime.errors import STOPPED

LIMIT = 10  # seconds from a fault to the end of the job
STOPPING = 30  # seconds from a request to stop to the end: the model is saved in them
BROKEN = Path(__file__).with_name("broken.py")
SETTINGS = """
data.passes = 100000
data.batch_size = 64
model.bottom = [32, 16]
model.top = [32, 1]
evaluate.split = "none"
evaluate.final = "none"
run.tensorboard = false
run.log_seconds = 0.2
"""
ONE_TRAINER = ("topology.embedding_ps=1", "sync.algorithm=none")
TWO_TRAINERS = ("topology.trainers=2", "topology.threads=2", "sync.algorithm=ma")
ALL_ROLES = ("topology.trainers=2", "topology.sync_ps=1", "sync.algorithm=easgd")
ROLES = ("trainer 0", "trainer 1", "embedding_ps 0", "sync_ps 0")  # of ALL_ROLES, by rank
MOMENT = 3  # seconds between the end of mpirun and that of its last rank


class Job:
    """A training job in a folder of its own. Its processes are known by the run file on their command lines."""

    def __init__(self, folder, start, *overrides, program=("-m", "ssmpi", "train"), environ=None, resume=False):
        self.run, file = folder / "run", folder / "given.toml"
        file.write_text(SETTINGS)
        there = ("--resume", self.run) if resume else (f"run.folder={self.run}",)
        places = (file, f"data.folder={folder / 'data'}", *there)
        words = (*start, sys.executable, *program, *places, *overrides)
        self.output = ""
        self._mark, self._broken = str(file).encode(), folder / "broken"
        environ = {"BROKEN_AT": str(self._broken), **(environ or {})}
        self._running = Running([str(word) for word in words], full_environment(environ))

    def until_it_trains(self, more=1):
        """Wait for more lines about training than there are now."""
        before = len(self.told("train"))
        self.until(lambda: len(self.told("train")) >= before + more)
        return self

    def until_it_breaks(self):
        """Wait for what ``broken.py`` does to it: from then on time counts."""
        self.until(self._broken.exists)
        return self

    def until_it_listens(self, ranks=3):
        """Wait until every rank has its handlers: a signal that comes sooner ends Python."""
        self.until(lambda: [catches(pid, signal.SIGUSR1) for pid in self.ranks().values()] == [True] * ranks)
        return self

    def told(self, kind):
        """Lines of one kind in the run's metrics so far."""
        with contextlib.suppress(OSError):
            return [line for line in (self.run / "metrics.jsonl").read_text().splitlines() if f'"{kind}"' in line]
        return []

    def until(self, happened):
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self._running.process.poll() is None, self._running.read_so_far()
            assert time.monotonic() < deadline, self._running.read_so_far()
            time.sleep(0.05)
        return self

    def said_so_far(self):
        """Standard error up to now."""
        return self._running.read_so_far()

    def send(self, signum, rank=None):
        """Send a signal to one rank, or to mpirun or whatever was started."""
        pid = self._running.process.pid if rank is None else self.ranks()[rank]
        os.kill(pid, signum)

    def ranks(self):
        """Process ids of the ranks, by rank."""
        found = {}
        for pid in self.living():
            with contextlib.suppress(OSError):
                rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
                found |= {int(rank[1]): pid} if rank else {}
        return found

    def living(self):
        """All processes of this job."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    def end(self, within=LIMIT):
        """Exit code and output, once it has ended; no process may be left, a moment later: mpirun waits for none."""
        finished = self._running.wait(within)
        deadline = time.monotonic() + MOMENT
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.living(), "processes are left"
        self.output = finished.out + finished.err
        return finished.code, self.output

    def error(self, within=LIMIT):
        """The one message of a job that failed."""
        code, output = self.end(within)
        assert code not in (0, STOPPED), output
        said = re.findall(r"^(?:ssmpi[a-z ]*: )?error: .*", output, re.MULTILINE)
        assert len(said) == 1, output
        return said[0]

    def close(self):
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._running.close()


def catches(pid, signum):
    """Whether a process has a handler for a signal."""
    with contextlib.suppress(OSError):
        caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return bool(int(caught[1], 16) >> (signum - 1) & 1)
    return False


def assert_names(text, role, rank, *words):
    assert f"{role} (rank {rank}, host {socket.gethostname()}" in text
    for word in words:
        assert word in text
