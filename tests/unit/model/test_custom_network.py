"""A network of a user's own: named in a run file, checked before ranks work, saved as a table that needs no code."""

import ast
import contextlib
import dataclasses
import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from own_network import NAMED, OWN, write_own
from ranks import ssmpi
from runs import Run, train_over_threads, write_run_file
from test_networks import assert_gradients, example

from ssmpi.cli import main
from ssmpi.config import differences, load
from ssmpi.data.features import Features
from ssmpi.data.schema import read_manifest
from ssmpi.model import custom_network, graph
from ssmpi.model.network import DENSE, ROWS, Concat, Inputs, Network, mlp
from ssmpi.model.networks.zoo import NETWORKS, network_of
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import by_name
from ssmpi.model.places import places_of
from ssmpi.model.replica import Replica
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files import run_files
from ssmpi.state import continued, resume, run_folder
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.recovery import restart, run_record
from ssmpi.state.recovery.start import Supervised
from ssmpi.state.request import RunRequest
from ssmpi.tools import plan, score
from ssmpi.tools.export import export
from ssmpi.trainer import build_trainer


def command(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("few"), 6_000, cardinalities=FEW_CARDINALITIES, features=FEW)


@pytest.fixture(scope="module")
def real(few, tmp_path_factory):
    """Real ranks, in another folder than the run file's. Then the file is gone."""
    base = write_own(tmp_path_factory.mktemp("own"))
    sections = {
        "data": f'folder = "{few}"\npasses = 3',
        "model": 'name = "net.py:network"',
        "embedding": "dim = 8",
        "sync": 'algorithm = "ma"',
        "topology": "trainers = 2\nembedding_ps = 1",
        "run": f'folder = "{base / "run"}"\ntensorboard = false',
    }
    (base / "run.toml").write_text("".join(f"[{name}]\n{text}\n" for name, text in sections.items()))
    ssmpi("train", base / "run.toml", ranks=3).check()
    (base / "net.py").unlink()
    return Run(base / "run")


def spoil(run):
    """From here on the user's code is an error."""
    (run.folder / "network/net.py").write_text("raise RuntimeError('user code was run')")


def test_real_ranks_train_it(real):
    assert real.result["status"] == "complete"
    assert real.quality("test")["ne"] < 1.0
    assert real.dense()["cross.0.v.weight"].shape == (4, 43)
    assert 'name = "network/net.py:network"' in (real.folder / "run.toml").read_text()
    assert run_files.unknown_entries(real.folder) == []


def test_scoring_exporting_and_inspecting_run_no_code_of_the_users(real, few, tmp_path, alone, capsys, monkeypatch):
    run = Run(Path(shutil.copytree(real.folder, tmp_path / "moved")))
    spoil(run)
    monkeypatch.chdir(tmp_path)
    assert score.evaluate(run.folder, "test", None) == 0
    assert f"NE {run.quality('test')['ne']:.5f}" in capsys.readouterr().out
    assert score.predict(run.folder, score.ScoringInput(few, "test", None), tmp_path / "scores") == 0
    assert len(np.loadtxt(tmp_path / "scores")) == 600
    assert export(run.folder, "safetensors", None) == 0
    assert command("inspect", run.folder) == 0
    shutil.rmtree(run.folder / "network")
    assert score.evaluate(run.folder, "test", None) == 0


