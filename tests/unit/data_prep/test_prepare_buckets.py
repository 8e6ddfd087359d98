"""Numbers whose buckets are tokens, as BARS has Criteo's integers, against the inverse of its formula."""

import itertools
import math
import random
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from data_prep.cli import main
from data_prep.table.row_builder import buckets
from ssmpi.data.features import CRITEO, Features
from ssmpi.data.schema import SPLITS, read_manifest

X4 = Path(__file__).parents[3] / "jobs" / "schemas" / "criteo_x4.toml"
LARGE = 2**63 - 1


def bucket(x):
    """The last bucket that begins at or below x; bucket b begins at e to the square root of b."""
    return next(b for b in itertools.count() if math.exp(math.sqrt(b + 1)) > x) if x > 2 else int(x)


def test_a_bucket_is_that_of_the_inverse_formula():
    numbers = [*range(-5, 3000), 2.5, 7.9, -0.0, -0.7, 1.9, 10**6, LARGE, 1e18, 1e30, -(2**60)]
    assert buckets(np.array(numbers, float)).tolist() == [bucket(number) for number in numbers]


def test_criteos_rows_are_prepared_as_x4(tmp_path):
    """39 id features; splits at random; ids by the training rows, and those of fewer than ten of them share id 1."""
    draw, rows = random.Random(5), []
    for _ in range(900):
        integers = [draw.choice(["", "0", "-2", "1", "3", str(int(draw.paretovariate(0.4)))]) for _ in range(12)]
        tokens = [f"{int(draw.paretovariate(0.6)) % 2**32:08x}" if draw.random() < 0.9 else "" for _ in range(26)]
        rows.append([draw.choice("01"), str(LARGE), *integers, *tokens])
    (tmp_path / "train.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    out = tmp_path / "out"
    assert main(["table", "--schema", str(X4), str(tmp_path / "train.txt"), "-o", str(out)]) == 0
    assert main(["verify", str(out)]) == 0
    manifest = read_manifest(out)
    assert manifest.features == Features((), (*CRITEO.dense, *CRITEO.sparse))
    for split, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert abs(manifest.split(split).rows - 900 * share) < 60
    ids = {}
    for split in SPLITS:
        with h5py.File(out / manifest.split(split).shards[0].file) as shard:
            ids[split] = shard["ids"][:]
    every = np.concatenate(list(ids.values()))
    with h5py.File(out / "vocabulary.h5") as vocabulary:
        for f, name in enumerate(CRITEO.dense):
            values = Counter(bucket(int(row[1 + f])) for row in rows if row[1 + f])
            tokens, counts = vocabulary[name]["token"][:].view(np.int64), vocabulary[name]["count"][:]
            assert counts.min() >= 10
            for i, (token, count) in enumerate(zip(tokens, counts, strict=True)):
                assert (ids["train"][:, f] == i + 2).sum() == count
                assert (every[:, f] == i + 2).sum() == values.pop(token)
            assert max(values.values(), default=0) < 20, "only rare ones are left"
            assert (every[:, f] == 1).sum() == sum(values.values())
            assert (every[:, f] == 0).sum() == sum(not row[1 + f] for row in rows), "missing is no bucket"


@pytest.mark.parametrize("settings", ['"bucket"', '{ type = "bucket", hash = true }', '{ type = "bucket", hash = 9 }'])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_text_and_parquet_have_the_same_buckets(settings, suffix, tmp_path):
    """As an integer column of the buckets themselves has them."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    numbers = [None, 0.0, -3.0, 2.0, 2.5, 3.0, 1e30, 40.0, 5.0, 41.0]
    columns = {"click": [0, 1] * 5, "x": numbers, "b": [x if x is None else bucket(x) for x in numbers]}
    file, schema = tmp_path / f"a.{suffix}", tmp_path / "s.toml"
    (csv.write_csv if suffix == "csv" else parquet.write_table)(pa.table(columns), file)
    integer = settings.replace("bucket", "integer")
    schema.write_text(f'label = "click"\n[categorical]\nx = {settings}\nb = {integer}\n[split]\nshares = [1]\n')
    assert main(["table", "--schema", str(schema), str(file), "-o", str(tmp_path / "out")]) == 0
    with h5py.File(tmp_path / "out" / read_manifest(tmp_path / "out").split("train").shards[0].file) as shard:
        pairs = shard["keys" if "true" in settings else "ids"][:]
    np.testing.assert_array_equal(pairs[:, 0], pairs[:, 1])
    assert len(np.unique(pairs[:, 0])) > 4


@pytest.mark.parametrize("value", ["inf", "-1e300"])
def test_a_number_without_a_bucket_is_a_bad_row(value, tmp_path, capsys):
    (tmp_path / "s.toml").write_text('label = "click"\n[categorical]\nx = "bucket"\n[split]\nshares = [1]\n')
    (tmp_path / "a.csv").write_text(f"click,x\n1,3\n0,{value}\n")
    words = ["table", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.csv"), "-o", str(tmp_path / "out")]
    assert main(words) == 2
    assert f"a.csv:3: x is {float(value)}, which has no bucket; repair or remove the row" in capsys.readouterr().err
