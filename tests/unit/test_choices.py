"""Settings that are chosen where nothing sets them, and that stay what they are in a run that is resumed."""

import json

import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset

from ssmpi.choices import CHOSEN, EXAMPLES
from ssmpi.config import load
from ssmpi.data.features import Features
from ssmpi.data.schema import DatasetManifest, read_manifest, write_manifest
from ssmpi.runtime.settings import dump
from ssmpi.state import run_folder
from ssmpi.state.request import RunRequest
from ssmpi.tools.plan import describe

ROWS, PASSES = 3_000, 5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("few"), ROWS, cardinalities=FEW_CARDINALITIES, features=FEW)


def written(folder, data, *lines):
    path = folder / "run.toml"
    path.write_text("\n".join([f'run.folder = "{folder}/run"', f'data.folder = "{data}"', *lines]))
    return path


def chosen(config):
    return {choice.name: choice.value for choice in config.chosen}


def set_rows(data, folder, rows):
    """A data set that claims to have ``rows`` rows to train on."""
    body = json.loads((data / "manifest.json").read_text())
    body["splits"]["train"]["shards"] = [body["splits"]["train"]["shards"][0] | {"rows": rows, "positives": 1}]
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


FALLING = {"schedule.decay_examples": PASSES * ROWS, "schedule.power": 1.0}
SEVERAL = {"data.passes": PASSES, **FALLING, "evaluate.keep": "best"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), SEVERAL),
        (("data.passes = 1",), {}),
        (("evaluate.split = 'none'",), {}),
        (("schedule.power = 2.0",), {}),
        (("run.continue_from = 'before'",), {}),
        (
            ("topology.threads = 2",),
            SEVERAL
            | {
                "schedule.warmup_examples": PASSES * ROWS // 10,
                "schedule.decay_start_examples": PASSES * ROWS // 10,
                "schedule.decay_examples": PASSES * ROWS * 9 // 10,
            },
        ),
        (("topology.threads = 2", "data.passes = 100"), {"schedule.warmup_examples": 2 * 100 * 128}),
        (("topology.threads = 2", "data.passes = 100", "dense.optimizer = 'sgd'"), {}),
        (("data.passes = 1", "model.name = 'deepfm'"), {"embedding.initial_bound": 0.03}),
        (("data.passes = 1", "model.name = 'deepfm'", "embedding.initial_bound = 0.5"), {}),
        (("data.passes = 1", "dense.optimizer = 'adam'"), {"dense.rate": 0.001}),
        (("data.passes = 1", "embedding.optimizer = 'adamw'", "embedding.rate = 0.2"), {}),
    ],
)
def test_what_is_chosen(tmp_path, data, lines, expected):
    config = load(written(tmp_path, data, *lines))
    assert chosen(config) == expected
    assert expected.items() <= config.flat().items()
    assert expected.keys() <= set(CHOSEN)


@pytest.mark.parametrize(("dense", "sparse", "rate"), [(13, 26, 0.051), (0, 39, 0.051), (5, 8, 0.15)])
def test_the_rate_of_a_factorization_machine_follows_from_its_fields(tmp_path, dense, sparse, rate):
    features = Features.numbered(dense, sparse)
    write_manifest(tmp_path, DatasetManifest((100,) * sparse, {}, features=features))
    assert load(written(tmp_path, tmp_path, "model.name = 'deepfm'")).embedding.rate == rate
    assert load(written(tmp_path, tmp_path, "model.name = 'dlrm'")).embedding.rate == 0.15
    adam = load(written(tmp_path, tmp_path, "model.name = 'deepfm'", "embedding.optimizer = 'adam'"))
    assert chosen(adam) == {"embedding.initial_bound": 0.03, "embedding.rate": 0.001}


@pytest.mark.parametrize(("rows", "expected"), [(EXAMPLES // 2, 2), (EXAMPLES - 1, 2), (EXAMPLES, 1)])
def test_many_rows_are_enough_for_one_pass(tmp_path, data, rows, expected):
    assert load(written(tmp_path, set_rows(data, tmp_path / "data", rows))).data.passes == expected


def test_nothing_is_chosen_for_data_that_is_not_there(tmp_path):
    assert load(written(tmp_path, tmp_path / "nowhere")).chosen == ()


def test_plan_says_what_was_chosen_and_why(tmp_path, data):
    text = describe(load(written(tmp_path, data, "model.name = 'deepfm'")))
    assert "\n  embedding.initial_bound = 0.03: deepfm " in text
    assert f"\n  data.passes = {PASSES}: " in text
    assert '\n  evaluate.keep = "best": ' in text
    assert "chosen" not in describe(load(written(tmp_path, data, "data.passes = 2")))


def test_a_run_keeps_what_was_chosen(tmp_path, data):
    """Also if its data has grown since, with its own settings or with the run file."""
    there = tmp_path / "data"
    there.symlink_to(data)
    file = written(tmp_path, there)
    first = load(file)
    run_folder.make(first.run.path, first, overwrite=False)
    there.unlink()
    set_rows(data, there, EXAMPLES)
    assert read_manifest(there).splits["train"].rows == EXAMPLES
    assert load(file).data.passes == 1
    for run_file in (None, file):
        again = RunRequest(run_file, (), run=first.run.path).load()
        assert dump(again) == dump(first)
    wanted = RunRequest(file, ("data.passes=7",), run=first.run.path).load()
    assert (wanted.data.passes, wanted.evaluate.keep) == (7, "best")


def test_a_run_of_an_earlier_version_is_left_as_it_was(tmp_path, data):
    """Whose resolved file does not have all that is chosen now."""
    file = written(tmp_path, data, "model.name = 'deepfm'", "embedding.initial_bound = 1.0")
    config = load(file)
    run_folder.make(config.run.path, config, overwrite=False)
    saved = config.run.path / "run.toml"
    saved.write_text(saved.read_text().replace("initial_bound = 1.0\n", ""))
    for request in (RunRequest(None, (), run=saved.parent), RunRequest(file, (), run=saved.parent)):
        assert request.load().embedding.initial_bound == 1.0
