"""``ssmpi-prepare table`` with 64-bit keys in place of ids, against the documented hash in plain Python."""

import h5py
import numpy as np
import pytest
from test_prepare_table import BY_TIME, COLUMNS, ROWS, SMALL, change, content, prepare, same, write_csv, write_parquet
from test_prepare_table import load as load_ids

from data_prep.cli import main
from ssmpi.data.features import expected_collisions
from ssmpi.data.schema import read_manifest

KEYED = COLUMNS.replace('user = "integer"', 'user = {type = "integer", hash = true}').replace("10}", "true}")
ONCE = COLUMNS.replace('age = {transform = "standardize"}', 'age = "log1p"')  # with --hash nothing is counted


def fnv(text):
    """64-bit FNV-1a (Fowler, Noll, Vo)."""
    found = 0xCBF29CE484222325
    for byte in text:
        found = ((found ^ byte) * 0x100000001B3) % 2**64
    return found


def key_of(text):
    """FNV-1a, then the mixing steps of splitmix64 (Steele, Lea, Flood 2014), as a signed integer; 0 is missing."""
    if text == "":
        return 0
    z = fnv(text if isinstance(text, bytes) else text.encode())
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    z = z ^ z >> 31 or 1
    return z - 2**64 * (z >= 2**63)


def keys_of(folder):
    """By split: keys int64 (rows, keyed)."""
    found = {}
    for split, about in read_manifest(folder).splits.items():
        parts = []
        for entry in about.shards:
            with h5py.File(folder / entry.file) as shard:
                parts.append(shard["keys"][:])
        found[split] = np.concatenate(parts)
    return found


def test_the_oracle_is_fnv():
    assert [fnv(text) for text in (b"", b"a", b"foobar")] == [
        0xCBF29CE484222325,
        0xAF63DC4C8601EC8C,
        0x85944171F73967E8,
    ]


@pytest.mark.parametrize("write", [write_csv, write_parquet], ids=["csv", "parquet"])
def test_keys_are_the_documented_hashes(write, tmp_path, capsys):
    """Of integers as of strings; beside ids of a vocabulary, which are as without keys."""
    file = write(tmp_path / f"a.{write.__name__[6:]}")
    assert prepare(tmp_path, file, KEYED + BY_TIME, *SMALL, "--no-shuffle") == 0
    said = capsys.readouterr().out
    assert "64-bit keys: user, shop; of n different tokens n (n - 1) / 2^65 pairs" in said
    assert f"{600 * 599 / 2**65:.2g}, if all 600 rows had others" in said
    manifest = read_manifest(tmp_path / "out")
    assert manifest.features.keyed == ("user", "shop")
    assert manifest.cardinalities[::2] == (0, 0)
    found = keys_of(tmp_path / "out")
    for split, (first, last) in {"train": (0, 400), "validation": (400, 500), "test": (500, 600)}.items():
        assert found[split].tolist() == [[key_of(row[0]), key_of(row[2])] for row in ROWS[first:last]]
    assert prepare(tmp_path, file, COLUMNS + BY_TIME, *SMALL, "--no-shuffle", name="ids") == 0
    ids = load_ids(tmp_path / "ids")
    same({s: [c[0][:, 1:2], *c[1:]] for s, c in ids.items()}, load_ids(tmp_path / "out"))
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "keys    0.00%        -   64-bit hashes of tokens" in capsys.readouterr().out


def test_missing_values_have_key_0_and_a_hash_of_0_has_not(tmp_path):
    zero = bytes.fromhex("d56bb95342870836")  # FNV-1a gives 0 (Noll's page on FNV)
    assert fnv(zero) == 0
    file = tmp_path / "a.csv"
    rows = [b"a", b"", b"NA", zero, b"-0", b"0", b"007"]
    file.write_bytes(b"label,token\n" + b"".join(b"1," + token + b"\n" for token in rows))
    schema = 'label = "label"\n[table]\nmissing = ["", "NA"]\n[categorical]\ntoken = {hash = true}\n'
    assert prepare(tmp_path, file, schema, "--no-shuffle", "--split", "none") == 0
    wanted = [0 if token in (b"", b"NA") else key_of(token) for token in rows]
    assert keys_of(tmp_path / "out")["train"][:, 0].tolist() == wanted
    assert wanted[3] == 1
    assert read_manifest(tmp_path / "out").provenance["missing"] == {"token": 2}


def test_integers_have_the_keys_of_their_text(tmp_path):
    numbers = ["0", "7", "-7", str(2**63 - 1), str(-(2**63))]
    file = tmp_path / "a.csv"
    file.write_text("user,label\n" + "".join(f"{n},1\n" for n in numbers))
    for kind in ("integer", "string"):
        schema = f'label = "label"\n[categorical]\nuser = {{type = "{kind}", hash = true}}\n'
        assert prepare(tmp_path, file, schema, "--no-shuffle", "--split", "none", name=kind) == 0
        assert keys_of(tmp_path / kind)["train"][:, 0].tolist() == [key_of(n) for n in numbers]


def test_expected_collisions_are_pairs_over_the_number_of_keys():
    assert expected_collisions(1) == 0
    assert expected_collisions(2) == 2**-64
    assert expected_collisions(2**32) == pytest.approx(0.5)


def test_hash_gives_keys_to_all_categorical_columns_of_a_schema_as_it_is(tmp_path, capsys):
    """As if each said so itself; the split, missing values and bad rows are as ever."""
    file = write_csv(tmp_path / "a.csv", change(300, "user", "anna"))
    keyed = KEYED.replace("{min_count = 2}", "{hash = true}")
    assert prepare(tmp_path, file, keyed + BY_TIME, *SMALL, "--on-bad-row", "skip") == 0
    capsys.readouterr()
    assert prepare(tmp_path, file, COLUMNS + BY_TIME, *SMALL, "--on-bad-row", "skip", "--hash", name="b") == 0
    said = capsys.readouterr().out
    assert f"--hash: min_count of item in {tmp_path / 'b.toml'} is not used: embedding.dynamic.admit_after" in said
    assert f"--hash: hash of shop in {tmp_path / 'b.toml'} is not used: they get keys" in said
    assert "skipped 1 rows: value of user; the first is" in said
    assert content(tmp_path / "out") == content(tmp_path / "b")
    assert read_manifest(tmp_path / "b").features.keyed == ("user", "item", "shop")
    rows = [row for i, row in enumerate(ROWS) if i != 300]
    found = keys_of(tmp_path / "b")
    wanted = [[key_of(row[i]) for i in range(3)] for row in rows]
    assert found["test"].tolist() == wanted[-100:]
    assert sorted(found["train"].tolist()) == sorted(wanted[:399])
