"""Every kind of bad input ends with one message naming file, line and content, or is skipped and counted."""

import gzip
import os
import subprocess
import sys

import pytest
from strength import one_at_a_time

from data_prep.cli import main
from ssmpi.data.schema import read_manifest

FIELDS = {"label": "1"} | {f"I{i}": str(i) for i in range(1, 14)} | {f"C{i}": f"{i:08x}" for i in range(1, 27)}
PIECES = ("--piece-bytes", "1000")


def row(**changes):
    return "\t".join((FIELDS | changes).values())


GOOD = row()
BAD = {
    "too few fields": (GOOD.rpartition("\t")[0].rpartition("\t")[0], "38 fields, expected 40"),
    "too many fields": (GOOD + "\t", "41 fields, expected 40"),
    "empty row": ("", "1 fields, expected 40"),
    "unlabelled": (GOOD.partition("\t")[2], "cannot be mixed"),
    "token": (row(C7="0x12"), "C7 is '0x12', not a hexadecimal token"),
    "token length": (row(C7="123456789"), "C7 is '123456789', 9 digits, at most 8"),
    "integer": (row(I2="3.5"), "I2 is '3.5', not an integer"),
    "integer range": (row(I2="9" * 25), "beyond 64 bits"),
    "label": (row(label="7"), "label '7' is not 0 or 1"),
    "NUL byte": (row(C3="ab\0cd"), "a NUL byte"),
    "long": (row(C3="z" * 5000), "C3 is 'zzzz"),
}


def fails(arguments, capsys, *texts):
    assert main(["criteo", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("error:") == 1
    assert "Traceback" not in error
    assert len(error) < 700
    for text in texts:
        assert text in error
    return error


def test_the_beginning_of_an_option_removes_no_data_set(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["criteo", "train.txt", "-o", str(tmp_path), "--overwrit"])
    assert left.value.code == 2
    assert "unrecognized arguments: --overwrit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "form", "line"), one_at_a_time(list(BAD), ["train.txt", "train.txt.gz", "crlf.txt"], [57, 2, 100])
)
def test_a_bad_row_is_named_with_file_line_and_content(name, form, line, tmp_path, capsys):
    rows = [GOOD] * 100
    rows[line - 1], says = BAD[name]
    data = (("\r\n" if form == "crlf.txt" else "\n").join(rows) + "\n").encode()
    raw = tmp_path / form
    raw.write_bytes(gzip.compress(data) if form.endswith(".gz") else data)
    fails([raw, "-o", tmp_path / "out", *PIECES], capsys, f"{raw}:{line}: ", says, "; --on-bad-row skip leaves")
    assert not (tmp_path / "out").exists()


def test_the_first_row_must_look_like_criteo(tmp_path, capsys):
    raw = tmp_path / "a.csv"
    raw.write_text("id,label,x\n1,2,3\n")
    fails([raw, "-o", tmp_path / "out"], capsys, f"{raw}:1: 1 fields, expected 40", "39")


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path, capsys):
    rows = [GOOD] * 30 + [text for text, _ in BAD.values()] + [GOOD] * 30 + [BAD["label"][0]]
    raw = tmp_path / "train.txt"
    raw.write_bytes("\n".join(rows).encode())
    out = tmp_path / "out"
    assert main(["criteo", str(raw), "-o", str(out), *PIECES, "--on-bad-row", "skip"]) == 0
    printed = capsys.readouterr().out
    manifest = read_manifest(out)
    assert sum(split.rows for split in manifest.splits.values()) == 60
    assert manifest.provenance["skipped"] == {
        "NUL byte": 1, "integer": 1, "integer range": 1, "label": 2, "token": 2, "token length": 1, "too few fields": 3,
        "too many fields": 1,
    }  # fmt: skip
    assert f"skipped 2 rows: label; the first is {raw}:39" in printed
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize("mend", ["skip", "repair", "fetch"])
def test_a_refused_file_does_not_stand_in_the_way_of_a_mended_one(mend, tmp_path, capsys):
    """What was begun with it is gone: it could never be finished, and is no interrupted run of the next."""
    rows = 10_000 if mend == "fetch" else 100  # damage beyond the first block is met by pass 1 alone
    pieces = () if mend == "fetch" else PIECES
    text = "".join(f"{row(I1=str(i))}\n" for i in range(rows))
    raw, out = tmp_path / ("day_0.gz" if mend == "fetch" else "train.txt"), tmp_path / "out"
    whole = gzip.compress(text.encode()) if mend == "fetch" else text.encode()
    raw.write_bytes(whole[:-8] if mend == "fetch" else whole + row(label="7").encode())
    fails([raw, "-o", out, *pieces], capsys)
    assert not out.exists()
    more = ["--on-bad-row", "skip"] if mend == "skip" else []
    if mend != "skip":
        raw.write_bytes(whole)
    assert main(["criteo", str(raw), "-o", str(out), *pieces, *more]) == 0
    assert sum(split.rows for split in read_manifest(out).splits.values()) == rows


