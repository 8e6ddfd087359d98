"""``python broken.py WHAT RANK train RUN_FILE ...`` is ``ssmpi`` with something that happens to one rank, after a
while.

The file that ``BROKEN_AT`` names appears when it happens.
"""

import os
import signal
import sys
import time
from pathlib import Path

from faults import Fault

from ssmpi import cli
from ssmpi.runtime.host.launcher_env import rank as launched_rank


def note_the_time():
    Path(os.environ["BROKEN_AT"]).touch()


def fail(*_):
    note_the_time()
    raise RuntimeError("broken on purpose")


def ask_to_stop(*_):
    os.kill(os.getpid(), signal.SIGUSR1)


def break_worker():
    from ssmpi.model.replica import ThreadModel

    Fault(ThreadModel, "forward_backward", fail, 50).start()


def break_shadow():
    from ssmpi.sync.base import Synchronizer

    Fault(Synchronizer, "round", fail, 3).start()


def break_embedding_ps():
    from ssmpi.embedding.server import EmbeddingServer

    Fault(EmbeddingServer, "handle", fail, 100).start()


def break_sync_ps():
    from ssmpi.sync.center import Center

    Fault(Center, "handle", fail, 5).start()


def break_start():
    from ssmpi.trainer.trainer import Trainer

    Fault(Trainer, "__init__", fail, 1).start()


def freeze_helper():
    from ssmpi.trainer.trainer import Trainer

    def freeze(*_):
        note_the_time()
        time.sleep(1000)  # this thread only: stopped as a whole, the process might hold a lock

    Fault(Trainer, "count_help", freeze, 20).start()


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

    sys.meta_path.insert(0, Missing("ssmpi.runtime.mpi.messages"))


def stop_where_the_disk_hangs():
    import time

    from ssmpi.model.replica import ThreadModel
    from ssmpi.state.checkpoint import disk

    def happens(*_):
        disk.sync = lambda _: time.sleep(600)
        ask_to_stop()

    Fault(ThreadModel, "forward_backward", happens, 20).start()


def stop_before_training():
    from ssmpi.trainer.trainer import Trainer

    Fault(Trainer, "__init__", ask_to_stop, 1).start()


def stop_in_evaluation():
    from ssmpi.model.replica import ThreadModel

    Fault(ThreadModel, "score", ask_to_stop, 3).start()


if __name__ == "__main__":
    what, rank = sys.argv[1], int(sys.argv[2])
    if launched_rank() == rank:
        globals()[what]()
    cli.main(sys.argv[3:])