def test_a_finished_run_is_known_again(real, tmp_path):
    """With the same file at another place, and as long as that is the same."""
    write_own(tmp_path)
    saved, again = load(real.folder / "run.toml"), (real.folder / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(again.replace("network/net.py", "net.py"))
    assert differences(saved, load(tmp_path / "run.toml")) == []
    write_own(tmp_path, width=33)
    (found,) = differences(saved, load(tmp_path / "run.toml"))
    assert found.startswith("model.name was 'net.py:network (SHA-256 ")


def test_a_run_can_replace_the_one_whose_file_it_uses(few, tmp_path):
    """It is read before anything is removed."""
    write_own(tmp_path)
    run_folder.make(tmp_path / "run", write_run_file(tmp_path, few, NAMED), overwrite=False)
    again = write_run_file(tmp_path, few, "model.name=run/network/net.py:network")
    run_folder.make(tmp_path / "run", again, overwrite=True)
    assert load(tmp_path / "run/run.toml").network.widths["deep.0"] == 32


def test_the_plan_prints_it_in_words(few, tmp_path, capsys):
    write_own(tmp_path)
    text = plan.describe(write_run_file(tmp_path, few, NAMED))
    assert f"network: {tmp_path}/net.py:network, " in text
    assert "deep.0 (32) = Linear + relu of start (43): 1,408 parameters, 1,376 products" in text
    assert "cross.1 (43) = Gate of start (43), cross.1.w (43), cross.0 (43)" in text


# What can be wrong with it


WRONG = [
    ("nett.py:network", OWN, "nett.py:network': no such file; a relative path begins in the folder of the run file"),
    ("net.py:netwrok", OWN, r"net.py: 'netwrok', which model.name names, is not in it; did you mean 'network'\?"),
    ("net.py:other", OWN, "'other', which model.name names, is not in it; it has network; jobs/guide/networks.md"),
    ("net.py:network", "network = 3", "net.py: 'network', which model.name names, is not a function; it has none"),
    (
        "net.py:network",
        "def network(inputs):\n    1 / 0",
        "net.py, line 2: 'network', called .*: ZeroDivisionError: division",
    ),
    ("net.py:network", "\nimport nowhere", "net.py, line 2: the file: ModuleNotFoundError: No module named 'nowhere'"),
    ("net.py:network", "def network(inputs)\n", "net.py, line 1: expected ':'; 'python .*net.py' shows the place"),
    (
        "net.py:network",
        "def network():\n    pass",
        r"net.py: 'network', called with Inputs: TypeError: network\(",
    ),
    ("net.py:network", "# coding: nonsense", "net.py: unknown encoding: nonsense; 'python .*net.py' shows the place"),
    ("net.py:network", "raise SystemExit(0)", "net.py, line 1: the file: SystemExit: 0"),
    (
        "net.py:network",
        "def network(inputs):\n    return [inputs]",
        r"returned \[Inputs.*\(list\), not a Network: return",
    ),
    (
        "net.py:network",
        OWN.replace("WIDTH", "0"),
        "line 9: 'network', .*operator 'deep.0' .*at least 1, got 0",
    ),
    ("net.py:network", OWN.replace("[16, 1]", "[16, 2]"), "ends in 'top.2' of width 2, not in a logit of width 1"),
    (
        "net.py:network",
        "from ssmpi.model.network import *\ndef network(inputs):\n"
        "    return Network((Linear('a', ('rows',), 1),), Inputs(1, 2, 3))",
        r"returned a network over Inputs\(dense=1, .*\), but the data has Inputs\(dense=3, tables=5, dim=8\): pass",
    ),
]


@pytest.mark.parametrize(("name", "text", "words"), WRONG)
def test_what_is_wrong_with_it_is_said_before_ranks_work(few, tmp_path, capsys, name, text, words):
    """With the file, the place, what was found and a remedy; exit code 2, and nothing left."""
    write_own(tmp_path, text)
    (tmp_path / "run.toml").write_text(f"[data]\nfolder = '{few}'\n[embedding]\ndim = 8\n")
    settings = (f"model.name={name}", f"run.folder={tmp_path / 'run'}")
    request = RunRequest(tmp_path / "run.toml", settings)
    with pytest.raises(SettingsError, match=words):
        resume.prepare(request, request.load().topology.size, contextlib.ExitStack())
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "__pycache__").exists()
    assert command("plan", tmp_path / "run.toml", *settings) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_name_that_is_no_network_is_told_how_to_name_ones_own(tmp_path):
    with pytest.raises(SettingsError, match=r"got 'net\.py'; your own is 'FILE\.py:FUNCTION'"):
        write_run_file(tmp_path, tmp_path, "model.name=net.py")


# The table


EXAMPLES = {"str": "a", "int": 3, "bool": True, "float": 0.5, "tuple[str, ...]": ("a", "b"), "tuple[int, ...]": (3, 4)}


