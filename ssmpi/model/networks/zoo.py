"""The networks that ``model.name`` can name. A new built-in one is a file beside ``dlrm`` and a line here; a custom one
is a file beside the run file, see ``custom_network``.
"""

from __future__ import annotations

from ssmpi.model import custom_network
from ssmpi.model.network import Inputs, Network
from ssmpi.model.networks.dcn_v2 import dcn_v2
from ssmpi.model.networks.deepfm import deepfm
from ssmpi.model.networks.dlrm import dlrm
from ssmpi.model.networks.finalmlp import finalmlp
from ssmpi.model.networks.finalnet import finalnet
from ssmpi.model.networks.gdcn import gdcn
from ssmpi.model.networks.logistic import logistic
from ssmpi.model.networks.masknet import masknet
from ssmpi.model.networks.wide_deep import wide_deep
from ssmpi.model.options import ModelOptions
from ssmpi.model.top_k import with_top_k
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError

NETWORKS = {
    "dlrm": dlrm,
    "dcn_v2": dcn_v2,
    "deepfm": deepfm,
    "logistic": logistic,
    "finalmlp": finalmlp,
    "finalnet": finalnet,
    "gdcn": gdcn,
    "masknet": masknet,
    "wide_deep": wide_deep,
}


def network_of(options: ModelOptions, inputs: Inputs) -> Network:
    """The network that ``[model]`` describes, over these inputs; SettingsError where they do not fit."""
    return with_top_k(_network_of(options, inputs), options.top_k)


def _network_of(options: ModelOptions, inputs: Inputs) -> Network:
    if user_code.names_file(options.name):
        return custom_network.network_of(options.name, inputs)
    if options.name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise SettingsError(f"model.name is one of {known}, got {options.name!r}; your own is 'FILE.py:FUNCTION'")
    return NETWORKS[options.name](options, inputs)
