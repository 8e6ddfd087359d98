"""A run that is stopped and gone on with: the same bits where that is promised, every row once in any case."""

import errno
import itertools
import json
import re
import shutil
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, flip_a_value, make_dataset
from faults import io_error, no_room
from runs import assert_same_model, train_over_threads, write_run_file
from strength import in_soak

from ssmpi import cli
from ssmpi.config import load
from ssmpi.data import columns
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.shards import Tables
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.replica import ThreadModel
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.state import resume, run_folder
from ssmpi.state.checkpoint import dense_vectors, disk, files
from ssmpi.state.checkpoint.store import Store, commit, read_manifest
from ssmpi.state.checkpoint.trainer_state import Checkpoint
from ssmpi.state.recovery import restart, run_record
from ssmpi.state.recovery.start import ResumePlan
from ssmpi.state.request import RunRequest
from ssmpi.tools import inspect
from ssmpi.trainer import build_trainer, trainer

GOLDEN = Path(__file__).parents[2] / "golden"
ONE = ("data.batch_size=100", "data.passes=2", "evaluate.per_pass=2")
HANDOUTS = ["dynamic", *in_soak("static")]


@pytest.fixture
def watched(monkeypatch):
    """What is trained on, row by row, and a stop after a number of batches of all trainers."""

    class Watched:
        def __init__(self):
            self.rows, self.stop_at, self._batches = Counter(), None, itertools.count(1)
            self.stopping = False

        def stop_after(self, batches):
            self._batches, self.stop_at, self.stopping = itertools.count(1), batches, False

    watched, forward_backward = Watched(), ThreadModel.forward_backward

    def watching(model, dense, *others):
        if not dense.any():  # made up to warm up
            return forward_backward(model, dense, *others)
        watched.rows.update(row.tobytes() for row in dense)
        if next(watched._batches) == watched.stop_at:
            watched.stopping = True
        return forward_backward(model, dense, *others)

    monkeypatch.setattr(ThreadModel, "forward_backward", watching)
    monkeypatch.setattr(trainer, "stop_requested", lambda: watched.stopping)
    monkeypatch.setattr(
        build_trainer, "compile_kernels", lambda *_, **__: None
    )  # its made-up batch is no part of the data
    return watched


def in_pieces(folder, data, watched, stops, *overrides, other=()):
    """A run stopped after so many batches, again and again, and at last finished, each job perhaps with other
    settings.
    """
    run = None
    for number, batches in enumerate([*stops, None]):
        watched.stop_after(batches)
        more = other[number % len(other)] if other else ()
        run = train_over_threads(folder, data, *overrides, *more, resume=number > 0)
        assert run.result["status"] == ("complete" if batches is None else "stopped")
    return run


def assert_same(run, reference):
    np.testing.assert_array_equal(run.losses(), reference.losses())
    assert_same_model(run, reference, state=True)
    for name in ("examples", "iterations", "progressive_auc", "evaluations"):
        assert run.result[name] == reference.result[name], name
    loss = "progressive_log_loss"  # summed report by report
    assert run.result[loss] == pytest.approx(reference.result[loss], rel=1e-12)


DEEPFM = ("model.name=deepfm", "model.deepfm.deep=[16]", "embedding.rate=0.05")
ADAM = (
    "dense.optimizer=adam", "dense.rate=0.001", "dense.weight_decay=1e-4", "dense.clip_norm=0.5",
    "embedding.optimizer=adam", "embedding.rate=0.01", "embedding.weight_decay=1e-4", "embedding.clip_value=0.1",
)  # fmt: skip