def classes():
    """Names of all operators that are written down, whoever imports them."""
    bases, found = {"Operator"}, set()
    trees = [ast.parse(path.read_text()) for path in Path(graph.__file__).parent.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := {n.name for n in nodes if bases & {ast.unparse(base) for base in n.bases}} - found:
        found |= more
        bases |= more
    return found


def test_every_operator_is_known_and_comes_back_from_json():
    """Also those that are added later: their fields say it all."""
    kinds = {kind.__name__: kind for kind in graph.kinds()}
    assert kinds.keys() == classes() >= {"Linear", "DotInteraction", "Concat", "Gate"}
    for kind in kinds.values():
        operator = kind(**{field.name: EXAMPLES[str(field.type)] for field in dataclasses.fields(kind)})
        assert graph.operator_of(json.loads(json.dumps(graph.saved(operator)))) == operator


@pytest.mark.parametrize("name", NETWORKS)
def test_every_shipped_network_comes_back_from_json(name):
    network = network_of(ModelOptions(name=name, bottom=(24, 4), top=(16, 1)), Inputs(5, 3, 4))
    again = graph.from_json(json.loads(json.dumps(graph.as_json(network))))
    assert again == network
    assert [type(operator) for operator in again.operators] == [type(operator) for operator in network.operators]
    assert again.describe() == network.describe()
    assert {field.name for field in dataclasses.fields(Network)} == {"operators", "inputs"}  # nothing else to save


def table(width=32, **changes):
    deep = mlp("deep", "start", [width, 1], last="none")
    return graph.as_json(Network((Concat("start", (DENSE, ROWS)), *deep), Inputs(3, 5, 8))) | changes


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (table(version=2), "its network is saved as version 2, this program reads 1"),
        (table(operators=[{"kind": "Cube", "name": "a", "inputs": ["rows"]}]), "'a' has kind 'Cube', which this"),
        (table(operators=[{"kind": "Concat", "name": "a", "inputs": [], "axis": 1}]), r"'a' \(Concat\): unknown key"),
        (table(inputs={"dense": 3}), "cannot be read: 'tables' is required"),
        (table(inputs={"dense": 4, "tables": 5, "dim": 8}), "operator 'start' is saved 43 wide, and here 44"),
        (table(operators=3), "its values are not of the expected kinds"),
        (table(operators=[]), "network: no operators: Network"),
        ({}, "it has no 'version'"),
    ],
)  # fmt: skip
def test_a_table_that_makes_no_sense_is_refused(body, words):
    with pytest.raises(DataError, match=words):
        graph.from_json(body)


def test_two_networks_differ_in_words():
    assert graph.difference(table(), table()) == ""
    words = "its operator 'deep.0' is Linear (outputs 32, width 32), not Linear (outputs 16, width 16)"
    assert graph.difference(table(16), table(32)) == words
    longer = table()
    longer["operators"] = [*longer["operators"], {"kind": "Linear", "name": "more"}]
    assert graph.difference(table(), longer) == "it has an operator 'more' (Linear)"
    shorter = table()
    shorter["operators"] = shorter["operators"][:2]
    assert graph.difference(table(), shorter) == "it lacks an operator 'deep.2' (Linear)"
    older = table()
    del older["operators"][2]["activation"]  # which a later version has added, with a default
    assert graph.difference(older, table()) == ""
    other = table(inputs={"dense": 4, "tables": 5, "dim": 8})
    assert graph.difference(table(), other).startswith("it is over dense 4, tables 5, dim 8, not dense 3")


# Resuming


def interrupted(folder, data, *settings):
    """A run with a checkpoint, as if killed after it."""
    run = train_over_threads(folder, data, "checkpoint.every_examples=2000", "topology.embedding_ps=0", *settings)
    (run.folder / "result.json").unlink()
    shutil.rmtree(run.folder / "model")
    return run


def prepare(run, *settings, file=None):
    request = RunRequest(file, settings, run=run.folder)
    with contextlib.ExitStack() as held:
        return resume.prepare(request, request.load().topology.size, held)


