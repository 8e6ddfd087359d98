"""A run that begins with the model of a finished one, on other data: the bits of one run over both, widened tables, and
what is refused.
"""

import json
import shutil
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset, only
from runs import Run, train_over_threads, write_run_file

from ssmpi import cli
from ssmpi.cli import commands
from ssmpi.cli.arguments import parser
from ssmpi.data.schema import read_manifest, write_manifest
from ssmpi.embedding.placement import place
from ssmpi.embedding.precision import DTYPES, converted
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.settings import dump
from ssmpi.state import continued, resume
from ssmpi.state.checkpoint import files
from ssmpi.state.checkpoint.parent import Parent
from ssmpi.state.request import RunRequest
from ssmpi.tools import inspect

ONE = ("data.batch_size=100", "data.block_rows=300", "data.shuffle=false", "embedding.prefetch=false")
TABLES = len(FEW_CARDINALITIES)


def few(folder, rows=600, seed=0, cardinalities=FEW_CARDINALITIES, shard=300):
    return make_dataset(folder, rows, seed, shard, cardinalities, features=FEW)


def with_vocabulary(data, checksum, extends=()):
    """Record in a data set's manifest which vocabulary it has, and which ones that extends."""
    about = {"vocabulary": {"extends": list(extends)}, "files": {"vocabulary.h5": checksum}}
    write_manifest(data, replace(read_manifest(data), provenance=about))
    return data


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A data set of two days, and each alone, with one vocabulary."""
    folder = tmp_path_factory.mktemp("both")
    data = few(folder / "all")
    return data, only(folder / "first", data, slice(1)), only(folder / "second", data, slice(1, None))


def one_after_the_other(folder, both, *overrides, then=()):
    """A run over the first day and one that continues it over the second, perhaps with other settings."""
    _, first, second = both
    a = train_over_threads(folder / "a", first, *ONE, *overrides)
    b = train_over_threads(
        folder / "b", second, *ONE, *overrides, *then, f"run.continue_from={a.folder}", parent=a.folder
    )
    return a, b


SERVERS = "topology.embedding_ps=2"
STEPS = ("topology.sync_ps=2", "sync.pace=fixed_rate", "sync.every_iterations=1")
ADAM = ("dense.optimizer=adam", "dense.rate=0.001", "embedding.rate=0.01")


@pytest.mark.parametrize(
    "overrides",
    [
        (SERVERS,),
        (*ADAM, "embedding.optimizer=adam", SERVERS),
        (*ADAM, "embedding.optimizer=partial_rowwise_adam", "model.name=deepfm", "model.deepfm.deep=[16]"),
        ("sync.algorithm=async_ps", *STEPS),
        ("sync.algorithm=bmuf", "sync.bmuf.momentum=0.5", "sync.alpha=1", *STEPS[1:]),
    ],
    ids=["Adagrad", "Adam", "partial row-wise Adam", "an optimizer on sync PSs", "block momentum"],
)
def test_day_after_day_gives_the_bits_of_one_run(tmp_path, both, overrides):
    whole = train_over_threads(tmp_path / "whole", both[0], *ONE, "evaluate.per_pass=2", *overrides)
    a, b = one_after_the_other(tmp_path, both, *overrides)
    np.testing.assert_array_equal([*a.losses(), *b.losses()], whole.losses())
    for name, values in whole.dense().items():
        np.testing.assert_array_equal(b.dense()[name], values, err_msg=name)
    for what in ("weights", *(("state",) if "embedding.optimizer=sgd" not in overrides else ())):
        for found, expected in zip(b.tables(what), whole.tables(what), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert b.quality() == {**whole.quality(), "after_examples": 300.0}


def test_another_algorithm_begins_anew_from_the_parents_model(tmp_path, both):
    """SlowMo's arrays have the names and sizes of BMUF's: only the algorithms' names tell whose they are."""
    momentum = ("sync.algorithm=bmuf", "sync.bmuf.momentum=0.9", "sync.alpha=1", *STEPS[1:])
    a, b = one_after_the_other(tmp_path, both, *momentum, then=("sync.algorithm=slowmo", "dense.rate=0"))
    assert any((values != 0).any() for name, values in algorithm_arrays(a).items() if "/delta" in name)
    assert not any((values != 0).any() for name, values in algorithm_arrays(b).items() if "/delta" in name)
    for name, values in a.dense().items():
        np.testing.assert_array_equal(b.dense()[name], values, err_msg=name)


def algorithm_arrays(run):
    """What a model's optimizer file has of the algorithm."""
    return {name: v for name, v in files.read(run.folder / "model" / "optimizer.h5").items() if name.startswith("sync")}