@pytest.mark.parametrize(
    ("prefetch", "servers", "network"),
    [
        ("true", [2], ()),
        ("true", [2], ("embedding.precision=bf16",)),
        ("false", [2, 3, 1], (*DEEPFM, *ADAM)),
        *in_soak(("true", [0], ()), ("false", [2, 3, 1], DEEPFM)),
    ],
    ids=["2 PSs", "2 PSs, rows of 16 bits", "DeepFM by Adam on 2, 3, 1 PSs", "no PS", "DeepFM on 2, 3, 1 PSs"],
)
def test_stopped_anywhere_it_gives_the_same_bits(tmp_path, small_data, watched, prefetch, servers, network):
    """Also where rows have a vector and a first-order weight and move to another number of embedding PSs."""
    overrides = (*ONE, *network, f"embedding.prefetch={prefetch}", "schedule.decay_examples=9000")
    numbers = [(f"topology.embedding_ps={number}",) for number in servers]
    reference = train_over_threads(tmp_path / "whole", small_data, *overrides, *numbers[0])
    run = in_pieces(tmp_path / "cut", small_data, watched, [1, 7, 30, 31, 1], *overrides, other=numbers)
    assert_same(run, reference)
    assert set(watched.rows.values()) == {4}  # two passes of two runs
    if prefetch == "false":  # else each job asks once more for the rows of the batch that was held
        assert run.result["bytes"]["rows_in_place"] == reference.result["bytes"]["rows_in_place"] > 0


FALLING = ("schedule.decay_examples=20000",)


@pytest.mark.parametrize(
    ("optimizer", "servers"),
    [("adam", 3), *in_soak(("sgd", 2), ("rowwise_adagrad", 2))],
    ids=["adam, then on 3 PSs", "sgd", "rowwise_adagrad"],
)
def test_tables_that_decay_go_on_from_a_checkpoint_to_the_same_bits(tmp_path, small_data, optimizer, servers):
    """As in the run that wrote it, although the rate changes: rows have caught up there, and clocks begin anew."""
    overrides = (
        *ONE, *DEEPFM, "embedding.table_decay=0.01", f"embedding.optimizer={optimizer}", "embedding.rate=0.01",
        "checkpoint.every_examples=7000", *FALLING,
    )  # fmt: skip
    whole = train_over_threads(tmp_path / "whole", small_data, *overrides, "topology.embedding_ps=2")
    (only,) = Store(whole.folder).committed()
    assert 7000 <= read_manifest(only).state["examples"] < 9000
    overrides = (*overrides, f"topology.embedding_ps={servers}")
    write_run_file(tmp_path / "again", small_data, *overrides)
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "again/run/checkpoints")
    run = train_over_threads(tmp_path / "again", small_data, *overrides, resume=True)
    assert_same_model(run, whole, state=optimizer != "sgd")


