"""The synthetic raw text has every quirk of Criteo's, is a function of its settings alone, and its ceiling is true."""

import argparse
import gzip
import json
from functools import cache

import numpy as np
import pytest
from strength import in_soak

from data_prep.raw.parser import DENSE_NAMES, SPARSE_NAMES
from data_prep.synthetic import synthesize as module
from data_prep.synthetic.synthesize import SynthesisPlan, synthesize
from data_prep.synthetic.teacher import (
    KAGGLE_CARDINALITIES,
    LABEL_RATE,
    Teacher,
    TeacherSettings,
    scaled_cardinalities,
)
from data_prep.synthetic.text_writer import other_token, token_masks, token_of
from ssmpi.runtime.errors import UserError

SMALL = scaled_cardinalities(0.001)
ROWS = 40_000
FIRST_ROW = (
    "0\t\t3\t0\t9\t67829\t\t3\t5\t332\t\t3\t2\t29\t836eccc7\tbc680dca\te69ad64b\tbc9429b1\tf1697e58\t69e36d7a\t"
    "7c73cd20\tf3384582\t5c448591\t85265f13\ta314786b\t2f0a3702\t056caded\t4b5b00b7\t7a8d0fec\tc08fdaad\ta158ae42\t"
    "3ca1b392\t\t\taaec48c2\t\td244d081\t964ef7cb\t\t\n"
)


teacher_of = cache(Teacher)  # calibrating one takes half a second


@pytest.fixture(autouse=True, scope="module")
def _teachers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_prep.synthetic.synthesize.Teacher", teacher_of)
        yield


@cache
def block(first, rows, **others):
    """Rows of the teacher with these settings."""
    return teacher_of(settings(**others)).block(first, rows)


def settings(rows=ROWS, **others):
    return TeacherSettings(**{"rows": rows, "cardinalities": SMALL, **others})


def command(*words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args([str(word) for word in words]))


