"""Raw files that change while they are read, and ranks that do not see the same files: no row is lost or made up."""

import os

import pytest
from test_prepare_output_folder import text

from data_prep import passes as module
from data_prep.cli import main
from data_prep.criteo import prepare
from data_prep.options import PrepareOptions
from data_prep.ranks import Ranks
from data_prep.vocabulary import fit, scan
from ssmpi.runtime.errors import DataError


def same_size(raw):
    raw.write_text(text(70, start=400))  # other rows, as many bytes


def longer(raw):
    with raw.open("a") as file:
        file.write(text(3, start=400))


def shorter(raw):
    os.truncate(raw, raw.stat().st_size // 2)


CHANGES = [
    ("scan", longer, []),
    ("fit_vocabulary", same_size, ["--fit-on", "train"]),
    ("fit_vocabulary", shorter, ["--fit-on", "train"]),
    ("scatter", same_size, []),
    ("scatter", longer, ["--on-bad-row", "skip"]),
    ("scatter", shorter, []),
]


@pytest.mark.parametrize(("step", "change", "more"), CHANGES)
def test_a_file_that_changes_before_a_step_is_refused(step, change, more, tmp_path, monkeypatch, capsys):
    raw, out = tmp_path / "raw.txt", tmp_path / "out"
    raw.write_text(text(70, start=300))
    real, at = getattr(module, step), raw.stat().st_mtime_ns

    def changed(*arguments):
        change(raw)
        os.utime(raw, ns=(at, at))
        return real(*arguments)

    monkeypatch.setattr(module, step, changed)
    assert main(["criteo", str(raw), "-o", str(out), "--piece-bytes", "3000", *more]) == 2
    assert f"error: {raw}: changed since the job began" in capsys.readouterr().err
    assert not out.exists()


def test_records_of_another_rank_that_are_not_seen_are_not_left_out(tmp_path, monkeypatch, capsys):
    raw = tmp_path / "raw.txt"
    raw.write_text(text(70))
    real = scan.read_runs

    def half(folder):  # as on a host whose ranks write to a disk of their own
        found = real(folder)
        return scan.ScanResult(found.records[::2], found.parts)

    monkeypatch.setattr(scan, "read_runs", half)
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), "--piece-bytes", "3000"]) == 2
    assert "file system that all ranks share" in capsys.readouterr().err
    monkeypatch.undo()
    assert fit.scan is scan.scan
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), "--piece-bytes", "3000"]) == 0, "it is resumed"


def test_ranks_that_see_other_files_are_refused(tmp_path):
    raw = tmp_path / "raw.txt"
    raw.write_text(text(70))

    class Two(Ranks):
        """Rank 0 of two, and what rank 1 says."""

        size = 2

        def allgather(self, value):
            if value == [("raw.txt", raw.stat().st_size)]:
                return [value, [("raw.txt", 7)]]
            return [value, None]

    with pytest.raises(
        DataError, match=r"raw.txt: 7 bytes .* on rank 1, .* on rank 0; give raw files that are the same"
    ):
        prepare([raw], PrepareOptions(tmp_path / "out"), Two())
    assert not (tmp_path / "out").exists()