def test_synchronous_trainers_go_on_with_tables_that_decay(tmp_path, small_data):
    """Up to rounding, because they push in the order in which they are scheduled. Steps of a table that were lost or
    taken twice would show: a step takes 2e-3 of a row.
    """
    overrides = (
        "topology.trainers=2", "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1",
        "embedding.prefetch=false", "data.handout=static", "data.batch_size=100", "data.passes=2",
        "embedding.optimizer=sgd", "embedding.rate=0.1", "embedding.table_decay=0.02", "dense.optimizer=sgd",
        "dense.rate=0.05", "topology.embedding_ps=2", "checkpoint.every_examples=7000",
    )  # fmt: skip
    whole = train_over_threads(tmp_path / "whole", small_data, *overrides)
    (only,) = Store(whole.folder).committed()
    assert 7000 <= read_manifest(only).state["examples"] < 9000
    write_run_file(tmp_path / "again", small_data, *overrides)
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "again/run/checkpoints")
    run = train_over_threads(tmp_path / "again", small_data, *overrides, resume=True)
    for name, value in whole.dense().items():
        np.testing.assert_allclose(run.dense()[name], value, rtol=0, atol=1e-5, err_msg=name)
    for table, same in zip(run.tables(), whole.tables(), strict=True):
        np.testing.assert_allclose(table, same, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adagrad", *in_soak("sgd")])
def test_an_optimizer_on_sync_pss_goes_on_to_the_same_bits(tmp_path, small_data, watched, optimizer):
    """Its memory is theirs, and their number may change: they are shards of one vector."""
    steps = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1")
    overrides = (*ONE, *steps, f"dense.optimizer={optimizer}")
    reference = train_over_threads(tmp_path / "whole", small_data, *overrides, "topology.sync_ps=2")
    numbers = [(f"topology.sync_ps={n}",) for n in (2, 1, 3)]
    run = in_pieces(tmp_path / "cut", small_data, watched, [1, 30, 45], *overrides, other=numbers)
    assert_same(run, reference)
    with h5py.File(Store(run.folder).committed()[-1] / "trainer-0000.h5") as saved:
        if optimizer == "sgd":
            assert "sync" not in saved
        else:
            center, sums = (
                {name: values[()] for name, values in saved[key].items()} for key in ("sync/center", "dense/sums")
            )
            np.testing.assert_equal(center, sums)  # of one trainer the same


def test_what_a_codec_has_not_sent_goes_on(tmp_path, small_data, watched):
    """Also where thresholds are found anew in between. To rounding: a pause pulls once more, and w + (c - w) is not
    always c.
    """
    steps = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1", "topology.sync_ps=2")
    overrides = ("embedding.prefetch=false", *steps, "sync.codec=threshold:0.9", "sync.threshold_interval=20")
    reference = train_over_threads(tmp_path / "whole", small_data, *overrides)
    run = in_pieces(tmp_path / "cut", small_data, watched, [30], *overrides)
    np.testing.assert_allclose(run.losses(), reference.losses(), rtol=1e-6)
    with h5py.File(Store(run.folder).committed()[-1] / "trainer-0000.h5") as saved:
        assert saved["sync/trainer 0 of 1/residual 0/bottom.0.weight"][()].any()


OLD = (
    "model.bottom=[6,4]", "model.top=[5,1]", "embedding.dim=4", "data.batch_size=100", "evaluate.per_pass=1",
    "embedding.prefetch=false", "topology.sync_ps=1", "sync.algorithm=async_ps", "sync.pace=fixed_rate",
    "sync.every_iterations=1", "sync.codec=threshold:0.9", "sync.threshold_interval=20",
)  # fmt: skip
VECTORS = {"replica", "dense/sums", "sync/center", "sync/trainer 0 of 1/residual 0"}


def test_a_checkpoint_that_holds_whole_vectors_is_resumed(tmp_path):
    """One written by an older version, with these settings after six batches; and the same one by parameter."""
    old, new = tmp_path / "old/run/checkpoints/checkpoint-000001", tmp_path / "new/run/checkpoints/checkpoint-000001"
    data = make_dataset(tmp_path / "data", rows=1_000, cardinalities=FEW_CARDINALITIES, features=FEW)
    for folder in (old, new):
        run_folder.make(folder.parents[1], write_run_file(folder.parents[2], data, *OLD), overwrite=False)
        shutil.unpack_archive(GOLDEN / "checkpoint-of-vectors.tar.gz", folder)
    arrays, owned = files.read(old / "trainer-0000.h5"), OwnedParameters(load(old.parents[1] / "run.toml").network)
    assert {name for name, values in arrays.items() if values.shape == (158,)} == VECTORS
    by_parameter = dense_vectors.split(arrays, owned)
    assert by_parameter["replica/bottom.0.weight"].shape == (6, 3)
    assert set(dense_vectors.join([by_parameter], owned, old)) == set(arrays)
    entry = files.write(new / "trainer-0000.h5", [(name, values, {}) for name, values in by_parameter.items()])
    manifest = read_manifest(new)
    others = tuple(other for other in manifest.files if other.file != entry.file)
    commit(new, replace(manifest, files=(entry, *others)))
    runs = [train_over_threads(folder, data, *OLD, resume=True) for folder in (tmp_path / "old", tmp_path / "new")]
    assert_same(*runs)
    np.testing.assert_array_equal(runs[0].losses()[:6], arrays["losses"])
    assert runs[0].result["examples"] == 1_000


def test_checkpoints_on_the_way_change_no_bit(tmp_path, small_data):
    reference = train_over_threads(tmp_path / "without", small_data, *ONE)
    run = train_over_threads(tmp_path / "with", small_data, *ONE, "checkpoint.every_examples=500")
    assert Store(run.folder).committed()
    assert_same(run, reference)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, small_data, inject):
    """The first save finds the disk full in the middle of a file; a later one finds room."""
    inject(disk, "write_at", no_room, 4)
    run = train_over_threads(tmp_path, small_data, *ONE, "checkpoint.every_examples=500", "topology.embedding_ps=2")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    saved = [line for line in lines if line["kind"] == "checkpoint"]
    assert re.search(r"device: [\d,]+ bytes needed, [\d,]+ free: '.*\.h5': make room there", saved[0]["error"])
    assert run.result["status"] == "complete"
    assert run.result["checkpoints"] == sum("error" not in line for line in saved)


