"""A file appears whole or not at all, and what cannot be written is said before the work for it."""

import contextlib
import io
import itertools
import os
import re
import shutil
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from faults import no_room
from full_disk import full_disk
from runs import train_over_threads
from safetensors.numpy import save_file

from data_prep.files import save_array
from ssmpi.data import hdf5_file
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.atomic_file import WRITE_BYTES
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.topology import Role
from ssmpi.state import run_lock
from ssmpi.state.checkpoint import model_files
from ssmpi.state.checkpoint.pending_save import make_anew
from ssmpi.state.recovery import run_record
from ssmpi.tools import report
from ssmpi.tools.export import export
from ssmpi.tools.report import plot
from ssmpi.tools.report.page import drawings
from ssmpi.tools.tensor_files import SAFETENSORS, TORCH, write_safetensors, write_torch
from ssmpi.trainer.metrics.log_files import JsonlFile


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_data):
    return train_over_threads(tmp_path_factory.mktemp("run"), small_data, "topology.embedding_ps=0").folder


def files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


def model_of(folder):
    """A new model's folder beside an old one, and the old one."""
    for path in (folder / ".model.tmp", folder / "model"):
        path.mkdir()
        (path / "dense.h5").touch()
    return folder / ".model.tmp", folder / "model"


@pytest.mark.parametrize(
    "body",
    [
        lambda folder: atomic_file.write(folder / "result.json", "{}"),
        lambda folder: run_record.count_start(folder, 0),
        lambda folder: model_files.move_into_place(*model_of(folder)),
    ],
    ids=["write", "record_start", "move_into_place"],
)
def test_a_power_cut_does_not_undo_a_renaming(tmp_path, monkeypatch, body):
    """The folder is synced after the last one, and what it held before is removed only then."""
    happened, fsync = [], os.fsync

    def note(what, original):
        def noting(*arguments, **named):
            happened.append(what)
            return original(*arguments, **named)

        return noting

    def sync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path:
            happened.append("sync")
        fsync(descriptor)

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, note("rename", getattr(os, name)))
    monkeypatch.setattr(os, "rmdir", note("rmdir", os.rmdir))
    monkeypatch.setattr(os, "fsync", sync)
    body(tmp_path)
    found = [what for what, _ in itertools.groupby(happened)]
    assert found[-1] in ("sync", "rmdir")
    assert found[:2] == ["rename", "sync"]


def test_a_power_cut_does_not_undo_the_folders_of_a_run(tmp_path, monkeypatch):
    """Neither its own, nor that of its best models, whatever is synced in them."""
    synced, fsync = [], os.fsync

    def sync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    run_lock.lock(tmp_path / "runs" / "run").close()
    make_anew(tmp_path / "runs" / "run" / "best" / ".after-9.tmp")
    assert set(synced) == {tmp_path, *(tmp_path / each for each in ("runs", "runs/run", "runs/run/best"))}