def test_it_is_resumed_from_the_run_folder_and_not_with_another_network(few, tmp_path):
    write_own(tmp_path)
    run = interrupted(tmp_path, few, NAMED)
    (tmp_path / "net.py").unlink()
    start = prepare(run)
    assert start.checkpoints
    assert start.config.network.widths["deep.0"] == 32
    spoiled = run.folder / "network/net.py"
    spoiled.write_text("# told in other words\n" + spoiled.read_text())
    assert prepare(run).checkpoints  # it is the network that counts
    write_own(run.folder / "network", width=48)
    words = (
        r"checkpoint-00000\d was made with another network than model.name = 'net.py:network' gives: "
        r"its operator 'deep.0' is Linear \(outputs 48, width 48\), not Linear \(outputs 32, width 32\)\. Set it back"
    )
    with pytest.raises(SettingsError, match=words):
        prepare(run)
    with pytest.raises(SettingsError, match=r"model.name is dlrm, checkpoint .* was made with net.py:network: set it"):
        prepare(run, "model.name=dlrm")


def test_a_killed_job_is_started_again_without_the_file(few, tmp_path):
    """By the launch that began it, with what it began with."""
    write_own(tmp_path)
    write_run_file(tmp_path, few)
    settings = (f"data.folder={few}", NAMED, "embedding.dim=8", f"run.folder={tmp_path / 'run'}")
    request = RunRequest(tmp_path / "given.toml", settings, supervised=Supervised("launch", 1, 0.0))
    ranks = request.load().topology.size
    with contextlib.ExitStack() as held:
        resume.prepare(request, ranks, held)
    run_record.begin_start(tmp_path / "run", "launch")
    (tmp_path / "net.py").unlink()
    with contextlib.ExitStack() as held:
        start = resume.prepare(dataclasses.replace(request, supervised=Supervised("launch", 2, 0.0)), ranks, held)
    assert start.again
    assert start.config.network.widths["deep.0"] == 32


def test_another_file_of_the_same_network_may_take_over(few, tmp_path):
    """A run file beside it, from now on."""
    write_own(tmp_path)
    run = interrupted(tmp_path, few, NAMED)
    moved = write_own(tmp_path / "elsewhere", "# mended\n" + OWN)
    shutil.copy(tmp_path / "given.toml", moved / "run.toml")
    text = (run.folder / "run.toml").read_text().replace("network/net.py", "net.py")
    (moved / "run.toml").write_text(text)
    found = prepare(run, file=moved / "run.toml")
    restart.take_over(found, found.checkpoints[0], "", 0)
    assert (run.folder / "network/net.py").read_text().startswith("# mended")


def test_checkpoints_of_older_versions_go_by_name(few, tmp_path, alone):
    """They say nothing of their network."""
    run = interrupted(tmp_path, few)
    newest = Store(run.folder).committed()[-1]
    body = json.loads((newest / "manifest.json").read_text())
    assert graph.from_json(body["state"].pop("network")) == load(run.folder / "run.toml").network
    assert body["state"]["identity"].pop("embedding.precision") == "fp32"
    (newest / "manifest.json").write_text(json.dumps(body))
    assert prepare(run).checkpoints
    assert score.evaluate(run.folder, "test", None) == 0
    with pytest.raises(SettingsError, match=r"model.bottom is \[16, 8\], checkpoint .* was made with \[32, 8\]"):
        prepare(run, "model.bottom=[16,8]")
    with pytest.raises(SettingsError, match=r"model.name is dcn_v2, checkpoint .* was made with dlrm"):
        prepare(run, "model.name=dcn_v2")
    with pytest.raises(
        SettingsError, match=r"embedding.precision is bf16, checkpoint .* was made with fp32: set it back"
    ):
        prepare(run, "embedding.precision=bf16")


def test_a_shipped_networks_setting_is_named(few, tmp_path):
    run = interrupted(tmp_path, few)
    with pytest.raises(SettingsError, match=r"model.bottom is \[16, 8\], checkpoint .* was made with \[32, 8\]"):
        prepare(run, "model.bottom=[16,8]")


