"""Files as other programs write them, which ``ssmpi-prepare table`` reads, or refuses by name."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import pickle
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import feather, orc, parquet
from test_prepare_table import load, prepare, same

from data_prep.cli import main
from data_prep.ranks import RawDataError
from data_prep.raw import sources, text_stream
from data_prep.table import parquet as table_parquet
from data_prep.table.schema import read_schema
from data_prep.vocabulary.vocabulary_file import read_vocabulary
from ssmpi.data.schema import read_manifest

PLAIN = 'label = "click"\n[categorical]\nuser = "integer"\n[split]\nby = "random"\n'


def rows_of(folder):
    return sum(split.rows for split in read_manifest(folder).splits.values())


def test_zstd_may_hold_more_text_than_the_sample_that_rows_are_estimated_from(tmp_path):
    text = b"click,user,note\n" + b"".join(b"%d,%d,%s\n" % (i % 2, i, b"x" * 1000) for i in range(1200))
    with pa.CompressedOutputStream(str(tmp_path / "a.csv.zst"), "zstd") as out:
        out.write(text)
    assert prepare(tmp_path, tmp_path / "a.csv.zst", PLAIN) == 0
    assert rows_of(tmp_path / "out") == 1200


QUOTED = 'label = "click"\n[dense]\nprice = "none"\n[categorical]\ntitle = {}\n[table]\nquoting = "multiline"\n'
WHOLE = ("--split", "none", "--no-shuffle", "--fit-on", "all")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_quoted_values_may_hold_newlines(name, tmp_path, monkeypatch):
    """In blocks of any size: here a row often takes more than one."""
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 200)
    monkeypatch.setattr(text_stream, "STEP_BYTES", 50)
    draw = random.Random(1)
    titles = [
        "".join(draw.choices(["a", "b\n", '"', ",", "\r\n", "\n\n", " "], k=draw.randint(1, 300))) for _ in range(300)
    ]
    rows = [(n % 2, title, n) for n, title in enumerate(titles)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("click", "title", "price"), *rows])
    data = text.getvalue().replace("\n1,", "\n\n1,", 20).encode()  # with blank lines
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    clicks, titles, prices = zip(*rows, strict=True)
    parquet.write_table(pa.table({"click": clicks, "title": titles, "price": prices}), tmp_path / "b.parquet")
    assert prepare(tmp_path, tmp_path / name, QUOTED, *WHOLE, "--piece-bytes", "5000") == 0
    assert prepare(tmp_path, tmp_path / "b.parquet", QUOTED, *WHOLE, name="b") == 0
    same(load(tmp_path / "out"), load(tmp_path / "b"))


HALVES = b'click,title,price\n0,plain,1\n1,"first\n1,second,2\n0,plain,3\n'


@pytest.mark.parametrize("skip", [(), ("--on-bad-row", "skip")])
@pytest.mark.parametrize("text", [HALVES, HALVES.rpartition(b"1,second")[0]], ids=["amid", "at the end"])
@pytest.mark.parametrize("quoting", ["line", "multiline"])
def test_a_quote_without_an_end_is_named_and_never_half_a_row_is_taken(quoting, text, skip, tmp_path, capsys):
    (tmp_path / "a.csv").write_bytes(text.replace(b"1,second,2", b'1,second",2') if quoting == "line" else text)
    assert prepare(tmp_path, tmp_path / "a.csv", QUOTED.replace("multiline", quoting), *skip) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'a.csv'}:3: a quote opens a value that " in told
    assert 'quoting = "none"' in told or '"none" if' in told
    assert "skip" not in told


def test_quotes_may_be_part_of_values(tmp_path):
    """The guess finds it, and all rows arrive with their quotes."""
    sizes = [f"{'' if n % 3 else chr(34)}{n % 7} inch" for n in range(120)]
    (tmp_path / "a.tsv").write_text("click\tsize\n" + "".join(f"{n % 2}\t{size}\n" for n, size in enumerate(sizes)))
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.tsv")]) == 0
    schema = (tmp_path / "s.toml").read_text()
    assert 'quoting = "none"' in schema
    table = pa.table({"click": [n % 2 for n in range(120)], "size": sizes})
    parquet.write_table(table, tmp_path / "b.parquet")
    for name in ("a.tsv", "b.parquet"):
        assert prepare(tmp_path, tmp_path / name, schema, name=name[0]) == 0
    same(load(tmp_path / "a"), load(tmp_path / "b"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_part_of_the_first_name(pack, tmp_path):
    plain = b"click,user\n" + b"1,2\n0,3\n" * 20
    for name, text in (("marked", codecs.BOM_UTF8 + plain), ("plain", plain)):
        (tmp_path / f"{name}.csv").write_bytes(pack(text))
        assert main(["table", "--guess", "--schema", f"{tmp_path}/{name}-s.toml", f"{tmp_path}/{name}.csv"]) == 0
        assert prepare(tmp_path, tmp_path / f"{name}.csv", PLAIN, *WHOLE, "--piece-bytes", "10", name=name) == 0
    same(load(tmp_path / "marked"), load(tmp_path / "plain"))
    guesses = [(tmp_path / f"{name}-s.toml").read_text().replace(name, "") for name in ("marked", "plain")]
    assert guesses[0] == guesses[1]


def zipped(path, names):
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, "click,user\n1,2\n")


TABLE = pa.table({"click": [0, 1], "user": [4, 5]})
FORMATS = {
    "a zip archive": lambda path: zipped(path, ["a.csv"]),
    "an Excel workbook": lambda path: zipped(path, ["[Content_Types].xml", "xl/workbook.xml"]),
    "a NumPy archive (npz)": lambda path: np.savez(path.open("wb"), click=[0, 1]),
    "an ORC file": lambda path: orc.write_table(TABLE, path),
    "a Feather (Arrow IPC) file": lambda path: feather.write_feather(TABLE, path),
    "compressed with bzip2": lambda path: path.write_bytes(bz2.compress(b"click,user\n1,2\n")),
    "compressed with xz": lambda path: path.write_bytes(lzma.compress(b"click,user\n1,2\n")),
    "a TFRecord file": lambda path: path.write_bytes((9).to_bytes(8, "little") + b"\x91\x12\x9a\x11" + b"\n" * 13),
    "a Python pickle": lambda path: path.write_bytes(pickle.dumps([1, 2])),
    "JSON;": lambda path: path.write_text('{\n"click": [0, 1],\n"user": [3, 4]}\n'),
    "pandas.read_json(path, lines=True)": lambda path: path.write_text('{"click": 0}\n{"click": 1}\n'),
    "in the libsvm format": lambda path: path.write_text("-1 qid:3 1:0.5 7:1e-3\n+1 qid:3 2:1\n"),
    "in the libffm format": lambda path: path.write_text("0 0:3:1 1:7:0.25\n1 0:4:1\n"),
    "text with '::' between values": lambda path: path.write_text("1::1193::5::978300760\n"),
    "a Parquet file compressed with gzip": lambda path: path.write_bytes(gzip.compress(b"PAR1" * 9)),
    "its lines end in CR alone": lambda path: path.write_text("click,user\r1,2\r0,3\r", newline=""),
}


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_are_refused_by_name(name, tmp_path, capsys):
    FORMATS[name](tmp_path / "a.csv")
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.csv")]) == 2
    told = [capsys.readouterr().err]
    for more in ("", '[table]\ncolumns = ["click", "user", "day"]\n'):
        assert prepare(tmp_path, tmp_path / "a.csv", PLAIN + more, "--on-bad-row", "skip") == 2
        told.append(capsys.readouterr().err)
    for error in told:
        assert name in error
        assert error.count("\n") == 1
        assert "; " in error, "a remedy"
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "out.toml"}


@pytest.mark.parametrize(
    "text", ["1\t12:30\n0\t9:15\n", "1\t5:1 6:1\n0\t7:1\n", "1\ta::b\n", '1\t{"a": 2}\n', "1\t[1 2]\n"]
)
def test_tables_are_not_taken_for_other_formats(text, tmp_path):
    (tmp_path / "a.tsv").write_text(text * 20)
    schema = '[table]\nseparator = "\\t"\ncolumns = ["click", "note"]\n[categorical]\nnote = {}\n'
    assert prepare(tmp_path, tmp_path / "a.tsv", schema) == 0


def write_parts(folder, write, numbers):
    """Files of a user each, and beside them what Spark leaves."""
    folder.mkdir(parents=True)
    for n in numbers:
        write(pa.table({"click": [n % 2] * 3, "user": [n] * 3}), folder / f"part-{n}.x")
    (folder / "_SUCCESS").touch()
    (folder / ".part-1.x.crc").write_bytes(b"\1\2")


def users(folder):
    return load(folder)["train"][0][:, 0].tolist()


BY_ROWS = 'label = "click"\n[categorical]\nuser = { type = "integer", hash = 100 }\n[split]\nshares = [1]\n'


@pytest.mark.parametrize("write", [arrow_csv.write_csv, parquet.write_table])
@pytest.mark.parametrize("pattern", ["", "part-*.x", "*", "[!_]*"])
def test_folders_and_patterns_are_read_by_the_numbers_in_their_names(pattern, write, tmp_path, capsys):
    write_parts(tmp_path / "parts", write, [1, 2, 10])
    assert prepare(tmp_path, tmp_path / "parts" / pattern, BY_ROWS, "--no-shuffle") == 0
    assert users(tmp_path / "out") == [3] * 3 + [4] * 3 + [12] * 3
    told = capsys.readouterr().out
    assert "3 files, in this order: part-1.x, part-2.x, part-10.x\n" in told
    schema = tmp_path / "guess.toml"
    assert main(["table", "--guess", "--schema", str(schema), str(tmp_path / "parts" / pattern)]) == 0
    assert "part-1.x" in schema.read_text()


def test_files_that_a_shell_names_are_read_in_its_order_which_is_told(tmp_path, capsys):
    write_parts(tmp_path / "parts", arrow_csv.write_csv, [1, 2, 10])
    files = sorted(str(path) for path in (tmp_path / "parts").glob("[!.]*"))
    (tmp_path / "s.toml").write_text(BY_ROWS)
    words = ["table", *files, "--schema", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out"), "--no-shuffle"]
    assert main(words) == 0
    assert users(tmp_path / "out") == [3] * 3 + [12] * 3 + [4] * 3
    told = capsys.readouterr().out
    assert f"left out, because they hold no data: {tmp_path / 'parts' / '_SUCCESS'}\n" in told
    assert "in this order: part-1.x, part-10.x, part-2.x; the split goes by it: give the folder" in told


@pytest.mark.parametrize("write", [arrow_csv.write_csv, parquet.write_table])
def test_folders_named_as_values_are_columns(write, tmp_path, capsys, monkeypatch):
    """The same rows as of one file that has them."""
    days, rows = ["2026-03-02", "2026-03-01", "2026-03-10"], []
    for day in days:
        for shop in ("a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
            write_parts(tmp_path / "parts" / f"day={day}" / f"shop={shop}", write, [1, 2])
            rows += [(day, "a/b" if shop == "a%2Fb" else None, n % 2, n) for n in (1, 2) for _ in range(3)]
    rows.sort(key=lambda row: (row[0], row[1] is not None))
    columns = dict(zip(("day", "shop", "click", "user"), map(list, zip(*rows, strict=True)), strict=True))
    columns["day"] = pa.array(columns["day"]).cast(pa.date32())
    parquet.write_table(pa.table(columns), tmp_path / "one.parquet")
    schema = 'label = "click"\ntime = "day"\n[categorical]\nuser = "integer"\nshop = {}\n'
    schema += '[split]\nby = "time"\ntrain_until = 2026-03-02\nvalidation_until = 2026-03-03\n'
    for name, source in (("parts", tmp_path / "parts"), ("one", tmp_path / "one.parquet")):
        assert prepare(tmp_path, source, schema, "--no-shuffle", name=f"{name}-out") == 0
    same(load(tmp_path / "parts-out"), load(tmp_path / "one-out"))
    names = [source["name"] for source in read_manifest(tmp_path / "parts-out").provenance["sources"]]
    assert names[0] == "day=2026-03-01/shop=__HIVE_DEFAULT_PARTITION__/part-1.x"
    monkeypatch.chdir(tmp_path / "parts" / "day=2026-03-10" / "shop=a%2Fb")
    assert sources.open_sources([Path("part-1.x")])[0].partition == {"day": "2026-03-10", "shop": "a/b"}
    monkeypatch.chdir(tmp_path)
    assert main(["table", "--guess", "--schema", str(tmp_path / "dates.toml"), "parts"]) == 0
    assert '# "day" = { type = "string" }  # 3 folders day=..., dates that' in (tmp_path / "dates.toml").read_text()
    (tmp_path / "parts" / "day=2026-03-10").rename(tmp_path / "parts" / "day=later")
    assert prepare(tmp_path, tmp_path / "parts", schema, name="later") == 2
    assert "its folder says day=later, which is no timestamp; rename it\n" in capsys.readouterr().err
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "parts")]) == 0
    assert '"day" = { type = "string" }  # 3 folders day=...' in (tmp_path / "s.toml").read_text()


def test_parts_without_rows_are_skipped(tmp_path, capsys):
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    parquet.write_table(TABLE.slice(0, 0), tmp_path / "b.parquet")
    parquet.write_table(pa.table({"other": pa.nulls(0)}), tmp_path / "c.parquet")
    assert prepare(tmp_path, tmp_path / "[abc].parquet", PLAIN, "--on-bad-row", "skip") == 0
    assert rows_of(tmp_path / "out") == 2
    assert "without rows, skipped: b.parquet, c.parquet\n" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert prepare(tmp_path, tmp_path / "[bc].parquet", PLAIN, name="none") == 2
    assert "b.parquet: has no rows; leave it out" in capsys.readouterr().err


FILES = 'by = "file"\ntrain = "train*.csv"\nvalidation = "valid/*"\ntest = ["t1.csv", "t2*"]'
BY_FILE = PLAIN.replace('by = "random"', FILES)


def test_splits_may_be_files(tmp_path):
    """Each split has the rows of its files, and the vocabulary those of training alone."""
    (tmp_path / "valid").mkdir()
    for name, some in (("train-1", [1, 2]), ("train-2", [3]), ("valid/a", [1, 7]), ("t1", [8]), ("t2", [2, 2, 9])):
        (tmp_path / f"{name}.csv").write_text("click,user\n" + "".join(f"{n % 2},{n}\n" for n in some))
    assert prepare(tmp_path, tmp_path / "**" / "*.csv", BY_FILE, "--no-shuffle") == 0
    assert {split: found[0][:, 0].tolist() for split, found in load(tmp_path / "out").items()} == {
        "train": [2, 3, 4], "validation": [2, 1], "test": [1, 3, 3, 1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"valid/*"', '"t*.csv"', "t1.csv: matches patterns of two splits; change the patterns in [split] of "),
        ('"train*.csv"', '"train"', "train.csv: is in no split; change"),
        ('"t2*"', '"t2*", "u.csv"', "s.toml: no file matches 'u.csv' of [split]; give such a file, or leave it out"),
        ('"valid/*"', "3", "are not all names or patterns of files"),
        ('train = "train*.csv"', "", "split by file: write the names or patterns of the files of train,"),
        ('by = "file"', 'by = "file"\ncolumn = "user"', "split.column does not go with split.by = 'file'"),
    ],
)
def test_files_are_in_one_split_each(old, new, said, tmp_path, capsys):
    for name in ("train.csv", "t1.csv", "t2.csv", "valid/a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("click,user\n1,2\n")
    assert prepare(tmp_path, tmp_path / "**" / "*.csv", BY_FILE.replace(old, new), name="s") == 2
    assert said in capsys.readouterr().err


def test_views_of_arrow_are_read_as_usual_columns(tmp_path):
    """Polars writes them."""
    usual = {"click": [0, 1] * 20, "user": ["a", None, "b", "ccccccccccccccccccccc"] * 10, "raw": [b"x", b"y"] * 20}
    usual |= {"ids": [[1, 2], [], None, [3]] * 10, "tags": [["u", "v"], ["u"], None, []] * 10}
    views = {"user": pa.string_view(), "raw": pa.binary_view(), "ids": pa.list_view(pa.int64())}
    views["tags"] = pa.large_list_view(pa.string_view())
    kinds = {name: pa.array(values, views.get(name)) for name, values in usual.items()}
    schemas = []
    for name, columns in (("usual", usual), ("views", kinds)):
        file, schema = tmp_path / f"{name}.parquet", tmp_path / f"{name}.toml"
        parquet.write_table(pa.table(columns), file)
        assert main(["table", "--guess", "--schema", str(schema), str(file)]) == 0
        schemas.append(schema.read_text().replace(name, ""))
        text = 'label = "click"\n[categorical]\nuser = {}\nraw = {}\n[list]\nids = {longest = 2, type = "integer"}\n'
        assert prepare(tmp_path, file, text + "tags = {longest = 2}\n", *WHOLE, name=f"{name}-out") == 0
    assert schemas[0] == schemas[1]
    same(load(tmp_path / "usual-out"), load(tmp_path / "views-out"))
    shards = [read_columns(tmp_path / f"{name}-out") for name in ("usual", "views")]
    np.testing.assert_array_equal(*shards)


def read_columns(folder):
    with h5py.File(folder / "train" / "shard-00000.h5", locking=False) as shard:
        return np.concatenate([shard["list_ids"][:], shard["list_ends"][:].ravel()])


NAMES = ["geo", "geo/count", "geo%2Fcount", "geo%252Fcount", "/", "."]


def test_names_of_columns_may_have_slashes(tmp_path):
    """They are no paths in the vocabulary; earlier versions had them so, where no two met."""
    table = {name: [f"{name}{n % (f + 2)}" for n in range(40)] for f, name in enumerate(NAMES)}
    parquet.write_table(pa.table({"click": [0, 1] * 20} | table), tmp_path / "a.parquet")
    schema = 'label = "click"\n[categorical]\n' + "".join(f'"{name}" = {{}}\n' for name in NAMES)
    assert prepare(tmp_path, tmp_path / "a.parquet", schema, *WHOLE) == 0
    vocabulary = read_vocabulary(tmp_path / "out")
    assert [len(vocabulary.column(f, "token")) for f in range(len(NAMES))] == [2, 3, 4, 5, 6, 7]
    old = '[categorical]\n"geo/count" = {}\n'
    assert prepare(tmp_path, tmp_path / "a.parquet", old, "--split", "none", "--fit-on", "all", name="old") == 0
    with h5py.File(tmp_path / "old" / "vocabulary.h5", "r+") as file:
        file.move("geo%2Fcount", "geo/count")
    assert len(read_vocabulary(tmp_path / "old").column(0, "token")) == 3


def test_a_row_group_of_many_rows_is_read_in_pieces(tmp_path, monkeypatch):
    """The memory for packed rows is bounded however few bytes of the file they take."""
    monkeypatch.setattr(table_parquet, "PIECE_ROWS", 100)
    monkeypatch.setattr(table_parquet, "READ_ROWS", 70)
    monkeypatch.setattr(table_parquet, "BATCH_ROWS", 30)
    table = pa.table({"click": [n % 2 for n in range(1050)], "user": list(range(1050))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=430)
    arrow_csv.write_csv(table, tmp_path / "b.csv")
    for name in ("a.parquet", "b.csv"):
        assert prepare(tmp_path, tmp_path / name, PLAIN, *WHOLE, "--piece-bytes", "150", name=name[0]) == 0
    same(load(tmp_path / "a"), load(tmp_path / "b"))
    source = sources.open_sources([tmp_path / "a.parquet"])
    form = table_parquet.ParquetTable(read_schema(tmp_path / "a.toml"), source, 0, False)
    cut = form.count_rows(SimpleNamespace(sources=source, options=SimpleNamespace(piece_bytes=150)))
    assert [rows for _, rows in cut] == [100, 100, 100, 100, 30] * 2 + [100, 90]
    groups = replace(form._pieces(source[0], 150)[-1], rows=2**60)
    with pytest.raises(RawDataError, match=r"damaged Parquet file .* rows fewer than it says"):
        list(form.batches(source[0], groups))
