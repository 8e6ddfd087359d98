"""Centers of sync PSs that nobody serves."""

from types import SimpleNamespace

import numpy as np

from ssmpi import sync
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.trainer.sync_ps import optimizer


def center_alone(options, rank=2):
    """The center of the sync PS of this rank, which takes plain steps; what its methods return is what it answers."""
    service = SimpleNamespace(rank=rank, size=rank + 1, buffer=lambda size: np.empty(size, np.uint8))
    make_step = optimizer(DenseOptions(optimizer="sgd", rate=1.0))
    return sync.make_center(options, make_step, service, ProcessMemory())
