"""Disks that fill up or fail: one message with the file and exit code 2, and started again it goes on."""

import errno
import gzip

import numpy as np
import pytest
from faults import broken_disk
from full_disk import full_disk
from test_prepare_output_folder import text

from data_prep import passes as module
from data_prep.cli import main
from data_prep.criteo import prepare
from data_prep.files import save_array
from data_prep.options import PrepareOptions
from data_prep.ranks import Ranks
from data_prep.raw.text_stream import TextStream
from data_prep.vocabulary import encoding
from data_prep.vocabulary.token_tables import LAYOUT
from ssmpi.data import hdf5_file
from ssmpi.runtime.errors import DataError

LOOKUP = f"lookup-{LAYOUT}"


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.txt"
    path.write_text(text(70))
    return path


FULL = [
    ("fit_vocabulary", 800, "vocabulary.h5"),
    ("shared", 200, f".prepare/{LOOKUP}/0.npy"),
    ("scatter", 500, ".prepare/pieces/piece-0000-000000.rows"),
    ("write_shards", 9000, "train/shard-00000.h5"),
]


@pytest.mark.parametrize(("step", "left", "name"), FULL)
def test_a_full_disk_is_said_with_the_file(step, left, name, raw, tmp_path, monkeypatch, capfd):
    out, real = tmp_path / "out", getattr(module, step)

    def reserve(handle, size):
        assert size > left
        raise OSError(errno.ENOSPC, "No space left on device")

    def limited(*arguments):
        patch.setattr(hdf5_file, "_reserve", reserve)  # a limit of file sizes does not fill the disk
        with full_disk(left):
            return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, limited)
        patch.setattr(encoding, "lookup_bytes", lambda tokens: 1 << 40)  # so large that tables go to files
        assert main(["criteo", str(raw), "-o", str(out)]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {out / name}: ")
    assert error.count("\n") == 1
    assert "free space" in error
    assert not (out / "manifest.json").exists()
    assert main(["criteo", str(raw), "-o", str(out)]) == 0
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize(("entries", "left"), [(16, 200), (2000, 8000)])
def test_an_array_that_is_cut_is_an_error(entries, left, tmp_path):
    """NumPy leaves the last 4 KiB to a buffer whose errors it does not look at."""
    with pytest.raises(OSError, match="File too large"), full_disk(left):
        save_array(tmp_path / "a.npy", np.arange(entries))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("array", [np.arange(7), np.zeros((3, 0)), np.arange(12, dtype="<u2").reshape(3, 4).T])
def test_arrays_are_saved_as_numpy_saves_them(array, tmp_path):
    save_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    assert np.load(tmp_path / "a.npy").dtype == array.dtype


def test_temporary_rows_that_are_cut_are_named_and_made_again(raw, tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "out", module.write_shards
    rows = out / ".prepare" / "pieces" / "piece-0000-000000.rows"

    def cut(*arguments):
        rows.write_bytes(rows.read_bytes()[:-3])
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_shards", cut)
        assert main(["criteo", str(raw), "-o", str(out)]) == 2
    assert f"error: {rows}: the file ends 3 bytes too early" in capsys.readouterr().err
    assert main(["criteo", str(raw), "-o", str(out)]) == 0
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize("name", ["day_0", "day_0.gz"])
def test_a_raw_file_that_cannot_be_read_is_named(name, tmp_path, inject, capsys):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text(9).encode()) if path.suffix else text(9).encode())

    inject(TextStream, "_read_into", broken_disk)  # without a file name, as the system's errors are
    assert main(["criteo", str(path), "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path}: Input/output error; check")


def test_a_program_can_try_again(raw, tmp_path, monkeypatch):
    options = PrepareOptions(tmp_path / "out")
    with monkeypatch.context() as patch, full_disk(1 << 30):
        patch.setattr(module, "scatter", lambda *unused: Ranks().together(lambda: raw.with_name("gone").stat()))
        with pytest.raises(DataError, match="gone") as kept:
            prepare([raw], options, Ranks())
    assert prepare([raw], options, Ranks()).splits, f"the lock is kept by {kept}"


def test_what_is_no_longer_needed_is_removed(raw, tmp_path, monkeypatch):
    work, real, found = tmp_path / "out" / ".prepare", module.write_shards, {}

    def spy(*arguments):
        found.update({name: (work / name).exists() for name in (LOOKUP, "merged", "pieces")})
        return real(*arguments)

    monkeypatch.setattr(module, "write_shards", spy)
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out")]) == 0
    assert found == {LOOKUP: False, "merged": False, "pieces": True}


def test_tables_that_an_earlier_version_left_when_it_was_killed_are_not_read(raw, tmp_path, monkeypatch):
    """They were arrays uint64 (slots,), in a folder of that name."""
    out, left = tmp_path / "out", tmp_path / "out" / ".prepare" / "lookup"
    monkeypatch.setattr(encoding, "lookup_bytes", lambda tokens: 1 << 40)  # so large that tables go to files
    with monkeypatch.context() as patch:
        patch.setattr(module, "shared", lambda *unused: exit("killed"))
        with pytest.raises(SystemExit, match="killed"):
            main(["criteo", str(raw), "-o", str(out)])
    left.mkdir()
    for feature in range(26):
        save_array(left / f"{feature}.npy", np.zeros(1 << 10, np.uint64))
    assert main(["criteo", str(raw), "-o", str(out)]) == 0
    assert main(["criteo", str(raw), "-o", str(tmp_path / "whole")]) == 0
    assert load_whole(out) == load_whole(tmp_path / "whole")


def load_whole(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.h5")}
