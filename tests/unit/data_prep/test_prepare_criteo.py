"""Whole preparations against an oracle in plain Python: ids, dense values, splits, order, vocabulary, reuse, resume."""

import errno
import gzip
import hashlib
import itertools
import json
import os
import random
import signal
import stat
import time
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
from strength import in_soak

from data_prep.cli import main
from data_prep.criteo import encode
from data_prep.splits import split_rows
from ssmpi.data.schema import read_manifest


def make_rows(count, seed=1, labelled=True):
    """Raw rows with every quirk: tabs at the end, high and upper-case tokens, short tokens, negative integers."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        fields = [draw.choice("01")] if labelled else []
        fields += ["" if draw.random() < 0.3 else str(int(draw.expovariate(0.01)) - 3) for _ in range(13)]
        for f in range(26):
            token = (int(draw.paretovariate(0.5)) * 2654435769 + f) % 2**32
            text = f"{token:08x}" if draw.random() < 0.9 else f"{token:x}".upper()
            fields.append("" if draw.random() < (0.5 if f > 23 else 0.1) else text)
        rows.append("\t".join(fields))
    return rows


def write(path, rows, end="\n", last="\n"):
    data = (end.join(rows) + last).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def prepare(raw, out, *more):
    assert main(["criteo", *map(str, raw), "-o", str(out), *more]) == 0
    return out


def load(folder, split):
    entries = read_manifest(folder).split(split).shards
    parts = []
    for entry in entries:
        with h5py.File(folder / entry.file) as shard:
            parts.append([shard[name][:] for name in ("ids", "dense", "label") if name in shard])
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def tree(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def oracle(rows, fit_rows=None, min_count=1, modulus=None):
    """(ids, dense, label, cardinalities) with ids by count descending, token ascending."""
    cells = [row.split("\t") for row in rows]

    def token(text):
        return int(text, 16) % modulus if modulus else int(text, 16)

    ids, cardinalities = np.zeros((len(rows), 26), np.int32), []
    for f in range(26):
        column = [c[14 + f] for c in cells]
        counts = Counter(token(t) for t in column[slice(*fit_rows) if fit_rows else slice(None)] if t)
        kept = sorted((t for t, n in counts.items() if n >= min_count), key=lambda t: (-counts[t], t))
        numbers = {t: i + 2 for i, t in enumerate(kept)}
        ids[:, f] = [numbers.get(token(t), 1) if t else 0 for t in column]
        cardinalities.append(len(kept) + 2)
    integers = np.array([[max(int(x or 0), 0) for x in c[1:14]] for c in cells], dtype=np.float64)
    return ids, np.log1p(integers).astype(np.float32), np.array([int(c[0]) for c in cells], np.uint8), cardinalities


ROWS = make_rows(700)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw") / "train.txt", ROWS)


SMALL = ("--piece-bytes", "20000", "--shard-rows", "90")
VARIANTS = [
    ([], {}),
    (["--min-count", "3"], {"min_count": 3}),
    (["--max-ind-range", "50"], {"modulus": 50}),
    (["--fit-on", "train"], {"fit_rows": (0, 600)}),
    (
        ["--fit-on", "train", "--min-count", "2", "--max-ind-range", "97"],
        {"fit_rows": (0, 600), "min_count": 2, "modulus": 97},
    ),
    (["--memory", "0.0001", "--seed", "9"], {}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), VARIANTS, ids=lambda v: "-".join(v) if isinstance(v, list) else "")
def test_every_value_is_the_oracles(raw, tmp_path, arguments, expected):
    out = prepare([raw], tmp_path / "out", *SMALL, *arguments)
    ids, dense, label, cardinalities = oracle(ROWS, **expected)
    manifest = read_manifest(out)
    assert list(manifest.cardinalities) == cardinalities
    for split, (start, stop) in split_rows("kaggle", [len(ROWS)]).items():
        found = load(out, split)
        wanted = [ids[start:stop], dense[start:stop], label[start:stop]]
        if split == "train":  # shuffled: compare as multisets of whole rows
            assert as_multiset(found) == as_multiset(wanted)
        else:
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(a, b)
        assert manifest.split(split).row_ranges == ((start, stop),)
        assert manifest.split(split).positives == label[start:stop].sum()
    assert main(["verify", str(out)]) == 0
    assert not (out / ".prepare").exists()


def as_multiset(columns):
    return Counter(b"".join(cell.tobytes() for cell in row) for row in zip(*columns, strict=True))


def test_training_rows_are_shuffled_and_the_seed_decides(raw, tmp_path):
    first, second, ordered = (
        load(prepare([raw], tmp_path / name, *SMALL, *more), "train")
        for name, more in (("a", ["--seed", "1"]), ("b", ["--seed", "2"]), ("c", ["--no-shuffle"]))
    )
    ids = oracle(ROWS)[0][:600]
    np.testing.assert_array_equal(ordered[0], ids)
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], ids)
    assert as_multiset(first) == as_multiset(second) == as_multiset(ordered)


def test_gzip_crlf_and_a_missing_last_newline_give_the_same_rows(raw, tmp_path):
    plain = tree(prepare([raw], tmp_path / "plain", *SMALL))
    forms = {
        "train.txt.gz": ("\n", "\n"),
        "crlf.txt": ("\r\n", "\r\n"),
        "open.txt": ("\n", ""),
        "cr.txt.gz": ("\r\n", ""),
    }
    for name, (end, last) in forms.items():
        out = prepare([write(tmp_path / name, ROWS, end, last)], tmp_path / f"o-{name}", *SMALL)
        for split in ("train", "validation", "test"):
            for a, b in zip(load(out, split), load(tmp_path / "plain", split), strict=True):
                np.testing.assert_array_equal(a, b)
        assert tree(out)["vocabulary.h5"] == plain["vocabulary.h5"]


def test_day_files_are_taken_in_day_order_and_the_last_is_halved(tmp_path):
    names = [f"day_{d}" for d in range(11)]
    for d, name in enumerate(names):
        write(tmp_path / (name + (".gz" if d % 2 else "")), ROWS[d * 50 : (d + 1) * 50])
    paths = sorted(tmp_path.glob("day_*"))  # day_10 before day_2, as a shell has it
    out = prepare(paths, tmp_path / "out", *SMALL, "--no-shuffle")
    ids = oracle(ROWS[:550])[0]
    np.testing.assert_array_equal(load(out, "train")[0], ids[:500])
    np.testing.assert_array_equal(load(out, "test")[0], ids[500:525])
    np.testing.assert_array_equal(load(out, "validation")[0], ids[525:])
    assert [s["rows"] for s in read_manifest(out).provenance["sources"]] == [50] * 11


def test_a_saved_vocabulary_serves_new_files(raw, tmp_path, capsys):
    first = prepare([raw], tmp_path / "first", *SMALL, "--min-count", "2")
    new = make_rows(100, seed=2)
    unlabelled = write(tmp_path / "test.txt", [row.partition("\t")[2] for row in new])
    out = prepare([unlabelled], tmp_path / "second", "--vocabulary", str(first / "vocabulary.h5"))
    both = oracle(ROWS + new, fit_rows=(0, 700), min_count=2)
    ids, dense = load(out, "test")
    np.testing.assert_array_equal(ids, both[0][700:])
    np.testing.assert_array_equal(dense, both[1][700:])
    assert (ids == 1).any()
    assert not read_manifest(out).labelled
    assert main(["verify", str(out)]) == 0
    assert "unlabelled" in inspected(out, capsys)
    blocks = list(encode([unlabelled], first))
    np.testing.assert_array_equal(np.concatenate([b[0] for b in blocks]), ids)
    np.testing.assert_array_equal(np.concatenate([b[1] for b in blocks]), dense)
    assert all(b[2] is None and b[0].dtype == np.int32 for b in blocks)
    labelled = write(tmp_path / "more.txt", new)
    np.testing.assert_array_equal(np.concatenate([b[2] for b in encode([labelled], first)]), both[2][700:])
    assert main(["criteo", str(raw), "-o", str(tmp_path / "x"), "--vocabulary", str(first), "--min-count", "3"]) == 2


def inspected(folder, capsys):
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    return capsys.readouterr().out


def test_a_vocabulary_by_first_appearance_serves_no_other_rows(raw, tmp_path, capsys):
    """Earlier versions could write one; it has no id for tokens that it does not know."""
    first = prepare([raw], tmp_path / "first", *SMALL)
    with h5py.File(first / "vocabulary.h5", "r+") as file:
        about = json.loads(file.attrs["about"])
        sizes = [cardinality - 2 for cardinality in about["cardinalities"]]
        file.attrs["about"] = json.dumps({**about, "id_order": "dlrm", "cardinalities": sizes})
    for option in ("--vocabulary", "--extend-vocabulary"):
        assert main(["criteo", str(raw), "-o", str(tmp_path / "second"), option, str(first)]) == 2
        assert "order of first appearance" in capsys.readouterr().err
    assert main(["inspect", str(first)]) == 0


def test_one_row_and_two(tmp_path, capsys):
    for count in (1, 2):
        out = prepare([write(tmp_path / f"{count}.txt", ROWS[:count], last="")], tmp_path / f"o{count}")
        assert sum(s.rows for s in read_manifest(out).splits.values()) == count
        assert main(["verify", str(out)]) == 0


def test_sizes_for_min_counts_are_printed_and_right(raw, tmp_path, capsys):
    prepare([raw], tmp_path / "out", *SMALL)
    line = next(x for x in capsys.readouterr().out.splitlines() if x.split()[:1] == ["all"])
    wanted = [sum(oracle(ROWS, min_count=n)[3]) for n in (1, 2, 3, 10, 15)]
    assert [int(x.replace(",", "")) for x in line.split()[1:]] == wanted


def test_inspect_shows_rates(raw, tmp_path, capsys):
    out = prepare([raw], tmp_path / "out", *SMALL, "--min-count", "5")
    text = inspected(out, capsys)
    ids, _, label, cardinalities = oracle(ROWS, min_count=5)
    assert f"{label[:600].mean():.4%}" in text
    line = next(x for x in text.splitlines() if x.split()[:1] == ["C4"]).split()
    assert line[1:4] == [str(cardinalities[3]), f"{(ids[:, 3] == 0).mean():.2%}", f"{(ids[:, 3] == 1).mean():.2%}"]
    assert line[4] == "2"
    assert line[6].rstrip(",") == f"{(ids[:, 3] == 2).mean():.2%}"


def test_started_again_when_whole_nothing_is_written(raw, tmp_path, capsys):
    out = prepare([raw], tmp_path / "out", *SMALL)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    prepare([raw], out, *SMALL)
    assert "nothing to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before


def test_other_arguments_or_files_are_refused_unless_overwritten(raw, tmp_path, capsys):
    out = prepare([raw], tmp_path / "out", *SMALL)
    assert main(["criteo", str(raw), "-o", str(out), *SMALL, "--seed", "5"]) == 2
    assert "seed = 0, this run has 5" in capsys.readouterr().err
    changed = write(tmp_path / "train.txt", [ROWS[1], ROWS[0], *ROWS[2:]])  # same name and size, other content
    assert main(["criteo", str(changed), "-o", str(out), *SMALL]) == 2
    assert "other content" in capsys.readouterr().err
    prepare([changed], out, *SMALL, "--overwrite")
    assert tree(out) == tree(prepare([changed], tmp_path / "fresh", *SMALL))
    for place in (out / "thesis.txt", out / "train" / "notes.txt"):
        place.write_text("mine")
        assert main(["criteo", str(raw), "-o", str(out), *SMALL, "--overwrite"]) == 2
        assert place.name in capsys.readouterr().err
        assert place.read_text() == "mine"
        place.unlink()


def test_no_path_and_no_time_in_the_output(raw, tmp_path):
    out = prepare([raw], tmp_path / "out", *SMALL)
    elsewhere = tmp_path / "deep" / "folder"
    elsewhere.mkdir(parents=True)
    moved = elsewhere / "train.txt"
    moved.write_bytes(raw.read_bytes())
    time.sleep(1.1)
    assert tree(prepare([moved], elsewhere / "out", *SMALL)) == tree(out)
    assert not any(str(tmp_path).encode() in p.read_bytes() for p in out.rglob("*") if p.is_file())


def killed(after, arguments):
    """The exit code of ``arguments`` in a child that is killed when it would flush one more file than ``after``."""
    child = os.fork()
    if not child:
        try:
            left, real = itertools.count(after, -1), os.fsync

            def fsync(handle):
                if not stat.S_ISDIR(os.fstat(handle).st_mode) and next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(handle)

            os.fsync = fsync
            os._exit(main(arguments))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_killed_at_any_file_and_started_again_it_ends_with_the_same_bytes(raw, tmp_path):
    arguments = ["criteo", str(raw), *SMALL, "--fit-on", "train"]
    expected = tree(prepare([raw], tmp_path / "whole", *arguments[2:]))
    out = tmp_path / "killed"
    after = random.Random(4)
    for _ in range(40):
        shards = {p: p.stat().st_mtime_ns for p in out.glob("*/shard-*.h5")}
        code = killed(after.choice((1, 9, 20, 30)), [*arguments, "-o", str(out)])
        assert all(p.stat().st_mtime_ns == at for p, at in shards.items()), "a finished shard was written again"
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert main(["verify", str(out)]) == 2
    assert tree(out) == expected


@pytest.mark.parametrize("damage", [lambda data: bytes(len(data)), *in_soak(lambda data: data[:-5], lambda data: b"")])
def test_temporary_rows_lost_in_a_crash_are_made_again(raw, tmp_path, damage):
    arguments = ["criteo", str(raw), *SMALL, "-o", str(tmp_path / "out")]
    kept = 0
    for after in range(30, 150, 5):
        killed(after, arguments)
        for path in (tmp_path / "out" / ".prepare" / "pieces").glob("*.rows"):
            path.write_bytes(damage(path.read_bytes()))  # never flushed to disk: a power cut takes it
            kept += 1
        if kept:
            break
    assert kept
    assert main(arguments) == 0
    assert tree(tmp_path / "out") == tree(prepare([raw], tmp_path / "whole", *SMALL))


def test_integers_of_any_size_arrive(tmp_path):
    rows = [row.split("\t") for row in ROWS]
    for i, value in enumerate([2**63 - 1, 2**40 + 3, 2**32, 2**31, 65_536, 255, 256, -(2**62)]):
        rows[i * 80][1 + i] = str(value)
    rows = ["\t".join(row) for row in rows]
    out = prepare([write(tmp_path / "big.txt", rows)], tmp_path / "out", *SMALL, "--no-shuffle")
    found = np.concatenate([load(out, s)[1] for s in ("train", "test", "validation")])
    np.testing.assert_array_equal(found, oracle(rows)[1])


def test_a_shard_that_cannot_be_flushed_to_disk_is_an_error(raw, tmp_path, monkeypatch, capsys):
    real = os.fsync

    def fsync(handle):
        if "shard-00003" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    assert main(["criteo", str(raw), *SMALL, "-o", str(tmp_path / "out")]) == 2
    assert "shard-00003.h5: No space left on device" in capsys.readouterr().err
    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.undo()
    prepare([raw], tmp_path / "out", *SMALL)
    assert tree(tmp_path / "out") == tree(prepare([raw], tmp_path / "whole", *SMALL))


def test_an_interrupted_run_is_not_gone_on_with_under_other_arguments(raw, tmp_path, capsys):
    arguments = ["criteo", str(raw), *SMALL, "-o", str(tmp_path / "out")]
    assert killed(20, arguments) == -signal.SIGKILL
    assert (tmp_path / "out" / ".prepare" / "plan.json").exists()
    assert main([*arguments, "--min-count", "4"]) == 2
    assert "interrupted run with min_count = 1, this run has 4" in capsys.readouterr().err
    assert main([*arguments, "--min-count", "4", "--overwrite"]) == 0


def test_manifest_records_where_it_comes_from(raw, tmp_path):
    about = json.loads((prepare([raw], tmp_path / "out", *SMALL) / "manifest.json").read_text())["provenance"]
    assert about["sources"][0]["name"] == "train.txt"
    assert about["sources"][0]["bytes"] == raw.stat().st_size
    missing = sum(row.split("\t")[1] == "" for row in ROWS)
    assert about["missing"]["I1"] == missing
    assert about["arguments"]["seed"] == 0
    assert set(about["label_rate"]) == {"train", "validation", "test"}


def test_too_little_disk_is_said_before_anything_is_written(raw, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    assert main(["criteo", str(raw), "-o", str(tmp_path / "out")]) == 2
    assert "of disk" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