def test_a_run_ends_the_same_if_cpu_times_cannot_be_written(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(log, "propagate", True)
    (tmp_path / "usage").touch()
    with cpu_usage.recorded(tmp_path, Role.TRAINER, 3):
        pass
    assert "error: no CPU times of trainer 3" in caplog.text
    assert f"File exists: '{tmp_path / 'usage'}'" in caplog.text


def test_a_full_or_failing_disk_names_the_file(tmp_path, inject):
    """Also where the system does not, and without the advice to take another name."""
    with full_disk(0), pytest.raises(OSError, match=r"too large: '.*/job\.lock'"):
        run_lock.lock(tmp_path)
    with pytest.raises(OSError, match=r"'/dev/full'"):
        JsonlFile(Path("/dev/full"), 0)
    inject(Path, "open", no_room)
    with pytest.raises(OSError, match=r"device: '.*/result\.json'"):
        atomic_file.write(tmp_path / "result.json", "{}")


@pytest.mark.parametrize(
    "body",
    [
        lambda run, out: export(run, "torch", out / "model.pt"),
        lambda run, out: export(run, "safetensors", out / "model.safetensors"),
        lambda run, out: export(run, "onnx", out / "model.onnx"),
        lambda run, out: report.write([report.read(run)], out / "report.html"),
        lambda run, out: plot(run),
        lambda run, out: save_array(out / "a.npy", np.zeros(10_000)),
        lambda run, out: atomic_file.write(out / "a.txt", "a" * 10_000),
    ],
    ids=["torch", "safetensors", "onnx", "report", "plot", "save_array", "write"],
)
def test_a_full_disk_leaves_no_part_of_a_file(run, tmp_path, monkeypatch, body):
    monkeypatch.setattr("ssmpi.tools.report.page.drawings", lambda groups: drawings(groups)[:1])  # each takes seconds
    out, copy = tmp_path / "out", Path(shutil.copytree(run, tmp_path / "run"))
    out.mkdir()
    (copy / "plot.png").write_bytes(b"the plot of before")
    before = files(tmp_path)
    with pytest.raises((OSError, UserError), match=str(tmp_path)), full_disk(2_000):
        body(copy, out)
    assert files(tmp_path) == before
    assert (copy / "plot.png").read_bytes() == b"the plot of before"


@pytest.mark.parametrize(
    ("name", "message"),
    [("folder", "is a folder"), ("missing/file", "there is no folder"), ("/proc/file", "cannot be written")],
)
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=message), atomic_file.whole(tmp_path / name):
        pytest.fail("the work has begun")
    assert files(tmp_path) == [Path("folder")]


def test_a_file_keeps_its_old_content_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    atomic_file.write(path, "old")
    with contextlib.suppress(KeyboardInterrupt), atomic_file.whole(path) as beside:
        beside.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert files(tmp_path) == [Path("file")]


def test_a_link_is_never_written_to_and_no_file_of_another_writer_removed(tmp_path, monkeypatch):
    """In /tmp another user may know the name of a file that is going to be written."""
    (victim := tmp_path / "victim").write_text("whole")
    (tmp_path / ".link.tmp").symlink_to(victim)
    (tmp_path / ".own.tmp").write_text("of the user")
    (tmp_path / ".left.00000000.tmp").symlink_to(victim)
    for name in ("link", "own", "left"):
        atomic_file.write(tmp_path / name, "new")
    monkeypatch.setattr("secrets.token_hex", lambda size: "00000000")
    with pytest.raises(UserError, match=r"left: cannot be written \(File exists\)"):
        atomic_file.write(tmp_path / "left", "newer")
    assert victim.read_text() == "whole"
    assert (tmp_path / ".own.tmp").read_text() == "of the user"
    assert (tmp_path / ".link.tmp").is_symlink()


def test_only_a_killed_writers_file_is_removed_by_the_next_one(tmp_path):
    path = tmp_path / "file"
    (left := tmp_path / ".file.0123abcd.tmp").write_text("half")
    (other := tmp_path / ".file.half.tmp").write_text("of the user")
    with atomic_file.whole(path) as beside:
        assert not left.exists()
        beside.write_text("slow")
        atomic_file.write(path, "quick")
        assert beside.read_text() == "slow"
    assert path.read_text() == "slow"
    assert files(tmp_path) == [other.relative_to(tmp_path), Path("file")]


def test_a_report_replaces_no_page_or_picture_of_others(run, tmp_path, monkeypatch):
    monkeypatch.setattr("ssmpi.tools.report.page._draw", lambda *_: pytest.fail("drew the pictures first"))
    for name in ("report.html", "report-curves.png"):
        (tmp_path / name).write_text("<!DOCTYPE html><title>mine</title>")
        with pytest.raises(UserError, match=f"{name}: is there, and not an earlier output"):
            report.write([report.read(run)], tmp_path / "report.html")
        (tmp_path / name).unlink()


def test_an_export_or_a_report_to_a_folder_is_refused_at_once(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ssmpi.state.checkpoint.model_files.load_tables", lambda *_: pytest.fail("read the model first")
    )
    for kind in ("torch", "onnx"):
        with pytest.raises(UserError, match="is a folder"):
            export(run, kind, tmp_path)
    monkeypatch.setattr("ssmpi.tools.report.page._draw", lambda *_: pytest.fail("drew the pictures first"))
    with pytest.raises(UserError, match="is a folder"):
        report.write([report.read(run)], tmp_path)


