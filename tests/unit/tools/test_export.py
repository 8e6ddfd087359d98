"""An exported model scores as ``ssmpi predict`` does: in the reference's own layout, and as ONNX."""

import json
import os
import shutil
from itertools import combinations

import numpy as np
import onnxruntime
import pytest
import torch
from own_network import NAMED, write_own
from paper_networks import PAPERS
from runs import train_over_threads
from safetensors.numpy import load_file
from strength import in_soak
from torch import nn
from torch.nn.functional import linear

from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.tools import score
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


class Strongest(nn.Module):
    """The ``kept`` largest values of each example, which are not negative."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        return x * (x >= x.topk(self.kept).values[:, -1:])


def columns(data):
    """dense (600, 13), and ids (600,) by feature."""
    reader = SplitReader(data, "test", 600)
    batch = reader.read(reader.blocks[0])
    return torch.from_numpy(batch.dense), [torch.from_numpy(batch.ids[:, f].astype(np.int64)) for f in range(26)]


def scores(state, data):
    """Of the test split, by the reference."""
    model = ReferenceDLRM(read_manifest(data).cardinalities, 8, (32, 8), (32, 1))
    model.load_state_dict(state, strict=True)
    dense, ids = columns(data)
    with torch.inference_mode():
        return model(dense, [torch.arange(len(dense))] * 26, ids).squeeze(1).numpy()


def by_onnx(run, data, folder):
    """Probabilities of the test split, as somebody computes them who has the two exported files only."""
    assert export(run, "onnx", folder / "served.onnx") == 0
    session, tables = (
        onnxruntime.InferenceSession(folder / "served.onnx"),
        load_file(folder / "served.tables.safetensors"),
    )
    about, (dense, ids) = session.get_modelmeta().custom_metadata_map, columns(data)
    assert json.loads(about["dense"]) == [f"I{number}" for number in range(1, 14)]
    rows = np.stack([tables[name][ids[f]] for f, name in enumerate(json.loads(about["tables"]))], axis=1)
    given = {"dense": dense.numpy(), "rows": rows}
    return session.run(["probability"], {each.name: given[each.name] for each in session.get_inputs()})[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_data):
    return train_over_threads(tmp_path_factory.mktemp("run"), small_data, "topology.embedding_ps=3")


@pytest.fixture
def predicted(run, small_data, tmp_path, alone):
    assert score.predict(run.folder, score.ScoringInput(small_data, "test", None), tmp_path / "scores") == 0
    return np.loadtxt(tmp_path / "scores")


@pytest.mark.parametrize("kind", ["onnx", *in_soak("torch", "safetensors")])
def test_the_umask_says_who_may_read_an_export(run, tmp_path, kind):
    before = os.umask(0o027)
    try:
        assert export(run.folder, kind, tmp_path / "exported") == 0
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {"0o640"}, modes


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_the_reference_loads_it_and_scores_the_same(run, small_data, predicted, tmp_path, kind):
    file = tmp_path / "exported"
    assert export(run.folder, kind, file) == 0
    if kind == "torch":
        state = torch.load(file, weights_only=True)
    else:
        state = {name: torch.from_numpy(values) for name, values in load_file(file).items()}
    np.testing.assert_allclose(scores(state, small_data), predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.1  # a comparison of constants would not tell anything


def test_onnxruntime_scores_a_dlrm_the_same(run, small_data, predicted, tmp_path):
    np.testing.assert_allclose(by_onnx(run.folder, small_data, tmp_path), predicted, rtol=0, atol=2e-6)
    assert export(run.folder, "onnx", tmp_path / "served.onnx") == 0  # replaces its own files
    (tmp_path / "served.onnx").write_text("a text")
    with pytest.raises(UserError, match=r"served\.onnx: is there, and not an earlier output"):
        export(run.folder, "onnx", tmp_path / "served.onnx")


# Networks that the reference does not have, written down from their exports' names: x (batch, 13), vectors and weights
# of rows (26 times batch, 8 and 1)


def layer(state, name, x):
    return linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def mlp(state, name, x, layers):
    for number in range(layers - 1):
        x = torch.relu(layer(state, f"{name}.{2 * number}", x))
    return layer(state, f"{name}.{2 * layers - 2}", x)


def dcn_v2(state, dense, vectors, weights):
    start = x = torch.cat([torch.relu(mlp(state, "bot_l", dense, 2)), *vectors], dim=1)
    for number in range(3):
        x = start * layer(state, f"cross.{number}.w", x) + x
    return mlp(state, "top_l", x, 2)


def deepfm(state, dense, vectors, weights):
    fields = [x[:, None] * v for x, v in zip(dense.T, state["vectors.vectors"], strict=True)] + vectors
    pairs = sum((one * other).sum(dim=1, keepdim=True) for one, other in combinations(fields, 2))
    return layer(state, "first", dense) + sum(weights) + pairs + mlp(state, "deep", torch.cat(fields, dim=1), 2)


def logistic(state, dense, vectors, weights):
    return layer(state, "logit", dense) + sum(weights)


def own(state, dense, vectors, weights):
    start = x = torch.cat([dense, *vectors], dim=1)
    for number in range(2):
        x = start * layer(state, f"cross.{number}.w", layer(state, f"cross.{number}.v", x)) + x
    return mlp(state, "top_l", torch.cat([x, torch.relu(mlp(state, "deep", start, 2))], dim=1), 2)


@pytest.mark.parametrize(
    ("network", "setting"),
    [
        *in_soak((dcn_v2, "model.name=dcn_v2")),
        (deepfm, "model.name=deepfm"),
        (logistic, "model.name=logistic"),
        (own, NAMED),
        (PAPERS["masknet"], "model.name=masknet"),
        *in_soak(*((PAPERS[name], f"model.name={name}") for name in ("finalmlp", "finalnet", "gdcn", "wide_deep"))),
    ],
)  # fmt: skip
def test_other_networks_are_exported_by_the_names_of_their_operators(
    small_data, tmp_path, alone, capsys, network, setting
):
    write_own(tmp_path)
    small = (
        "model.deepfm.deep=[8]",
        "model.masknet.blocks=[16,8]",
        "model.gdcn.layers=2",
        "data.batch_size=600",
        "embedding.rate=0.02",
        "topology.embedding_ps=0",
    )
    run = train_over_threads(tmp_path, small_data, setting, *small).folder
    assert export(run, "torch", tmp_path / "exported") == 0
    assert "facebookresearch/dlrm has no such network: its tensors are named as" in capsys.readouterr().out
    state, (dense, ids) = torch.load(tmp_path / "exported", weights_only=True), columns(small_data)
    vectors, weights = (
        [state[f"{table}.{f}.weight"][ids[f]] for f in range(26) if f"{table}.{f}.weight" in state]
        for table in ("emb_l", "first_l")
    )
    assert score.predict(run, score.ScoringInput(small_data, "test", None), tmp_path / "scores") == 0
    predicted, found = np.loadtxt(tmp_path / "scores"), torch.sigmoid(network(state, dense, vectors, weights))
    np.testing.assert_allclose(found.squeeze(1), predicted, rtol=0, atol=2e-6)
    np.testing.assert_allclose(by_onnx(run, small_data, tmp_path), predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.05


def test_onnx_holds_thresholds_which_a_file_of_tensors_cannot_say(small_data, tmp_path, alone):
    top_k = "model.top_k=['bottom.0: 0.9 laplace', 'pairs: 0.5 laplace']"
    run = train_over_threads(tmp_path, small_data, "data.batch_size=600", "topology.embedding_ps=0", top_k).folder
    assert score.predict(run, score.ScoringInput(small_data, "test", None), tmp_path / "scores") == 0
    predicted = np.loadtxt(tmp_path / "scores")
    np.testing.assert_allclose(by_onnx(run, small_data, tmp_path), predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.05
    with pytest.raises(DataError, match=r"bottom.0.top_k, pairs.top_k.*--format onnx, or train it without model.top_k"):
        export(run, "torch", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


STRONGEST = "data.batch_size=600", "topology.embedding_ps=0", "model.top_k=['bottom.0: 0.9']"


def test_a_model_of_the_strongest_values_is_scored(small_data, tmp_path, alone):
    run = train_over_threads(tmp_path, small_data, *STRONGEST)
    with pytest.raises(DataError, match=r"bottom.0.top_k.*--format onnx"):
        export(run.folder, "torch", tmp_path / "exported")
    assert score.predict(run.folder, score.ScoringInput(small_data, "test", None), tmp_path / "scores") == 0
    weights = {name: values for name, values in run.dense().items() if not name.endswith(".sizes")}
    state = {name.replace("bottom", "bot_l").replace("top.", "top_l."): value for name, value in weights.items()}
    state |= {f"emb_l.{number}.weight": table for number, table in enumerate(run.tables())}
    model = ReferenceDLRM(read_manifest(small_data).cardinalities, 8, (32, 8), (32, 1))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=True)
    model.bot_l[1] = nn.Sequential(nn.ReLU(), Strongest(4))  # 32 - floor(28.8)
    dense, ids = columns(small_data)
    with torch.inference_mode():
        found = model(dense, [torch.arange(len(dense))] * 26, ids).squeeze(1).numpy()
    np.testing.assert_allclose(np.loadtxt(tmp_path / "scores"), found, rtol=0, atol=2e-6)
    np.testing.assert_allclose(by_onnx(run.folder, small_data, tmp_path), found, rtol=0, atol=2e-6)


def test_a_checkpoint_is_not_exported_as_if_it_were_the_model(run, tmp_path, capsys):
    unfinished = shutil.copytree(run.folder, tmp_path / "run")
    (unfinished / "checkpoints").mkdir(exist_ok=True)
    (unfinished / "model").rename(unfinished / "checkpoints" / "checkpoint-000001")
    (unfinished / "result.json").unlink()
    assert export(unfinished, "torch", tmp_path / "model.pt") == 0
    assert "not finished; exporting checkpoint-000001" in capsys.readouterr().err
