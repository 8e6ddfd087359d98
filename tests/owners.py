"""A small network whose parameters several members of a group own: whole ones, or rows of them."""

from ssmpi.model.network import Inputs
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.zoo import network_of

NETWORK = network_of(ModelOptions(bottom=(8, 4), top=(6, 1)), Inputs(13, 26, 4))
WHOLE = OwnedParameters(NETWORK)


def owners(*shares):
    """What each member owns, given the rows that each has by parameter."""
    return tuple(OwnedParameters(NETWORK, rows) for rows in shares)


def halves(name):
    """A parameter's rows in two unequal shares."""
    rows = dict(NETWORK.layout)[name][0]
    return slice(0, rows // 3), slice(rows // 3, rows)


NAMES = [name for name, _ in NETWORK.layout]
CUT = {name: halves(name) for name in NAMES if name.startswith("top.0.")}
BY_LAYER = owners({name: slice(None) for name in NAMES[:4]}, {name: slice(None) for name in NAMES[4:]})
BY_ROWS = owners(
    *(
        {name: slice(None) for name in NAMES[member::2] if name not in CUT}
        | {name: cut[member] for name, cut in CUT.items()}
        for member in (0, 1)
    )
)
