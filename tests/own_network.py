"""A network of a user's own, in a file."""

NAMED = "model.name=net.py:network"
OWN = """
from ssmpi.model.network import DENSE, ROWS, Concat, Network, cross, mlp

def network(inputs):
    start = Concat("start", (DENSE, ROWS))
    crossed = cross("cross", "start", inputs.dense + inputs.tables * inputs.dim, layers=2, rank=4)
    deep = mlp("deep", "start", [WIDTH, 8])
    both = Concat("both", (crossed[-1].name, deep[-1].name))
    return Network((start, *crossed, *deep, both, *mlp("top", "both", [16, 1], last="none")), inputs)
"""


def write_own(folder, text=OWN, width=32):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "net.py").write_text(text.replace("WIDTH", str(width)))
    return folder
