"""``ssmpi export --since`` and ``ssmpi apply``: an export with the deltas since is the next export, to the bit."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from runs import Run, train_over_threads
from safetensors.numpy import load_file, save_file

from ssmpi import cli
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.state.checkpoint import files, store
from ssmpi.tools import delta, tensor_files
from ssmpi.tools.export import export

WIDER = (*(n + 30 for n in FEW_CARDINALITIES[:-1]), FEW_CARDINALITIES[-1])
DEEPFM = ("model.name=deepfm", "model.deepfm.deep=[8]")


def few(folder, seed, cardinalities):
    return make_dataset(folder, 200, seed, 200, cardinalities, features=FEW)


def days(folder, *overrides):
    """Three runs, each continuing the one before; in the second tables are wider."""
    found, parent = [], None
    for day, cardinalities in enumerate((FEW_CARDINALITIES, WIDER, WIDER)):
        data = few(folder / f"data{day}", day, cardinalities)
        ranks = f"topology.embedding_ps={(2, 0, 3)[day]}"
        run = train_over_threads(folder / f"day{day}", data, "data.batch_size=50", *overrides, ranks, parent=parent)
        found.append(run)
        parent = run.folder
    return found


@pytest.fixture(scope="module")
def dlrm(tmp_path_factory):
    return days(tmp_path_factory.mktemp("dlrm"))


@pytest.fixture(scope="module")
def whole(dlrm, tmp_path_factory):
    """The exports of the three models, and the two deltas between them."""
    folder = tmp_path_factory.mktemp("whole")
    for day, run in enumerate(dlrm):
        export(run.folder, "safetensors", folder / f"day{day}")
    for day in (1, 2):
        delta.export_since(dlrm[day].folder, str(dlrm[day - 1].folder), folder / f"delta{day}")
    return folder


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].tobytes() == values.tobytes(), name


@pytest.mark.parametrize("network", [(), DEEPFM], ids=["DLRM", "DeepFM"])
def test_base_and_deltas_are_the_whole(tmp_path, network):
    runs = days(tmp_path, *network)
    for day, run in enumerate(runs):
        export(run.folder, "safetensors", tmp_path / f"whole{day}")
    for day in (1, 2):
        delta.export_since(runs[day].folder, str(runs[day - 1].folder), tmp_path / f"delta{day}")
    assert delta.apply(tmp_path / "whole0", [tmp_path / "delta1", tmp_path / "delta2"], tmp_path / "found") == 0
    assert_equal(load_file(tmp_path / "found"), load_file(tmp_path / "whole2"))
    delta.apply(tmp_path / "whole1", [tmp_path / "delta2"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), load_file(tmp_path / "whole2"))
    delta.export_since(runs[2].folder, str(runs[0].folder), tmp_path / "delta")  # two days at once
    delta.apply(tmp_path / "whole0", [tmp_path / "delta"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), load_file(tmp_path / "whole2"))


def test_only_rows_of_ids_that_were_trained_on_are_in_it(dlrm, whole, tmp_path):
    """And new ones: those that no row of the data has are new, and not trained on."""
    found = load_file(whole / "delta1")
    with h5py.File(dlrm[1].folder.parents[1] / "data1" / "train" / "shard-00000.h5") as shard:
        ids = shard["ids"][:]
    for table, (old, new) in enumerate(zip(FEW_CARDINALITIES, WIDER, strict=True)):
        seen = {*ids[:, table].tolist(), *range(old, new)}
        changed = found[f"emb_l.{table}.weight.ids"].tolist()
        assert changed == sorted(changed)
        assert set(changed) <= seen
        assert set(range(old, new)) <= set(changed)
    assert sum(values.size for name, values in found.items() if name.endswith("ids")) < sum(WIDER)


def test_a_model_since_itself_has_no_rows(dlrm, whole, tmp_path, capsys):
    delta.export_since(dlrm[0].folder, str(dlrm[0].folder / "model"), tmp_path / "same")
    assert "0 of 779 rows" in capsys.readouterr().out
    delta.apply(whole / "day0", [tmp_path / "same"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), load_file(whole / "day0"))


def test_since_a_checkpoint_of_the_run_by_its_name(dlrm, whole, tmp_path, monkeypatch, capsys):
    run = Run(shutil.copytree(dlrm[1].folder, tmp_path / "run"))
    shutil.copytree(dlrm[0].folder / "model", run.folder / "checkpoints" / "checkpoint-000007")
    assert ssmpi("export", run.folder, "--since", "checkpoint-000007") == 0
    assert_equal(load_file(run.folder / "delta.safetensors"), load_file(whole / "delta1"))
    assert ssmpi("apply", whole / "day0", run.folder / "delta.safetensors", "--output", tmp_path / "found") == 0
    assert_equal(load_file(tmp_path / "found"), load_file(whole / "day1"))
    assert ssmpi("export", run.folder, "--since", "checkpoint-000008") == 2
    assert "no checkpoint 'checkpoint-000008'; there are checkpoint-000007" in capsys.readouterr().err


def test_any_bit_counts():
    old = np.array([[0.0, 1.0], [np.nan, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
    new = np.concatenate([old, [[7.0, 8.0]]]).astype(np.float32)
    new[0, 0] = -0.0
    new[3, 1] = np.nextafter(np.float32(6), np.float32(7))
    found = delta.changed("t", old, new)
    assert found["t.ids"].tolist() == [0, 3, 4]
    assert found["t.values"].tobytes() == new[[0, 3, 4]].tobytes()


def ssmpi(*words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return ended.value.code


def damaged(path):
    path.write_bytes(path.read_bytes()[:100])


def changed(path, change):
    """Write a delta anew, with its arrays or metadata changed, and the checksum of these."""
    found = delta.TensorFile.read(path)
    change(found.arrays, found.about)
    tensor_files.write_safetensors(found.arrays, path, found.about)


def without_rows(path):
    changed(path, lambda arrays, about: arrays.pop("emb_l.0.weight.ids"))


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


WRONG = {
    "a delta of another base": (("apply", "day1", "delta1"), "name all deltas in between, in order"),
    "one that is missing in between": (("apply", "day0", "delta2"), "name all deltas in between, in order"),
    "in the wrong order": (("apply", "day0", "delta2", "delta1"), "name all deltas in between"),
    "no base": (("apply", "delta1", "delta2"), "a delta: name an export of a whole model"),
    "a base without a name": (("apply", "unnamed", "delta1"), "made by an earlier version"),
    "a base that is missing": (("apply", "nothing", "delta1"), "not a readable file of safetensors"),
    "a base of another kind": (("apply", "text", "delta1"), "not a readable file of safetensors"),
    "no delta": (("apply", "day0", "day1"), "no delta: name what 'ssmpi export --since' wrote"),
    "a cut delta": (("apply", "day0", "cut"), "not a readable file of safetensors"),
    "a delta that lacks an array": (("apply", "day0", "lacking"), "damaged: it has no 'emb_l.0.weight.ids'"),
    "a delta with another bit": (("apply", "day0", "flipped"), "flipped: damaged: its SHA-256 is not the one that was"),
    "a base with another bit": (("apply", "flipped base", "delta1"), "flipped base: damaged: its SHA-256 is not"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_refused(whole, tmp_path, capsys, case):
    (word, *names), said = WRONG[case]
    for name in whole.iterdir():
        shutil.copy(name, tmp_path)
    save_file(load_file(whole / "day0"), tmp_path / "unnamed")
    (tmp_path / "text").write_text("text")
    shutil.copy(whole / "day0", tmp_path / "flipped base")
    flip_a_bit(tmp_path / "flipped base")
    for name, body in (("cut", damaged), ("lacking", without_rows), ("flipped", flip_a_bit)):
        shutil.copy(whole / "delta1", tmp_path / name)
        body(tmp_path / name)
    assert ssmpi(word, *(tmp_path / name for name in names), "--output", tmp_path / "found") == 2
    errors = capsys.readouterr().err
    assert errors.count("error:") == 1
    assert said in errors
    assert not (tmp_path / "found").exists()


IDS, VALUES, BIAS = "emb_l.0.weight.ids", "emb_l.0.weight.values", "bot_l.0.bias"
CRAFTED = {
    "negative ids": (lambda arrays, about: arrays[IDS].__setitem__(0, -1), f"{IDS} are not those of"),
    "an id twice": (lambda arrays, about: arrays[IDS].__setitem__(1, arrays[IDS][0]), f"{IDS} are not ascending"),
    "ids in floats": (lambda arrays, about: arrays.update({IDS: arrays[IDS] * 1.0}), f"{IDS} are not ascending int64"),
    "new rows that lack": (
        lambda arrays, about: arrays.update({name: arrays[name][:-1] for name in (IDS, VALUES)}),
        "are not those of",
    ),
    "narrow rows": (lambda arrays, about: arrays.update({VALUES: arrays[VALUES][:, :1]}), f"{VALUES} is float32"),
    "no number": (lambda arrays, about: arrays[VALUES].fill(np.nan), "emb_l.0.weight has values that are not numbers"),
    "a dense parameter of another shape": (lambda arrays, about: arrays.update({BIAS: np.ones(1, "f4")}), f"{BIAS} is"),
    "a dense parameter that lacks": (lambda arrays, about: arrays.pop(BIAS), f"it has no {BIAS}"),
    "rows that are no object": (lambda arrays, about: about.update(rows="[1]"), "not of the expected kinds"),
    "rows that are too deep": (lambda arrays, about: about.update(rows="[" * 9999), "nested more than"),
    "2^60 rows": (lambda arrays, about: about.update(rows=f'{{"emb_l.0.weight": {2**60}}}'), "are not those of"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_a_crafted_delta_is_refused(whole, tmp_path, case):
    change, said = CRAFTED[case]
    shutil.copy(whole / "delta1", tmp_path / "crafted")
    changed(tmp_path / "crafted", change)
    with pytest.raises(DataError, match=f"crafted: damaged: .*{re.escape(said)}"):
        delta.apply(whole / "day0", [tmp_path / "crafted"], tmp_path / "found")
    assert not (tmp_path / "found").exists()


def test_files_of_earlier_versions_have_no_checksum(whole, tmp_path):
    for name in ("day0", "delta1"):
        found = delta.TensorFile.read(whole / name)
        save_file(found.arrays, tmp_path / name, {"format": "pt", **found.about})
    delta.apply(tmp_path / "day0", [tmp_path / "delta1"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), load_file(whole / "day1"))


def crafted_model(folder, run, change, files="dense.h5"):
    """A model whose manifest agrees with its changed files."""
    model = Path(shutil.copytree(run.folder, folder / "run")) / "model"
    for path in model.glob(files):
        with h5py.File(path, "r+") as saved:
            change(saved)
    manifest = json.loads((model / "manifest.json").read_text())
    for entry in manifest["files"]:
        content = (model / entry["file"]).read_bytes()
        entry |= {"bytes": len(content), "checksum": hashlib.sha256(content).hexdigest()}
    (model / "manifest.json").write_text(json.dumps(manifest))
    return model.parent


def elsewhere(saved):
    shape = saved["bottom.0.bias"].shape
    Path(saved.filename).with_name("secret").write_bytes(bytes(4 * shape[0]))
    del saved["bottom.0.bias"]
    saved.create_dataset("bottom.0.bias", shape, "f4", external=[("secret", 0, 4 * shape[0])])


def linked(saved):
    saved.move("bottom.0.bias", "other")
    saved["bottom.0.bias"] = h5py.ExternalLink("dense.h5", "other")


def grouped(saved):
    del saved["bottom.0.bias"]
    saved.create_group("bottom.0.bias")


MODELS = {
    "missing": (lambda saved: saved.__delitem__("bottom.0.bias"), "parameter bottom.0.bias is nothing"),
    "narrow": (lambda saved: saved.move("top.0.bias", "x") or saved.move("bottom.0.bias", "top.0.bias"), "parameter "),
    "no number": (lambda saved: saved["bottom.0.bias"].__setitem__(0, np.nan), "not all of its parameters are numbers"),
    "in another file": (elsewhere, "the values of /bottom.0.bias are in another file"),
    "a link": (linked, "bottom.0.bias is a link"),
    "a group": (grouped, "cannot be read"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_crafted_model_is_not_exported(dlrm, tmp_path, case):
    change, said = MODELS[case]
    run = crafted_model(tmp_path, dlrm[0], change)
    for kind in ("safetensors", "onnx"):
        with pytest.raises(DataError, match=said):
            export(run, kind, tmp_path / "found")
    with pytest.raises(DataError, match=said):
        delta.export_since(run, str(dlrm[0].folder), tmp_path / "found")


def stripes_that_overlap(saved):
    for group in saved.values():
        group["weights"].attrs["first"] = 0


def cardinalities_that_differ(saved):
    for group in saved.values():
        group["weights"].attrs["cardinality"] = 2**60


ROWS = {
    "lack": (stripes_that_overlap, "rows of table 0 are missing, or not numbers|has .* rows, this model"),
    "are too many": (cardinalities_that_differ, "has 1,152,921,504,606,846,976 rows, this model"),
    "are no numbers": (lambda saved: next(iter(saved.values()))["weights"].__setitem__(0, np.inf), "not numbers"),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows_that_are_none_are_not_exported(dlrm, tmp_path, case):
    """As where stripes of a table overlap: as many rows as there should be, but not each."""
    change, said = ROWS[case]
    run = crafted_model(tmp_path, dlrm[0], change, "embedding-*.h5")
    with pytest.raises(DataError, match=said):
        export(run, "safetensors", tmp_path / "found")


def test_wrong_words_are_refused(dlrm, whole, tmp_path, capsys):
    run, text = dlrm[1].folder, tmp_path / "text"
    text.write_text("mine")
    for words, said in (
        (("export", run, "--since", dlrm[0].folder, "--format", "torch"), "leave --format torch out"),
        (("export", run, "--since", tmp_path), "neither a run, nor a checkpoint or model"),
        (("export", run, "--since", "nowhere"), "no checkpoint 'nowhere'"),
        (("export", run, "--since", dlrm[0].folder, "--output", text), "not an earlier output of this command"),
        (("apply", whole / "day0", whole / "delta1", "--output", text), "not an earlier output of this command"),
        (("export", dlrm[0].folder, "--since", run, "--output", tmp_path / "new"), "export the whole model"),
    ):
        assert ssmpi(*words) == 2
        assert said in capsys.readouterr().err
        assert text.read_text() == "mine"
        assert not (tmp_path / "new").exists()


def test_rows_of_another_size_are_refused(dlrm, tmp_path):
    data = few(tmp_path / "data", 0, WIDER)
    other = train_over_threads(tmp_path / "other", data, "model.bottom=[4]", "embedding.dim=4", "data.batch_size=100")
    with pytest.raises(DataError, match="rows of another size"):
        delta.export_since(other.folder, str(dlrm[0].folder), tmp_path / "new")


def test_a_damaged_base_is_named(dlrm, tmp_path):
    base = shutil.copytree(dlrm[0].folder / "model", tmp_path / "model")
    entry = store.read_manifest(base).files[-1]
    content = bytearray((base / entry.file).read_bytes())
    content[-1] ^= 1
    (base / entry.file).write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        delta.export_since(dlrm[1].folder, str(base), tmp_path / "new")
    with pytest.raises(DataError):
        files.verify(base, entry)