def test_an_old_checkpoint_that_cannot_be_removed_costs_no_new_one(tmp_path, small_data, inject):
    """As on NFS, where a file that somebody has open leaves another one behind."""
    inject(disk, "remove_folder", io_error(errno.ENOTEMPTY))
    settings = ("checkpoint.every_examples=500", "checkpoint.keep=1", "checkpoint.background=false")
    run = train_over_threads(tmp_path, small_data, *ONE, *settings)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    saved = [line for line in lines if line["kind"] == "checkpoint"]
    assert len(saved) > 1
    assert not any("error" in line for line in saved)
    (newest,) = Store(run.folder).committed()
    assert newest.name == saved[-1]["name"]


def test_a_checkpoint_that_is_never_written_ends_nothing_but_is_named(tmp_path, small_data, monkeypatch):
    """As on a network disk that hangs: no other can be begun, and the end does not wait for it for ever."""
    said = []
    monkeypatch.setattr(log, "error", said.append)
    monkeypatch.setattr(Tables, "_wrote", lambda tables, index: False)
    settings = ("checkpoint.every_examples=500", "checkpoint.limit_seconds=5", "topology.embedding_ps=0")
    with pytest.raises(
        DataError,
        match=r"trainer 0 has not written .*checkpoint-000001/embedding-0000\.h5 after checkpoint.limit_seconds = 5",
    ):
        train_over_threads(tmp_path, small_data, *ONE, *settings)
    assert any("No other checkpoint can be written until it finishes" in text for text in said)


@pytest.fixture
def two_checkpoints(tmp_path, small_data, watched):
    """A run that left two, and its folder."""
    for number, batches in enumerate((10, 20)):
        watched.stop_after(batches)
        run = train_over_threads(tmp_path, small_data, *ONE, resume=number > 0)
    assert len(Store(run.folder).committed()) == 2
    return run.folder


