"""What is scored is the model that was saved, on ids of its own vocabulary, wherever run and data folder are by now."""

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import flip_a_value
from runs import train_over_threads

from data_prep.cli import main
from ssmpi import cli
from ssmpi.config import warn_once
from ssmpi.model.replica import ThreadModel
from ssmpi.runtime.errors import DataError, SettingsError, TrainingError, UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.state.checkpoint.store import read_manifest
from ssmpi.state.request import RunRequest
from ssmpi.tools import score
from ssmpi.tools.export import export
from ssmpi.tools.score import ScoringInput


def rows(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        integers = "\t".join(str(draw.randrange(50)) for _ in range(13))
        yield f"{draw.randrange(2)}\t{integers}\t" + "\t".join(f"{draw.randrange(9):08x}" for _ in range(26)) + "\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with ``data``, ``others`` of another vocabulary, and ``run``, trained there by the relative name
    ``data``.
    """
    base = tmp_path_factory.mktemp("project")
    for name, seed in (("data", 1), ("others", 2)):
        (base / f"{name}.txt").write_text("".join(rows(500, seed)))
        assert main(["criteo", str(base / f"{name}.txt"), "-o", str(base / name)]) == 0
    with contextlib.chdir(base):
        train_over_threads(Path("trained"), "data", "topology.embedding_ps=0")
    return base


@pytest.fixture
def project(trained, tmp_path, monkeypatch):
    """A copy to spoil, and the current folder in it."""
    copy = Path(shutil.copytree(trained, tmp_path / "project"))
    forget_the_place(copy, trained)
    monkeypatch.chdir(copy)
    return copy


def forget_the_place(copy, trained):
    path = copy / "trained/run/model/manifest.json"
    path.write_text(path.read_text().replace(str(trained), str(copy)))


pytestmark = pytest.mark.usefixtures("alone")
RUN = Path("trained/run")


def predict(source, run=RUN, out=Path("scores"), vocabulary=None):
    assert score.predict(run, ScoringInput(Path(source), "test", vocabulary), out) == 0
    return np.loadtxt(out)


def overwrite(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(range(64))
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["embedding-0000.h5", "dense.h5"])
@pytest.mark.parametrize("command", ["evaluate", "predict", "export"])
def test_a_damaged_model_is_not_used(project, capsys, name, command):
    overwrite(project / RUN / "model" / name)
    commands = {
        "evaluate": lambda: score.evaluate(RUN, "test", None),
        "predict": lambda: predict("data"),
        "export": lambda: export(RUN, "torch", None),
    }
    with pytest.raises(DataError, match=f"{name}: damaged.*Train the model again"):
        commands[command]()
    assert "NE" not in capsys.readouterr().out
    assert not Path("scores").exists()


@pytest.mark.parametrize("command", ["evaluate", "predict", "export", "plan", "report", "inspect", "summary"])
def test_what_a_run_asked_of_an_earlier_version_does_not_lock_up_its_model(project, caplog, command):
    warn_once.cache_clear()
    settings = RUN / "run.toml"
    settings.write_text(settings.read_text().replace("[sync]\n", "[sync]\nlife_span = 500\nfragments = 1\n"))
    more = {"evaluate": ["--split", "test"], "predict": ["data", "--output", "scores"]}
    with pytest.raises(SystemExit) as ended:
        cli.main([command, str(settings if command == "plan" else RUN), *more.get(command, ())])
    assert ended.value.code == 0
    warned = [record.getMessage() for record in caplog.records if "life_span" in record.getMessage()]
    reads_settings = command in ("evaluate", "predict", "export", "plan")
    assert warned == [f"{settings}: ignored, because an earlier version had it: sync.life_span = 500"] * reads_settings
    with pytest.raises(SettingsError, match=r"'sync\.life_span' was removed: set sync\.threshold_interval"):
        RunRequest(None, (), run=RUN).load()


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """``--out /dev/null`` as root made a file of it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: is a device or a pipe, which would be replaced"):
        atomic_file.write(tmp_path / "pipe", b"x")
    assert (tmp_path / "pipe").is_fifo()


MANIFEST = {"format": "ssmpi-checkpoint", "version": 1, "files": [], "state": {}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged: empty"),
        ("{", "damaged: not JSON at line 1, column 2"),
        ("{}", "damaged: it has no 'format'"),
        ("[1]", "damaged: its values are not of the expected kinds"),
        (json.dumps(MANIFEST), "damaged: it names no dense.h5"),
        (json.dumps({**MANIFEST, "version": 9}), "format 'ssmpi-checkpoint' version 9, this program reads"),
    ],
)
def test_a_damaged_manifest_of_a_model_is_described_with_the_remedy(project, text, says):
    path = project / RUN / "model/manifest.json"
    path.write_text(text)
    for command in (
        lambda: score.evaluate(RUN, "test", None),
        lambda: predict("data"),
        lambda: export(RUN, "torch", None),
    ):
        with pytest.raises(DataError) as refused:
            command()
        words = str(refused.value)
        assert words.startswith(f"{RUN}/model/manifest.json: {says}")
        assert words.endswith("Train the model again, or restore an intact copy")
        assert "Error" not in words


def test_a_damaged_manifest_names_the_command_that_skips_it(project):
    shutil.move(RUN / "model", RUN / "checkpoints/checkpoint-000003")
    (RUN / "checkpoints/checkpoint-000003/manifest.json").write_text("{")
    with pytest.raises(DataError, match=rf"damaged.*'ssmpi launch --resume {RUN} --checkpoint whole'"):
        score.evaluate(RUN, "test", None)


