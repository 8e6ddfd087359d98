"""Python runs this in every rank that has this folder in ``PYTHONPATH``: one rank stops itself while it starts.

``FREEZE`` says which, in which start of the job, and at the import of which module: "1 2 ssmpi.train"; with a fourth
word, "slow", it sleeps. The file that ``BROKEN_AT`` names appears when it happens; it happens once.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path


class Freezing:
    """Stops or delays the process where a module is to be imported."""

    def __init__(self, module):
        self._module = module

    def find_spec(self, name, path=None, target=None):
        broken = Path(os.environ["BROKEN_AT"])
        if name == self._module and not broken.exists():
            broken.touch()
            time.sleep(1000) if slow else os.kill(os.getpid(), signal.SIGSTOP)


rank, start, module, *slow = os.environ["FREEZE"].split()
given = re.search(r"--supervised \w+:(\d+):", " ".join(sys.orig_argv))
if os.environ.get("OMPI_COMM_WORLD_RANK") == rank and (given[1] if given else "1") == start:
    sys.meta_path.insert(0, Freezing(module))
