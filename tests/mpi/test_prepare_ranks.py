"""Preparing data with several ranks: the same bytes as with one, one message when something is wrong, nothing hangs."""

import gzip
import hashlib
import io
import random
import time
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

import pytest
from rank_pool import over_mpi
from ranks import PATIENCE, mpirun, running

from data_prep import cli, ranks
from data_prep.cli import main
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.topology import Topology

SMALL = ("--piece-bytes", "30000", "--shard-rows", "150")


def make_rows(count, seed=1):
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        integers = ["" if draw.random() < 0.3 else str(int(draw.expovariate(0.01)) - 3) for _ in range(13)]
        tokens = [f"{(int(draw.paretovariate(0.7)) * 2654435769 + f) % 2**32:08x}" for f in range(26)]
        tokens = ["" if draw.random() < 0.2 else token for token in tokens]
        rows.append("\t".join([draw.choice("01"), *integers, *tokens]))
    return rows


def tree(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def prepare(number, *words):
    """``ssmpi-prepare WORDS`` by a ``number`` of real ranks: the exit code of each, and what all say."""
    codes, outs, errors = zip(*over_mpi(Topology(embedding_ps=number - 1), be_one_of, words), strict=True)
    return SimpleNamespace(codes=set(codes), out="".join(outs), err="".join(errors))


def be_one_of(world, words):
    """A body: all that ``mpirun ssmpi-prepare`` does, but for MPI's start."""
    own = ranks.MPIRanks()
    own._comm, own.rank, own.size = world._job.comm, world.rank, world.size
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(cli, "join", return_value=own), redirect_stdout(out), redirect_stderr(err):
        return main([str(word) for word in words]), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("raw") / "train.txt"
    path.write_text("\n".join(make_rows(1500)) + "\n")
    return path


@pytest.fixture(scope="module")
def alone(raw):
    out = raw.with_name("alone")
    assert main(["criteo", str(raw), "-o", str(out), *SMALL]) == 0
    return tree(out)


@pytest.mark.soak
@pytest.mark.parametrize("number", [1, 2, 4])
def test_the_command_gives_the_same_bytes_by_any_number_of_ranks(raw, alone, number, tmp_path):
    words = ("-m", "mpi4py", "-m", "data_prep", "criteo", raw, "-o", tmp_path / "out", *SMALL)
    assert "peak memory" in mpirun(number, *words).check().out
    assert tree(tmp_path / "out") == alone


def test_gzip_days_bad_rows_and_a_vocabulary_of_training_rows(tmp_path):
    rows = make_rows(900)
    rows[100:100] = rows[500:500] = ["not a row"]
    days = [tmp_path / name for name in ("day_0.gz", "day_1", "day_2.gz", "day_10")]
    for d, path in enumerate(days):
        data = "\r\n".join(rows[d * 225 : (d + 1) * 225]).encode()
        path.write_bytes(gzip.compress(data) if path.suffix else data)
    more = (*SMALL, "--on-bad-row", "skip", "--fit-on", "train", "--min-count", "2", "--memory", "0.0001")
    assert main(["criteo", *map(str, days), "-o", str(tmp_path / "alone"), *more]) == 0
    done = prepare(3, "criteo", *days, "-o", tmp_path / "out", *more)
    assert done.codes == {0}
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")
    assert f"skipped 2 rows: too few fields; the first is {days[0]}:101" in done.out
    assert done.out.count("label rate") == 3, "only the first rank talks"


def test_more_ranks_than_rows(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text(make_rows(1)[0])
    assert prepare(2, "criteo", path, "-o", tmp_path / "out").codes == {0}
    assert read_manifest(tmp_path / "out").split("train").rows == 1
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_a_bad_row_ends_all_ranks_with_one_message_and_the_right_line(zipped, tmp_path):
    rows = make_rows(2000)
    rows[1776] = rows[1776].replace("\t", "\tx", 1)
    data = "\n".join(rows).encode()
    path = tmp_path / ("train.txt.gz" if zipped else "train.txt")
    path.write_bytes(gzip.compress(data) if zipped else data)
    done = prepare(3, "criteo", path, "-o", tmp_path / "out", *SMALL)
    assert done.codes == {2}
    assert done.err.count("error: /") == 1
    assert f"error: {path}:1777: I1 is 'x" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("file", "more", "said"),
    [("none.txt", (), "none.txt: no such file"), ("x", ("--fit-on", "nothing"), "invalid choice")],
    ids=["a missing file", "wrong usage"],
)
def test_an_error_of_all_ranks_is_said_once(tmp_path, file, more, said):
    done = mpirun(2, "-m", "mpi4py", "-m", "data_prep", "criteo", tmp_path / file, "-o", tmp_path / "out", *more)
    assert done.code != 0
    assert done.err.count(said) == 1


TABLE = """
label = "click"
[dense]
price = "standardize"
[categorical]
user = "integer"
item = {}
[list]
tags = { longest = 4, weights = "scores" }
[split]
by = "random"
"""


def test_a_table_has_the_same_bytes_for_any_number_of_ranks(tmp_path):
    from pyarrow import csv, parquet

    draw, file = random.Random(1), tmp_path / "table.parquet"
    rows = []
    for _ in range(2000):
        tags = [(f"t{draw.randint(0, 30)}", str(draw.random())) for _ in range(draw.randint(1, 4))]
        lists = ",".join("|".join(some) for some in zip(*tags, strict=True))
        rows.append(f"{draw.randint(0, 1)},{draw.random()},{draw.randint(1, 99)},i{draw.randint(1, 50)},{lists}")
    (tmp_path / "table.csv").write_text("\n".join(["click,price,user,item,tags,scores", *rows]) + "\n")
    text = csv.ConvertOptions(column_types={"scores": "string"})
    parquet.write_table(csv.read_csv(tmp_path / "table.csv", convert_options=text), file, row_group_size=150)
    (tmp_path / "schema.toml").write_text(TABLE)
    words = ("table", "--schema", str(tmp_path / "schema.toml"), str(file), "--piece-bytes", "3000", "-o")
    assert main([*words, str(tmp_path / "alone")]) == 0
    assert prepare(3, *words, tmp_path / "out").codes == {0}
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")


STALLED = """
import sys, time
from pathlib import Path
from data_prep import cli, ranks
pattern, marker = sys.argv[1:3]
rank, real = ranks.join().rank, Path.replace
def replace(beside, path):  # every file gets its name by this
    if rank == 1 and Path(path).match(pattern):
        Path(marker).touch()
        time.sleep(600)
    return real(beside, path)
Path.replace = replace
raise SystemExit(cli.main(sys.argv[3:]))
"""


def test_killed_at_work_and_started_again_with_another_number_of_ranks(raw, alone, tmp_path):
    """In each step as soon as one rank is about to publish a file of it, and has published others."""
    out = tmp_path / "out"
    steps = (  # number of ranks, what is about to be published, what is there by then
        (2, "scan/run-*.json", "scan/part-*.npy"),
        (3, "merged/4.json", "merged/1.json"),
        (2, "shard-*.h5", "pieces/*"),
    )
    for number, pattern, there in steps:
        marker = tmp_path / there.replace("/", "-")
        command = ("-c", STALLED, pattern, marker, "criteo", raw, "-o", out, *SMALL)
        with running(number, "-m", "mpi4py", *command) as job:
            deadline = time.monotonic() + PATIENCE
            while not marker.exists():
                assert job.process.poll() is None, job.read_so_far()
                assert time.monotonic() < deadline, job.read_so_far()
                time.sleep(0.02)
        assert list((out / ".prepare").glob(there))  # leaving the block has killed mpirun and all ranks
        assert not (out / "manifest.json").exists()
    assert main(["criteo", str(raw), "-o", str(out), *SMALL]) == 0
    assert tree(out) == alone


FAULTY = """
import sys
from data_prep import cli, ranks
from data_prep.shards import scatter
def broken(*arguments):
    raise ZeroDivisionError("planted")
if ranks.join().rank == 1:
    scatter._scatter_piece = broken
raise SystemExit(cli.main(sys.argv[1:]))
"""


def test_an_unexpected_error_on_one_rank_ends_the_job(raw, tmp_path):
    done = mpirun(2, "-c", FAULTY, "criteo", raw, "-o", tmp_path / "out", *SMALL)
    assert done.code != 0
    assert "rank 1: unexpected error, please report it" in done.err
    assert "ZeroDivisionError: planted" in done.err
