"""What is typed wrong is answered with the word that was probably meant and the usage of that command."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import write_run_file

from ssmpi import cli
from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.host import launcher_env
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.settings import dump


def refused(capsys, *words):
    """What a command says that ends with 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("launch", "run.toml", "--overwite"), "--overwite; did you mean '--overwrite'?"),
        (("launch", "run.toml", "--ressume=runs/x"), "--ressume=runs/x; did you mean '--resume'?"),
        (("submit", "run.toml", "--site", "s.toml", "--dryrun"), "--dryrun; did you mean '--dry-run'?"),
        (("inspect", "runs/x", "--no-checksum"), "--no-checksum; did you mean '--no-checksums'?"),
        (("bench", "throughput", "--ronds"), "--ronds; did you mean '--rounds'?"),
        (("doctor", "--xyzzy"), "--xyzzy"),
    ],
)
def test_an_unknown_option_names_the_nearest_and_the_usage(capsys, words, answer):
    said = refused(capsys, *words)
    command = " ".join(words[: 2 if words[0] == "bench" else 1])
    assert said.startswith(f"usage: ssmpi {command} ")
    assert said.endswith(f"ssmpi {command}: error: unrecognized arguments: {answer}\n")


def test_a_launch_that_is_interrupted_before_its_ranks_says_so(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "run.toml").write_text("")
    monkeypatch.setattr("ssmpi.cluster.launch.launch", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", str(tmp_path / "run.toml")])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted before the ranks were started: no run has begun or changed\n"


@pytest.mark.parametrize("words", [("plan",), ("submit", "--site", "s.toml")])
def test_only_what_is_required_is_called_so(capsys, words):
    assert refused(capsys, *words).endswith("error: the following arguments are required: run_file\n")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("launch", "run.toml", "--overwrite", "--resume", "run"), "--overwrite starts over and --resume continues: "),
        (("launch", "run"), "run: a folder, not a run file; '--resume run' resumes the run in it"),
        (("launch", "."), ".: a folder, not a run file\n"),
        (("launch", "run.toml", "--site", "run"), "run: a folder, not a site file\n"),
        (("launch", "--resume", "run.toml"), "run.toml: a file; --resume takes a run folder"),
        (("launch", "--resume", "run", "run.folder=b"), "--resume run is the run's folder: leave run.folder=... out\n"),
        (("launch", "latin.toml"), "latin.toml: not UTF-8 text at byte 2: save it as UTF-8\n"),
        (("launch", "run.toml", "run.toml"), "override 'run.toml' is not of the form section.key=value; there can be"),
    ],
)
def test_files_and_folders_in_the_wrong_place_are_told_apart(tmp_path, monkeypatch, capsys, words, answer):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for file in (Path("run.toml"), Path("run/run.toml"), Path("run/versions.json")):
        file.write_text('data.folder = "data"\n')
    Path("latin.toml").write_bytes("# \xe4".encode("latin-1"))
    assert refused(capsys, *words).startswith(f"error: {answer}")


NO_ROOM = """
import errno, sys
from ssmpi import cli
from ssmpi.tools import report
def plot(path):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))
report.plot = plot
cli.main(sys.argv[1:])
"""


def test_a_plot_that_finds_no_room_fails_no_finished_run(tmp_path, small_data):
    config = write_run_file(tmp_path, small_data, "topology.trainers=1", "topology.embedding_ps=0")
    (tmp_path / "given.toml").write_text(dump(config))
    words = [sys.executable, "-c", NO_ROOM, "train", str(tmp_path / "given.toml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "error: no plot: [Errno 28] No space left on device" in done.stderr
    assert json.loads((Path(config.run.folder) / "result.json").read_text())["status"] == "complete"
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("evaluate",), "ssmpi evaluate: error: the following arguments are required: run\n"),
        (("summary", "run"), "unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK\n"),
    ],
)
def test_variables_of_another_job_silence_no_error(monkeypatch, capsys, words, answer):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setattr(failure, "RANK_0_SECONDS", 0.0)
    assert refused(capsys, *words).endswith(answer)


def test_a_process_that_is_alone_says_so_whatever_rank_it_is_called(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("OMPI_COMM_", "PMI_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(TopologyError, match=r"started 2 ranks but MPI sees 1: .* unset PMI_SIZE PMI_RANK"):
        launcher_env.check(1, "an MPI")


def test_a_name_that_the_encoding_lacks_is_printed_escaped(monkeypatch):
    """As with PYTHONIOENCODING=latin-1."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setattr("ssmpi.tools.inspect.describe", lambda run, checksums: (str(run), True))
    with pytest.raises(SystemExit) as ended:
        cli.main(["inspect", "run ン"])
    assert ended.value.code == 0
    assert written.getvalue() == b"run \\u30f3\n"
