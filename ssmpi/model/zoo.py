"""The models that ``model.name`` can name. A new one is a module beside ``dlrm`` and a line here."""

from ssmpi.model.dlrm import DLRM

MODELS = {"dlrm": DLRM}
