"""An exported model in the reference's own layout scores as ``ssmpi predict`` does."""

import numpy as np
import pytest
import torch
from ranks import ssmpi
from runs import train_over_threads
from torch import nn

from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest
from ssmpi.tools.export import export


class ReferenceDLRM(nn.Module):
    """``DLRM_Net`` of facebookresearch/dlrm: its names, ``create_mlp``, ``apply_emb`` and dot ``interact_features``."""

    def __init__(self, cardinalities, dim, bottom, top):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for rows in cardinalities)
        self.bot_l = self.create_mlp([13, *bottom], sigmoid_layer=-1)
        self.top_l = self.create_mlp([dim + 27 * 26 // 2, *top], sigmoid_layer=len(top) - 1)

    @staticmethod
    def create_mlp(ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(len(ln) - 1):
            layers.append(nn.Linear(ln[i], ln[i + 1], bias=True))
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, dense_x, ls_o, ls_i):
        x = self.bot_l(dense_x)
        ly = [bag(ls_i[k], ls_o[k]) for k, bag in enumerate(self.emb_l)]
        (batch_size, d) = x.shape
        t = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))
        z = torch.bmm(t, torch.transpose(t, 1, 2))
        _, ni, nj = z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return self.top_l(torch.cat([x, z[:, li, lj]], dim=1))


def scores(state, data):
    """Of the test split, by the reference."""
    model = ReferenceDLRM(read_manifest(data).cardinalities, 8, (32, 8), (32, 1))
    model.load_state_dict(state, strict=True)
    reader = SplitReader(data, "test", 600)
    batch = reader.read(reader.blocks[0])
    offsets = [torch.arange(len(batch))] * 26
    with torch.inference_mode():
        ids = [torch.from_numpy(batch.ids[:, f].astype(np.int64)) for f in range(26)]
        return model(torch.from_numpy(batch.dense), offsets, ids).squeeze(1).numpy()


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_data):
    return train_over_threads(tmp_path_factory.mktemp("run"), small_data, "topology.embedding_ps=3")


@pytest.fixture(scope="module")
def predicted(run, small_data, tmp_path_factory):
    file = tmp_path_factory.mktemp("scores") / "scores"
    ssmpi("predict", run.folder, small_data, "--output", file).check()
    return np.loadtxt(file)


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_the_reference_loads_it_and_scores_the_same(run, small_data, predicted, tmp_path, kind):
    file = tmp_path / "exported"
    assert export(run.folder, kind, file) == 0
    if kind == "torch":
        state = torch.load(file, weights_only=True)
    else:
        from safetensors.torch import load_file

        state = load_file(file)
    np.testing.assert_allclose(scores(state, small_data), predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.1  # a comparison of constants would not tell anything