def test_only_files_that_the_manifest_names_are_read(project):
    expected = predict("data")
    (project / RUN / "model/embedding-0001.h5").write_bytes(b"a stranger")
    shutil.copy(project / RUN / "model/dense.h5", project / RUN / "model/embedding-0000a.h5")
    np.testing.assert_array_equal(predict("data"), expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_damaged_rows_are_not_scored(project, capsys, alone):
    flip_a_value(project / "data/test/shard-00000.h5")
    with pytest.raises(DataError, match=r"shard-00000\.h5: damaged"):
        predict("data")
    assert not Path("scores").exists()
    with pytest.raises(SystemExit):
        score.evaluate(RUN, "test", None)
    assert "shard-00000.h5: damaged" in str(alone[-1].error)
    assert "NE" not in capsys.readouterr().out


def test_a_score_that_is_not_finite_is_refused(project, capsys, monkeypatch):
    scores = ThreadModel.score

    def overflowing(model, dense, rows):
        logits = scores(model, dense, rows)
        logits[7] = np.inf
        return logits

    monkeypatch.setattr(ThreadModel, "score", overflowing)
    with pytest.raises(DataError, match="row 8 of those to score has no finite score"):
        predict("data")
    assert not Path("scores").exists()
    with pytest.raises(TrainingError, match="data: some scores are not finite: "):
        score.evaluate(RUN, "test", None)
    assert "NE" not in capsys.readouterr().out


# A run folder somewhere else


def test_a_run_is_scored_from_any_folder(project, tmp_path, monkeypatch, capsys):
    score.evaluate(RUN, "test", None)
    here = capsys.readouterr().out
    moved = tmp_path / "elsewhere"
    shutil.move(project / RUN, moved)
    monkeypatch.chdir(tmp_path)
    score.evaluate(moved, "test", None)
    found = capsys.readouterr()
    assert found.out == here
    assert f"taking {project / 'data'}" in found.err


def test_what_the_run_file_says_counts_where_it_is_a_data_folder(project, tmp_path, monkeypatch):
    """The whole project was copied: the data beside the run is meant, not the original."""
    copied = Path(shutil.copytree(project, tmp_path / "copied"))
    shutil.rmtree(project / "data")
    monkeypatch.chdir(copied)
    assert score.evaluate(RUN, "test", None) == 0


def test_export_and_predict_need_no_data_folder(project, tmp_path, monkeypatch):
    expected = predict("data.txt")
    shutil.copy(project / "data/vocabulary.h5", tmp_path)
    shutil.move(project / RUN, tmp_path / "moved")
    shutil.rmtree(project / "data")
    monkeypatch.chdir(tmp_path)
    raw, moved = project / "data.txt", Path("moved")
    np.testing.assert_array_equal(predict(raw, moved, vocabulary=Path("vocabulary.h5")), expected)
    assert export(moved, "safetensors", None) == 0
    with pytest.raises(DataError, match=r"no data folder data here, and none at .*/project/data any more"):
        predict(raw, moved)
    with pytest.raises(DataError, match="--data"):
        score.evaluate(moved, "test", None)


@pytest.mark.parametrize("same_sizes", [True, False], ids=["same sizes", "other sizes"])
def test_another_vocabulary_is_refused(project, same_sizes):
    if not same_sizes:
        assert main(["criteo", "others.txt", "-o", "few", "--min-count", "60"]) == 0
    others = Path("others" if same_sizes else "few")
    message = "another vocabulary than that of the data this model was trained on"
    for scoring in (
        lambda: predict("data.txt", vocabulary=others / "vocabulary.h5"),
        lambda: predict("data.txt", vocabulary=others),
        lambda: predict(others),
        lambda: score.evaluate(RUN, "test", others),
    ):
        with pytest.raises(DataError, match=message):
            scoring()
    shutil.rmtree("data")
    shutil.copytree(others, "data")  # prepared anew under the old name
    with pytest.raises(DataError, match=message):
        score.evaluate(RUN, "test", None)


def test_a_model_of_an_older_version_is_scored_with_its_data_folder(project, tmp_path, monkeypatch):
    path = RUN / "model/manifest.json"
    body = json.loads(path.read_text())
    assert body["state"].pop("data")["cardinalities"]
    assert body["state"].pop("network")["operators"]
    path.write_text(json.dumps(body))
    assert "data" not in read_manifest(RUN / "model").state
    assert score.evaluate(RUN, "test", None) == 0
    assert export(RUN, "torch", None) == 0
    monkeypatch.chdir(tmp_path)
    assert score.evaluate(project / RUN, "test", project / "data") == 0
    with pytest.raises(DataError, match="an older version saved it, so its data folder is needed"):
        export(project / RUN, "torch", None)


def test_a_vocabulary_for_prepared_rows_is_refused(project):
    with pytest.raises(UserError, match="--vocabulary is for raw files, and data is prepared"):
        predict("data", vocabulary=Path("others/vocabulary.h5"))


# Where the scores go


@pytest.mark.parametrize(("name", "message"), [("data", "is a folder"), ("missing/scores", "there is no folder")])
def test_an_output_that_cannot_be_written_is_refused_before_scoring(project, monkeypatch, name, message):
    monkeypatch.setattr("ssmpi.trainer.evaluate.Scorer", lambda *_: pytest.fail("scored first"))
    with pytest.raises(UserError, match=message):
        predict("data", out=Path(name))
