"""Networks as their papers have them, in torch, over parameters by name: dense (batch, features), the vectors of the
rows, (batch, dim) each, and their first-order weights (batch, 1). And small settings of every built-in network.
"""

from dataclasses import replace
from itertools import count, takewhile

import torch
from torch.nn.functional import layer_norm, linear

from ssmpi.model.options import (
    DCNv2Options,
    DeepFMOptions,
    FinalMLPOptions,
    FinalNetOptions,
    GDCNOptions,
    MaskNetOptions,
    ModelOptions,
    WideDeepOptions,
)

SMALL = ModelOptions(
    bottom=(24, 4), top=(16, 1), dcn_v2=DCNv2Options(2), deepfm=DeepFMOptions((24, 16)), gdcn=GDCNOptions(2, (12, 10)),
    finalmlp=FinalMLPOptions((14, 12), (6,), 2), finalnet=FinalNetOptions((14, 12), (6,)),
    masknet=MaskNetOptions((14, 12), deep=(10,), ratio=1.5), wide_deep=WideDeepOptions((14, 12)),
)  # fmt: skip
NETWORKS = {  # all built-in ones, with all structures
    **{name: replace(SMALL, name=name) for name in ("dlrm", "dcn_v2", "deepfm", "logistic", "finalmlp", "wide_deep")},
    "dcn_v2 of low rank": replace(SMALL, name="dcn_v2", dcn_v2=DCNv2Options(2, 2)),
    "dcn_v2 in parallel": replace(SMALL, name="dcn_v2", dcn_v2=DCNv2Options(2, structure="parallel")),
    "finalnet": replace(SMALL, name="finalnet"),
    "finalnet of one block": replace(SMALL, name="finalnet", finalnet=FinalNetOptions((14, 12), ())),
    "gdcn": replace(SMALL, name="gdcn"),
    "gdcn, stacked": replace(SMALL, name="gdcn", gdcn=GDCNOptions(2, (12, 10), "stacked")),
    "masknet": replace(SMALL, name="masknet"),
    "masknet in parallel": replace(
        SMALL, name="masknet", masknet=MaskNetOptions((14, 12), "parallel", deep=(10,), ratio=1.5)
    ),
}


def layer(p, name, x):
    return linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def relus(p, name, x, step=2):
    """Layers with a ReLU behind each."""
    for k in takewhile(lambda k: f"{name}.{k}.weight" in p, count(0, step)):
        x = torch.relu(layer(p, f"{name}.{k}", x))
    return x


def mlp(p, name, x):
    """The same without the last ReLU."""
    last = max(k for k in range(0, 20, 2) if f"{name}.{k}.weight" in p)
    hidden = {key: value for key, value in p.items() if not key.startswith(f"{name}.{last}.")}
    return layer(p, f"{name}.{last}", relus(hidden, name, x))


def fields(p, dense, vectors):
    """x_i v_i of every dense feature, and the vectors of the ids."""
    return [x[:, None] * v for x, v in zip(dense.T, p.get("vectors.vectors", []), strict=True)] + list(vectors)


def dcn_v2_in_parallel(p, dense, vectors, weights):
    start = x = torch.cat([*([relus(p, "bottom", dense)] if dense.shape[1] else []), *vectors], dim=1)
    for k in range(2):
        x = start * layer(p, f"cross.{k}.w", x) + x
    return layer(p, "logit", torch.cat([x, relus(p, "top", start)], dim=1))


def finalmlp(p, dense, vectors, weights):
    e = torch.cat(fields(p, dense, vectors), dim=1)
    x, y = relus(p, "mlp1", e), relus(p, "mlp2", e)
    matrices = [p[key] for key in sorted(p) if key.startswith("heads.")]  # (of y, of x)
    heads = zip(x.chunk(len(matrices), dim=1), y.chunk(len(matrices), dim=1), matrices, strict=True)
    products = sum(torch.einsum("bi,ji,bj->b", part, matrix, other) for part, other, matrix in heads)
    return layer(p, "x", x) + layer(p, "y", y) + products[:, None]


def finalnet(p, dense, vectors, weights):
    e, blocks = torch.cat(fields(p, dense, vectors), dim=1), []
    for name in ("block1", "block2"):
        x = e
        for k in takewhile(lambda k, name=name: f"{name}.{k}.linear.weight" in p, count()):
            g, h = layer(p, f"{name}.{k}.linear", x).chunk(2, dim=1)
            x = torch.relu(g + h * g)
        blocks += [x] if x is not e else []
    return layer(p, "logit", torch.cat(blocks, dim=1))


def gdcn(p, dense, vectors, weights):
    start = x = torch.cat(fields(p, dense, vectors), dim=1)
    for k in range(2):
        x = start * layer(p, f"cross.{k}.w", x) * torch.sigmoid(layer(p, f"cross.{k}.gate", x)) + x
    if "logit.weight" not in p:
        return mlp(p, "deep", x)
    return layer(p, "logit", torch.cat([x, relus(p, "deep", start)], dim=1))


def normalized(p, name, x, part=slice(None)):
    return layer_norm(x, x.shape[1:], p[f"{name}.scale"][part], p[f"{name}.shift"][part])


def masknet(p, dense, vectors, weights):
    each = fields(p, dense, vectors)
    e, dim, ends = torch.cat(each, dim=1), each[0].shape[1], []
    hidden = [normalized(p, "normal", v, slice(k * dim, (k + 1) * dim)) for k, v in enumerate(each)]
    x = start = torch.cat(hidden, dim=1)
    for k in range(2):
        name = f"block.{k}"
        masked = mlp(p, f"{name}.mask", e) * (x if "logit.weight" in p else start)
        x = torch.relu(normalized(p, f"{name}.normal", layer(p, f"{name}.linear", masked)))
        ends.append(x)
    return layer(p, "logit", x) if "logit.weight" in p else mlp(p, "deep", torch.cat(ends, dim=1))


def wide_deep(p, dense, vectors, weights):
    wide = layer(p, "wide", dense) if dense.shape[1] else p["wide.bias"]
    return wide + sum(weights) + mlp(p, "deep", torch.cat([dense, *vectors], dim=1))


PAPERS = {
    "dcn_v2 in parallel": dcn_v2_in_parallel,
    "finalmlp": finalmlp,
    "finalnet": finalnet,
    "finalnet of one block": finalnet,
    "gdcn": gdcn,
    "gdcn, stacked": gdcn,
    "masknet": masknet,
    "masknet in parallel": masknet,
    "wide_deep": wide_deep,
}