def test_a_damaged_table_is_told(few, tmp_path, alone):
    run = interrupted(tmp_path, few)
    newest = Store(run.folder).committed()[-1]
    body = json.loads((newest / "manifest.json").read_text())
    body["state"]["network"]["operators"][0]["kind"] = "Liner"
    (newest / "manifest.json").write_text(json.dumps(body))
    words = f"{newest.name}/manifest.json: operator 'bottom.0' has kind 'Liner', which this version .*--resume"
    with pytest.raises(DataError, match=words):
        score.evaluate(run.folder, "test", None)


# Operators of the user's own


CUBE = """
from __future__ import annotations
from dataclasses import dataclass
from ssmpi.model.network import DENSE, ROWS, Concat, Form, Linear, Network, Operator, mlp

@dataclass(frozen=True)
class Cube(Operator):
    scale: float = 1.0

    def form(self, *widths):
        (x,) = widths
        return Form(x, ((f"{self.name}.shift", (x,)),))

    def by_torch(self, parameters, x):
        return self.scale * (x + parameters["shift"]) ** 3

def network(inputs):
    deep = mlp("deep", "all", [16, 8])
    cube = Cube("cube", (deep[-1].name,), 0.5)
    return Network((Concat("all", (DENSE, ROWS)), *deep, cube, Linear("out", ("cube",), 1)), inputs)
"""


def cubed(folder, text=CUBE):
    return custom_network.network_of(f"{write_own(folder, text)}/net.py:network", Inputs(3, 5, 8))


