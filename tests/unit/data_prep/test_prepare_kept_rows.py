"""Rows of Parquet files are decoded once and kept for the next pass: the same shards as of decoding them again."""

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_disk_in
from strength import one_at_a_time
from test_prepare_lists import COLUMNS as WITH_LISTS
from test_prepare_lists import write_parquet as write_lists
from test_prepare_table import BY_TIME, COLUMNS, FOLDS, ROWS, SMALL, change, content, prepare, write_csv, write_parquet

from data_prep import kept_rows, passes
from data_prep.kept_rows import RowFile
from data_prep.rows import Rows, Tokens
from data_prep.shards import needs
from data_prep.table.parquet import ParquetTable
from data_prep.table.text import TextTable
from ssmpi.data.schema import read_manifest

BY_ROWS = COLUMNS.replace('time = "day"', "")


def block(rows, generator, dictionary, *, whole):
    """Rows with one column of integers (``whole``) or fractions, one of float64, codes and plain tokens."""
    dense = generator.random((2, rows))
    if whole:
        dense[0] = generator.integers(-5, 2**24, rows)
    dense[:, generator.random(rows) < 0.3] = np.nan
    plain = Tokens(generator.integers(0, 2**64, rows, np.uint64), generator.integers(0, 2, rows, np.uint8))
    coded = Tokens(*dictionary, codes=generator.integers(0, len(dictionary[0]), rows, np.int32))
    label = generator.integers(0, 2, rows, np.uint8)
    return Rows(label, dense, [plain, coded], generator.integers(0, 3, rows, np.uint8), only_train=True)


def kept_in(file, blocks):
    """What a file took of blocks."""
    return list(file.write((rows, number) for number, rows in enumerate(blocks)))


def test_rows_come_back_as_they_were(tmp_path):
    generator = np.random.default_rng(1)
    words = [(generator.integers(0, 2**64, n, np.uint64), generator.integers(0, 2, n, np.uint8)) for n in (3, 255, 300)]
    sizes = [(7, 0), (500, 0), (0, 1), (1, 1), (300, 2), (4, 0)]  # rows, and of which words
    blocks = [block(rows, generator, words[of], whole=rows % 2 == 1) for rows, of in sizes]
    file = RowFile(tmp_path / "rows")
    assert [rows for rows, _ in kept_in(file, blocks)] == blocks
    found = list(file.read())
    assert [taken for _, taken in found] == list(range(len(blocks)))
    for (new, _), old in zip(found, blocks, strict=True):
        assert (new.times, new.only_train) == (None, True)
        for name in ("label", "split", "dense"):
            assert getattr(new, name).dtype == getattr(old, name).dtype
            np.testing.assert_array_equal(getattr(new, name), getattr(old, name))
        for one, other in zip(new.tokens, old.tokens, strict=True):
            assert (one.codes is None) == (other.codes is None)
            for name in ("values", "missing", *["codes"] * (one.codes is not None)):
                assert getattr(one, name).dtype == getattr(other, name).dtype
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert found[1][0].tokens[1].values is found[0][0].tokens[1].values, "a dictionary is written once"


def test_a_file_takes_no_more_blocks_once_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_rows, "FILE_BYTES", 10_000)
    generator, words = np.random.default_rng(1), (np.arange(4, dtype=np.uint64), np.zeros(4, np.uint8))
    file = RowFile(tmp_path / "rows")
    assert 1 < len(kept_in(file, (block(100, generator, words, whole=True) for _ in range(20)))) < 20
    assert file.full


def test_files_that_are_cut_are_an_error_with_their_name(tmp_path):
    generator, file = np.random.default_rng(2), RowFile(tmp_path / "rows")
    kept_in(file, [block(9, generator, (np.arange(4, dtype=np.uint64), np.zeros(4, np.uint8)), whole=True)])
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(OSError, match="ends too early") as said:
        list(file.read())
    assert said.value.filename == str(file.path)


@pytest.fixture
def decoded(monkeypatch):
    """The pieces that were decoded, in order."""
    found, real = [], ParquetTable.batches
    monkeypatch.setattr(
        ParquetTable, "batches", lambda table, source, groups: found.append(groups.first) or real(table, source, groups)
    )
    return found


@pytest.mark.parametrize(
    ("more", "split"), one_at_a_time([[], ["--on-bad-row", "skip"], ["--fit-on", "all"]], ["", BY_TIME, FOLDS])
)
def test_each_piece_is_decoded_once_for_the_same_bytes(split, more, tmp_path, monkeypatch, decoded, capsys):
    rows = change(7, "rating", "") if more[:1] == ["--on-bad-row"] else ROWS
    file, real, kept = write_parquet(tmp_path / "a.parquet", rows), passes.scatter, []
    schema = (BY_ROWS if not split else COLUMNS) + split

    def spy(job, *others):
        kept.append(len(list(job.kept_folder.iterdir())))
        real(job, *others)
        kept.append(len(list(job.kept_folder.iterdir())))

    monkeypatch.setattr(passes, "scatter", spy)
    assert prepare(tmp_path, file, schema, *SMALL, *more) == 0
    assert "the files are read once, and their rows are kept" in capsys.readouterr().out
    once = decoded.copy()
    assert len(set(once)) == len(once) == kept[0] > 1
    assert kept[1] == 0, "rows that are encoded take no room"
    monkeypatch.setattr(passes, "scatter", real)
    monkeypatch.setattr(ParquetTable, "kept_bytes", lambda table, sources: 0)
    decoded.clear()
    assert prepare(tmp_path, file, schema, *SMALL, *more, name="again") == 0
    assert "kept" not in capsys.readouterr().out
    assert sorted(decoded) == sorted(once * (3 if more[:1] == ["--on-bad-row"] and not split else 2))
    assert content(tmp_path / "again") == content(tmp_path / "out")
    assert read_manifest(tmp_path / "again") == read_manifest(tmp_path / "out")


