"""``--extend-vocabulary``: ids of one day mean the same on the next one; against an oracle in plain Python."""

import json
import shutil
from collections import Counter

import h5py
import numpy as np
import pytest
from test_prepare_criteo import SMALL, load, make_rows, prepare, tree, write
from test_prepare_table import BY_TIME, COLUMNS, NAMES
from test_prepare_table import make_rows as make_table_rows

from data_prep.cli import main
from data_prep.vocabulary.vocabulary_file import read_vocabulary
from ssmpi.data.schema import read_manifest

DAYS = [make_rows(300, seed) for seed in (1, 2, 3)]
ALL = ("--split", "none", "--no-shuffle", *SMALL)


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Three days of Criteo's rows, each vocabulary after the first extending the one before."""
    folder = tmp_path_factory.mktemp("days")
    for day, rows in enumerate(DAYS):
        more = ("--extend-vocabulary", str(folder / f"day{day - 1}"), "--min-count", "2") if day else ()
        prepare([write(folder / f"day_{day}", rows)], folder / f"day{day}", *ALL, *more)
    return folder


def tokens_of(rows, feature):
    return [int(text, 16) if (text := row.split("\t")[14 + feature]) else None for row in rows]


def oracle(feature):
    """By day, the ids of a feature's tokens: those of the day before, then new ones that come twice, by count."""
    known, found = {}, []
    for day, rows in enumerate(DAYS):
        counts = Counter(token for token in tokens_of(rows, feature) if token is not None and token not in known)
        new = sorted((t for t, n in counts.items() if n >= (2 if day else 1)), key=lambda t: (-counts[t], t))
        known = known | {token: len(known) + 2 + place for place, token in enumerate(new)}
        found.append(known)
    return found


def test_ids_stay_and_new_ones_follow(days):
    for feature in range(26):
        for day, ids in enumerate(oracle(feature)):
            folder = days / f"day{day}"
            expected = [0 if token is None else ids.get(token, 1) for token in tokens_of(DAYS[day], feature)]
            np.testing.assert_array_equal(load(folder, "train")[0][:, feature], expected)
            assert read_manifest(folder).cardinalities[feature] == len(ids) + 2
    assert main(["verify", str(days / "day2")]) == 0


def test_the_manifest_names_all_that_is_extended(days):
    checksums = [read_manifest(days / f"day{day}").provenance["files"]["vocabulary.h5"] for day in range(3)]
    about = read_manifest(days / "day2").provenance
    assert about["vocabulary"]["extends"] == checksums[1::-1]  # the nearest first
    assert about["arguments"]["extends"] == checksums[1]
    assert "extends" not in read_manifest(days / "day0").provenance["vocabulary"]


def test_any_memory_gives_the_same_bytes_and_a_whole_folder_is_recognized(days, tmp_path, capsys):
    words = (*ALL, "--extend-vocabulary", str(days / "day0" / "vocabulary.h5"), "--min-count", "2")
    out = prepare([days / "day_1"], tmp_path / "out", *words, "--memory", "0.0001")
    assert tree(out) == tree(days / "day1")
    prepare([days / "day_1"], out, *words, "--memory", "0.0001")
    assert "already complete" in capsys.readouterr().out


def test_a_table_keeps_means_and_ranges(tmp_path):
    (tmp_path / "schema.toml").write_text(COLUMNS + BY_TIME)
    for day in (0, 1):
        rows = [NAMES, *make_table_rows(400, seed=day + 1)]
        (tmp_path / f"{day}.csv").write_text("\n".join(map(",".join, rows)) + "\n")
        more = ("--extend-vocabulary", str(tmp_path / "0")) if day else ()
        words = ("--schema", str(tmp_path / "schema.toml"), "--output", str(tmp_path / str(day)), "--split", "none")
        assert main(["table", str(tmp_path / f"{day}.csv"), *words, *more]) == 0
    old, new = (read_vocabulary(tmp_path / str(day)) for day in (0, 1))
    for feature in (0, 1):
        count = len(old.column(feature, "token"))
        np.testing.assert_array_equal(new.column(feature, "token")[:count], old.column(feature, "token"))
        np.testing.assert_array_equal(new.column(feature, "count")[:count], old.column(feature, "count"))
        assert old.column(feature, "count").min() > 0
        assert not set(new.column(feature, "token")[count:]) & set(old.column(feature, "token"))
    assert len(new.column(1, "token")) > len(old.column(1, "token"))
    assert new.about["scale"] == old.about["scale"]
    assert new.cardinalities[2] == old.cardinalities[2] == 12  # hashed


def damaged(folder):
    path = folder / "damaged.h5"
    shutil.copy(folder / "day0" / "vocabulary.h5", path)
    with h5py.File(path, "r+") as file:
        file.attrs["about"] = json.dumps({**json.loads(file.attrs["about"]), "cardinalities": [1] * 26})
    return path


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda days: ("--vocabulary", days / "day0"), "fits no vocabulary and --extend-vocabulary fits one"),
        (lambda days: ("--max-ind-range", "9"), "brings its own --max-ind-range"),
        (lambda days: ("-o", days / "day0", "--overwrite"), "lies in --output"),
        (lambda days: ("--extend-vocabulary", days / "nowhere"), "no such vocabulary file"),
        (lambda days: ("--extend-vocabulary", days / "day_0"), "not a readable vocabulary file"),
        (lambda days: ("--extend-vocabulary", damaged(days)), "cardinalities do not agree with the tokens"),
        (lambda days: ("--min-count", "0"), "must be between 1 and"),
    ],
)
def test_wrong_extensions_are_refused(days, tmp_path, capsys, more, said):
    before, out = tree(days / "day0"), tmp_path / "out"
    words = ("-o", out, "--extend-vocabulary", days / "day0", *ALL, *more(days))
    assert main(["criteo", str(days / "day_1"), *map(str, words)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error:") == 1
    assert said in errors
    assert tree(days / "day0") == before
    assert not out.exists()


def test_criteos_rows_do_not_extend_a_table(days, tmp_path, capsys):
    (tmp_path / "schema.toml").write_text(COLUMNS + BY_TIME)
    rows = [NAMES, *make_table_rows(600)]
    (tmp_path / "a.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    words = ("--schema", str(tmp_path / "schema.toml"), "--output", str(tmp_path / "a"))
    assert main(["table", str(tmp_path / "a.csv"), *words]) == 0
    extend = ("--extend-vocabulary", str(tmp_path / "a"))
    assert main(["criteo", str(days / "day_1"), "-o", str(tmp_path / "b"), *ALL, *extend]) == 2
    assert "of a table's columns" in capsys.readouterr().err
    extend = ("--extend-vocabulary", str(days / "day0"))
    assert main(["table", str(tmp_path / "a.csv"), *words[:2], "--output", str(tmp_path / "b"), *extend]) == 2
    assert "other columns" in capsys.readouterr().err


def test_a_long_chain_keeps_the_nearest(days, tmp_path):
    from data_prep.vocabulary import fit

    base = read_vocabulary(days / "day0")
    base.about["extends"] = [str(number) for number in range(fit.LONGEST)]
    found = fit._ancestry(base)
    assert len(found) == fit.LONGEST
    assert found[1:3] == ["0", "1"]
