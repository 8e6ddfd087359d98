"""Custom networks: ``model.name = "net.py:network"`` is the function ``network`` in a file beside the run file. The
first rank calls it once, with the ``Inputs`` of the data; the other ranks, checkpoints and models get the network that
it returns. Its operators may be of classes in such a file, too.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path

from ssmpi.model.network import Inputs, Network, Operator
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.user_code import is_own, kind_of

SETTING = "model.name"
REMEDY = "jobs/guide/networks.md has an example under 'Custom networks'"


def network_of(name: str, inputs: Inputs) -> Network:
    """The network that the function returns for ``inputs``; SettingsError says what is wrong with it, and where."""
    path, function = user_code.parts(name)
    module = user_code.load(path, user_code.source(name, SETTING), REMEDY)

    def called() -> object:
        return user_code.member(path, function, module, SETTING, REMEDY, types.FunctionType)(inputs)

    network = user_code.run_user_code(path, f"'{function}', called with {Inputs.__name__}", called, REMEDY)
    if not isinstance(network, Network):
        raise SettingsError(
            f"{path}: '{function}' returned {network!r:.60} ({type(network).__name__}), not a Network: return "
            f"Network((operator, ...), inputs); {REMEDY}"
        )
    if network.inputs != inputs:
        raise SettingsError(
            f"{path}: '{function}' returned a network over {network.inputs}, but the data has {inputs}: pass "
            "Network the inputs that the function is called with"
        )
    return network


def own_operators(operators: Iterable[Operator]) -> list[Operator]:
    """The custom operators among ``operators``."""
    return [operator for operator in operators if is_own(type(operator))]


def kinds_of(operators: Iterable[Operator]) -> str:
    """The kinds of the custom operators among ``operators``, for messages."""
    return ", ".join(dict.fromkeys(kind_of(type(operator)) for operator in own_operators(operators)))


def texts_of(operators: Iterable[Operator]) -> dict[str, str]:
    """The files of the custom operators among ``operators``: names and texts."""
    modules = [sys.modules[type(operator).__module__] for operator in own_operators(operators)]
    return {Path(str(module.__file__)).name: vars(module)["__source__"] for module in modules}
