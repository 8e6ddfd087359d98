"""``python broken.py WHAT RANK train RUN_FILE ...`` is ``ssmpi`` with something that happens to one rank, after a
while.

The file that ``BROKEN_AT`` names appears when it happens.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

from ssmpi import cli
from ssmpi.host.launcher_env import rank as launched_rank


def note_the_time():
    Path(os.environ["BROKEN_AT"]).touch()


def fail():
    note_the_time()
    raise RuntimeError("broken on purpose")


def ask_to_stop():
    os.kill(os.getpid(), signal.SIGUSR1)


def at_call(owner, name, number, happens=fail):
    """Let something happen when a method is called for the ``number``-th time."""
    count, method = itertools.count(1), getattr(owner, name)

    def broken(*arguments, **keywords):
        if next(count) == number:
            happens()
        return method(*arguments, **keywords)

    setattr(owner, name, broken)


def break_worker():
    from ssmpi.model.replica import ThreadModel

    at_call(ThreadModel, "forward_backward", 50)


def break_shadow():
    from ssmpi.sync.base import Synchronizer

    at_call(Synchronizer, "round", 3)


def break_embedding_ps():
    from ssmpi.embedding.server import EmbeddingServer

    at_call(EmbeddingServer, "handle", 100)


def break_sync_ps():
    from ssmpi.sync.center_shard import Center

    at_call(Center, "handle", 5)


def break_start():
    from ssmpi.roles.trainer import Trainer

    at_call(Trainer, "__init__", 1)


class Missing:
    """Finds that one module cannot be imported."""

    def __init__(self, module):
        self._module = module

    def find_spec(self, name, path=None, target=None):
        if name == self._module:
            note_the_time()
            raise ImportError(f"no {name}, on purpose")


def break_import():
    sys.meta_path.insert(0, Missing("numba"))


def break_joining():
    import mpi4py.MPI  # noqa: F401 - a rank that is in MPI already is waited for by the others

    sys.meta_path.insert(0, Missing("ssmpi.comm.messages"))


def stop_where_the_disk_hangs():
    import time

    from ssmpi.checkpoint import disk
    from ssmpi.model.replica import ThreadModel

    def happens():
        disk.sync = lambda _: time.sleep(600)
        ask_to_stop()

    at_call(ThreadModel, "forward_backward", 20, happens)


def stop_before_training():
    from ssmpi.roles.trainer import Trainer

    at_call(Trainer, "__init__", 1, ask_to_stop)


def stop_in_evaluation():
    from ssmpi.model.replica import ThreadModel

    at_call(ThreadModel, "score", 3, ask_to_stop)


if __name__ == "__main__":
    what, rank = sys.argv[1], int(sys.argv[2])
    if launched_rank() == rank:
        globals()[what]()
    cli.main(sys.argv[3:])