def columns(path):
    return list(zip(*(line.rstrip("\n").split("\t") for line in path.open(newline="\n")), strict=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic")
    record = synthesize(SynthesisPlan(folder, settings(), unlabelled_rows=500))
    return folder, record, columns(folder / "train.txt")


def test_first_row_is_pinned(written):
    with (written[0] / "train.txt").open(newline="\n") as text:
        assert text.readline() == FIRST_ROW


def test_fields(written):
    found = written[2]
    assert len(found) == 40
    assert len(found[0]) == ROWS
    assert set(found[0]) == {"0", "1"}
    for column in found[1:14]:
        assert all(value == "" or str(int(value)) == value for value in column)
    for column in found[14:]:
        assert all(value == "" or (len(value) == 8 and f"{int(value, 16):08x}" == value) for value in set(column))
    assert (written[0] / "train.txt").read_bytes().endswith(b"\n")


def test_missing_rates(written):
    rate = {
        name: np.mean([v == "" for v in c]) for name, c in zip(DENSE_NAMES + SPARSE_NAMES, written[2][1:], strict=True)
    }
    expected = {"I12": 0.77, "I1": 0.46, "I10": 0.46, "I3": 0.21, "I4": 0.22, "I6": 0.22, "I13": 0.22, "I2": 0.0}
    expected |= {"C22": 0.77, "C19": 0.44, "C20": 0.44, "C25": 0.44, "C26": 0.44, "C6": 0.12, "C3": 0.034, "C1": 0.0}
    for name, wanted in expected.items():
        assert rate[name] == pytest.approx(wanted, abs=0.01), name
    together = np.array([[v == "" for v in written[2][13 + f]] for f in (19, 20, 25, 26)])
    assert (together == together[0]).all()


def test_rows_end_in_tabs(written):
    lines = (written[0] / "train.txt").read_bytes().split(b"\n")[:-1]
    assert np.mean([line.endswith(b"\t\t") for line in lines]) == pytest.approx(0.44, abs=0.01)
    assert all(line.count(b"\t") == 39 for line in lines)


def test_negative_and_large_integers(written):
    negative = [np.mean([v.startswith("-") for v in column]) for column in written[2][1:14]]
    assert negative[1] == pytest.approx(0.105, abs=0.005)
    assert sum(negative) == negative[1]
    assert min(int(v) for v in written[2][2]) == -2
    assert max(int(v) for v in written[2][5] if v) > 500_000


def test_label_rate(written):
    assert np.mean([v == "1" for v in written[2][0]]) == pytest.approx(LABEL_RATE, abs=0.008)


def test_tokens_cover_32_bits_and_are_distinct():
    masks = token_masks(12345)
    for feature in (0, 2, 25):
        tokens = np.array([token_of(masks, feature, rank) for rank in range(20_000)])
        assert len(set(tokens)) == len(tokens)
        assert np.mean(tokens >= 2**31) == pytest.approx(0.5, abs=0.02)
        assert tokens.max() > 0.99 * 2**32
        assert tokens.min() < 0.01 * 2**32


@pytest.mark.parametrize("skew", [1.05, *in_soak(0.0, 1.0)])
def test_skew(skew):
    rows = block(0, ROWS, skew=skew)
    for feature, cardinality in ((0, 100), (2, SMALL[2])):
        rank = rows.token[:, feature]
        assert rank.max() < cardinality
        weight = np.diff(np.log(np.arange(1, cardinality + 2))) if skew == 1 else None
        if skew != 1:
            weight = np.diff(np.arange(1, cardinality + 2.0) ** (1 - skew))
        share = weight / weight.sum()
        seen = np.bincount(rank[rank >= 0], minlength=cardinality) / (rank >= 0).sum()
        assert seen[:10] == pytest.approx(share[:10], abs=0.01)
    assert len(set(rows.token[:, 2])) > 1000


def test_rows_do_not_depend_on_blocks():
    teacher = teacher_of(settings())
    whole = teacher.block(100, 300)
    for column, first, second in zip(whole, teacher.block(100, 77), teacher.block(177, 223), strict=True):
        assert (column == np.concatenate([first, second])).all()


def test_bytes_do_not_depend_on_blocks_files_or_compression(tmp_path):
    few = settings(2_000, drift=0.5)
    records = [
        synthesize(SynthesisPlan(tmp_path / "a", few)),
        synthesize(SynthesisPlan(tmp_path / "b", few), block_rows=97),
        synthesize(SynthesisPlan(tmp_path / "c", few, days=3)),
        synthesize(SynthesisPlan(tmp_path / "d", few, gzipped=True)),
        synthesize(SynthesisPlan(tmp_path / "e", few, gzipped=True)),
    ]
    text = (tmp_path / "a" / "train.txt").read_bytes()
    assert text == (tmp_path / "b" / "train.txt").read_bytes()
    assert records[0] == records[1]
    assert text == b"".join((tmp_path / "c" / f"day_{day}").read_bytes() for day in range(3))
    assert [f["rows"] for f in records[2]["files"]] == [667, 667, 666]
    packed = (tmp_path / "d" / "train.txt.gz").read_bytes()
    assert gzip.decompress(packed) == text
    assert packed == (tmp_path / "e" / "train.txt.gz").read_bytes()
    assert not list(tmp_path.rglob(".*"))


def test_another_seed_is_another_world(tmp_path):
    synthesize(SynthesisPlan(tmp_path / "a", settings(200)))
    synthesize(SynthesisPlan(tmp_path / "b", settings(200, seed=1)))
    first, second = columns(tmp_path / "a" / "train.txt"), columns(tmp_path / "b" / "train.txt")
    assert not set(first[14]) & set(second[14])


def test_unlabelled_rows_follow(written, tmp_path):
    more = synthesize(SynthesisPlan(tmp_path, settings(ROWS + 500)))
    tail = (tmp_path / "train.txt").read_bytes().split(b"\n")[ROWS:-1]
    assert (written[0] / "test.txt").read_bytes().split(b"\n")[:-1] == [line[2:] for line in tail]
    assert written[1]["files"][1] | {"bytes": 0} == {"file": "test.txt", "rows": 500, "bytes": 0, "labelled": False}
    assert more["overall"]["rows"] == [0, ROWS + 500]


def test_ceiling_is_what_scikit_learn_computes(written, metrics):
    folder, record, found = written
    drawn = block(0, ROWS)
    assert [int(v) for v in found[0]] == drawn.label.tolist()
    probability = 1 / (1 + np.exp(-drawn.logit))
    for part in (record["overall"], *record["ranges"].values()):
        rows = slice(*part["rows"])
        label = drawn.label[rows]
        assert part["auc"] == pytest.approx(metrics.roc_auc_score(label, probability[rows]), abs=1e-5)
        assert part["accuracy"] == pytest.approx(np.mean((probability[rows] >= 0.5) == label), abs=1e-3)
        assert part["log_loss"] == pytest.approx(metrics.log_loss(label, probability[rows]), abs=1e-9)
        constant = metrics.log_loss(label, np.full(len(label), label.mean()))
        assert part["ne"] == pytest.approx(part["log_loss"] / constant)
    assert json.loads((folder / "teacher.json").read_text()) == json.loads(json.dumps(record))


def test_ceiling_is_worth_reaching_for(written):
    assert 0.80 < written[1]["overall"]["auc"] < 0.84
    assert 0.72 < written[1]["overall"]["ne"] < 0.80


def test_ranges_are_the_kaggle_split():
    ranges = SynthesisPlan("unused", settings(45_840_617)).ranges()
    assert ranges["train"] == (0, 45_840_617 - 6_548_659)
    assert ranges["test"] == (39_291_958, 39_291_958 + 3_274_330)
    assert ranges["validation"] == (39_291_958 + 3_274_330, 45_840_617)
    days = SynthesisPlan("unused", settings(23), days=3).ranges()
    assert days == {"train": (0, 16), "test": (16, 20), "validation": (20, 23)}


MULTI_HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)  # MLPerf's


def test_multi_hot_lists_are_a_function_of_the_token(tmp_path):
    """The rows, labels and first tokens are those of one-hot text; the lists of a token are all the same, of tokens of
    its feature.
    """
    plain = synthesize(SynthesisPlan(tmp_path / "a", settings(3_000)))
    record = synthesize(SynthesisPlan(tmp_path / "b", settings(3_000), multi_hot=MULTI_HOT))
    one, many = columns(tmp_path / "a" / "train.txt"), columns(tmp_path / "b" / "train.txt")
    assert ("label", *DENSE_NAMES, *SPARSE_NAMES) == tuple(column[0] for column in many)
    assert record["overall"] == {name: pytest.approx(value) for name, value in plain["overall"].items()}
    assert record["ranges"]["test"]["rows"] == [2_700, 3_000]
    assert sum(MULTI_HOT) == 214
    masks = token_masks(Teacher(settings()).token_key())
    for f, count in enumerate(MULTI_HOT):
        lists, tokens = [value.split("|") for value in many[14 + f][1:]], one[14 + f]
        assert [some[0] for some in lists] == list(tokens)
        assert {len(some) for some, token in zip(lists, tokens, strict=True) if token} == {count}
        of = {token: some for some, token in zip(lists, tokens, strict=True)}
        assert all(of[token] == some for some, token in zip(lists, tokens, strict=True))
        known = {f"{token_of(masks, f, rank):08x}" for rank in range(SMALL[f])}
        assert {token for some in lists for token in some} <= known | {""}
    for f in range(14):
        assert many[f][1:] == one[f]


def test_the_other_tokens_of_a_list_are_uniform():
    """Unlike the first: one in ten of them is in each tenth of the ranks."""
    mask = token_masks(7)[2]
    ranks = np.array([other_token(mask, 1_000, token, k) for token in range(1_000) for k in range(1, 6)])
    assert np.bincount(ranks // 100) == pytest.approx(500, abs=100)
    assert len(set(ranks[::5])) > 600
    later = np.array([other_token(mask, 1_000, 5_003, k) for k in range(1, 100)])
    assert set(later // 1_000) == {5}, "of the same generation"


def test_multi_hot_bytes_do_not_depend_on_blocks_or_memory(tmp_path, monkeypatch):
    few = settings(700, turnover=2)
    for name in "ab":
        synthesize(SynthesisPlan(tmp_path / name, few, days=2, unlabelled_rows=9, multi_hot=MULTI_HOT))
        monkeypatch.setattr("data_prep.synthetic.synthesize.BLOCK_BYTES", 400_000)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert (tmp_path / "a" / "test.txt").read_text().startswith("I1\tI2")


def test_tiny_sets(tmp_path):
    record = synthesize(SynthesisPlan(tmp_path, settings(1)))
    assert record["overall"]["auc"] is None
    assert (tmp_path / "train.txt").read_bytes().count(b"\n") == 1


def test_drift_moves_rate_and_effects():
    def correlation(drift):
        begin, end = block(0, 20_000, drift=drift), block(ROWS - 20_000, 20_000, drift=drift)
        shared = range(100)
        means = [[b.logit[b.token[:, 0] == rank].mean() - b.logit.mean() for rank in shared] for b in (begin, end)]
        return np.corrcoef(*means)[0, 1], end.label.mean() - begin.label.mean()

    still, turned = correlation(0.0), correlation(1.0)
    assert abs(still[1]) < 0.01
    assert turned[1] > 0.02
    assert still[0] > turned[0] + 0.1


@pytest.mark.parametrize("turnover", [0.5, *in_soak(1, 3)])
def test_tokens_go_and_new_ones_come(turnover):
    """Each at its own times, as often as the others; ranks, integers and missing values stay as they were."""
    still, rows = block(0, ROWS), block(0, ROWS, turnover=turnover)
    np.testing.assert_array_equal(rows.integer, still.integer)
    times = []
    for f, cardinality in enumerate(SMALL):
        there = still.token[:, f] >= 0
        np.testing.assert_array_equal(rows.token[there, f] % cardinality, still.token[there, f])
        assert (rows.token[~there, f] == -1).all()
        for rank in range(min(cardinality, 20)):
            generations = rows.token[still.token[:, f] == rank, f] // cardinality
            if len(generations) > 300:
                assert (np.diff(generations) >= 0).all()
                times.append(generations[-1] - generations[0])
    assert len(times) > 50
    assert max(times) <= int(np.ceil(turnover))
    assert np.mean(times) == pytest.approx(turnover, abs=0.15)


def test_a_new_token_has_effects_of_its_own():
    """A model that does not know it is wrong about it: its logits are not those of the token before."""
    still, rows = block(ROWS - 20_000, 20_000), block(ROWS - 20_000, 20_000, turnover=1)
    assert 0.1 < np.corrcoef(still.logit, rows.logit)[0, 1] < 0.9
    assert rows.logit.std() == pytest.approx(still.logit.std(), rel=0.2)


def test_the_ceiling_of_each_day_is_known(tmp_path, metrics):
    plan = SynthesisPlan(tmp_path, settings(9_000, drift=0.5, turnover=1), days=3)
    record, teacher = synthesize(plan, block_rows=500), teacher_of(plan.teacher)
    for day, (name, found) in enumerate(record["days"].items()):
        rows = teacher.block(3_000 * day, 3_000)
        assert (name, found["rows"]) == (f"day_{day}", [3_000 * day, 3_000 * day + 3_000])
        assert found["log_loss"] == pytest.approx(metrics.log_loss(rows.label, 1 / (1 + np.exp(-rows.logit))), rel=1e-9)
        assert found["auc"] == pytest.approx(metrics.roc_auc_score(rows.label, rows.logit), abs=1e-4)
    assert "days" not in synthesize(SynthesisPlan(tmp_path / "one", settings(100)))


def test_scaled_cardinalities():
    assert scaled_cardinalities(1.0) == KAGGLE_CARDINALITIES
    small = scaled_cardinalities(1e-9)
    assert max(small) == 100
    assert small[8] == 3


def test_rows_for_which_there_is_no_room_leave_no_folder(tmp_path):
    with pytest.raises(UserError, match=r"are free; ask for fewer --rows"):
        command(tmp_path / "deep" / "new", "--rows", "90000000M")
    assert not (tmp_path / "deep").exists()


def test_command_line(tmp_path, capsys):
    words = (tmp_path / "new", "--rows", "7k", "--days", 2, "--gzip", "--seed", 3, "--scale", 0.001)
    assert command(*words) == 0
    printed = capsys.readouterr().out
    assert "are free" in printed
    record = json.loads((tmp_path / "new" / "teacher.json").read_text())
    assert f"AUC {record['ranges']['test']['auc']:.4f}" in printed
    assert [f["file"] for f in record["files"]] == ["day_0.gz", "day_1.gz"]
    with pytest.raises(UserError, match=r"day_0\.gz.* already there; .*--overwrite"):
        command(*words)
    assert command(*words, "--overwrite") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "0"), "--rows 0"),
        (("--rows", "5", "--days", "6"), "more files than the 5 rows"),
        (("--days", "-1"), "--days -1"),
        (("--days", "1"), "the last day is kept for validation and test"),
        (("--scale", "0"), "--scale 0"),
        (("--scale", "nan"), "--scale nan"),
        (("--drift", "1.5"), "--drift 1.5"),
        (("--turnover", "-1"), "--turnover -1"),
        (("--turnover", "nan"), "--turnover nan"),
        (("--turnover", "900", "--scale", "1"), "2\\^31 - 1 can"),
        (("--skew", "-1"), "--skew -1"),
        (("--seed", "-1"), "--seed -1"),
        (("--cardinalities", "3,4"), "2 numbers, expected 26"),
        (("--unlabelled-rows", "-4"), "must not be negative"),
        (("--multi-hot", "3,2"), "--multi-hot: 2 numbers, expected 26"),
        (("--multi-hot", ",".join(["1"] * 27)), "--multi-hot: 27 numbers, expected 26"),
        (("--multi-hot", ",".join(["2"] * 25 + ["0"])), "--multi-hot: 0 tokens in a list of C26: give 1 to 1,000"),
        (("--multi-hot", ",".join(["1001"] * 26)), "--multi-hot: 1001 tokens in a list of C1"),
        (("--rows", "900000G"), "ask for fewer --rows"),
    ],
)
def test_bad_arguments(tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        command(tmp_path, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("--rows", "many"), ("--rows", "1.5"), ("--cardinalities", "a,b"), ("--multi-hot", "3,two")]
)
def test_unreadable_arguments(tmp_path, capsys, words):
    with pytest.raises(SystemExit):
        command(tmp_path, *words)
    assert words[1] in capsys.readouterr().err


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        command(tmp_path / "file" / "below")
