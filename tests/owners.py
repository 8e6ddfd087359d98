"""A small network whose parameters several members of a group own."""

from ssmpi.model.network import Inputs
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import OwnedParameters

NETWORK = network_of(ModelOptions(bottom=(8, 4), top=(6, 1)), Inputs(13, 26, 4))
WHOLE = OwnedParameters(NETWORK)


NAMES = [name for name, _ in NETWORK.layout]


def owners(*names):
    """What each member owns."""
    return tuple(OwnedParameters(NETWORK, frozenset(each)) for each in names)


BY_LAYER = owners(NAMES[:4], NAMES[4:])
IN_TURN = owners(NAMES[::2], NAMES[1::2])
