"""All kernels of tables are loaded, or compiled, before the first step: else the others wait for it meanwhile."""

import sys
import threading

import pytest
from datasets import FEW, make_dataset, make_keyed, make_lists_dataset
from numba.core.dispatcher import Dispatcher
from runs import train_over_threads

from ssmpi.trainer import build_trainer

SIZES = (400, 400, 20, 9, 50)
WHERE = (  # the rows are
    ("topology.embedding_ps=0",), ("topology.embedding_ps=2",), ("topology.embedding_ps=2", "run.shared_memory=false")
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same rows with ids, and with keys of two features; and others with lists."""
    folder = tmp_path_factory.mktemp("rows")
    ids = make_dataset(folder / "ids", 400, cardinalities=SIZES, features=FEW)
    keys = make_keyed(folder / "keys", ids, ("user", "item"))
    return {"ids": ids, "keys": keys, "lists": make_lists_dataset(folder / "lists", 400)}


def kernels():
    """Those of tables."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ssmpi.embedding.")]
    return [each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)]


def loaded():
    """What they are loaded for in this process."""
    return {(kernel.__name__, str(types)) for kernel in kernels() for types in kernel.overloads}


SYNCHRONOUS = "topology.trainers=2", "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1"
EXPIRING = "embedding.dynamic.expire_after_examples=1"
CASES = [
    *(("ids", settings) for settings in WHERE),
    *(("keys", (*settings, EXPIRING)) for settings in WHERE),
    *(("lists", (*WHERE[-1], f"embedding.pooling={pooling}")) for pooling in ("server", "trainer")),
    ("ids", (*WHERE[1], *SYNCHRONOUS)),
    ("ids", (*WHERE[-1], *SYNCHRONOUS, "embedding.table_decay=0.1")),
    ("ids", (*WHERE[1], "embedding.precision=bf16")),
    ("keys", (*WHERE[-1], EXPIRING, "embedding.precision=fp16")),
]


@pytest.mark.parametrize(("what", "settings"), CASES)
def test_no_step_loads_a_kernel(tmp_path, data, what, settings, monkeypatch):
    """Than what the first trainer has loaded before; with pauses at which keys expire."""
    compile_kernels, before, turn = build_trainer.compile_kernels, set(), threading.Lock()

    def forget_all_first(*arguments, **how):
        with turn:
            for kernel in () if before else kernels():
                kernel._reset_overloads()
            compile_kernels(*arguments, **how)
            before.update(() if before else loaded())

    monkeypatch.setattr(build_trainer, "compile_kernels", forget_all_first)
    train_over_threads(tmp_path, data[what], *settings, "data.passes=2", "evaluate.per_pass=2")
    assert before
    assert loaded() <= before, "loaded while it trained"
