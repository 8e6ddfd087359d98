"""``verify`` finds each kind of damage and names the file."""

import errno
import json
import random
import shutil

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from strength import in_soak

from data_prep.check.verify import verify
from data_prep.cli import main
from data_prep.ranks import Ranks
from ssmpi.data.hdf5_file import frame_of
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest, write_shard
from ssmpi.data.shard_columns import Columns
from ssmpi.runtime.errors import DataError


def rows(count):
    draw = random.Random(3)
    for _ in range(count):
        integers = "\t".join(str(draw.randrange(50)) for _ in range(13))
        tokens = "\t".join(f"{draw.randrange(9):08x}" for _ in range(26))
        yield f"{draw.randrange(2)}\t{integers}\t{tokens}\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    base = tmp_path_factory.mktemp("verify")
    (base / "train.txt").write_text("".join(rows(200)))
    assert main(["criteo", str(base / "train.txt"), "-o", str(base / "out"), "--shard-rows", "60"]) == 0
    return base / "out"


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def bad(folder, capsys, name, *texts):
    assert main(["verify", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(folder / name) in error
    for text in texts:
        assert text in error


def refusals(folder):
    """What ``verify`` finds, or why it refuses the folder."""
    try:
        return [str(finding) for finding in verify(folder)]
    except DataError as error:
        return [str(error)]


def test_whole(folder):
    assert verify(folder) == []


def test_a_set_of_another_program_is_checked_by_its_columns(tmp_path, capsys):
    """As jobs/guide/data.md has it: ``write_shard``, ``write_manifest``, columns of one's own."""
    folder = make_dataset(tmp_path, 300, cardinalities=FEW_CARDINALITIES, features=FEW)
    assert main(["verify", str(folder)]) == 0
    name = "validation/shard-00000.h5"
    with h5py.File(folder / name, "r+") as shard:
        shard["ids"][3, 4] = 50
    bad(folder, capsys, name, "checksum of the columns", "id 50 of page is outside [0, 50)")


def test_a_damaged_place_is_one_line_and_the_remedy_is_said_once(folder, capsys):
    """Zeroed or garbled bytes over all columns were 17 lines."""
    for name in ("train/shard-00000.h5", "train/shard-00001.h5"):
        path = folder / name
        data = bytearray(path.read_bytes())
        columns = read_manifest(folder).provenance["files"][name]["columns"]
        for at, size in columns:
            data[at : at + size] = bytes(0xFF for _ in range(size))
        path.write_bytes(data)
    (folder / "train/notes.txt").write_text("mine")
    assert main(["verify", str(folder)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "train/shard-00000.h5: the checksum of the columns" in lines[0]
    assert "row 0: id -1 of C1 is outside [0, " in lines[0]
    assert "such values); " in lines[0]
    assert "train/shard-00001.h5" in lines[1]
    assert "train/notes.txt" in lines[2]
    assert lines[3].startswith(f"{folder}: 2 damaged files: prepare the data again with --overwrite")
    assert "1 foreign file or folder: move it elsewhere" in lines[3]
    assert sum("--overwrite" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("", "not a prepared folder: no manifest.json in it; make one of raw files with 'ssmpi-prepare criteo"),
        ("train.txt", "a file, not a prepared folder; make one of raw files with 'ssmpi-prepare criteo"),
        ("none", "no such data folder; make one of raw files with 'ssmpi-prepare criteo"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_what_was_never_prepared_is_not_to_be_finished(tmp_path, capsys, command, place, says):
    (tmp_path / "train.txt").write_text("".join(rows(3)))
    assert main([command, str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / place}: {says}" in error
    assert "or 'ssmpi-prepare table --schema SCHEMA RAW --output FOLDER' (other CSV, TSV or Parquet)" in error


def test_a_preparation_that_was_not_finished_is(folder, capsys):
    (folder / "manifest.json").unlink()
    bad(folder, capsys, "manifest.json", "run the same 'ssmpi-prepare' command again to finish it")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "damaged: empty"),
        ("{", "damaged: not JSON at line 1, column 2"),
        ("[]", "damaged: its values are not of the expected kinds"),
        ("{}", "damaged: it has no 'format'"),
    ],
)
def test_a_damaged_manifest_is_described_in_words(folder, capsys, text, says):
    (folder / "manifest.json").write_text(text)
    bad(folder, capsys, "manifest.json", says, "prepare the data again with --overwrite")


@pytest.mark.parametrize(
    "name", ["train/shard-00001.h5", "vocabulary.h5", "manifest.json", *in_soak("test/shard-00000.h5")]
)
def test_any_flipped_byte_is_found(folder, name):
    path = folder / name
    data = path.read_bytes()
    for at in random.Random(5).sample(range(len(data)), 60):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        findings = refusals(folder)
        assert findings, f"byte {at}"
        assert any(str(path) in finding for finding in findings) or name == "manifest.json"


def damage_header(path):
    """Over such a header the HDF5 library goes on for minutes."""
    data = bytearray(path.read_bytes())
    data[96:2000] = bytes(b ^ 0x11 for b in data[96:2000])
    path.write_bytes(data)


@pytest.mark.timeout(20, method="thread")
def test_a_damaged_header_does_not_hang(folder, capsys):
    damage_header(folder / "train/shard-00001.h5")
    bad(folder, capsys, "train/shard-00001.h5", "HDF5 header")


@pytest.mark.timeout(20, method="thread")
def test_training_refuses_a_damaged_header_before_hdf5_reads_it(folder):
    damage_header(folder / "train/shard-00000.h5")
    reader = SplitReader(folder, "train", 1000)
    for attempt in (reader.check, lambda: reader.read(reader.blocks[0])):
        with pytest.raises(DataError, match=r"train/shard-00000.h5: its HDF5 header is not the one in the manifest"):
            attempt()
    assert len(reader.read(reader.blocks[1])) > 0


def test_training_refuses_any_flipped_byte_of_a_header(folder):
    reader = SplitReader(folder, "train", 1000)
    path = folder / reader.shards[0].file
    columns = read_manifest(folder).provenance["files"][reader.shards[0].file]["columns"]
    data = path.read_bytes()
    frame = sorted(set(range(len(data))) - {i for at, size in columns for i in range(at, at + size)})
    assert len(frame) > 1000
    for at in random.Random(6).sample(frame, 100):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(DataError, match="HDF5 header"):
            reader.check()
    path.write_bytes(data)
    reader.check()


@pytest.mark.parametrize(
    "record", [{}, {"columns": 5, "frame": "x"}, {"columns": [[900, 5], [100, 5]], "frame": "x"}, {"columns": [[1]]}]
)
def test_a_senseless_record_of_a_header_is_named(folder, record, capsys):
    body = json.loads((folder / "manifest.json").read_text())
    body["provenance"]["files"]["train/shard-00000.h5"] = record
    (folder / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match=r"manifest.json: its record of train/shard-00000.h5 makes no sense"):
        SplitReader(folder, "train", 1000).check()
    bad(folder, capsys, "manifest.json", "train/shard-00000.h5")


@pytest.mark.parametrize("name", ["train/shard-00001.h5", "vocabulary.h5", "manifest.json"])
@pytest.mark.parametrize("left", [0, 100, -1])
def test_a_truncated_file_is_found(folder, name, left, capsys):
    path = folder / name
    path.write_bytes(path.read_bytes()[:left])
    bad(folder, capsys, name)


@pytest.mark.parametrize("name", ["train/shard-00001.h5", "vocabulary.h5", "manifest.json"])
def test_a_missing_file_is_found(folder, name, capsys):
    (folder / name).unlink()
    bad(folder, capsys, name)


@pytest.mark.parametrize("name", ["train/notes.txt", "extra.h5", "train/shard-00009.h5", "test/.shard-00000.h5.tmp"])
def test_a_foreign_file_is_found(folder, name, capsys):
    shutil.copy(folder / "test/shard-00000.h5", folder / name)
    bad(folder, capsys, name, "does not know")


def rewrite(folder, change):
    """Change the columns of a shard and make shard and manifest agree again, as a faulty program would."""
    body = json.loads((folder / "manifest.json").read_text())
    entry = body["splits"]["train"]["shards"][0]
    path = folder / entry["file"]
    with h5py.File(path) as shard:
        columns = {name: shard[name][:] for name in ("ids", "dense", "label")}
        attributes = {k: v for k, v in shard.attrs.items() if k not in ("format", "schema_version", "checksum")}
    change(columns)
    path.unlink()
    entry["bytes"], entry["checksum"] = write_shard(path, Columns(**columns), attributes)
    body["provenance"]["files"][entry["file"]] = frame_of(path)
    (folder / "manifest.json").write_text(json.dumps(body))
    return entry["file"]


@pytest.mark.parametrize(
    ("column", "at", "value", "says"),
    [
        ("ids", (3, 4), 10**6, "row 3: id 1000000 of C5 is outside"),
        ("ids", (3, 4), -1, "row 3: id -1 of C5"),
        ("dense", (7, 0), np.nan, "row 7: I1 is nan"),
        ("dense", (7, 12), np.inf, "row 7: I13 is inf"),
        ("label", 9, 7, "row 9: label 7 is not 0 or 1"),
    ],
)
def test_values_out_of_range_are_found(folder, column, at, value, says, capsys):
    def change(columns):
        columns[column][at] = value

    bad(folder, capsys, rewrite(folder, change), says)
    with pytest.raises(DataError, match=rf"shard-00000\.h5: {says}.*; correct or leave out such rows"):
        SplitReader(folder, "train", 100).verify(0)  # as every run does before it deals rows


def test_wrong_counts_are_found(folder, capsys):
    def change(columns):
        columns["label"][:] = 1 - columns["label"]
        columns["label"][0] = columns["label"][1] = 1

    bad(folder, capsys, rewrite(folder, change), "the manifest says")


def test_a_swapped_shard_is_found(folder, capsys):
    (folder / "train/shard-00000.h5").rename(folder / "x")
    (folder / "train/shard-00001.h5").rename(folder / "train/shard-00000.h5")
    (folder / "x").rename(folder / "train/shard-00001.h5")
    bad(folder, capsys, "train/shard-00000.h5")


def test_a_reader_that_has_read_enough_is_no_damage():
    def closed():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):  # the command line ends quietly with code 1: 2 would mean damage
        Ranks().first(closed)