def test_a_folder_of_the_users_own_stays_when_a_file_is_refused(tmp_path, capsys):
    raw, out = tmp_path / "train.txt", tmp_path / "out"
    raw.write_text(row(label="7"))
    out.mkdir()
    fails([raw, "-o", out], capsys)
    assert not list(out.iterdir())


def test_a_first_row_that_lost_its_last_field_makes_no_file_unlabelled(tmp_path, capsys):
    raw = tmp_path / "train.txt"
    short = GOOD.rpartition("\t")[0]  # 39 fields, and good ones of an unlabelled row
    raw.write_text(f"{short}\n" + f"{GOOD}\n" * 20)
    fails([raw, "-o", tmp_path / "out"], capsys, f"{raw}:2: 40 fields, expected 39 (unlabelled)")
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), "--on-bad-row", "skip"]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.labelled
    assert manifest.provenance["rows"] == 20
    assert manifest.provenance["skipped"] == {"too few fields": 1}


def test_skipping_everything_is_an_error(tmp_path, capsys):
    raw = tmp_path / "train.txt"
    raw.write_text((row(label="x") + "\n") * 3)
    fails([raw, "-o", tmp_path / "out", "--on-bad-row", "skip"], capsys, "not one good row")


def test_bad_rows_in_a_shifted_train_range_are_not_counted(tmp_path):
    raw = tmp_path / "train.txt"
    raw.write_text("\n".join([BAD["label"][0]] * 50 + [row(C1="aa")] * 6 + [row(C1="bb")]) + "\n")
    out = tmp_path / "out"
    more = ("--on-bad-row", "skip", "--fit-on", "train")
    assert main(["criteo", str(raw), "-o", str(out), *PIECES, *more]) == 0
    assert read_manifest(out).cardinalities[0] == 3


def test_files_that_are_not_there_or_not_files(tmp_path, capsys):
    good = tmp_path / "good.txt"
    good.write_text(GOOD + "\n")
    out = ["-o", tmp_path / "out"]
    fails([tmp_path / "none.txt", *out], capsys, "none.txt: no such file")
    (tmp_path / "nothing").mkdir()
    fails([tmp_path / "nothing", *out], capsys, f"{tmp_path / 'nothing'}: this folder has no file with data")
    fails([tmp_path / "no*", *out], capsys, f"{tmp_path / 'no*'}: no file with data has such a name")
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    fails([good, empty, *out], capsys, f"{empty}:1: the file is empty")
    nothing = tmp_path / "nothing.gz"
    nothing.write_bytes(gzip.compress(b""))
    fails([nothing, *out], capsys, f"{nothing}:1:")
    fails([good, good, *out], capsys, "given twice")
    fails([good, "-o", good], capsys, "is a file, not a folder")
    fails([good, *out, "--vocabulary", tmp_path / "no.h5"], capsys, "no.h5: no such vocabulary file")
    fails([good, *out, "--vocabulary", good], capsys, "not a readable vocabulary")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_a_file_under_two_names_is_not_counted_twice(link, tmp_path, capsys):
    plain, second = tmp_path / "day_0", tmp_path / ("day_1" if link else "day_0.gz")
    plain.write_text(GOOD + "\n")
    if link:
        link(plain, second)
    else:
        second.write_bytes(gzip.compress(plain.read_bytes()))
    fails([plain, second, "-o", tmp_path / "out"], capsys, f"{second}: given twice, also as {plain}")


def test_a_link_to_itself_is_no_file(tmp_path, capsys):
    (tmp_path / "day_0").symlink_to("day_0")
    fails([tmp_path / "day_0", "-o", tmp_path / "out"], capsys, f"{tmp_path / 'day_0'}: no such file")


@pytest.mark.parametrize("zipped", [False, True])
def test_text_in_utf_16_is_named(zipped, tmp_path, capsys):
    raw, text = tmp_path / "train.txt", b"\xff\xfe" + GOOD.encode("utf-16-le") + b"\n\0"
    raw.write_bytes(gzip.compress(text) if zipped else text)
    for more in ([], ["--on-bad-row", "skip"]):
        fails([raw, "-o", tmp_path / "out", *more], capsys, f"{raw}:1: is UTF-16 text")


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    raw = tmp_path / "train.txt"
    raw.write_bytes(b"\xef\xbb\xbf" + f"{GOOD}\n".encode() * 9)
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), *PIECES]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.provenance["rows"], manifest.labelled) == (9, True)


def test_a_pipe_is_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    fails([tmp_path / "pipe", "-o", tmp_path / "out"], capsys, "pipe: is a pipe or a device", "save its text")


