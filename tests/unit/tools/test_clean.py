"""What nobody uses any more is removed from memory, and nothing else."""

import errno
import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.run_files import RUN_FILE, VERSIONS
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.memory_folder import runs_of
from ssmpi.runtime.mpi import rank_memory
from ssmpi.runtime.mpi.rank_memory import MemoryFile, Origin
from ssmpi.state.run_lock import LaunchLock
from ssmpi.tools.clean import clean

LEFT = bytes(rank_memory.KEY) + rank_memory.MAGIC + b"and so on"


@pytest.fixture
def memory():
    """A folder in a memory file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_only_what_no_process_uses_is_removed(memory, capsys):
    folders = {name: memory_folder.of_launch(str(memory), name) for name in ("left", "used", "starting")}
    other = memory / f"ssmpi-{os.geteuid() + 1}-other"
    for folder in (folders["left"], folders["starting"], other):
        folder.mkdir(mode=0o700)
        (folder / "trainer-0").write_bytes(LEFT)
    used = MemoryFile(folders["used"] / "trainer-0", Origin("used", "trainer 0", 1))
    begun = []

    def start(seconds):
        """The next start of a job maps its memory meanwhile."""
        begun.append(MemoryFile(folders["starting"] / "embedding_ps-0", Origin("starting", "embedding_ps 0", 2)))

    assert clean(memory, start) == 0
    assert {path.name for path in memory.iterdir()} == {folders["used"].name, folders["starting"].name, other.name}
    assert f"removed: {folders['left']}" in capsys.readouterr().out
    assert used.path.exists()
    clean(memory, lambda seconds: None)
    assert "nothing in" in capsys.readouterr().out


def test_memory_stays_between_two_starts_that_are_minutes_apart(memory, capsys):
    """Its launch holds the run meanwhile. Afterwards it is what that launch has left."""
    (run := memory / "run").mkdir()
    for name in (RUN_FILE, VERSIONS):
        (run / name).touch()
    file = MemoryFile(memory_folder.of_launch(str(memory), "launch") / "trainer-0", Origin("launch", "trainer 0", 1))
    file.note(run=str(run))
    folder = file.path.parent
    del file  # its process was killed
    gc.collect()
    lock = LaunchLock(run)
    assert clean(memory, lambda seconds: None) == 0
    assert folder.exists()
    lock.release()
    assert clean(memory, lambda seconds: None) == 0
    assert not folder.exists()


def test_a_folder_that_cannot_be_removed_is_named_and_the_others_go(memory, capsys, monkeypatch):
    busy, other = (memory_folder.of_launch(str(memory), name) for name in ("busy", "other"))
    for folder in (busy, other):
        folder.mkdir()
        (folder / "trainer-0").write_bytes(LEFT)
    removed = os.rmdir

    def rmdir(path, *, dir_fd=None):
        if path == busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        removed(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    assert clean(memory, lambda seconds: None) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {busy}: cannot be removed ([Errno {errno.EBUSY}] ")
    assert said.err.count("\n") == 1
    assert f"removed: {other}" in said.out
    assert busy.is_dir()


def test_a_memory_file_system_that_is_not_there_is_no_success(memory):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        clean(memory / "nowhere")


def test_what_vanishes_meanwhile_is_no_error(memory, capsys, monkeypatch):
    """A run ends, and its ranks remove their memory: before its folder is looked into, between two files, and in the
    minute in between.
    """
    names = ("gone", "going", "later", "left")
    gone, going, later, left = folders = [memory_folder.of_launch(str(memory), name) for name in names]
    for folder in folders:
        folder.mkdir()
        (folder / "trainer-0").write_bytes(LEFT)
    opened = os.open

    def open_late(path, *how, **more):
        if path == going / "trainer-0":
            shutil.rmtree(going)
        return opened(path, *how, **more)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(memory_folder, "all_in", lambda memory: [*folders])
    shutil.rmtree(gone)
    assert clean(memory, lambda seconds: shutil.rmtree(later)) == 0
    assert not left.exists()
    said = capsys.readouterr().out
    assert f"removed: {left} (0.0 MB)" in said
    assert all(f"gone meanwhile: {folder}" in said for folder in (gone, going, later))


def test_a_launch_whose_folder_vanishes_while_all_are_listed_is_none(memory, monkeypatch):
    (left := memory_folder.of_launch(str(memory), "left")).mkdir()
    missing = memory_folder.of_launch(str(memory), "gone")
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [left, missing])
    assert memory_folder.all_in(memory) == [left]


def test_notes_of_earlier_versions_are_no_run_folders(memory):
    (memory / "trainer-0.run.json").write_text('{"evaluated": 0}')
    (memory / "trainer-1.run.json").write_text('"/runs/one"')
    (memory / "trainer-2.notes.json").write_text('{"run": "/runs/two", "begun": 1}')
    assert runs_of(memory) == {Path("/runs/one"), Path("/runs/two")}


def test_what_other_hosts_may_use_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_folder, "file_system", lambda folder: memory_folder.FileSystem("nfs4", 9, 9))
    with pytest.raises(DataError, match="a folder of nfs4, where other hosts may use what lies in it; name recovery"):
        clean(tmp_path)


def test_what_no_rank_has_made_stays(memory, tmp_path, capsys):
    """A folder of the user's own may have such a name, on a disk and in memory."""
    own = [memory_folder.of_launch(str(folder), "mine") for folder in (memory, tmp_path)]
    names = "thesis/a.txt", "trainer-0", "notes"
    left = memory_folder.of_launch(str(memory), "left")
    left.mkdir()
    for name in ("launcher", "trainer-0.run.json", ".sync_ps-1.row saves.json", "sm_segment.h.0.1"):
        (left / name).touch()
    (left / "embedding_ps-12").write_bytes(LEFT)
    for folder in own:
        (folder / "thesis").mkdir(parents=True)
        (folder / names[0]).write_text("a")
    for name in names[1:]:
        (each := memory_folder.of_launch(str(memory), name)).mkdir()
        (each / name).write_text("by hand")
    (link := memory_folder.of_launch(str(memory), "link")).symlink_to(own[1])
    stored = memory_folder.of_launch(str(tmp_path), "stored")
    stored.mkdir()
    (stored / "embedding_ps-0").write_bytes(LEFT)  # rows on disk
    assert clean(memory, lambda seconds: None) == clean(tmp_path, lambda seconds: None) == 0
    said = capsys.readouterr().out
    for folder in (left, stored):
        assert f"removed: {folder} " in said
        assert not folder.exists()
    for folder in own:
        assert f"kept: {folder} holds thesis, which is not of a rank" in said
    assert all((folder / names[0]).read_text() == "a" for folder in (*own, link))
    assert all((memory_folder.of_launch(str(memory), name) / name).read_text() == "by hand" for name in names[1:])
