"""DLRM, DCN v2, DeepFM and logistic regression in plain torch, by their papers and without any code of ssmpi's: the
other side of ``movielens.py``. Parameters have the names that ``ssmpi export`` gives them: its models load here.

Dense parameters are stepped by ``torch.optim.Adagrad``, rows by row-wise Adagrad, which torch lacks.
"""

import math
from itertools import combinations

import torch
from torch import nn

DIM, BOTTOM, TOP, DEEP, CROSSES = 16, (64, 16), (64, 32, 1), (64, 32), 3
EPSILON, ROW_STATE, DENSE_STATE = 1e-8, 3e-4, 1e-8


def mlp(inputs: int, widths: tuple[int, ...], *, last: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and behind the last one if ``last``; as facebookresearch/dlrm starts it."""
    layers: list[nn.Module] = []
    for number, width in enumerate(widths):
        layers.append(started(nn.Linear(inputs, width)))
        if last or number < len(widths) - 1:
            layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers)


def started(layer: nn.Linear) -> nn.Linear:
    """With weights ~ N(0, 2 / (inputs + outputs)) and biases ~ N(0, 1 / outputs)."""
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (layer.in_features + layer.out_features)))
    nn.init.normal_(layer.bias, std=math.sqrt(1 / layer.out_features))
    return layer


def tables(sizes: tuple[int, ...]) -> nn.ModuleList:
    """Vectors of ``DIM`` floats, ~ U(-1 / sqrt(rows), 1 / sqrt(rows))."""
    found = nn.ModuleList(nn.Embedding(rows, DIM, sparse=True) for rows in sizes)
    for table in found:
        bound = 1 / math.sqrt(table.num_embeddings)
        nn.init.uniform_(table.weight, -bound, bound)
    return found


def weights(sizes: tuple[int, ...]) -> nn.ModuleList:
    """One weight for each id, 0 at first."""
    found = nn.ModuleList(nn.Embedding(rows, 1, sparse=True) for rows in sizes)
    for table in found:
        nn.init.zeros_(table.weight)
    return found


def first_order(dense: int) -> nn.Linear:
    """Of dense features: zeros at first."""
    layer = nn.Linear(dense, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def looked_up(found: nn.ModuleList, ids: torch.Tensor) -> list[torch.Tensor]:
    """A row of each table, for ids (batch, tables)."""
    return [table(ids[:, number]) for number, table in enumerate(found)]


class DLRM(nn.Module):
    """Naumov et al., arXiv 1906.00091."""

    def __init__(self, dense: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.emb_l, self.bot_l = tables(sizes), mlp(dense, BOTTOM, last=True)
        fields = len(sizes) + 1
        self.top_l = mlp(DIM + fields * (fields - 1) // 2, TOP, last=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 1)."""
        x = self.bot_l(dense)
        fields = [x, *looked_up(self.emb_l, ids)]
        dots = [(fields[i] * fields[j]).sum(1, keepdim=True) for i in range(len(fields)) for j in range(i)]
        return self.top_l(torch.cat([x, *dots], dim=1))


class Cross(nn.Module):
    """x_0 * (W x + b) + x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = started(nn.Linear(width, width))

    def forward(self, start: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The next x."""
        return start * self.w(x) + x


class DCNv2(nn.Module):
    """Wang et al., arXiv 2008.13535, stacked, behind DLRM's bottom MLP."""

    def __init__(self, dense: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.emb_l, self.bot_l = tables(sizes), mlp(dense, BOTTOM, last=True)
        width = (len(sizes) + 1) * DIM
        self.cross = nn.ModuleList(Cross(width) for _ in range(CROSSES))
        self.top_l = mlp(width, TOP, last=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 1)."""
        start = x = torch.cat([self.bot_l(dense), *looked_up(self.emb_l, ids)], dim=1)
        for layer in self.cross:
            x = layer(start, x)
        return self.top_l(x)


class DeepFM(nn.Module):
    """Guo et al., IJCAI 2017, without dropout; a dense feature is a field, its value times a vector."""

    def __init__(self, dense: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.emb_l, self.first_l, self.first = tables(sizes), weights(sizes), first_order(dense)
        self.vectors = nn.ParameterDict({"vectors": nn.Parameter(0.01 * torch.randn(dense, DIM))})
        self.deep = mlp((dense + len(sizes)) * DIM, (*DEEP, 1), last=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 1)."""
        vectors = self.vectors["vectors"]
        fields = [dense[:, i, None] * vectors[i] for i in range(len(vectors))] + looked_up(self.emb_l, ids)
        pairs = sum((one * other).sum(1, keepdim=True) for one, other in combinations(fields, 2))
        return self.first(dense) + sum(looked_up(self.first_l, ids)) + pairs + self.deep(torch.cat(fields, dim=1))


class Logistic(nn.Module):
    """A weight for each dense feature and each id."""

    def __init__(self, dense: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.first_l, self.logit = weights(sizes), first_order(dense)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, 1)."""
        return self.logit(dense) + sum(looked_up(self.first_l, ids))


NETWORKS = {"dlrm": DLRM, "dcn_v2": DCNv2, "deepfm": DeepFM, "logistic": Logistic}


class RowwiseAdagrad:
    """state += mean(g^2); row -= rate * g / (sqrt(state) + epsilon), with one state a row."""

    def __init__(self, found: list[nn.Parameter], rate: float) -> None:
        self._tables, self._rate = [(table, torch.full((len(table),), ROW_STATE)) for table in found], rate

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows of the last batch, and forget their gradients."""
        for table, state in self._tables:
            gradient = table.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            state[rows] += values.square().mean(dim=1)
            table[rows] -= self._rate * values / (state[rows].sqrt() + EPSILON).unsqueeze(1)
            table.grad = None
