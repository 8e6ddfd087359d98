"""The output folder: nothing foreign is removed, nothing of another run is taken for one's own, one job at a time."""

import errno
import fcntl
import json
import shutil

import pytest
from faults import io_error

from data_prep.cli import main
from ssmpi.data import hdf5_file
from ssmpi.data.schema import read_manifest


def text(rows, start=0):
    """Labelled rows that differ."""
    ids = "\t".join(f"{f:08x}" for f in range(25))
    return "".join(f"{i % 2}" + f"\t{i}" * 13 + f"\t{i:x}\t{ids}\n" for i in range(start, start + rows))


def criteo(raw, out, *more):
    return main(["criteo", str(raw), "-o", str(out), *map(str, more)])


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.txt"
    path.write_text(text(70))
    return path


@pytest.fixture
def whole(raw, tmp_path):
    assert criteo(raw, tmp_path / "out") == 0
    return tmp_path / "out"


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_raw_file_called_as_a_split_is_not_removed(tmp_path, capsys):
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "train").write_text(text(70))
    for more in ([], ["--overwrite"]):
        assert criteo(folder / "train", folder, *more) == 2
        assert "holds 'train', which is not of a prepared data set" in capsys.readouterr().err
    assert (folder / "train").read_text() == text(70)


@pytest.mark.parametrize("name", ["", "vocabulary.h5"])
def test_the_vocabulary_that_a_run_needs_is_not_overwritten(raw, whole, name, capsys):
    before = files(whole)
    assert criteo(raw, whole, "--vocabulary", whole / name, "--overwrite") == 2
    assert f"--overwrite would remove {whole / name}" in capsys.readouterr().err
    assert files(whole) == before


def test_a_linked_split_is_left_alone_before_anything_is_removed(raw, whole, tmp_path, capsys):
    (whole / "train").rename(tmp_path / "elsewhere")
    (whole / "train").symlink_to(tmp_path / "elsewhere")
    before = files(whole)
    assert criteo(raw, whole, "--overwrite") == 2
    assert f"{whole / 'train'}: is a symbolic link" in capsys.readouterr().err
    assert files(whole) == before
    assert criteo(raw, whole) == 0, "a linked split is whole all the same"


def test_overwrite_removes_nothing_while_another_job_is_at_work(raw, whole, capsys):
    (whole / "manifest.json").unlink()
    (whole / ".prepare").mkdir()
    with (whole / ".prepare" / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = files(whole)
        assert criteo(raw, whole, "--overwrite") == 2
        assert "another ssmpi-prepare is using this folder" in capsys.readouterr().err
        assert files(whole) == before
    assert criteo(raw, whole, "--overwrite") == 0


def test_work_of_which_nobody_knows_the_arguments_is_not_resumed(raw, tmp_path, monkeypatch):
    out, other = tmp_path / "out", tmp_path / "other.txt"
    with monkeypatch.context() as patch:
        patch.setattr("data_prep.passes.fit_vocabulary", lambda *unused: exit("killed after pass 1"))
        with pytest.raises(SystemExit):
            criteo(raw, out)
    (out / ".prepare" / "plan.json").unlink()  # a removal was killed: it is not known how far it came
    other.write_text(text(70, start=500))
    assert criteo(other, out) == 0
    assert criteo(other, tmp_path / "fresh") == 0
    assert read_manifest(out) == read_manifest(tmp_path / "fresh")


def test_a_removal_that_is_killed_leaves_nothing_to_resume(raw, whole, monkeypatch, capsys):
    work = whole / ".prepare"
    work.mkdir()
    (work / "plan.json").write_text(json.dumps({}))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *unused, **also: exit("killed at the first folder"))
        with pytest.raises(SystemExit):
            criteo(raw, whole, "--overwrite")
    assert not (whole / "manifest.json").exists()
    assert not (work / "plan.json").exists()
    assert criteo(raw, whole) == 2
    assert "no plan to resume by" in capsys.readouterr().err
    assert criteo(raw, whole, "--overwrite") == 0


def test_a_job_that_finds_a_whole_folder_leaves_the_work_of_another(raw, whole, monkeypatch):
    from data_prep import passes as module

    real = module.whole_digest

    def digest(*arguments):  # meanwhile another job begins to overwrite the folder
        (whole / ".prepare").mkdir(exist_ok=True)
        (whole / ".prepare" / "plan.json").write_text("{}")
        return real(*arguments)

    monkeypatch.setattr(module, "whole_digest", digest)
    assert criteo(raw, whole) == 0
    assert (whole / ".prepare" / "plan.json").exists()


def test_a_whole_folder_needs_no_disk(tmp_path, monkeypatch, capsys):
    raw, out = tmp_path / "many.txt", tmp_path / "out"
    raw.write_text(text(3000))
    assert criteo(raw, out) == 0
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    assert criteo(raw, out) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert criteo(raw, out, "--overwrite") == 2
    assert "of disk" in capsys.readouterr().err
    assert (out / "manifest.json").exists()


def test_a_file_system_without_locks_is_told_and_used(raw, tmp_path, inject, capsys):
    inject(fcntl, "flock", io_error(errno.ENOLCK))
    assert criteo(raw, tmp_path / "out") == 0
    assert "no locks on this file system (No locks available)" in capsys.readouterr().out


def test_hdf5_locks_no_file_that_it_writes(tmp_path):
    """It would fail where the file system has no locks."""
    with hdf5_file.create(tmp_path / "a.h5", 0), (tmp_path / "a.h5").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