def test_without_room_rows_are_decoded_again(tmp_path, monkeypatch, decoded):
    file, disk = write_parquet(tmp_path / "a.parquet"), shutil.disk_usage(tmp_path)
    assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 0
    once = len(decoded)
    free = {"bytes": 0}
    monkeypatch.setattr(needs.shutil, "disk_usage", lambda path: disk._replace(free=free["bytes"]))
    reads = []
    for free["bytes"] in range(110_000, 190_000, 20_000):
        decoded.clear()
        assert prepare(tmp_path, file, BY_ROWS, *SMALL, name=f"out-{free['bytes']}") == 0
        reads.append(len(decoded))
    assert (reads[0], reads[-1]) == (2 * once, once)
    assert reads == sorted(reads, reverse=True)


@pytest.mark.parametrize("step", ["fit_vocabulary", "scatter"])
def test_rows_of_a_killed_job_are_removed(step, tmp_path, monkeypatch, decoded):
    file = write_parquet(tmp_path / "a.parquet")
    assert prepare(tmp_path, file, BY_ROWS, *SMALL, name="alone") == 0
    with monkeypatch.context() as patch:
        patch.setattr(passes, step, lambda *unused: exit("killed"))
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, BY_ROWS, *SMALL)
    rows, found = tmp_path / "out" / ".prepare" / "rows", []
    assert list(rows.iterdir())
    real, again = passes.scan, passes.scatter
    monkeypatch.setattr(passes, "scan", lambda *arguments: found.append(rows.exists()) or real(*arguments))
    monkeypatch.setattr(passes, "scatter", lambda *arguments: decoded.clear() or again(*arguments))
    assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 0
    assert found == [False]
    assert len(set(decoded)) == len(decoded) > 1
    assert content(tmp_path / "out") == content(tmp_path / "alone")


def test_tables_with_lists_are_decoded_again(tmp_path, decoded, capsys):
    assert prepare(tmp_path, write_lists(tmp_path / "a.parquet"), WITH_LISTS, *SMALL) == 0
    why = "the vocabulary of user, genres, tags, the shards of the lists of genres, tags, shops"
    assert f"the files are read twice: for {why}; to encode" in capsys.readouterr().out
    assert all(decoded.count(piece) == 2 for piece in decoded)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("writes", [0, 3])
def test_rows_that_fill_the_disk_are_read_again(writes, name, tmp_path, monkeypatch, capsys):
    """What is kept of text goes by an estimate from its first lines."""
    file, real, left = write_csv(tmp_path / name), kept_rows.atomic_file.write_all, []
    assert prepare(tmp_path, file, BY_ROWS, *SMALL, name="alone") == 0
    assert "no room for the rows" not in capsys.readouterr().out
    written = iter(range(writes))

    def limited(out, array):
        if "/rows/piece-" in str(out.name) and next(written, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(out, array)

    scatter = passes.scatter
    monkeypatch.setattr(kept_rows.atomic_file, "write_all", limited)
    monkeypatch.setattr(
        passes, "scatter", lambda job, *others: (left.extend(job.kept_folder.iterdir()), scatter(job, *others))
    )
    assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 0
    assert (left, capsys.readouterr().out.count("no room for the rows")) == ([], 1)
    assert content(tmp_path / "out") == content(tmp_path / "alone")


@pytest.mark.parametrize(("room", "gives_way"), [(110_000, False), (40_000, True)])
def test_rows_that_take_more_than_was_estimated_give_way_to_the_output(room, gives_way, tmp_path, monkeypatch, capsys):
    file, disk, out = write_csv(tmp_path / "a.csv"), shutil.disk_usage(tmp_path), tmp_path / "out"
    assert prepare(tmp_path, file, BY_ROWS, *SMALL, name="alone") == 0
    monkeypatch.setattr(TextTable, "estimated_rows", lambda table, source: 1)

    def usage(path):
        used = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
        return disk._replace(free=room - used)

    monkeypatch.setattr(needs.shutil, "disk_usage", usage)
    capsys.readouterr()
    assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 0
    assert ("no room for the rows" in capsys.readouterr().out) == gives_way
    assert content(out) == content(tmp_path / "alone")


def test_a_disk_that_rows_fill_is_said_with_the_file(tmp_path, capsys):
    file = write_parquet(tmp_path / "a.parquet")
    assert prepare(tmp_path, file, BY_ROWS, *SMALL, name="compiled") == 0  # kernels are kept on the disk too
    with full_disk_in(passes, "scan", 300):
        assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 2
    assert capsys.readouterr().err.startswith(f"error: {Path(tmp_path) / 'out' / '.prepare' / 'rows' / 'piece-0000'}")
    assert prepare(tmp_path, file, BY_ROWS, *SMALL) == 0
