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
    assert "skipped 1 row: value of user; the first is" in said
    assert content(tmp_path / "out") == content(tmp_path / "b")
    assert read_manifest(tmp_path / "b").features.keyed == ("user", "item", "shop")
    rows = [row for i, row in enumerate(ROWS) if i != 300]
    found = keys_of(tmp_path / "b")
    wanted = [[key_of(row[i]) for i in range(3)] for row in rows]
    assert found["test"].tolist() == wanted[-100:]
    assert sorted(found["train"].tolist()) == sorted(wanted[:399])


def schema(old="", new="", *more, split=BY_TIME):
    """What is prepared: the columns of these tests with a change, and options."""
    return COLUMNS.replace(old, new, 1) + split, more


SHOP, ONLY_HASHED = "shop = {hash = 10}", ONCE.replace('"integer"', "{hash = 9}").replace("min_count = 2", "hash = 9")
WRONG = [
    (schema(SHOP, 'shop = {hash = "yes"}'), "shop: hash is 'yes', not a whole number from 1 to 2,147,483,645, or true"),
    (schema(SHOP, "shop = {hash = false}"), "categorical.shop: hash is False, not a whole number from 1 to"),
    (schema(SHOP, f"shop = {{hash = {2**64}}}"), "categorical.shop: hash is 18446744073709551616, not a whole number"),
    (schema(SHOP, "shop = {keys = true}"), "unknown setting categorical.shop.keys; known are hash, min_count, type"),
    (schema(SHOP, "shop = {hash = true, min_count = 2}"), "shop: hashed tokens are not counted; leave out min_count"),
    (schema("min_count = 2", "min_count = true"), "categorical.item: min_count is True, not a whole number from 1 to"),
    (schema('price = "log1p"', "price = {hash = true}"), "unknown setting dense.price.hash; known are missing, transf"),
    (schema("", "", "--hash", "--min-count", "5"), "--min-count 5: all categorical columns are hashed, and nothing is"),
    (schema("", "", "--hash", "--vocabulary", "ids"), "was made with other columns than those of"),
    ((ONLY_HASHED, ("--extend-vocabulary", "ids")), "ids/vocabulary.h5: was made with other columns than those of"),
    ((ONCE, ("--hash", "--extend-vocabulary", "keys")), "--extend-vocabulary: all categorical columns are hashed, and"),
    (schema("", "", "--hash", "-o", "ids"), "made with categorical.item.hash = none, this run has true; categorical."),
    (schema("", "", "-o", "keys"), "made with categorical.item.hash = true, this run has none; categorical."),
    (schema('"integer"', '{type = "int", hash = true}'), "categorical.user: type is 'int', not one of string, integ"),
    (schema(SHOP, "[list]\nshop = {longest = 2}", "--hash"), "user would have keys and shop has lists of ids"),
    (schema("", "", "--hash=all"), "argument --hash: ignored explicit argument 'all'"),
]  # fmt: skip


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A data set with ids, and one with keys."""
    base = tmp_path_factory.mktemp("earlier")
    file = write_csv(base / "a.csv")
    assert prepare(base, file, ONCE + BY_TIME, *SMALL, name="ids") == 0
    assert prepare(base, file, ONCE + BY_TIME, *SMALL, "--hash", name="keys") == 0
    return base


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_wrong_settings_are_said_with_their_remedy(given, said, earlier, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(earlier)
    before = content(earlier)
    capsys.readouterr()
    try:
        code = prepare(tmp_path, earlier / "a.csv", given[0], *SMALL, *given[1])
    except SystemExit as usage:
        code = usage.code
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert "error: " in error
    assert not (tmp_path / "out").exists()
    assert content(earlier) == before, "nothing is written over"


def test_a_bad_row_of_a_keyed_integer_is_named(tmp_path, capsys):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv", change(300, "user", "anna")), ONCE + BY_TIME, "--hash") == 2
    assert "a.csv:302: user is 'anna', not an integer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_a_group_of_keys_is_known(tmp_path):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), ONCE + BY_TIME, "--hash") == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.group == (manifest.features.keyed.index("user"), True)


def test_a_guess_with_hash_gives_keys(tmp_path, capsys):
    file, path = write_csv(tmp_path / "a.csv"), tmp_path / "schema.toml"
    assert main(["table", "--guess", "--hash", "--schema", str(path), str(file)]) == 0
    assert path.read_text().count("hash = true") == 4
    assert path.read_text().count("; takes a pass over the files, none and log1p do not\n") == 1
    assert main(["table", "--schema", str(path), str(file), "-o", str(tmp_path / "out")]) == 0
    assert read_manifest(tmp_path / "out").features.keyed == ("user", "item", "shop", "fold")