def test_inspect_names_the_run_that_is_continued(tmp_path, both):
    a, b = one_after_the_other(tmp_path, both)
    assert "continues" not in inspect.describe(b.folder, checksums=True)[0]
    Parent.of(a.folder).record(b.folder)
    text, well = inspect.describe(b.folder, checksums=True)
    assert well
    assert f"\ncontinues the model of {a.folder}, after 300 examples (SHA-256 " in text
    (b.folder / "parent.json").write_text('{"run": 1')
    text, well = inspect.describe(b.folder, checksums=True)
    assert not well
    assert "\nparent.json: DAMAGED: " in text


def test_estimates_of_thresholds_go_on(tmp_path, both):
    a, b = one_after_the_other(tmp_path, both, 'model.top_k=["bottom.0: 0.5 laplace"]')
    batches = [next(v[0] for name, v in run.dense().items() if name.endswith(".sizes")) for run in (a, b)]
    assert batches == [3.0, 6.0]


@pytest.mark.parametrize("servers", [0, 3])
def test_widened_tables_keep_rows_and_new_ones_are_initial(tmp_path, servers):
    wider = tuple(n + more for n, more in zip(FEW_CARDINALITIES, (7, 0, 1, 40, 3), strict=True))
    data = few(tmp_path / "day1", rows=300), few(tmp_path / "day2", rows=300, seed=1, cardinalities=wider)
    a = train_over_threads(tmp_path / "a", data[0], *ONE, "topology.embedding_ps=2")
    still = ("embedding.rate=0", "dense.rate=0", f"topology.embedding_ps={servers}", "run.seed=7")
    b = train_over_threads(tmp_path / "b", data[1], *ONE, *still, parent=a.folder)
    config = write_run_file(tmp_path / "b", data[1], *ONE, *still)
    fresh = Arena(config.rows, place(wider, 1), 0, 7)
    for part, before, after, state in zip(fresh.parts, a.tables(), b.tables(), b.tables("state"), strict=True):
        count = len(before)
        np.testing.assert_array_equal(after[:count], before)
        np.testing.assert_array_equal(after[count:], fresh.weights[part.base + count : part.base + part.rows])
        assert len(after) == wider[part.table]
        assert (state[count:] >= np.float32(config.embedding.initial_state)).all()


@pytest.mark.parametrize(("first", "then"), [("fp32", "bf16"), ("bf16", "fp32"), ("bf16", "fp16")])
def test_rows_go_on_in_another_precision(tmp_path, both, first, then):
    """Rounded to the nearest; with rates of 0 no bit changes after that."""
    still = (f"embedding.precision={then}", "embedding.rate=0", "dense.rate=0")
    a, b = one_after_the_other(tmp_path, both, SERVERS, f"embedding.precision={first}", then=still)
    for before, after, state in zip(a.tables(), b.tables(), b.tables("state"), strict=True):
        np.testing.assert_array_equal(after, converted(converted(before, DTYPES[then]), np.float32))
        assert state.dtype == np.float32


def test_fresh_optimizers_leave_the_state_behind(tmp_path, both):
    a, b = one_after_the_other(
        tmp_path, both, SERVERS, then=("run.fresh_optimizer=true", "embedding.rate=0", "dense.rate=0")
    )
    for before, after, weights in zip(a.tables("state"), b.tables("state"), b.tables(), strict=True):
        assert (after <= before + 1).all()
        assert (after < before).any() or not (before > 3e-4).any()
        assert weights.shape[0] == before.shape[0]
    for name, values in a.dense().items():
        np.testing.assert_array_equal(b.dense()[name], values)


@pytest.mark.parametrize(
    "then",
    [
        ("topology.trainers=2", "topology.sync_ps=1", "sync.algorithm=easgd", "topology.threads=2"),
        ("topology.trainers=2", "topology.group=2", "hierarchy.plan=stages", "topology.embedding_ps=3"),
    ],
    ids=["two replicas", "one replica of two members"],
)
def test_any_numbers_of_ranks_continue(tmp_path, both, then):
    a, b = one_after_the_other(tmp_path, both, SERVERS, then=("embedding.rate=0", "dense.rate=0", *then))
    for name, values in a.dense().items():
        np.testing.assert_allclose(b.dense()[name], values, rtol=1e-6, atol=1e-7, err_msg=name)
    for before, after in zip(a.tables(), b.tables(), strict=True):
        np.testing.assert_array_equal(after, before)


def test_the_mean_of_all_replicas_optimizers_is_saved(tmp_path, both):
    """Of members of groups too: each parameter is whole."""
    grid = ("topology.trainers=4", "topology.group=2", "hierarchy.plan=stages", "sync.algorithm=ma", SERVERS)
    a, b = one_after_the_other(tmp_path, both, *grid, "evaluate.keep=best", then=("dense.rate=0",))
    first, second = (files.read(run.folder / "model" / "optimizer.h5") for run in (a, b))
    assert first.keys() == {f"dense/sums/{name}" for name in a.dense()}
    for name, values in first.items():
        assert (values > 0).any()
        assert (second[name] >= values * (1 - 1e-6)).all(), name  # sums go on from there


