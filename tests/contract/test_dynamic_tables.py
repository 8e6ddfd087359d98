"""Runs with rows by key against runs with ids: the same bits where the same rows are there, from any number of PSs, by
shared memory and by messages, over kills and resumes.
"""

import json
import re

import h5py
import numpy as np
import pytest
from datasets import FEW, make_dataset, make_keyed
from faults import Kill
from oracle import initial_row
from runs import Run, train_over_threads, write_run_file
from strength import in_soak
from test_warm_start import train_with_kills

from ssmpi.config import load
from ssmpi.data.reader import SplitReader
from ssmpi.embedding import key_kernels, keyed_memory
from ssmpi.embedding.keyed_memory import ArenaAllocator
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.mpi import rank_memory
from ssmpi.state import run_folder
from ssmpi.state.checkpoint import model_files
from ssmpi.state.checkpoint.store import Store, read_manifest
from ssmpi.tools import inspect
from ssmpi.tools.report import summary
from ssmpi.trainer.metrics import fields
from ssmpi.trainer.progress import Progress

KEYED = ("user", "item")
SIZES = (400, 400, 20, 9, 50)
ROWS = 2_000
STEPS = ("data.batch_size=50", "embedding.prefetch=false", "data.passes=2", "evaluate.per_pass=2")
DYNAMIC = ("embedding.dynamic.keys=400",)
FULL = ("embedding.dynamic.keys=40", "topology.embedding_ps=1")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Tables grow often."""
    monkeypatch.setattr(keyed_memory, "FIRST_ROWS", 8)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same rows with ids, and with the ids of two features as keys."""
    folder = tmp_path_factory.mktemp("rows")
    ids = make_dataset(folder / "ids", ROWS, cardinalities=SIZES, features=FEW, shard=900)
    return ids, make_keyed(folder / "keys", ids, KEYED)


@pytest.fixture(scope="module")
def static(tmp_path_factory, data):
    """What training by ids gives."""
    return train_over_threads(tmp_path_factory.mktemp("static"), data[0], *STEPS)


def tables(run: Run, what="weights"):
    """Rows by key of each keyed table, then whole static tables, from the files of all PSs."""
    keyed, plain = {}, {}
    for path in sorted(model_files.find(run.folder).glob("embedding-*.h5")):
        with h5py.File(path) as saved:
            for group in saved.values():
                table = int(group["weights"].attrs["table"])
                if "keys" not in group and what == "seen":
                    continue
                values = group[what][()]
                if "keys" in group:
                    keys = group["keys"][()].tolist()
                    found = keyed.setdefault(table, {})
                    assert not found.keys() & set(keys), "a key has one row"
                    fixed = len(values) - len(keys)
                    found |= dict(zip(keys, values[fixed:], strict=True))
                    first, stride = (int(group["weights"].attrs[name]) for name in ("first", "stride"))
                    found |= {f"id {first + k * stride}": values[k] for k in range(fixed)}
                else:
                    first, stride, rows = (int(group["weights"].attrs[a]) for a in ("first", "stride", "cardinality"))
                    whole = plain.setdefault(table, np.full((rows, *values.shape[1:]), np.nan, np.float32))
                    whole[first::stride] = values
    return keyed, plain


def check_same_rows(run, static):
    """The rows of keys are those of the ids that they were; the shared row was not needed."""
    for what in ("weights", "state"):
        keyed, plain = tables(run, what)
        whole = static.tables(what)
        assert set(keyed) == {0, 1}
        for table, rows in keyed.items():
            assert {"id 0", "id 1"} <= set(rows), "the reserved rows are saved"
            np.testing.assert_array_equal(rows.pop("id 0"), whole[table][0])
            rows.pop("id 1")
            assert len(rows) > 100
            for key, values in rows.items():
                np.testing.assert_array_equal(values, whole[table][key], err_msg=f"{what} of key {key}")
        for table, values in plain.items():
            np.testing.assert_array_equal(values, whole[table])


def check_same(run, static):
    np.testing.assert_array_equal(run.losses(), static.losses())
    for name, values in static.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    check_same_rows(run, static)


