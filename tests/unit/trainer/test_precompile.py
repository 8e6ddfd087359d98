"""All kernels of tables are loaded, or compiled, before the first step: else the others wait for it meanwhile."""

import sys

import pytest
from datasets import FEW, make_dataset, make_keyed
from numba.core.dispatcher import Dispatcher
from runs import train_over_threads

from ssmpi.trainer import build_trainer

SIZES = (400, 400, 20, 9, 50)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same rows with ids, and with keys of two features."""
    folder = tmp_path_factory.mktemp("rows")
    ids = make_dataset(folder / "ids", 400, cardinalities=SIZES, features=FEW)
    return {"ids": ids, "keys": make_keyed(folder / "keys", ids, ("user", "item"))}


def kernels():
    """Those of tables."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ssmpi.embedding.")]
    return [each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)]


def loaded():
    """What they are loaded for in this process."""
    return {(kernel.__name__, str(types)) for kernel in kernels() for types in kernel.overloads}


@pytest.mark.parametrize("what", ["ids", "keys"])
@pytest.mark.parametrize(("servers", "shared"), [(0, "true"), (2, "true"), (2, "false")])
def test_no_step_loads_a_kernel(tmp_path, data, what, servers, shared, monkeypatch):
    """Of one trainer, whose PSs find on disk what it has compiled; with pauses at which keys expire."""
    compile_kernels, before = build_trainer.compile_kernels, set()

    def forget_all_first(*arguments, **how):
        for kernel in kernels():
            kernel._reset_overloads()
        compile_kernels(*arguments, **how)
        before.update(loaded())

    monkeypatch.setattr(build_trainer, "compile_kernels", forget_all_first)
    settings = ["embedding.dynamic.expire_after_examples=1"] if what == "keys" else []
    train_over_threads(
        tmp_path, data[what], *settings, "data.passes=2", "evaluate.per_pass=2", f"topology.embedding_ps={servers}",
        f"run.shared_memory={shared}",
    )  # fmt: skip
    assert before
    assert loaded() <= before, "loaded while it trained"
