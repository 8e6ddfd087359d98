"""Custom networks: ``model.name = "net.py:network"`` is the function ``network`` in a file beside the run file. The
first rank calls it once, with the ``Inputs`` of the data; the other ranks, checkpoints and models get the network that
it returns.
"""

from __future__ import annotations

import types

from ssmpi.model.custom_code import REMEDY
from ssmpi.model.network import Inputs, Network
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError

SETTING = "model.name"


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
