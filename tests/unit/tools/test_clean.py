"""What nobody uses any more is removed from memory, and nothing else."""

import errno
import gc
import os
import shutil
from pathlib import Path

import pytest

from ssmpi.comm.memory_file import MemoryFile, Origin
from ssmpi.comm.memory_use import runs_of
from ssmpi.comm.rank_memory import Note
from ssmpi.core.errors import DataError
from ssmpi.files.run_files import RUN_FILE, VERSIONS
from ssmpi.host import memory_folder
from ssmpi.run.run_lock import LaunchLock
from ssmpi.tools.clean import clean


def test_only_what_no_process_uses_is_removed(tmp_path, capsys):
    folders = {name: memory_folder.of_launch(str(tmp_path), name) for name in ("left", "used", "starting")}
    other = tmp_path / f"ssmpi-{os.geteuid() + 1}-other"
    for folder in (folders["left"], folders["starting"], other):
        folder.mkdir(mode=0o700)
        (folder / "trainer-0").write_bytes(b"left")
    used = MemoryFile(folders["used"] / "trainer-0", Origin("used", "trainer 0", 1))
    begun = []

    def start(seconds):
        """The next start of a job maps its memory meanwhile."""
        begun.append(MemoryFile(folders["starting"] / "embedding_ps-0", Origin("starting", "embedding_ps 0", 2)))

    assert clean(tmp_path, start) == 0
    assert {path.name for path in tmp_path.iterdir()} == {folders["used"].name, folders["starting"].name, other.name}
    assert f"removed: {folders['left']}" in capsys.readouterr().out
    assert used.path.exists()
    clean(tmp_path, lambda seconds: None)
    assert "nothing in" in capsys.readouterr().out


def test_memory_stays_between_two_starts_that_are_minutes_apart(tmp_path, capsys):
    """Its launch holds the run meanwhile. Afterwards it is what that launch has left."""
    (run := tmp_path / "run").mkdir()
    for name in (RUN_FILE, VERSIONS):
        (run / name).touch()
    memory = MemoryFile(
        memory_folder.of_launch(str(tmp_path), "launch") / "trainer-0", Origin("launch", "trainer 0", 1)
    )
    memory.note(Note.RUN, str(run))
    folder = memory.path.parent
    del memory  # its process was killed
    gc.collect()
    lock = LaunchLock(run)
    assert clean(tmp_path, lambda seconds: None) == 0
    assert folder.exists()
    lock.release()
    assert clean(tmp_path, lambda seconds: None) == 0
    assert not folder.exists()


def test_a_folder_that_cannot_be_removed_is_named_and_the_others_go(tmp_path, capsys, monkeypatch):
    """As one in which something is mounted."""
    busy, other = (memory_folder.of_launch(str(tmp_path), name) for name in ("busy", "other"))
    for folder in (busy, other):
        (folder / "mounted").mkdir(parents=True)
        (folder / "trainer-0").write_bytes(b"left")
    removed = os.rmdir

    def rmdir(path, *, dir_fd=None):
        if Path(f"/proc/self/fd/{dir_fd}").resolve() / path == busy / "mounted":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        removed(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    assert clean(tmp_path, lambda seconds: None) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {busy}: cannot be removed ([Errno {errno.EBUSY}] ")
    assert said.err.count("\n") == 1
    assert f"removed: {other}" in said.out
    assert [path.name for path in busy.iterdir()] == ["mounted"]


def test_a_memory_file_system_that_is_not_there_is_no_success(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        clean(tmp_path / "nowhere")


def test_what_vanishes_meanwhile_is_no_error(tmp_path, capsys, monkeypatch):
    """A run ends, and its ranks remove their memory: before its folder is looked into, between two files, and in the
    minute in between. A folder in there is none of a rank's files.
    """
    names = ("gone", "going", "later", "left")
    gone, going, later, left = folders = [memory_folder.of_launch(str(tmp_path), name) for name in names]
    for folder in folders:
        (folder / "session").mkdir(parents=True)
        (folder / "trainer-0").write_bytes(b"left")
    opened = os.open

    def open_late(path, *how, **more):
        if path == going / "trainer-0":
            shutil.rmtree(going)
        return opened(path, *how, **more)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(memory_folder, "all_in", lambda memory: [*folders])
    shutil.rmtree(gone)
    assert clean(tmp_path, lambda seconds: shutil.rmtree(later)) == 0
    assert not left.exists()
    said = capsys.readouterr().out
    assert f"removed: {left} (0.0 MB)" in said
    assert all(f"gone meanwhile: {folder}" in said for folder in (gone, going, later))


def test_a_launch_whose_folder_vanishes_while_all_are_listed_is_none(tmp_path, monkeypatch):
    (left := memory_folder.of_launch(str(tmp_path), "left")).mkdir()
    missing = memory_folder.of_launch(str(tmp_path), "gone")
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [left, missing])
    assert memory_folder.all_in(tmp_path) == [left]


def test_notes_of_earlier_versions_are_no_run_folders(tmp_path):
    (tmp_path / "trainer-0.run.json").write_text('{"evaluated": 0}')
    (tmp_path / "trainer-1.run.json").write_text('"/runs/one"')
    assert runs_of(tmp_path) == {Path("/runs/one")}
