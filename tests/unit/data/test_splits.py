"""Which splits are scored is known before training: a split that was named and is not there is refused."""

import logging
from contextlib import ExitStack
from dataclasses import replace

import pytest
from datasets import make_dataset
from runs import write_run_file

from ssmpi.data.schema import Split, read_manifest, write_manifest
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.settings import dump
from ssmpi.state import resume
from ssmpi.state.request import RunRequest


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A set to train and to test on, without validation rows."""
    data = make_dataset(tmp_path_factory.mktemp("data"), rows=200, cardinalities=(9,) * 26)
    manifest = read_manifest(data)
    write_manifest(data, replace(manifest, splits={**manifest.splits, "validation": Split(())}))
    return data


@pytest.fixture
def told(caplog, monkeypatch):
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.INFO, "ssmpi")
    return caplog


@pytest.fixture
def prepare(tmp_path, data):
    def prepare(*overrides, words=()):
        """``overrides`` stand in the run file, ``words`` on the command line."""
        config = write_run_file(tmp_path, data, *overrides)
        (tmp_path / "given.toml").write_text(dump(config))
        with ExitStack() as held:
            return resume.prepare(RunRequest(tmp_path / "given.toml", words), config.topology.size, held)

    return prepare


@pytest.mark.parametrize(
    ("setting", "split", "remedy"),
    [
        ("evaluate.split", "validaton", "name one of train, test, or none"),
        ("evaluate.final", "tset", "did you mean 'test'"),
        ("evaluate.final", "", "name one of train, test, or none"),
        ("evaluate.split", "None", "did you mean 'none'"),
    ],
)
def test_a_split_that_was_named_and_is_not_there_is_refused(prepare, tmp_path, setting, split, remedy):
    with pytest.raises(SettingsError, match=f"{setting} = '{split}': .* has no rows of that split.*{remedy}"):
        prepare(f"{setting}={split}")
    assert not (tmp_path / "run").exists()


def test_named_on_the_command_line_the_default_is_refused_too(prepare):
    with pytest.raises(SettingsError, match=r"evaluate\.split = 'validation': .* has no rows of that split"):
        prepare(words=("evaluate.split=validation",))


def test_a_default_split_that_is_not_there_is_left_out_with_a_word(prepare, told):
    prepare()
    assert [record.message for record in told.records] == [
        "no rows in split 'validation' of this data: it is not evaluated (evaluate.split)"
    ]


def test_none_is_none(prepare, told):
    prepare("evaluate.split=none", "evaluate.final=none")
    assert not told.records


def test_any_split_can_be_scored(prepare, told):
    prepare("evaluate.split=train")
    assert not told.records