def test_groups_refuse_custom_operators(tmp_path):
    with pytest.raises(SettingsError, match=r"operator 'cube' \(net.py:Cube\) is a custom one.*set topology.group = 1"):
        places_of(["*: home"], cubed(tmp_path), 2)


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_its_gradients_are_those_of_the_formula(tmp_path, batch):
    """Written down in numpy, in float64."""
    network = cubed(tmp_path)
    model, (dense, rows, labels) = Replica(network, "fp32", seed=3).thread_model(), example(network, batch)
    logits, by_rows = model.forward_backward(dense, rows, labels)
    w, b, v, c, shift, out, bias = (a.astype(float) for _, a in by_name(network.layout, model.weights))
    start = np.concatenate([dense, rows.reshape(batch, 40)], axis=1).astype(float)
    hidden = np.maximum(start @ w.T + b, 0)
    last = np.maximum(hidden @ v.T + c, 0)
    expected = 0.5 * (last + shift) ** 3 @ out.T + bias
    by_logit = (1 / (1 + np.exp(-expected[:, 0])) - labels) / max(1, batch)
    by_cube = by_logit[:, None] * out * 1.5 * (last + shift) ** 2
    by_start = ((by_cube * (last > 0)) @ v * (hidden > 0)) @ w
    np.testing.assert_allclose(logits, expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.score(dense, rows), expected[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_rows.reshape(batch, 40), by_start[:, 3:], rtol=1e-3, atol=1e-6)
    gradients = dict(by_name(network.layout, model.gradients))
    np.testing.assert_allclose(gradients["cube.shift"], by_cube.sum(axis=0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(gradients["out.bias"], by_logit.sum(keepdims=True), rtol=1e-3, atol=1e-6)


def test_it_is_trained_saved_with_its_code_and_resumed(few, tmp_path, alone, capsys, monkeypatch):
    said = []
    monkeypatch.setattr(build_trainer.log, "warning", said.append)
    run = interrupted(write_own(tmp_path, CUBE), few, NAMED, "data.passes=2")
    assert [text for text in said if "no kernels for net.py:Cube: torch's autograd computes the whole network" in text]
    assert prepare(run).checkpoints
    own_file = run.folder / "network/net.py"
    own_file.write_text("# a comment\n" + CUBE)
    assert prepare(run).checkpoints
    own_file.write_text(CUBE.replace("** 3", "** 2"))
    with pytest.raises(SettingsError, match=r"gives: the code of net\.py, whose operators it uses, is another one"):
        prepare(run)
    own_file.unlink()
    forget()
    assert score.evaluate(run.folder, "test", None) == 0
    assert "runs code that was saved with it, of net.py" in capsys.readouterr().err
    assert export(run.folder, "safetensors", None) == 0
    with pytest.raises(DataError, match=r"'cube' \(net\.py:Cube\) is your own, and only torch knows"):
        export(run.folder, "onnx", None)
    assert not list(run.folder.glob("*model.*onnx*"))


def forget():
    """As in another process, which has not read the file."""
    for name in [name for name in sys.modules if name.startswith(user_code.PREFIX)]:
        del sys.modules[name]


def test_other_ranks_are_given_it(few, tmp_path):
    """They have not read the file, and need not see it."""
    write_own(tmp_path, CUBE)
    config = write_run_file(tmp_path, few, NAMED).over(FEW)
    expected, sent = graph.as_json(config.network), pickle.dumps(config)
    (tmp_path / "net.py").unlink()
    forget()
    received = pickle.loads(sent)
    assert graph.as_json(received.network) == expected
    assert received == config


WRONG_OPERATORS = [
    (
        CUBE.replace("by_torch", "by_hand"),
        r"operator 'cube' \(Cube\) has no method 'by_torch', which .*; 'by_torch\(self, parameters, ",
    ),
    (CUBE.replace("** 3", "** (3 / 0)"), r"net\.py, line 15: operator 'cube' \(Cube\): ZeroDivisionError"),
    (CUBE.replace("** 3", "@ x.T"), r"by_torch returned a tensor \(2, 2\), its form says \(2, 8\): fix one of them"),
    (
        CUBE.replace("return self.scale", "return None and self.scale"),
        r"by_torch returned None, its form says \(2, 8\)",
    ),
    (
        CUBE.replace('["shift"]', '["weight"]'),
        r"net\.py, line 15: operator 'cube' \(Cube\): KeyError: 'weight'; 'by_torch\(self, parameters, .*is given its",
    ),
    (
        CUBE.replace("0.5", "max"),
        r"net\.py, line 20: 'network', .*operator 'cube' \(Cube\): scale = <built.* is not a number; an op",
    ),
    (
        CUBE.replace("[16, 8]", "[16.0, 8]"),
        r"operator 'deep.0' \(Linear\): outputs = 16.0 is not a whole number; an op",
    ),
    (
        CUBE.replace("@dataclass(frozen=True)", "").replace(
            "scale: float = 1.0", "def __init__(self, name, inputs, scale):\n        super().__init__(name, inputs)"
        ),
        r"operator 'cube' \(Cube\): .*missing 1 required .*'scale'; an operator is a frozen dataclass",
    ),
    (CUBE.replace("(x,) = widths", "raise ValueError('odd')"), r"line 11: 'network', .*operator 'cube' \(Cube\): odd"),
    (
        CUBE.replace(") ** 3", ").double() ** 3"),
        r"'cube' \(Cube\): by_torch returned a tensor of torch.float64, its inputs are",
    ),
    (
        CUBE.replace("(x + par", "x.mul_(1 + par"),
        r"net\.py:Cube: the backward pass over dummy examples fails: .* by an inplace operation: .*; use torch's",
    ),
]


@pytest.mark.parametrize(("text", "words"), WRONG_OPERATORS)
def test_what_is_wrong_with_an_operator_is_said_before_ranks_work(few, tmp_path, capsys, text, words):
    """By a plan, too."""
    write_own(tmp_path, text)
    write_run_file(tmp_path, few)
    settings = (f"data.folder={few}", "embedding.dim=8", NAMED, f"run.folder={tmp_path / 'run'}")
    request = RunRequest(tmp_path / "given.toml", settings)
    with pytest.raises(SettingsError, match=words):
        resume.prepare(request, request.load().topology.size, contextlib.ExitStack())
    assert not (tmp_path / "run").exists()
    assert command("plan", tmp_path / "given.toml", *settings) == 2
    assert re.search(words, capsys.readouterr().err)


FORM = 'Form(x, ((f"{self.name}.shift", (x,)),))'
FORMS = [
    (
        'Form(x, (("shift", (x,)),))',
        20,
        r"parameter 'shift' does not begin with that name: .* f\"{self.name}.shift\"",
    ),
    ('Form(x, ((f"{self.name}.shift", (x,)),) * 2)', 20, "there are two parameters 'cube.shift': give one"),
    ("x", 20, r"form returned 8, not a Form: return Form\(width, parameters, products\)"),
    ("None", 20, "form returned None, not a Form"),
    ("Form(x / 1)", 12, "its width is 8.0, not a whole number of at least 1"),
    ('Form(x, (f"{self.name}.shift", (x,)))', 12, "parameter 'cube.shift' is not a pair of a name and a shape: param"),
    ('Form(x, ((f"{self.name}.shift", x),))', 12, r"parameter \('cube.shift', 8\) is not a pair"),
    ('Form(x, ((f"{self.name}.shift", ()),))', 12, r"parameter \('cube.shift', \(\)\) is not a pair"),
    ('Form(x, ((f"{self.name}.shift", (x / 2,)),))', 12, "the shape of parameter 'cube.shift' is 4.0, not a whole"),
]


@pytest.mark.parametrize(("form", "line", "words"), FORMS)
def test_what_form_gives_wrong_is_named(tmp_path, form, line, words):
    assert FORM in CUBE
    with pytest.raises(SettingsError, match=rf"net\.py, line {line}: .* operator 'cube' \(Cube\): {words}"):
        cubed(tmp_path, CUBE.replace(FORM, form))


def test_a_batch_file_is_not_made_for_an_operator_that_fails(few, tmp_path, capsys):
    """Hours later it would fail in the queue's first second."""
    write_own(tmp_path, CUBE.replace("** 3", "@ x.T"))
    write_run_file(tmp_path, few)
    site = Path(__file__).parents[3] / "jobs/sites/workstation.toml"
    settings = (f"data.folder={few}", NAMED, f"run.folder={tmp_path / 'run'}")
    assert command("submit", tmp_path / "given.toml", "--site", site, "--dry-run", *settings) == 2
    assert "net.py: operator 'cube' (Cube): by_torch returned a tensor (2, 2)" in capsys.readouterr().err


def test_what_an_operator_keeps_from_training_is_told(few, tmp_path, caplog):
    """It may be meant: what others begin with at random is not to be trained, say."""
    write_own(tmp_path, CUBE.replace("(x + ", "(x.detach() + "))
    plan.describe(write_run_file(tmp_path, few, NAMED))
    assert "net.py:Cube: no gradient reaches embedding rows, deep.0.weight, deep.0.bias, deep.2.weight" in caplog.text
    assert "cube.shift" not in caplog.text


def test_it_is_not_computed_in_bfloat16(few, tmp_path):
    write_own(tmp_path, CUBE)
    with pytest.raises(SettingsError, match=r"precision = 'bf16': operators of one's own are computed in float32"):
        write_run_file(tmp_path, few, NAMED, "model.precision=bf16").over(FEW)


ROWS_ALONE = """
from ssmpi.model.network import Network, mlp

def network(inputs):
    return Network(tuple(mlp("top", "rows", [6, 1], last="none")), inputs)
"""


def test_without_dense_features_a_network_of_rows_alone_trains(tmp_path):
    """The first operator's values then begin where the dense ones would."""
    features = Features((), FEW.sparse)
    data = make_dataset(tmp_path / "data", 600, cardinalities=FEW_CARDINALITIES, features=features)
    write_own(tmp_path, ROWS_ALONE)
    network = write_run_file(tmp_path, data, NAMED).over(features).network
    assert network.inputs.dense == 0
    for batch in (1, 7):
        assert_gradients(network, batch)
    run = train_over_threads(tmp_path, data, NAMED, "topology.embedding_ps=0", "model.center_inputs=true")
    assert run.result["status"] == "complete"
    assert np.isfinite(run.losses()).all()


def test_continuing_a_run_says_that_its_code_runs(few, tmp_path, capsys):
    """As scoring does, and before it does: the code may be damaged, or somebody else's."""
    run = train_over_threads(write_own(tmp_path, CUBE), few, NAMED, "topology.embedding_ps=0")
    config = write_run_file(tmp_path, few, NAMED, f"run.continue_from={run.folder}", f"run.folder={tmp_path / 'next'}")
    manifest = read_manifest(few)
    continued.parent_of(config.over(manifest.features), manifest)
    said = f"{run.folder}/model: runs code that was saved with it, of net.py: operators of its network"
    assert said in capsys.readouterr().err