def test_a_path_that_the_terminal_cannot_show_is_shown_in_another_way(tmp_path):
    raw, out = tmp_path / "train.txt", tmp_path / "n\u00f6 \udcff"
    raw.write_text(GOOD + "\n")
    assert main(["criteo", str(raw), "-o", str(out)]) == 0
    words = [sys.executable, "-m", "data_prep", "inspect", os.fspath(out)]
    done = subprocess.run(words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert rb"n\xf6 \udcff: labelled, 1 row" in done.stdout


@pytest.mark.parametrize(
    ("split", "files", "says"),
    [
        ("days", 1, "--split days trains on all files but the last, and those have no rows: give more files"),
        ("0,0.5,0.5", 2, "--split 0,0.5,0.5 leaves no rows to train on"),
        ("0.001,0.5,0.499", 1, "leaves no rows to train on"),
    ],
)
def test_a_split_that_leaves_nothing_to_train_on_is_refused(split, files, says, tmp_path, capsys):
    raw = [tmp_path / f"{number}.txt" for number in range(files)]
    for path in raw:
        path.write_text(f"{GOOD}\n" * 5)
    fails([*raw, "-o", tmp_path / "out", "--split", split], capsys, says)
    assert not (tmp_path / "out").exists()
    assert main(["criteo", *map(str, raw), "-o", str(tmp_path / "out")]) == 0


def test_days_without_a_good_row_leave_nothing_to_train_on(tmp_path, capsys):
    raw = [tmp_path / "day_0", tmp_path / "day_1"]
    raw[0].write_text(row(label="x") + "\n")
    raw[1].write_text(GOOD + "\n")
    fails([*raw, "-o", tmp_path / "out", "--on-bad-row", "skip"], capsys, "those have no rows")
    assert not (tmp_path / "out").exists()


def test_a_count_that_no_token_reaches_is_refused(tmp_path, capsys):
    raw = tmp_path / "train.txt"
    raw.write_text(f"{GOOD}\n" * 9)
    fails([raw, "-o", tmp_path / "out", "--min-count", "10"], capsys, "--min-count 10: no token comes so often")
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), "--min-count", "9"]) == 0


def test_labelled_and_unlabelled_files_do_not_mix(tmp_path, capsys):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(GOOD + "\n")
    second.write_text(GOOD.partition("\t")[2] + "\n")
    fails([first, second, "-o", tmp_path / "out"], capsys, f"{second}:1: 39 fields", "cannot be mixed")
    fails([first, second, "-o", tmp_path / "out", "--on-bad-row", "skip"], capsys, "cannot be mixed")


@pytest.mark.parametrize("damage", ["cut", "flip", "junk"])
def test_damaged_gzip_is_said_with_the_line_reached(damage, tmp_path, capsys):
    data = gzip.compress(
        "".join(row(I1=str(i), C1=f"{i * 2654435769 % 2**32:08x}") + "\n" for i in range(5000)).encode()
    )
    damaged = {"cut": data[: len(data) // 2], "flip": data[:-6] + b"\xff\xff" + data[-4:], "junk": data + b"junk"}
    raw = tmp_path / "day_0.gz"
    raw.write_bytes(damaged[damage])
    for more in ([], ["--on-bad-row", "skip"]):
        error = fails([raw, "-o", tmp_path / "out", *more, "--overwrite"], capsys, "gzip", "fetch the file again")
        assert int(error.split(f"{raw}:")[1].split(":")[0]) > 1000


def test_a_file_without_rows_is_not_read_into_memory_as_one(tmp_path, capsys):
    raw = tmp_path / "train.txt"
    raw.write_bytes((GOOD + "\n").encode() * 3 + b"\0" * 9_000_000)
    fails([raw, "-o", tmp_path / "out"], capsys, f"{raw}:4: ", "not a raw text file")


@pytest.mark.parametrize(
    "arguments",
    [["--min-count", "0"], ["--split", "0.5,0.2"], ["--split-name", "dev"], ["--seed", "-1"], ["--shard-rows", "0"],
     ["--shard-rows", "1" + "0" * 24], ["--min-count", "1" + "0" * 24], ["--piece-bytes", "1" + "0" * 24],
     ["--split", "nan,1"],
     ["--max-ind-range", "-5"]],
)  # fmt: skip
def test_arguments_that_make_no_sense(arguments, tmp_path, capsys):
    raw = tmp_path / "train.txt"
    raw.write_text(GOOD + "\n")
    fails([raw, "-o", tmp_path / "out", *arguments], capsys, "--")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["inf", "nan", "-1", "0", "1e300", "two"])
def test_memory_that_makes_no_sense(value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["criteo", "raw", "-o", "out", "--memory", value])
    assert ended.value.code == 2
    assert "--memory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--piece-bytes", "--shard-rows"])
def test_parts_too_small_for_a_file_system_are_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("data_prep.shards.needs.MOST_FILES", 10)
    raw = tmp_path / "train.txt"
    raw.write_text(f"{GOOD}\n" * 50)
    fails([raw, "-o", tmp_path / "out", name, "1"], capsys, f"{name} 1 would make about ", "give at least ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "told"), [([], True), (["--fit-on", "train"], False), (["--split", "none"], False)]
)
def test_it_is_said_that_the_vocabulary_is_of_all_rows(arguments, told, tmp_path, capsys):
    raw = tmp_path / "train.txt"
    raw.write_text(f"{GOOD}\n" * 20)
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out"), *arguments]) == 0
    assert ("vocabulary: from all rows, validation and test included" in capsys.readouterr().out) == told
