"""What runs do besides training, on rows with lists: the same as on others, and scores that plain numpy pools."""

import itertools
import json
import re

import h5py
import numpy as np
import onnxruntime
import pytest
from datasets import FEW, LIST_CARDINALITIES, WITH_LISTS, make_dataset, make_lists_dataset
from faults import Kill
from own_network import NAMED, write_own
from runs import assert_same_model, batches, train_over_threads
from safetensors.numpy import load_file
from strength import in_soak
from test_group_runs import PAIR, STAGES, assert_same, in_pieces, stop_after  # noqa: F401 - a fixture
from test_partial_recovery import TWO_PS, Killed, SaveRows, after, assert_reloaded, one_process, rows_in  # noqa: F401
from test_warm_start import train_with_kills

from ssmpi.data.features import Features, ListOptions
from ssmpi.data.schema import DatasetManifest, Split, read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.embedding.trackers import scope_of
from ssmpi.state.recovery import restart
from ssmpi.state.requirements import placement_of
from ssmpi.tools import score
from ssmpi.tools.export import export
from ssmpi.trainer.progress import Progress

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

POOLED = ("run.shared_memory=false", "embedding.pooling=server")
STEPS = ("data.batch_size=50", "embedding.prefetch=false", "data.passes=2", "evaluate.per_pass=2")
OF_ONE = ("item", "colour")  # lists of one id
FEW_SIZES = (400, 300, 20, 9, 50)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_lists_dataset(tmp_path_factory.mktemp("lists"), 900)


def make_lists_of_one(folder, data):
    """The same rows, with the ids of some features in lists."""
    manifest = read_manifest(data)
    names = manifest.features.sparse
    features = Features(manifest.features.dense, names, {name: ListOptions() for name in OF_ONE})
    one_id, listed = ([names.index(name) for name in each] for each in (features.one_id, OF_ONE))
    splits = {}
    for split in manifest.splits:
        (entry,) = manifest.split(split).shards
        with h5py.File(data / entry.file) as shard:
            found = read_columns(shard, 0, entry.rows)
        ends = np.arange(1, 2 * entry.rows + 1).reshape(-1, 2)
        lists = Lists(np.ascontiguousarray(found.ids[:, listed]).reshape(-1), ends)
        size, checksum = write_shard(
            folder / entry.file, Columns(found.ids[:, one_id], found.dense, found.label, lists), {"split": split}
        )
        splits[split] = Split(
            (type(entry)(entry.file, entry.rows, entry.positives, size, checksum, list_ids=2 * entry.rows),)
        )
    write_manifest(folder, DatasetManifest(manifest.cardinalities, splits, True, features=features))
    return folder


@pytest.fixture(scope="module")
def alike(tmp_path_factory):
    """The same rows twice: with one id of each feature, and with lists of one id."""
    folder = tmp_path_factory.mktemp("alike")
    ids = make_dataset(folder / "ids", 1_000, cardinalities=FEW_SIZES, features=FEW)
    return ids, make_lists_of_one(folder / "lists", ids)


ROUNDS = ("sync.pace=fixed_rate", "sync.every_iterations=3", "sync.algorithm=easgd", "topology.sync_ps=1")


@pytest.mark.parametrize(
    "settings",
    [
        ("model.name=deepfm", "model.deepfm.deep=[8]", *POOLED),
        (NAMED, "topology.embedding_ps=0"),
        (*ROUNDS, "sync.codec=bf16", *POOLED),
        (*PAIR, STAGES, *POOLED),
    ],
)
def test_lists_of_one_id_are_features_with_one_id(tmp_path, alike, settings):
    """To the bit, whatever the network, a custom one included, the codec and the group."""
    write_own(tmp_path / "ids")
    write_own(tmp_path / "lists")
    ids, lists = (
        train_over_threads(tmp_path / folder.name, folder, *STEPS, "data.passes=1", *settings) for folder in alike
    )
    np.testing.assert_array_equal(lists.losses(), ids.losses())
    assert_same(lists, ids)


@pytest.mark.parametrize("decay", [0, 0.01])
def test_synchronous_trainers_are_the_same_with_lists_of_one_id(tmp_path, alike, decay):
    """They exchange gradients of rows."""
    settings = (
        "topology.trainers=2", "sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1",
        "data.handout=static", f"embedding.table_decay={decay}",
    )  # fmt: skip
    ids, lists = (train_over_threads(tmp_path / folder.name, folder, *STEPS, *settings) for folder in alike)
    assert_same_model(lists, ids)