def test_a_damaged_manifest_is_stepped_over_on_request_only(two_checkpoints):
    older, newest = Store(two_checkpoints).committed()
    (newest / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json: damaged.*newest intact one with --checkpoint whole"):
        resume.usable_checkpoints(two_checkpoints, None)
    assert resume.usable_checkpoints(two_checkpoints, "whole") == [older]
    (older / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"damaged.*there is no other one: to start from the"):
        resume.usable_checkpoints(two_checkpoints, "whole")


class Alone:
    """A job of this process."""

    rank, size = 0, 1

    def agree(self, body):
        return body()

    def gather(self, value):
        return [value]


def damage(file):
    """Change its last byte."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_rejected_request_changes_nothing_of_the_run(two_checkpoints):
    """The next one would train with its settings."""
    older, newest = Store(two_checkpoints).committed()
    damage(newest / "dense.h5")
    (two_checkpoints / "result.json").write_text('{"status": "stopped"}')
    before = (two_checkpoints / "run.toml").read_text()

    def start(checkpoint=None):
        with ExitStack() as held:
            request = RunRequest(None, ("dense.rate=0.5",), run=two_checkpoints, checkpoint=checkpoint)
            plan = resume.prepare(request, load(two_checkpoints / "run.toml").topology.size, held)
            return restart.choose_checkpoint(Alone(), plan)

    with pytest.raises(DataError, match=r"dense\.h5: damaged"):
        start()
    assert (two_checkpoints / "run.toml").read_text() == before
    assert (two_checkpoints / "result.json").exists()
    damage(older / "dense.h5")
    with pytest.raises(DataError, match="there is no other one: to start from the beginning"):
        start("whole")
    damage(older / "dense.h5")
    assert start("whole") == older
    assert "rate = 0.5" in (two_checkpoints / "run.toml").read_text()
    assert not (two_checkpoints / "result.json").exists()
    assert run_record.RunRecord.read(two_checkpoints).attempts == [read_manifest(older).state["examples"]]


def test_an_only_checkpoint_that_is_damaged_comes_with_all_ways_on(two_checkpoints):
    run = two_checkpoints
    older, newest = Store(run).committed()
    damage(older / "dense.h5")
    plan = ResumePlan(load(run / "run.toml"), (older,))
    with pytest.raises(DataError, match=r"dense\.h5.*no older one, but newer ones: leave out --checkpoint to use .*02"):
        restart.choose_checkpoint(Alone(), plan)
    assert "what to do" not in inspect.describe(run, checksums=True)[0]  # --resume does not use that one
    aside = newest.rename(newest.with_name(f"set-aside-{newest.name}"))
    (run / "best" / "after-1000").mkdir(parents=True)
    ways = (
        f"there is no other one: to start from the beginning, remove {run / 'checkpoints'} and resume again, or launch"
        f" the run file with --overwrite; {aside} was set aside when the run resumed from this one: rename it to"
        f" {newest.name} to use it; {run / 'best' / 'after-1000'} is the best model so far: copy it to {run / 'model'}"
        " to score or export it"
    )
    with pytest.raises(DataError, match=re.escape(f"; {ways}")):
        restart.choose_checkpoint(Alone(), plan)
    assert f"\nwhat to do about {older.name}: {ways}" in inspect.describe(run, checksums=True)[0]


def test_a_finished_run_with_a_damaged_model_is_no_success(tmp_path, small_data):
    settings = ("checkpoint.every_examples=500", "checkpoint.background=false")
    run = train_over_threads(tmp_path, small_data, *ONE, *settings).folder
    resume.check_model(Alone(), run)
    damage(run / "model" / "dense.h5")
    newest = Store(run).committed()[-1]
    again = rf"remove {run}/result\.json and resume again: the run then resumes from {newest.name}"
    with pytest.raises(DataError, match=rf"model/dense\.h5.* This run is finished, and .*{again}"):
        resume.check_model(Alone(), run)
    assert re.search(f"\nwhat to do about model: .*{again}", inspect.describe(run, checksums=True)[0])
    damage(newest / "dense.h5")
    with pytest.raises(DataError, match="or train again: launch the run file with --overwrite"):
        resume.check_model(Alone(), run)
    shutil.rmtree(run / "model")
    with pytest.raises(DataError, match=r"model/manifest\.json: missing"):
        resume.check_model(Alone(), run)
    shutil.rmtree(run / "checkpoints")
    text, well = inspect.describe(run, checksums=False)
    assert not well
    assert "model: DAMAGED: " in text


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"status": ""}'])
def test_a_run_whose_end_cannot_be_read_is_not_trained_anew(tmp_path, small_data, text):
    run = train_over_threads(tmp_path, small_data, *ONE).folder
    before = (run / "model" / "manifest.json").read_bytes()
    (run / "result.json").write_text(text)
    request = RunRequest(None, (), run=run)
    with (
        ExitStack() as held,
        pytest.raises(DataError, match=r"result\.json: damaged: .*it is unknown how"),
    ):
        resume.prepare(request, 1, held)
    assert (run / "model" / "manifest.json").read_bytes() == before
    described, well = inspect.describe(run, checksums=True)
    assert not well
    assert re.search(r"result\.json: DAMAGED: .*: how the run ended is not known", described)
    assert "--resume starts" not in described


@pytest.mark.parametrize(("batches", "begun"), [(70, 2), (110, 2), (130, 3)])
def test_a_run_is_not_resumed_to_end_before_where_it_is(tmp_path, small_data, watched, batches, begun):
    """Of 60 batches a pass, in two parts. It trained on more examples than the run was to have."""
    watched.stop_after(batches)
    run = train_over_threads(tmp_path, small_data, *ONE, "data.passes=9").folder

    def resumed(passes):
        request = RunRequest(None, (f"data.passes={passes}",), run=run)
        with ExitStack() as held:
            return resume.prepare(request, request.load().topology.size, held)

    name = Store(run).committed()[-1].name
    with pytest.raises(
        SettingsError, match=f"data.passes is {begun - 1}, checkpoint {name} was made in pass {begun}: "
    ):
        resumed(begun - 1)
    assert resumed(begun).config.data.passes == begun


def test_a_checkpoint_to_resume_from_is_not_taken_from_a_run_that_is_none(tmp_path, small_data):
    file = tmp_path / "run.toml"
    file.write_text(f'data.folder = "{small_data}"\n')
    request = RunRequest(file, (), run=tmp_path / "new", checkpoint="checkpoint-000001")
    with ExitStack() as held, pytest.raises(SettingsError, match="new: holds no run, so there is no checkpoint-000001"):
        resume.prepare(request, request.load().topology.size, held)
    assert not (tmp_path / "new").exists()


def test_inspect_says_what_there_is(two_checkpoints):
    text, well = inspect.describe(two_checkpoints, checksums=True)
    lines = text.splitlines()
    assert well
    assert lines[0].endswith("stopped, 3,000 of 12,000 examples")
    ranks = "1 x 1 thread, 1 embedding PS, 0 sync PSs (none)"
    first = re.sub(r"[\d.]+ MB", "N MB", lines[1])
    assert (
        first
        == f"checkpoint-000001: after 1,000 examples (8.3%, pass 1), 3 files, N MB, by {ranks}, seed 1, checksums ok"
    )
    assert "validation NE 0." in lines[2]
    restart.resume_from(two_checkpoints, Store(two_checkpoints).committed()[0])
    text, well = inspect.describe(two_checkpoints, checksums=False)
    assert well
    assert "checksums not read" in text
    assert "set-aside-checkpoint-000002: does not count" in text
    manifest = two_checkpoints / "checkpoints" / "checkpoint-000001" / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(whole), "state": {}}))
    assert "DAMAGED" in inspect.describe(two_checkpoints, checksums=True)[0]
    manifest.write_text(whole)
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", str(two_checkpoints)])
    assert left.value.code == 0
    (two_checkpoints / "checkpoints" / "checkpoint-000001" / "dense.h5").write_bytes(b"")
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", str(two_checkpoints)])
    assert left.value.code == 2
    text, well = inspect.describe(two_checkpoints, checksums=True)
    assert not well
    assert "DAMAGED" in text


def test_what_is_newer_than_what_was_gone_on_from_does_not_count_any_more(two_checkpoints):
    """Else the next job goes on from it, and what is kept is what nobody wants."""
    older, newest = Store(two_checkpoints).committed()
    restart.resume_from(two_checkpoints, older)
    assert Store(two_checkpoints).committed() == [older]
    assert (newest.parent / "set-aside-checkpoint-000002" / "manifest.json").is_file()
    again = Store(
        two_checkpoints
    ).begin()  # under another number than what was set aside, which may be needed once more
    assert again.name == "checkpoint-000003"
    shutil.copytree(older, again, dirs_exist_ok=True)
    restart.resume_from(two_checkpoints, older)
    assert len(Store(two_checkpoints).set_aside()) == 2


def test_a_stop_that_cannot_save_says_so(tmp_path, small_data, watched, monkeypatch):
    def vanished(path):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    watched.stop_after(10)
    monkeypatch.setattr(disk, "make_folder", vanished)
    with pytest.raises(DataError, match=r"no checkpoint could be saved.*checkpoints.*There is no earlier one"):
        train_over_threads(tmp_path, small_data, *ONE)


def test_what_a_manifest_holds(tmp_path, small_data, watched, golden):
    """As pinned, but for what differs between processors and libraries: sizes, checksums, seconds, quality."""
    watched.stop_after(40)
    run = train_over_threads(tmp_path, small_data, *ONE, "topology.embedding_ps=2")
    (folder,) = Store(run.folder).committed()
    body = json.loads((folder / "manifest.json").read_text())
    for entry in body["files"]:
        assert entry["bytes"] == (folder / entry["file"]).stat().st_size
        assert len(entry["checksum"]) == 64
        entry["bytes"], entry["checksum"] = 0, ""
    logbook, evaluations = body["state"]["logbook"], body["state"]["evaluations"]
    for name in ("seconds", "O_save", "bytes", "bytes_control", "messages_control"):
        assert logbook[name] > 0
        logbook[name] = 0
    for kept in evaluations["validation"].values():
        kept.update({name: 0 for name in kept if name not in ("rows", "after_examples")})
    assert body["state"]["choice"]["reference"] > 0
    body["state"]["choice"].update(reference=0)
    body["state"]["identity"]["data.folder (its contents)"] = ""
    assert body["state"]["data"].pop("folder") == str(small_data.resolve())
    found = json.dumps(body, indent=1) + "\n"
    assert found == golden("checkpoint.json", found)


@pytest.fixture
def checks(monkeypatch):
    """The shards whose contents were read and compared, in turn."""
    found, check = [], columns.check
    monkeypatch.setattr(
        columns, "check", lambda folder, entry, data: found.append(entry.file) or check(folder, entry, data)
    )
    return found


MANY = ("topology.trainers=2", "topology.threads=2", "sync.algorithm=ma")


@pytest.mark.parametrize("handout", HANDOUTS)
def test_each_shard_is_checked_once_in_a_run(tmp_path, small_data, watched, checks, handout):
    """Not once in a pass, by every trainer, or in every job; a split that is scored once in a job."""
    in_pieces(tmp_path, small_data, watched, [20, 60], *ONE, f"data.handout={handout}", other=(MANY, (), MANY))
    count = Counter(checks)
    assert [count[f"train/shard-0000{k}.h5"] for k in range(3)] == [1, 1, 1]
    assert 1 <= count["validation/shard-00000.h5"] <= 3
    assert count["test/shard-00000.h5"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("overrides", [(), MANY], ids=["alone", "two trainers"])
def test_no_row_of_a_damaged_shard_is_trained_on(tmp_path, small_data, watched, overrides):
    data = Path(shutil.copytree(small_data, tmp_path / "data"))
    flip_a_value(data / "train/shard-00001.h5")
    with pytest.raises(DataError, match=r"train/shard-00001\.h5: damaged: the checksum of its columns"):
        train_over_threads(tmp_path, data, *ONE, "data.shuffle=false", *overrides)
    reader = SplitReader(small_data, "train", 2_300)
    damaged = {row.tobytes() for row in reader.read(reader.blocks[1]).dense}
    assert not damaged & set(watched.rows)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_damaged_split_is_not_scored(tmp_path, small_data, split):
    data = Path(shutil.copytree(small_data, tmp_path / "data"))
    flip_a_value(data / split / "shard-00000.h5")
    with pytest.raises(DataError, match=rf"{split}/shard-00000\.h5: damaged"):
        train_over_threads(tmp_path, data, *ONE)
    assert f'"{split}"' not in (tmp_path / "run/metrics.jsonl").read_text()


OTHER_NUMBERS = [
    ("topology.trainers=1", "topology.threads=1", "topology.embedding_ps=0"),
    (
        "topology.trainers=3",
        "topology.threads=2",
        "topology.embedding_ps=3",
        "topology.sync_ps=2",
        "sync.algorithm=easgd",
    ),
    ("topology.trainers=2", "topology.threads=4", "topology.embedding_ps=1", "sync.algorithm=bmuf"),
    (
        "topology.trainers=2",
        "topology.threads=1",
        "topology.embedding_ps=2",
        "topology.sync_ps=1",
        "sync.algorithm=easgd",
    ),
]


@pytest.mark.parametrize("handout", HANDOUTS)
def test_other_numbers_repeat_no_row_and_lose_none(tmp_path, small_data, watched, handout):
    settings = (*ONE, f"data.handout={handout}")
    run = in_pieces(tmp_path, small_data, watched, [9, 15, 20, 11], *settings, other=OTHER_NUMBERS)
    assert set(watched.rows.values()) == {2}
    assert len(watched.rows) == 6_000
    assert run.result["examples"] == run.result["expected_examples"] == 12_000


def test_an_array_that_a_checkpoint_lacks_is_named(tmp_path):
    """A checkpoint of another version of ssmpi."""
    files.write(tmp_path / "trainer-0000.h5", [("sync/center", np.ones(3, np.float32), {})])
    arrays = Checkpoint(tmp_path, {}).file(0)
    assert list(arrays.below("sync/")["center"]) == [1.0, 1.0, 1.0]
    with pytest.raises(DataError, match=r"trainer-0000\.h5 has no array 'accumulators', .*another version of ssmpi"):
        arrays.below("sync/")["accumulators"]
