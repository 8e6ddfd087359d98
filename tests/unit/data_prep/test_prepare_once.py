"""Rows of a table are read once and kept for the next pass, where there is room: the same shards as of reading them
again, whatever ends a preparation in between.
"""

import threading

import pytest
from strength import one_at_a_time
from test_prepare_keys import ONCE
from test_prepare_table import BY_TIME, FOLDS, ROWS, SMALL, content, prepare, write_csv, write_parquet

from data_prep import passes
from data_prep.cli import main
from data_prep.options import PrepareOptions
from data_prep.ranks import Ranks
from data_prep.shards import scatter
from data_prep.table import command
from data_prep.table.format import TableFormat
from data_prep.table.parquet import ParquetTable
from data_prep.table.text import TextTable
from data_prep.vocabulary import scan
from ssmpi.data.schema import read_manifest

RANDOM = '[split]\nby = "random"\nshares = [0.6, 0.2, 0.2]\n'
HASHED = ONCE.replace('user = "integer"', 'user = {hash = 50, type = "integer"}').replace(
    "min_count = 2", "hash = true"
)


@pytest.fixture
def opened(monkeypatch):
    """The pieces of raw files that were read, in order."""
    pieces = []
    for table in (TextTable, ParquetTable):
        monkeypatch.setattr(table, "open_pieces", spied(table.open_pieces, pieces))
    return pieces


def spied(open_pieces, pieces):
    def spy(*arguments):
        for opened in open_pieces(*arguments):
            pieces.append(opened.piece)
            yield opened

    return spy


@pytest.mark.parametrize(
    ("name", "split"), one_at_a_time(["a.csv", "a.csv.gz", "a.parquet"], ["", BY_TIME, FOLDS, RANDOM])
)
def test_the_rows_are_those_of_two_passes(name, split, tmp_path, monkeypatch, opened, capsys):
    file = (write_parquet if name == "a.parquet" else write_csv)(tmp_path / name)
    assert prepare(tmp_path, file, ONCE + split, *SMALL, "--hash") == 0
    assert "the files are read once" in capsys.readouterr().out
    once = opened.copy()
    assert len(set(once)) == len(once)
    monkeypatch.setattr(TableFormat, "kept_bytes", lambda self, sources: 0)
    opened.clear()
    assert prepare(tmp_path, file, ONCE + split, *SMALL, "--hash", name="twice") == 0
    assert "the files are read twice: to check all rows; to encode" in capsys.readouterr().out
    assert sorted(opened) == sorted(once * 2)
    assert content(tmp_path / "twice") == content(tmp_path / "out")
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_raw_files_may_be_gone_once_they_are_read(tmp_path, monkeypatch):
    file, real = write_csv(tmp_path / "a.csv.gz"), passes.scatter
    assert prepare(tmp_path, file, HASHED, *SMALL) == 0

    def gone(*arguments):
        file.rename(tmp_path / "gone")
        return real(*arguments)

    monkeypatch.setattr(passes, "scatter", gone)
    assert prepare(tmp_path, file, HASHED, *SMALL, name="again") == 0
    assert content(tmp_path / "again") == content(tmp_path / "out")


def test_what_needs_all_rows_is_named(tmp_path, monkeypatch, opened, capsys):
    file = write_csv(tmp_path / "a.csv")
    standardized = ONCE.replace('"log1p"', '"standardize"', 1)
    assert prepare(tmp_path, file, standardized + BY_TIME, "--hash") == 0
    assert "rows are kept on disk: to encode them needs mean and deviation of price" in capsys.readouterr().out
    assert len(opened) == 1
    assert prepare(tmp_path, file, ONCE, name="b") == 0
    said = "kept on disk: their rows are counted first; to encode them needs the vocabulary of user, item"
    assert said in capsys.readouterr().out
    opened.clear()
    further = ("--vocabulary", str(tmp_path / "b"), "--split", "none", "--split-name", "test")
    assert prepare(tmp_path, file, ONCE, *further, name="c") == 0
    assert "the files are read once" in capsys.readouterr().out
    assert len(opened) == 1
    monkeypatch.setattr(TableFormat, "kept_bytes", lambda self, sources: 0)
    assert prepare(tmp_path, file, ONCE, name="d") == 0
    said = "the files are read twice: their rows are counted first; for the vocabulary of user, item; to encode"
    assert said in capsys.readouterr().out
    assert prepare(tmp_path, file, ONCE, "--on-bad-row", "skip", name="e") == 0
    said = "read three times: to count good rows and so find the training rows; for the vocabulary of user, item; to"
    assert said in capsys.readouterr().out
    assert content(tmp_path / "e")["vocabulary.h5"] == content(tmp_path / "b")["vocabulary.h5"]


def test_the_vocabulary_of_hashes_depends_on_no_row(tmp_path):
    """So that a model of one day scores the next one."""
    for name, rows in (("a", ROWS[:200]), ("b", ROWS[200:])):
        assert prepare(tmp_path, write_csv(tmp_path / f"{name}.csv", rows), HASHED, *SMALL, name=name) == 0
    assert content(tmp_path / "a")["vocabulary.h5"] == content(tmp_path / "b")["vocabulary.h5"]


@pytest.mark.parametrize("kill", ["while pieces are read", "while they are grouped"])
def test_a_preparation_killed_at_any_piece_is_resumed(kill, tmp_path, monkeypatch):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, HASHED + RANDOM, *SMALL, name="alone") == 0
    monkeypatch.setattr(scan, "PIECES_PER_RUN", 2)
    where, function = (scan, "_scan_piece") if kill == "while pieces are read" else (scatter.Grouping, "save")
    real, allowed = getattr(where, function), iter([])

    def limited(*arguments):
        if next(allowed, None) is None:
            exit("killed")
        return real(*arguments)

    monkeypatch.setattr(where, function, limited)
    for pieces in range(3):
        allowed = iter(range(pieces))
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, HASHED + RANDOM, *SMALL)
    allowed = iter(range(3 if kill == "while pieces are read" else 2))  # of 5 pieces: two are durable, or three
    assert prepare(tmp_path, file, HASHED + RANDOM, *SMALL) == 0
    assert content(tmp_path / "out") == content(tmp_path / "alone")


class ThreadRanks(Ranks):
    """Ranks that are threads of this process."""

    def __init__(self, rank, meeting, values):
        self.rank, self.size, self._meeting, self._values = rank, len(values), meeting, values

    def allgather(self, value):
        self._values[self.rank] = value
        self._meeting.wait(60)
        found = list(self._values)
        self._meeting.wait(60)
        return found

    def barrier(self):
        self._meeting.wait(60)


def prepare_on(ranks, schema, file, output, **options):
    meeting, values = threading.Barrier(ranks), [None] * ranks
    options = PrepareOptions(output, piece_bytes=4000, shard_rows=90, fit_on="train", **options)
    threads = [
        threading.Thread(target=command.prepare, args=(schema, [file], options, ThreadRanks(r, meeting, values)))
        for r in range(ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_any_number_of_ranks_gives_the_same_bytes(ranks, tmp_path):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, HASHED, *SMALL, name="alone") == 0
    prepare_on(ranks, tmp_path / "alone.toml", file, tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "alone")
    assert read_manifest(tmp_path / "out") == read_manifest(tmp_path / "alone")