def pooled_by_hand(data, tables):
    """Dense features (rows, 2) of the test split, and pooled rows (rows, features, width), one list after the other."""
    (entry,) = read_manifest(data).split("test").shards
    with h5py.File(data / entry.file) as shard:
        ids, dense, ends, listed, weights = (
            shard[name][()] for name in ("ids", "dense", "list_ends", "list_ids", "list_weights")
        )
    out, begin = np.zeros((entry.rows, len(tables), tables["user"].shape[1]), np.float32), 0
    for row in range(entry.rows):
        out[row, 0], out[row, 2] = tables["user"][ids[row, 0]], tables["item"][ids[row, 1]]
        for column, (feature, name) in enumerate([(1, "genres"), (3, "tags"), (4, "words")]):
            end = ends[row, column]
            mine, by = tables[name][listed[begin:end]], weights[begin:end]
            if end > begin:
                out[row, feature] = mine.mean(axis=0) if name == "genres" else (mine * by[:, None]).sum(axis=0)
            begin = end
    return dense, out


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("network", ["deepfm", *in_soak("dlrm")])
def test_what_is_exported_predicted_and_evaluated_agrees(tmp_path, data, network, capsys):
    """Scores by onnxruntime from the exported files, with lists pooled by hand: DeepFM's first-order weights too."""
    settings = (f"model.name={network}", "model.deepfm.deep=[8]", "topology.embedding_ps=2", *POOLED)
    trained = train_over_threads(tmp_path, data, *STEPS, *settings)
    run = trained.folder
    assert export(run, "onnx", tmp_path / "served.onnx") == 0
    session = onnxruntime.InferenceSession(tmp_path / "served.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["tables"]) == list(WITH_LISTS.sparse)
    assert json.loads(about["lists"]) == {"genres": "mean", "tags": "sum", "words": "sum"}
    dense, rows = pooled_by_hand(data, load_file(tmp_path / "served.tables.safetensors"))
    (found,) = session.run(["probability"], {"dense": dense, "rows": rows})
    assert score.predict(run, score.ScoringInput(data, "test", None), tmp_path / "scores") == 0
    predicted = np.loadtxt(tmp_path / "scores")
    np.testing.assert_allclose(found, predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.05
    capsys.readouterr()
    assert score.evaluate(run, "test", None) == 0
    (entry,) = read_manifest(data).split("test").shards
    with h5py.File(data / entry.file) as shard:
        label = shard["label"][()]
    loss = -np.log(np.where(label == 1, found, 1 - found)).mean()
    printed = float(re.search(r"log-loss ([\d.]+)", capsys.readouterr().out)[1])
    assert (trained.quality()["log_loss"], printed) == pytest.approx((loss, loss), abs=1e-5)


def test_a_run_stopped_anywhere_goes_on_by_others_to_the_same_bits(tmp_path, data, stop_after):  # noqa: F811
    """Who pools, one PS or a trainer, and a group in between."""
    common = ("data.batch_size=50", "topology.embedding_ps=1")
    reference = train_over_threads(
        tmp_path / "whole", data, "embedding.prefetch=false", "data.passes=2", "evaluate.per_pass=2", *common
    )
    pooled, group = (*common, *POOLED), (*common, *PAIR, STAGES, *POOLED)
    run = in_pieces(tmp_path / "cut", data, stop_after, [(pooled, 7), (group, 6), (common, 8), (pooled, None)])
    assert_same(run, reference)


@pytest.mark.parametrize("where", [("topology.embedding_ps=0",), ("topology.embedding_ps=2", *POOLED)])
def test_a_killed_run_goes_on(tmp_path, data, where):
    through = train_over_threads(tmp_path / "through", data, *STEPS, *where)
    kills = [Kill(Progress, "record", 11), Kill(Progress, "record", 15)]
    assert_same_model(train_with_kills(tmp_path / "killed", data, kills, *STEPS, *where), through)


def lookups_by_hand(config, placement, server, first, end):
    """How often the lists of some batches have each row of an embedding PS."""
    counts = np.zeros(placement.rows_of(server), int)
    for batch in itertools.islice(batches(config), first, end):
        for bag in range(len(batch) * len(LIST_CARDINALITIES)):
            ids = batch.ids.ids[batch.ids.starts[bag] : batch.ids.starts[bag + 1]]
            for part in placement.parts_of(server):
                if part.table == bag % len(LIST_CARDINALITIES):
                    mine = ids[ids % part.stride == part.first]
                    np.add.at(counts, part.base + mine // part.stride, 1)
    return counts


@pytest.mark.parametrize("pooling", ["server", "trainer"])
def test_rows_of_a_lost_embedding_ps_come_from_their_own_newest_save(tmp_path, data, pooling):
    """Which rows the priority save takes is counted by hand: each id of a list is an access."""
    saves, kill, fraction = (4, 8), 12, 0.05
    settings = (
        *TWO_PS, "recovery.mode=partial", "checkpoint.every_examples=0", "data.batch_size=50",
        "checkpoint.priority=mfu", f"checkpoint.priority_fraction={fraction}",
        "run.shared_memory=false", f"embedding.pooling={pooling}",
    )  # fmt: skip
    killed = Killed(tmp_path, data, *settings)
    placement = placement_of(killed.config)
    saving, scope = SaveRows(killed.config, saves, kill), scope_of(placement, 1)
    killed.start(saving)
    weights, state = saving.values[0][1]
    unsaved, chosen = lookups_by_hand(killed.config, placement, 1, *saves), np.zeros(scope.rows, bool)
    for start, stop, whole in scope.parts:
        chosen[start:stop] = whole
    able = np.flatnonzero(~chosen & (unsaved > 0))
    chosen[able[np.argsort(-unsaved[able], kind="stable")][: scope.most(fraction)]] = True
    assert unsaved[chosen].sum() < unsaved.sum()
    weights[chosen], state[chosen] = (values[chosen] for values in saving.values[1][1])
    killed.lose("embedding_ps-1").start(Kill(restart, "resumed", after=True))
    assert_reloaded(killed, placement, weights, state)
    (only,) = killed.recoveries
    assert (only["how"], only["batches_repeated"]) == ("partial", 0)
    lost = unsaved[~chosen].sum() + (after(killed.config, kill) - after(killed.config, 8)) * placement.lookups_of(1)
    assert only["updates_lost"] == round(lost)
    killed.start()
    assert killed.run.result["status"] == "complete"
