"""The same computations written plainly, without any code of ssmpi, to compare its results with."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    """SplitMix64's finalizer, on a whole number."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def initial_row(seed, table, row, dim, cardinality):
    """A row before training: U(-1/sqrt(n), 1/sqrt(n)) from a counter."""
    key = mix((seed * GOLDEN + mix((table + GOLDEN) & MASK)) & MASK)
    row_key = mix(key ^ mix((row + GOLDEN) & MASK))
    words = [mix((row_key + (j + 1) * GOLDEN) & MASK) >> 40 for j in range(dim)]
    return [(2.0 * (word + 0.5) / 2**24 - 1.0) / cardinality**0.5 for word in words]


def initial_tables(seed, cardinalities, dim):
    """All tables before training, float32 (rows, dim) each."""
    return [
        np.array([initial_row(seed, table, row, dim, rows) for row in range(rows)], np.float32)
        for table, rows in enumerate(cardinalities)
    ]


class RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row, to which the mean square of the row's gradient is added. Whole tables may
    ``decay``.
    """

    def __init__(self, tables, rate, epsilon, initial=0.0, decay=0.0):
        super().__init__(tables, {"lr": rate})
        self.decay = decay
        self.epsilon, self.sums = epsilon, [torch.full((len(table),), initial) for table in tables]

    def step(self):
        (group,) = self.param_groups
        for table, sums in zip(group["params"], self.sums, strict=True):
            gradient = table.grad + self.decay * table.data
            sums += gradient.square().mean(dim=1)
            table.data -= group["lr"] * gradient / (sums.sqrt() + self.epsilon)[:, None]


class LazyAdam(torch.optim.Optimizer):
    """Adam of the rows of a batch alone, each by the count of its own steps; ``rowwise`` with one mean of squares a
    row. Gradients are sparse, so rows that are looked up in vain count.
    """

    def __init__(self, tables, options, rowwise):
        super().__init__(tables, {"lr": options.rate})
        self.options, self.rowwise = options, rowwise
        self.state_of = [
            (torch.zeros_like(t), torch.zeros(len(t), 1 if rowwise else t.shape[1]), torch.zeros(len(t), 1))
            for t in tables
        ]

    def step(self):
        (group,), betas = self.param_groups, (self.options.beta1, self.options.beta2)
        for table, (mean, square, count) in zip(group["params"], self.state_of, strict=True):
            given = table.grad.coalesce()
            rows, g = given.indices()[0], given.values()
            squares = g.square().mean(dim=1, keepdim=True) if self.rowwise else g.square()
            count[rows] += 1
            for moment, value, beta in ((mean, g, betas[0]), (square, squares, betas[1])):
                moment[rows] = beta * moment[rows] + (1 - beta) * value
            m, v = (x[rows] / (1 - beta ** count[rows]) for x, beta in zip((mean, square), betas, strict=True))
            table.data[rows] -= group["lr"] * m / (v.sqrt() + self.options.epsilon)


def scheduled(schedule, examples):
    """Factor of the learning rates after ``examples``: up and down in straight lines."""
    if examples < schedule.warmup_examples:
        return (examples + 1) / schedule.warmup_examples
    if schedule.decay_examples and examples > schedule.decay_start_examples:
        return 1 - (examples - schedule.decay_start_examples) / schedule.decay_examples
    return 1.0


class PlainDLRM(nn.Module):
    """One process, one thread, ``nn.EmbeddingBag``: DLRM as in the paper, ssmpi's rule for initial values."""

    def __init__(self, bottom, top, cardinalities, dim, seed, dense=13):
        super().__init__()
        tables = len(cardinalities)
        self.bottom, self.top = self._mlp([dense, *bottom]), self._mlp([self.top_inputs(dense, tables, dim), *top])
        generator = np.random.default_rng([seed, 0])
        for layer in (*self.bottom, *self.top):
            outputs, inputs = layer.weight.shape
            layer.weight.data = self._normal(generator, 2 / (inputs + outputs), (outputs, inputs))
            layer.bias.data = self._normal(generator, 1 / outputs, (outputs,))
        tables = initial_tables(seed, cardinalities, dim)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(torch.from_numpy(t), freeze=False, mode="sum") for t in tables
        )

    @staticmethod
    def top_inputs(dense, tables, dim):
        return dim + (tables + 1) * tables // 2

    @staticmethod
    def _mlp(sizes):
        return nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))

    @staticmethod
    def _normal(generator, variance, shape):
        return torch.from_numpy(generator.normal(0, variance**0.5, shape).astype(np.float32))

    def forward(self, dense, ids):
        x = dense
        for layer in self.bottom:
            x = layer(x).relu()
        vectors = [x, *self.vectors(ids)]
        dots = [(vectors[i] * vectors[j]).sum(dim=1) for i in range(len(vectors)) for j in range(i)]
        z = torch.cat([x, torch.stack(dots, dim=1)], dim=1)
        for layer in self.top[:-1]:
            z = layer(z).relu()
        return self.top[-1](z).squeeze(1)

    def vectors(self, ids):
        """What each table gives for its feature; a second round of tables has other rows of the same ids."""
        return [table(ids[:, f % ids.shape[1], None]) for f, table in enumerate(self.tables)]

    @staticmethod
    def ids_of(batch):
        return torch.from_numpy(batch.ids)

    @property
    def dense_parameters(self):
        return [*self.bottom.parameters(), *self.top.parameters()]

    @property
    def rows(self):
        """Embedding tables, float32 (rows, width), as ssmpi keeps them."""
        return [table.weight.detach().numpy() for table in self.tables]

    def dense_parameters_by_name(self):
        """As ssmpi names them: its MLPs count their ReLUs."""
        return {
            f"{mlp}.{2 * k}.{kind}": getattr(layer, kind).detach().numpy()
            for mlp in ("bottom", "top")
            for k, layer in enumerate(getattr(self, mlp))
            for kind in ("weight", "bias")
        }

    def train_on(self, batches, optimizers, schedule, before=lambda number, model, sparse: None):
        """Mean log-loss of every batch, before its update. ``before(number, model, sparse)`` is called before each."""
        losses, examples, rates = [], 0, [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
        for number, batch in enumerate(batches):
            before(number, self, optimizers[1])
            for optimizer, rate in zip(optimizers, rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate * scheduled(schedule, examples)
            examples += len(batch.labels)
            logits = self(torch.from_numpy(batch.dense), self.ids_of(batch))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
            self.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        return np.array(losses)


class OfLists:
    """Over bags of ids: sums with a weight of each id, since torch has no weighted mean."""

    def vectors(self, ids):
        return [table(*ids[f % len(ids)]) for f, table in enumerate(self.tables)]

    @staticmethod
    def ids_of(batch):
        """By feature: all ids int64, where each bag begins, weights."""
        bags, count = batch.ids, batch.ids.features
        found = []
        for feature in range(count):
            spans = [slice(bags.starts[b], bags.starts[b + 1]) for b in range(feature, len(bags) * count, count)]
            lengths = [span.stop - span.start for span in spans]
            ids = np.concatenate([bags.ids[span] for span in spans]).astype(np.int64)
            weights = np.concatenate([bags.weights[span] for span in spans])
            starts = torch.tensor([0, *np.cumsum(lengths[:-1])])
            found.append((torch.from_numpy(ids), starts, torch.from_numpy(weights)))
        return found


class PlainListDLRM(OfLists, PlainDLRM):
    """DLRM over lists."""


class PlainDeepFM(PlainDLRM):
    """The same with DeepFM: first-order weights begin at 0, vectors of dense fields ~ N(0, 0.01^2)."""

    def __init__(self, deep, cardinalities, dim, seed, dense=13):
        nn.Module.__init__(self)
        generator = np.random.default_rng([seed, 0])
        self.first = nn.Linear(dense, 1)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)
        self.field_vectors = nn.Parameter(self._normal(generator, 0.01**2, (dense, dim)))
        self.deep = self._mlp([(dense + len(cardinalities)) * dim, *deep, 1])
        for layer in self.deep:
            outputs, inputs = layer.weight.shape
            layer.weight.data = self._normal(generator, 2 / (inputs + outputs), (outputs, inputs))
            layer.bias.data = self._normal(generator, 1 / outputs, (outputs,))
        vectors, weights = initial_tables(seed, cardinalities, dim), [torch.zeros(rows, 1) for rows in cardinalities]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(torch.as_tensor(t), freeze=False, mode="sum") for t in (*vectors, *weights)
        )

    def forward(self, dense, ids):
        found = self.vectors(ids)
        vectors, weights = found[: len(found) // 2], found[len(found) // 2 :]
        fields = torch.stack([*(dense[:, i, None] * v for i, v in enumerate(self.field_vectors)), *vectors], dim=1)
        pairs = torch.tril(fields @ fields.transpose(1, 2), diagonal=-1).sum(dim=(1, 2))
        z = fields.flatten(1)
        for layer in self.deep[:-1]:
            z = layer(z).relu()
        return (self.first(dense) + sum(weights) + self.deep[-1](z)).squeeze(1) + pairs

    @property
    def dense_parameters(self):
        return [*self.first.parameters(), self.field_vectors, *self.deep.parameters()]

    @property
    def rows(self):
        """A vector, and its first-order weight behind it."""
        found, tables = super().rows, len(self.tables) // 2
        return [np.concatenate(groups, axis=1) for groups in zip(found[:tables], found[tables:], strict=True)]

    def dense_parameters_by_name(self):
        named = {
            "first.weight": self.first.weight,
            "first.bias": self.first.bias,
            "vectors.vectors": self.field_vectors,
        }
        for k, layer in enumerate(self.deep):
            named |= {f"deep.{2 * k}.weight": layer.weight, f"deep.{2 * k}.bias": layer.bias}
        return {name: values.detach().numpy() for name, values in named.items()}


class PlainListDeepFM(OfLists, PlainDeepFM):
    """DeepFM over lists: first-order weights are pooled as vectors are."""


def plain_model(config, cardinalities):
    """The untrained model of a run."""
    dim, seed = config.embedding.dim, config.run.seed
    if config.model.name == "deepfm":
        return PlainDeepFM(config.model.deepfm.deep, cardinalities, dim, seed)
    return PlainDLRM(config.model.bottom, config.model.top, cardinalities, dim, seed)


def train_plainly(config, cardinalities, batches, before=lambda number, model, sparse: None, model=None):
    """A run's model and optimizers in one process, trained on ``batches``: the model and its losses. ``before`` as in
    ``train_on``; ``model`` if it is not the one of the settings.
    """
    torch.set_num_threads(1)
    mine, theirs = config.dense, config.embedding
    model = model or plain_model(config, cardinalities)
    tables = [table.weight for table in model.tables]
    if mine.optimizer == "sgd":
        dense = torch.optim.SGD(model.dense_parameters, mine.rate)
        sparse = torch.optim.SGD(tables, theirs.rate, weight_decay=theirs.table_decay)
    elif mine.optimizer == "adam":
        dense = torch.optim.Adam(model.dense_parameters, mine.rate, (mine.beta1, mine.beta2), mine.epsilon)
        if theirs.table_decay:
            kind, betas = (
                torch.optim.AdamW if theirs.optimizer == "adamw" else torch.optim.Adam,
                (theirs.beta1, theirs.beta2),
            )
            steps = kind(tables, theirs.rate, betas, theirs.epsilon, weight_decay=theirs.table_decay)
            return model, model.train_on(batches, (dense, steps), config.schedule, before)
        sparse = LazyAdam(tables, theirs, rowwise=theirs.optimizer == "partial_rowwise_adam")
        for table in model.tables:
            table.sparse = True
    else:
        dense = torch.optim.Adagrad(
            model.dense_parameters, mine.rate, initial_accumulator_value=mine.initial_state, eps=mine.epsilon
        )
        sparse = RowwiseAdagrad(tables, theirs.rate, theirs.epsilon, theirs.initial_state, theirs.table_decay)
    return model, model.train_on(batches, (dense, sparse), config.schedule, before)
