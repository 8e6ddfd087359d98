"""The side of FuxiCTR: its trainer, loss, optimizer, regularizer, layers and metrics, which ``runs.install`` has put
where Python finds them. Ours are the rows, in the order in which ssmpi takes them, the class of the network and, if
asked for, the initial values.

Its wheel has DCN v2 for sequences only; ``DCNv2`` is that class with the embeddings of BARS's.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import CrossNetV2, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch import nn

from ssmpi.config import Config
from ssmpi.data.block_dispatcher import block_order
from ssmpi.data.reader import SplitReader, batches_in, shuffled, suit_block_rows
from ssmpi.embedding.placement import place
from ssmpi.embedding.precision import converted
from ssmpi.embedding.table import Arena
from ssmpi.model.parameters import by_name, initial_vector

LABEL = "label"


class Rows:
    """Batches of a split as FuxiCTR's loaders give them: ids int64 by feature, and labels float32, each (batch,).
    Training rows come in the order in which one thread of an ssmpi run of this seed takes them, pass by pass.
    """

    def __init__(self, config: Config, split: str) -> None:
        data = config.data
        self._data, self._seed, self._training, self._pass = data, config.run.seed, split == data.train_split, 0
        self._size = data.batch_size if self._training else config.evaluate.batch_size
        rows = SplitReader(Path(data.folder), split, data.block_rows).rows
        self._reader = SplitReader(Path(data.folder), split, suit_block_rows(data, rows, 1))

    def __len__(self) -> int:
        return sum(-(-block.rows // self._size) for block in self._reader.blocks)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        blocks, number = self._reader.blocks, self._pass
        self._pass += 1
        for k in block_order(self._data, self._seed, number, len(blocks)) if self._training else range(len(blocks)):
            order = np.arange(blocks[k].rows)
            if self._training:
                order = shuffled(self._seed, 2, number, k, size=blocks[k].rows)
            for batch in batches_in(order, self._reader.read(blocks[k]), self._size):
                ids = torch.from_numpy(np.asarray(batch.ids, np.int64))
                yield {**dict(zip(names(ids.shape[1]), ids.T, strict=True)), LABEL: torch.from_numpy(batch.labels)}


def names(tables: int) -> list[str]:
    """Of the features."""
    return [f"feature{table}" for table in range(tables)]


class DCNv2(BaseModel):
    """DCN v2 in parallel, in the sizes of a run file. ``passes`` has what was found after each."""

    def __init__(self, config: Config, cardinalities: tuple[int, ...], folder: Path) -> None:
        features, fields = FeatureMap("recipes", str(folder)), names(len(cardinalities))
        features.labels, features.features = [LABEL], OrderedDict(
            (name, {"source": "", "type": "categorical", "vocab_size": rows})
            for name, rows in zip(fields, cardinalities, strict=True)
        )  # fmt: skip
        super().__init__(
            features, monitor={"AUC": 1, "logloss": 0}, early_stop_patience=config.evaluate.patience,
            embedding_regularizer=config.embedding.table_decay, model_root=str(folder), metrics=["AUC", "logloss"],
            verbose=0,
        )  # fmt: skip
        width, hidden = len(fields) * config.embedding.dim, list(config.model.top[:-1])
        self.embedding_layer = FeatureEmbedding(features, config.embedding.dim)
        self.crossnet = CrossNetV2(width, config.model.dcn_v2.layers)
        self.parallel_dnn = MLP_Block(width, hidden_units=hidden, dropout_rates=config.model.dropout)
        self.fc = nn.Linear(width + hidden[-1], 1)
        self.compile("adam", "binary_crossentropy", config.dense.rate)
        self.reset_parameters()
        self.passes: list[dict[str, float]] = []
        self._began = time.monotonic()

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Probabilities (batch, 1)."""
        x = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        logits = self.fc(torch.cat([self.crossnet(x), self.parallel_dnn(x)], dim=-1))
        return {"y_pred": self.output_activation(logits)}

    @torch.no_grad()
    def start_as(self, config: Config, cardinalities: tuple[int, ...]) -> None:
        """Take the initial values of an ssmpi run."""
        arena, tables = Arena(config.rows, place(cardinalities, 1), 0, config.run.seed), names(len(cardinalities))
        for part in arena.parts:
            rows = torch.from_numpy(converted(arena.weights[part.base : part.base + part.rows], np.float32))
            self.embedding_layer.embedding_layer.embedding_layers[tables[part.table]].weight.copy_(rows)
        network = config.network
        dense = [value for name, value in self.named_parameters() if not name.startswith("embedding_layer.")]
        values = by_name(network.layout, initial_vector(network, config.run.seed, None))
        for parameter, (_, value) in zip(dense, values, strict=True):  # in one order: cross layers, MLP, logit
            parameter.copy_(torch.from_numpy(value).view_as(parameter))

    def eval_step(self) -> None:
        """Its own, timed."""
        self.passes.append({"seconds": time.monotonic() - self._began})
        super().eval_step()
        self._began = time.monotonic()

    def checkpoint_and_earlystop(self, logs: dict[str, float], min_delta: float = 1e-6) -> None:
        """Its own, recorded with the rate of this pass."""
        rate = self.optimizer.param_groups[0]["lr"]
        self.passes[-1] |= {"auc": float(logs["AUC"]), "log_loss": float(logs["logloss"]), "rate": rate}
        super().checkpoint_and_earlystop(logs, min_delta)

    def fit_rows(self, config: Config) -> dict[str, Any]:
        """Train by ``fit`` on one thread; the passes, and the kept model on test rows."""
        Path(self.model_dir).mkdir(parents=True, exist_ok=True)
        self._began, cpu = time.monotonic(), time.process_time()
        validation = Rows(config, config.evaluate.split)
        self.fit(Rows(config, config.data.train_split), epochs=config.data.passes, validation_data=validation)
        cpu, test = time.process_time() - cpu, self.evaluate(Rows(config, config.evaluate.final))
        test = {"auc": float(test["AUC"]), "log_loss": float(test["logloss"])}
        return {"passes": self.passes, "test": test, "cpu_seconds": cpu}


def run(config: Config, cardinalities: tuple[int, ...], folder: Path, *, own_start: bool) -> dict[str, Any]:
    """One run. With ``own_start`` initial values are FuxiCTR's, else those of the ssmpi run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(config.run.seed)
    model = DCNv2(config, cardinalities, folder)
    if not own_start:
        model.start_as(config, cardinalities)
    found = model.fit_rows(config)
    torch.set_num_threads(threads)
    return found