@pytest.mark.parametrize(
    ("servers", "shared"),
    [(0, "true"), (2, "true"), (3, "false"), *in_soak((1, "true"), (1, "false"), (3, "true"))],
)
def test_rows_by_key_are_rows_by_id_to_the_bit(tmp_path, data, static, servers, shared):
    run = train_over_threads(
        tmp_path, data[1], *STEPS, *DYNAMIC, f"topology.embedding_ps={servers}", f"run.shared_memory={shared}"
    )
    check_same(run, static)
    counts = run.result["keys"]
    keyed, _ = tables(run)
    assert {name: each["keys"] for name, each in counts.items()} == {
        name: len(keyed[table]) - 2 for table, name in enumerate(KEYED)
    }


DECAY = ("embedding.optimizer=adam", "embedding.rate=0.01", "embedding.table_decay=0.001")


@pytest.mark.parametrize(("servers", "items", "more"), [(3, 30, ()), (3, 30, DECAY), *in_soak((1, 40, ()))])
def test_rows_by_message_are_mapped_rows_to_the_bit(tmp_path, data, servers, items, more):
    """Looked up ahead, with admission, a shared row, keys that expire and a table that is full."""
    settings = (
        *STEPS, "embedding.prefetch=true", "embedding.dynamic.keys=300",
        "embedding.dynamic.admit_after=2", "embedding.dynamic.expire_after_examples=900",
        f"embedding.dynamic.features.item.keys={items}", f"topology.embedding_ps={servers}", *more,
    )  # fmt: skip
    mapped, sent = (
        train_over_threads(tmp_path / name, data[1], *settings, f"run.shared_memory={name}")
        for name in ("true", "false")
    )
    np.testing.assert_array_equal(sent.losses(), mapped.losses())
    assert sent.result["keys"] == mapped.result["keys"]
    assert min(sent.result["keys"][name][what] for name in KEYED for what in ("admitted", "expired")) > 0
    assert sent.result["keys"]["item"]["refused"] > 0
    for what in ("weights", "state", "seen"):
        for ours, theirs in zip(tables(sent, what), tables(mapped, what), strict=True):
            assert ours.keys() == theirs.keys()
            for table, values in theirs.items():
                np.testing.assert_equal(ours[table], values)
    pulled, messages = (sent.result[each]["embedding_pull"] for each in ("bytes", "messages"))
    assert mapped.result["messages"]["embedding_pull"] > 0, "new keys are asked for"
    assert messages == 2 * servers * 2 * ROWS / 50, "one round trip of each batch"
    assert pulled > 0


def test_another_number_of_servers_resumes_the_same_rows(tmp_path, data, static):
    """Keys move by their hash: a checkpoint of two PSs in the midst of the run, resumed with three and with one."""
    common = (*STEPS, *DYNAMIC, "checkpoint.every_examples=1500")
    before = train_over_threads(tmp_path, data[1], *common, "topology.embedding_ps=2")
    checkpoints = Store(before.folder).committed()
    assert checkpoints
    assert read_manifest(checkpoints[-1]).state["examples"] < 2 * ROWS
    for servers in (3, 1):
        run = train_over_threads(tmp_path, data[1], *common, f"topology.embedding_ps={servers}", resume=True)
        check_same_rows(run, static)
        for name, values in static.dense().items():
            np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("servers", [2, *in_soak(0)])
def test_a_killed_run_goes_on_with_its_keys(tmp_path, data, static, servers, monkeypatch):
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)  # pretended ranks share a process
    kills = [Kill(Progress, "record", 11), Kill(Progress, "record", 31)]
    run = train_with_kills(tmp_path, data[1], kills, *STEPS, *DYNAMIC, f"topology.embedding_ps={servers}")
    check_same_rows(run, static)
    for name, values in static.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("servers", [2, 0])
def test_a_run_that_is_killed_while_tables_grow_goes_on_with_its_keys(tmp_path, data, static, servers, monkeypatch):
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)  # pretended ranks share a process
    kills = [
        Kill(ArenaAllocator, "extend", 9), Kill(ArenaAllocator, "extend_rows", 5, after=True),
        Kill(key_kernels, "grow_map", 2), Kill(key_kernels, "grow_map", 1, after=True),
        Kill(ArenaAllocator, "release", 2),
    ]  # fmt: skip
    run = train_with_kills(tmp_path, data[1], kills, *STEPS, *DYNAMIC, f"topology.embedding_ps={servers}")
    check_same_rows(run, static)
    for name, values in static.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)