# What is recorded, resumed and refused


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run on data with a vocabulary, and data of the next day that extends it."""
    folder = tmp_path_factory.mktemp("finished")
    first = with_vocabulary(few(folder / "day1", rows=300), "a" * 64)
    second = with_vocabulary(few(folder / "day2", rows=300, seed=1), "b" * 64, ["a" * 64])
    return train_over_threads(folder / "a", first, *ONE), second


def prepared(folder, data, *overrides, resume_it=False, run_of=None):
    """What ``ssmpi train`` on the first rank does before training."""
    config = write_run_file(folder, data, *ONE, *overrides)
    (folder / "given.toml").write_text(dump(config))
    run = folder / "run"
    request = RunRequest(folder / "given.toml", overrides, run=run) if resume_it else None
    request = request or RunRequest(folder / "given.toml", overrides)
    with ExitStack() as held:
        return resume.prepare(request, config.topology.size, held)


def continuing(run):
    return f"run.continue_from={run.folder}"


def test_the_parent_is_recorded_and_taken_until_there_is_a_checkpoint(tmp_path, finished):
    run, data = finished
    plan = prepared(tmp_path, data, continuing(run))
    assert plan.parent == Parent.of(run.folder) == Parent.recorded(tmp_path / "run")
    assert plan.parent.examples == 300
    again = prepared(tmp_path, data, continuing(run), resume_it=True)
    assert again.parent == plan.parent
    assert again.resumed


def test_what_the_parent_asked_of_an_earlier_version_is_ignored(tmp_path, finished, caplog):
    run, data = finished
    copy = altered(run, tmp_path, ask_for_what_is_gone)
    assert prepared(tmp_path, data, continuing(copy)).parent == Parent.of(copy.folder)
    said = f"{copy.folder / 'run.toml'}: ignored, because an earlier version had it: sync.fragments = 2"
    assert caplog.messages.count(said) == 1
    ask_for_what_is_gone(tmp_path / "run")
    with pytest.raises(SettingsError, match=r"'sync\.fragments' was removed"):
        RunRequest(None, (), run=tmp_path / "run").load()


def ask_for_what_is_gone(folder):
    settings = folder / "run.toml"
    settings.write_text(settings.read_text().replace("[sync]\n", "[sync]\nfragments = 2\n"))


def test_a_submitted_run_records_its_parent_when_it_starts(tmp_path, finished):
    """``ssmpi submit`` makes the folder, and its batch file resumes it."""
    run, data = finished
    prepared(tmp_path, data, continuing(run))
    (tmp_path / "run" / "parent.json").unlink()
    assert prepared(tmp_path, data, continuing(run), resume_it=True).parent == Parent.recorded(tmp_path / "run")


def test_a_parent_trained_again_is_not_taken(tmp_path, finished):
    run, data = finished
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    prepared(tmp_path, data, continuing(copy))
    manifest = copy.folder / "model" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(SettingsError, match=r"began from the model of .*copy, after 300 examples"):
        prepared(tmp_path, data, continuing(copy), resume_it=True)
    with pytest.raises(DataError, match="another model than the one this run began from"):
        Parent.recorded(tmp_path / "run").check()
    shutil.rmtree(copy.folder)
    with pytest.raises(DataError, match="put it back"):
        Parent.recorded(tmp_path / "run").check()


def test_a_damaged_record_is_named(tmp_path, finished):
    run, data = finished
    prepared(tmp_path, data, continuing(run))
    (tmp_path / "run" / "parent.json").write_text('{"run": 1}')
    with pytest.raises(DataError, match=r"parent\.json: damaged"):
        prepared(tmp_path, data, continuing(run), resume_it=True)


def altered(run, tmp_path, body):
    """A copy of a finished run with something changed."""
    copy = Run(tmp_path / "copy")
    shutil.copytree(run.folder, copy.folder)
    body(copy.folder)
    return copy


def unfinished(folder):
    (folder / "result.json").write_text('{"status": "stopped"}')


def cut_marker(folder):
    (folder / "result.json").write_text('{"status": "comp')


def without_optimizer(folder):
    path = folder / "model" / "manifest.json"
    body = json.loads(path.read_text())
    body["files"] = [each for each in body["files"] if each["file"] != "optimizer.h5"]
    path.write_text(json.dumps(body))


def without_model(folder):
    shutil.rmtree(folder / "model")


def without_origin(folder):
    path = folder / "model" / "manifest.json"
    body = json.loads(path.read_text())
    del body["state"]["data"]
    path.write_text(json.dumps(body))


def nothing(folder):
    pass


def other_features(data):
    from ssmpi.data.features import Features

    return few_with(data, Features(("age", "price", "day"), FEW.sparse))


def few_with(data, features):
    write_manifest(data, replace(read_manifest(data), features=features))
    return data


def foreign(data):
    return with_vocabulary(data, "c" * 64, ["d" * 64])


def narrower(data):
    return with_vocabulary(few(data.parent / "narrow", rows=300, cardinalities=(9, 9, 9, 9, 9)), "c" * 64)


def same(data):
    return data


REFUSED = {
    "a stopped run": (unfinished, same, (), r"this run is not finished \(stopped\): finish it first"),
    "a damaged marker": (cut_marker, same, (), r"result\.json: damaged"),
    "no model": (without_model, same, (), r"manifest\.json: missing"),
    "no record of data": (without_origin, same, (), "without a record of its data"),
    "no optimizer state": (without_optimizer, same, (), "run.fresh_optimizer = true starts the optimizers anew"),
    "another network": (nothing, same, ("model.top=[16,1]",), "its network is another one"),
    "another kind": (nothing, same, ("model.name=dcn_v2",), "its network is another one"),
    "another dim": (nothing, same, ("embedding.dim=4", "model.bottom=[32,4]"), "embedding.dim is 4, .* with 8"),
    "another optimizer": (nothing, same, ("dense.optimizer=sgd",), "dense.optimizer is 'sgd'"),
    "another row optimizer": (nothing, same, ("embedding.optimizer=sgd",), "embedding.optimizer is 'sgd'"),
    "other features": (nothing, other_features, (), "other features"),
    "a foreign vocabulary": (nothing, foreign, (), "does not extend it .*--extend-vocabulary .*day1"),
    "a smaller vocabulary": (nothing, narrower, (), "does not extend it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_continued_is_refused_before_anything_is_written(tmp_path, finished, case):
    body, change, overrides, said = REFUSED[case]
    run, data = finished
    copy = altered(run, tmp_path, body)
    folder = shutil.copytree(data, tmp_path / "data")
    with pytest.raises((SettingsError, DataError), match=said):
        prepared(tmp_path / "new", change(folder), continuing(copy), *overrides)
    assert not (tmp_path / "new" / "run").exists()


def test_a_run_does_not_continue_itself(tmp_path, finished):
    run, data = finished
    copy = altered(run, tmp_path / "run", nothing)
    config = write_run_file(tmp_path, data, *ONE)
    (tmp_path / "given.toml").write_text(dump(config))
    overrides = (continuing(copy), f"run.folder={copy.folder}")
    request = RunRequest(tmp_path / "given.toml", overrides, overwrite=True)
    with ExitStack() as held, pytest.raises(SettingsError, match=r"is run\.folder itself"):
        resume.prepare(request, config.topology.size, held)
    assert (copy.folder / "model" / "dense.h5").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--continue-from", "nowhere"), "nowhere: no such folder"),
        (("--continue-from", "file"), "a file; name a run folder"),
        (("--continue-from", "empty"), "not a run folder"),
        (("--continue-from", "empty", "run.continue_from=empty"), "leave one of them out"),
        (("run.fresh_optimizer=true",), r"set run\.continue_from too"),
    ],
)
def test_wrong_words_are_refused(tmp_path, both, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    config = write_run_file(tmp_path / "new", both[0], *ONE)
    (tmp_path / "run.toml").write_text(dump(config))
    parsed = cli.parse(parser(), ["launch", "run.toml", *words])
    with ExitStack() as held, pytest.raises((SettingsError, DataError), match=said):
        resume.prepare(commands.requested(parsed), config.topology.size, held)
    assert not (tmp_path / "new" / "run").exists()


def test_the_option_is_short_for_the_setting(tmp_path, finished):
    run, data = finished
    config = write_run_file(tmp_path, data, *ONE)
    (tmp_path / "run.toml").write_text(dump(config))
    words = [str(tmp_path / "run.toml"), "--continue-from", str(run.folder)]
    request = commands.requested(cli.parse(parser(), ["launch", *words]))
    assert request.load().run.continue_from == str(run.folder)
    assert f'run.continue_from="{run.folder}"' in request.words()  # for the ranks


def test_another_parent_is_refused_at_a_resume(tmp_path, finished):
    run, data = finished
    copy = altered(run, tmp_path, lambda folder: (folder / "model" / "manifest.json").open("a").write("\n"))
    config = prepared(tmp_path / "new", data, continuing(run)).config
    with pytest.raises(SettingsError, match="began from the model of"):
        continued.resumed(
            tmp_path / "new" / "run",
            replace(config, run=replace(config.run, continue_from=str(copy.folder))),
            read_manifest(data),
            begun=True,
            asked=True,
        )