ONE = {"w": np.ones(3, np.float32)}
FOREIGN = {
    "zip": (lambda path: zipfile.ZipFile(path, "w").writestr("photo.jpg", b"p" * 99), TORCH),
    "torch": (lambda path: torch.save({"w": torch.ones(3)}, path), TORCH),
    "safetensors": (lambda path: save_file(ONE, path, {"format": "pt", "model": "resnet"}), SAFETENSORS),
    "text": (lambda path: path.write_text("\\section{Notes}\n"), SAFETENSORS),  # a brace where the JSON begins
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_only_an_export_of_ssmpi_is_replaced_by_one(tmp_path, kind):
    path, (write, mark) = tmp_path / "there", FOREIGN[kind]
    write(path)
    with pytest.raises(UserError, match="not an earlier output of this command"):
        atomic_file.check_replaceable(path, mark)


@pytest.mark.parametrize(("write", "mark"), [(write_torch, TORCH), (write_safetensors, SAFETENSORS)])
@pytest.mark.parametrize("size", [3, 100_000])
def test_an_export_replaces_an_export(tmp_path, write, mark, size):
    path = tmp_path / "there"
    write({"w": np.arange(size, dtype=np.float32)}, path)
    atomic_file.check_replaceable(path, mark)
    if mark is TORCH:  # the mark is in the way of nobody
        assert torch.load(path, weights_only=True)["w"].tolist() == list(range(size))
        assert torch.load(path, weights_only=True, mmap=True)["w"].tolist() == list(range(size))


@pytest.mark.parametrize(
    ("content", "earlier", "replaced"),
    [
        (b"0.12345678\n0.5", rb"[01]\.\d{8}\n", True),
        (b"", rb"[01]\.\d{8}\n", True),
        (b"1\t2\t\t4\n", rb"[01]\.\d{8}\n", False),  # raw rows: the command's own input
        (b"[data]\nfolder = 'x'\n", rb"\s*<!DOCTYPE html>", False),
        (b"\x89HDF\r\n\x1a\n\x00", rb"PK\x03\x04|.{8}\{", False),
    ],
)
def test_only_an_earlier_output_is_replaced(tmp_path, content, earlier, replaced):
    """predict, export and report wrote over whatever --output named: an input, a model, a run file."""
    path = tmp_path / "there"
    path.write_bytes(content)
    if replaced:
        atomic_file.check_replaceable(path, re.compile(earlier, re.DOTALL))
        return
    with pytest.raises(UserError, match="not an earlier output of this command"):
        atomic_file.check_replaceable(path, re.compile(earlier, re.DOTALL))
    assert path.read_bytes() == content


def test_all_bytes_are_written_however_few_a_write_takes():
    class Slow(io.BytesIO):
        def write(self, content):
            sizes.append(len(content))
            return super().write(content[: 1 + len(content) // 2])

    sizes, out, array = [], Slow(), np.arange(3 * WRITE_BYTES // 8 + 5).reshape(-1, 1)
    atomic_file.write_all(out, array)
    assert out.getvalue() == array.tobytes()
    assert max(sizes) == WRITE_BYTES


@pytest.mark.parametrize("shape", [(0,), (0, 26), (5,), (5, 26), (100_003, 26), (2, WRITE_BYTES), (5, 0)])
def test_a_data_set_written_in_parts_has_the_bytes_of_one_written_at_once(tmp_path, monkeypatch, shape):
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    with hdf5_file.create(tmp_path / "parts", values.nbytes) as out:
        hdf5_file.write(out, "ids", values, "<i4")
    with hdf5_file.create(tmp_path / "once", values.nbytes) as out:
        out.create_dataset("ids", data=values, dtype="<i4")
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "once").read_bytes()
    with h5py.File(tmp_path / "parts") as found:
        np.testing.assert_array_equal(found["ids"][()], values)