def test_a_run_without_memory_for_a_step_goes_on_with_a_full_table(tmp_path, data, caplog, monkeypatch):
    """And with a growing one when there is some again."""
    monkeypatch.setattr(keyed_memory, "FIRST_ROWS", 64)
    refusals, extend = iter(["all is used"] * 4), ArenaAllocator.extend_rows
    monkeypatch.setattr(ArenaAllocator, "extend_rows", lambda *given: next(refusals, "") or extend(*given))
    run = train_over_threads(tmp_path, data[1], *STEPS, *DYNAMIC, "topology.embedding_ps=1")
    assert "table 0: no memory for rows of more than 62 keys (all is used)" in caplog.text
    assert re.search(
        r"the table of user was full: .* of 400 rows are in use after the pause; there is memory for 62;", caplog.text
    )
    for counts in run.result["keys"].values():
        assert counts["refused"] > 0
        assert counts["evicted"] > 0
        assert 62 < counts["keys"] <= counts["room"] <= counts["rows"]


def lookups_of(folder):
    """How often each key of the keyed features occurs in the training rows."""
    reader = SplitReader(folder, "train", ROWS)
    keys = np.concatenate([reader.read(block).keys for block in reader.blocks])
    return [dict(zip(*np.unique(column, return_counts=True), strict=True)) for column in keys.T]


@pytest.mark.parametrize("servers", [0, 2])
def test_a_key_is_admitted_at_its_nth_lookup(tmp_path, data, servers):
    settings = ("embedding.dynamic.admit_after=5", f"topology.embedding_ps={servers}")
    run = train_over_threads(tmp_path, data[1], *STEPS, *DYNAMIC, *settings)
    keyed, _ = tables(run)
    for table, times in enumerate(lookups_of(data[1])):
        often = {int(key) for key, count in times.items() if key and 2 * count >= 5}
        assert {key for key in keyed[table] if isinstance(key, int)} == often
        assert 0 < len(often) < len(times)
        shared = initial_row(load(run.folder / "run.toml").run.seed, table, 1, 8, 400)
        assert not np.array_equal(keyed[table]["id 1"], np.array(shared, np.float32)), "the shared row has learned"


def test_a_feature_has_settings_of_its_own(tmp_path, data):
    """Users are admitted at the fifth lookup and never expire; items at once, few at a time, and only for a part."""
    settings = (
        "embedding.dynamic.features.user.admit_after=5", "embedding.dynamic.features.item.keys=40",
        "embedding.dynamic.features.item.expire_after_examples=1",
    )  # fmt: skip
    run = train_over_threads(tmp_path, data[1], *STEPS, *DYNAMIC, *settings, "topology.embedding_ps=2")
    keyed, _ = tables(run)
    users, items = ({key for key in keyed[table] if isinstance(key, int)} for table in (0, 1))
    assert users == {int(key) for key, count in lookups_of(data[1])[0].items() if key and 2 * count >= 5}
    assert 0 < len(items) <= 40 < len(lookups_of(data[1])[1])
    of_users, of_items = (run.result["keys"][name] for name in KEYED)
    assert (of_users["refused"], of_users["expired"]) == (0, 0)
    assert of_items["refused"] > 0
    assert of_items["expired"] > 0


def test_a_full_table_refuses_evicts_and_says_so(tmp_path, data, caplog):
    run = train_over_threads(tmp_path, data[1], *STEPS, *FULL)
    for counts in run.result["keys"].values():
        assert counts["refused"] > 0
        assert counts["evicted"] > 0
        assert counts["keys"] <= 40
    assert "the table of user was full" in caplog.text
    check_told(run)


def refusals_told(caplog):
    """How many refused lookups of users the warnings so far speak of."""
    told = re.findall(r"table of user was full: ([\d,]+) times", caplog.text)
    return sum(int(times.replace(",", "")) for times in told)


def test_a_resumed_run_tells_only_new_refusals(tmp_path, data, caplog):
    train_over_threads(tmp_path, data[1], *STEPS, *FULL, "checkpoint.every_examples=2500")
    before = read_manifest(Store(tmp_path / "run").committed()[-1]).state["keys"]["user"]["refused"]
    caplog.clear()
    run = train_over_threads(tmp_path, data[1], *STEPS, *FULL, resume=True)
    assert 0 < before < run.result["keys"]["user"]["refused"] == before + refusals_told(caplog)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_killed_run_tells_each_refusal_once(tmp_path, data, caplog, monkeypatch):
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)  # pretended ranks share a process
    kills = [Kill(Progress, "record", 31), Kill(Progress, "record", 31)]
    run = train_with_kills(tmp_path, data[1], kills, *STEPS, *FULL)
    assert 0 < run.result["keys"]["user"]["refused"] == refusals_told(caplog)


def check_told(run):
    """Metrics have a line for each feature at each pause; summary and inspect show the last."""
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if line["kind"] == fields.KEYS]
    assert set(told[0]) == {name for name, (kinds, _) in fields.FIELDS.items() if fields.KEYS in kinds}
    assert [line["examples"] for line in told] == [end for end in range(1_000, 5_000, 1_000) for _ in KEYED]
    for number, (name, last) in enumerate(run.result["keys"].items()):
        assert last.items() <= told[number - 2].items()
        assert told[number - 2]["feature"] == name
        shown = (
            f"{name}: {last['keys']:,} of at most {last['rows']:,} keys (memory for {last['room']:,}):"
            f" {last['admitted']:,} admitted,"
            f" {last['expired']:,} expired, {last['evicted']:,} evicted, {last['refused']:,} lookups refused"
        )
        assert shown in summary.table(run.folder, None, None)
        assert shown in inspect.describe(run.folder, checksums=True)[0]


def test_what_is_not_seen_expires(tmp_path, data):
    settings = ("embedding.dynamic.expire_after_examples=1", "topology.embedding_ps=2")
    run = train_over_threads(tmp_path, data[1], *STEPS, *DYNAMIC, *settings)
    keyed, _ = tables(run, "seen")
    for table in (0, 1):
        found = {date for key, date in keyed[table].items() if isinstance(key, int)}
        assert found == {2 * ROWS}, "only what the last part looked up is left"
    assert all(counts["expired"] > 0 for counts in run.result["keys"].values())


@pytest.mark.parametrize(
    ("which", "settings", "message"),
    [
        (0, DYNAMIC, "this data has none"),
        (0, ("embedding.dynamic.keys=7",), "this data has none"),
        (1, (*DYNAMIC, "checkpoint.priority=scar"), "keeps a copy of every row that a table has room for"),
        (1, ("embedding.table=hashed",), "'embedding.table' was removed: leave it out"),
        (1, ("embedding.dynamic.keys=0",), "keys must be at least 1"),
        (1, ("embedding.dynamic.admit_after=-1",), "admit_after must be at least 1"),
        (1, (*DYNAMIC, "embedding.dynamic.features.usr.keys=9"), r"features.usr: .* did you mean 'user'\?"),
        (1, (*DYNAMIC, "embedding.dynamic.features.shop.keys=9"), r"features.shop: the data has no such feature with"),
        (1, (*DYNAMIC, "embedding.dynamic.features.user.keys=0"), r"dynamic.features.user.keys must be at least 1"),
        (1, (*DYNAMIC, "embedding.dynamic.features.user.kyes=9"), r"features.user.kyes'; did you mean 'keys'"),
        (1, (*DYNAMIC, "embedding.dynamic.features.user=9"), r"write .embedding.dynamic.features.user."),
        (1, (*DYNAMIC, "embedding.dynamic.features=[]"), r"write .embedding.dynamic.features.NAME."),
        (0, ("embedding.dynamic.features.user.keys=9",), "this data has none"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(tmp_path, data, which, settings, message):
    with pytest.raises(SettingsError, match=message):
        run_folder.check(write_run_file(tmp_path, data[which], *settings), 2)
