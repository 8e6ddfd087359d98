"""A run folder is replaced only where nothing but a run and its tools have written into it, and no run file is taken
for one.
"""

import contextlib
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from faults import Kill, KilledError
from runs import QUIET, SMALL_MODEL, train_over_threads, write_run_file

from ssmpi import cli
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files import run_files
from ssmpi.state import resume, run_folder, run_lock
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.recovery import restart
from ssmpi.state.recovery.start import Supervised
from ssmpi.state.request import RunRequest
from ssmpi.tools import export

WHOLE_RUN = (
    "checkpoint.every_examples=500",
    "checkpoint.keep=100",  # all: the tests know the first by name
    "checkpoint.background=false",
    "run.tensorboard=true",
    "topology.embedding_ps=2",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_data):
    """The folder of a run that is finished, with all that there can be in one."""
    run = train_over_threads(tmp_path_factory.mktemp("finished"), small_data, *WHOLE_RUN).folder
    first, *_ = Store(run).committed()
    restart.resume_from(run, first)
    for kind in export.FORMATS:
        export.export(run, kind, None)
    (run / run_files.LOGS).mkdir()
    for who in ("trainer-0", "embedding_ps-12", "sync_ps-1"):
        (run / run_files.LOGS / f"{who}.log").touch()
    run_lock.lock(run).close()
    reports = [run_files.PLOT, run_files.REPORT, *(f"report-{name}.png" for name in ("curves", "speed", "time"))]
    for name in (
        run_files.BATCH_FILE,
        run_files.SITE_FILE,
        "job-4711.log",
        ".model.pt.tmp",
        ".result.json.tmp",
        *reports,
    ):
        (run / name).touch()
    return run


def request(run_file, *overrides, overwrite=False, run=None, checkpoint=None):
    return RunRequest(run_file, overrides, overwrite, run, checkpoint)


def prepare(request):
    with ExitStack() as held:
        return resume.prepare(request, request.load().topology.size, held)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_run_and_its_tools_write_is_known(finished):
    assert run_files.unknown_entries(finished) == []
    there = {path.name for path in finished.rglob("*")}
    assert {"set-aside-checkpoint-000002", "trainer-0000.h5", "embedding-0001.h5", "losses-0.npy"} <= there
    assert {"model.pt", "model.safetensors"} <= there
    assert any(name.startswith("events.out.tfevents.") for name in there)


@pytest.mark.parametrize(
    "stranger",
    ["notes.txt", "results/table.csv", "model/mine.h5", "logs/thesis.log", "checkpoints/best/dense.h5", "job-notes.log",
     "usage/trainer-0.json.bak", "my-report.html", "run.toml.orig", ".hidden"],
)  # fmt: skip
def test_a_stranger_keeps_the_folder_from_being_replaced(finished, tmp_path, small_data, stranger):
    config = write_run_file(tmp_path, small_data)
    run = Path(config.run.folder)
    run_folder.make(run, config, overwrite=False)
    (run / stranger).parent.mkdir(exist_ok=True, parents=True)
    (run / stranger).write_text("mine")
    before = contents(run)
    named = next(name for name in (stranger, f"{Path(stranger).parent}/") if name in run_files.unknown_entries(run))
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=re.escape(named)) as refused:
            run_folder.make(run, config, overwrite)
        assert "--overwrite" not in str(refused.value)
        assert f"; resume it with --resume {run}, choose another" in str(refused.value)
    assert contents(run) == before


def test_a_run_is_replaced_whole(finished, tmp_path, small_data):
    config = write_run_file(tmp_path, small_data)
    run = Path(config.run.folder)
    run.mkdir()
    for name in contents(finished):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dense.h5").touch()
    (run / "model" / "dense.h5").unlink()
    (run / ".model.old").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match=r"holds an earlier run; resume it with --resume .* --overwrite"):
        run_folder.make(run, config, overwrite=False)
    run_folder.make(run, config, overwrite=True)
    assert sorted(contents(run)) == [run_files.LOCK_NAME, run_files.RUN_FILE, run_files.VERSIONS]
    assert (tmp_path / "elsewhere" / "dense.h5").is_file()


@pytest.fixture
def own_folder(tmp_path, small_data, monkeypatch):
    """A user's folder, the current one, with a run file called as README calls it, notes and results."""
    write_run_file(tmp_path, small_data)
    (tmp_path / "given.toml").unlink()
    monkeypatch.chdir(tmp_path)
    settings = "\n".join(f"{word.replace('=', ' = ')}" for word in (*SMALL_MODEL, *QUIET, 'sync.algorithm="none"'))
    Path("run.toml").write_text(f'# mine\ndata.folder = "{small_data}"\n{settings}\n')
    Path("notes.txt").write_text("mine")
    Path("result.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_a_run_file_of_the_users_is_no_run_folder(own_folder, alone, overwrite):
    if alone:
        Path("notes.txt").unlink()
        Path("result.json").unlink()
    before = contents(own_folder)
    for place in (".", str(own_folder)):
        asked = request(Path("run.toml"), f"run.folder={place}", overwrite=overwrite)
        with pytest.raises(SettingsError, match=r"choose another run\.folder") as refused:
            prepare(asked)
        assert "earlier run" not in str(refused.value)
        assert "--overwrite" not in str(refused.value)
    assert contents(own_folder) == before


@pytest.mark.parametrize("run_file", [None, Path("run.toml")])
def test_a_users_run_file_is_not_gone_on_with(own_folder, run_file):
    before = contents(own_folder)
    with pytest.raises(SettingsError, match=r"not a run folder|holds the run file run\.toml"):
        prepare(request(run_file, run=Path()))
    assert contents(own_folder) == before


BEGUN = {  # what a start that is killed before it has written run.toml leaves behind
    "versions": ["job.lock", ".versions.json.tmp"],
    "network": ["job.lock", "versions.json", "network/own.py", "network/.other.py.tmp"],
    "settings": ["job.lock", "versions.json", ".run.toml.tmp"],
}


@pytest.mark.parametrize("left", BEGUN)
def test_a_start_that_was_killed_before_it_had_its_settings_is_repeated(tmp_path, small_data, left):
    """By the same command, as a requeued job does it."""
    config = write_run_file(tmp_path, small_data)
    run, given = Path(config.run.folder), (f"data.folder={small_data}", *SMALL_MODEL, *QUIET)
    for name in BEGUN[left]:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text('{"ssmpi"')
    again = request(tmp_path / "given.toml", *given, run=run)
    (run / "notes.txt").touch()
    before = contents(run)
    with pytest.raises(SettingsError, match=r"not empty and not a run folder.*\(it holds notes\.txt"):
        prepare(again)
    assert contents(run) == before
    (run / "notes.txt").unlink()
    assert not prepare(again).resumed
    assert set(contents(run)) == {"job.lock", "run.toml", "versions.json"}
    assert prepare(again).resumed


def test_a_start_that_was_killed_before_it_was_recorded_is_repeated_by_its_launch(finished, tmp_path, small_data):
    config = write_run_file(tmp_path, small_data)
    run, given = Path(config.run.folder), (f"data.folder={small_data}", *SMALL_MODEL, *QUIET)
    asked = request(tmp_path / "given.toml", *given, f"run.folder={run}")
    first, second = (replace(asked, supervised=Supervised("launch", start, 0.0)) for start in (1, 2))
    prepare(first)
    for name in (run_files.PARENT, f".{run_files.RECOVERIES}.0123abcd.tmp"):
        (run / name).touch()
    with pytest.raises(SettingsError, match="holds an earlier run"):  # another launch may not know whose it is
        prepare(first)
    assert not prepare(second).resumed
    assert not (run / run_files.PARENT).exists()
    shutil.copytree(finished, run, dirs_exist_ok=True)
    with pytest.raises(SettingsError, match="holds an earlier run"):
        prepare(second)


def test_the_versions_of_another_program_are_not_replaced(tmp_path, small_data):
    run = Path(write_run_file(tmp_path, small_data).run.folder)
    run.mkdir()
    (run / "versions.json").write_text('{"node": "22"}')
    given = (f"data.folder={small_data}", *SMALL_MODEL, *QUIET, f"run.folder={run}")
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match=r"not empty and not a run folder.*\(it holds versions\.json"):
            prepare(request(tmp_path / "given.toml", *given, overwrite=overwrite))
    assert contents(run)["versions.json"] == b'{"node": "22"}'


def test_replacing_a_run_can_be_killed_at_any_file(finished, tmp_path, small_data):
    """Until it is gone it is known for an earlier run, which may be replaced."""
    config = write_run_file(tmp_path, small_data)
    run = Path(shutil.copytree(finished, config.run.folder))
    given = (f"data.folder={small_data}", f"run.folder={run}", *SMALL_MODEL, *QUIET)
    starts = 0
    while len(set(contents(run)) - {"job.lock", "versions.json"}):
        starts, killed = starts + 1, Kill(Path, "unlink", 1, after=True)
        with contextlib.suppress(KilledError), killed:
            prepare(request(tmp_path / "given.toml", *given, overwrite=True))
        assert starts < 100
    assert starts > 10
    prepare(request(tmp_path / "given.toml", *given, overwrite=True))


def test_a_run_folder_that_holds_the_run_file_given_is_not_replaced(finished):
    before = contents(finished)
    with pytest.raises(SettingsError, match=r"holds the run file .*run\.toml.* choose another run\.folder"):
        prepare(request(finished / "run.toml", overwrite=True))
    assert contents(finished) == before


@pytest.mark.parametrize("place", ["/proc/ssmpi/state", "a file/run", "a file"])
def test_an_unwritable_folder_is_named_before_a_full_disk(own_folder, place):
    """Read-only file systems often have no byte free."""
    Path("a file").write_text("mine")
    before = contents(own_folder)
    with pytest.raises(SettingsError, match=rf"{place}: cannot be written \(.*\): choose another run\.folder"):
        prepare(request(Path("run.toml"), f"run.folder={place}"))
    assert contents(own_folder) == before


# Found finished


def test_a_run_found_finished_is_that_run(finished):
    assert prepare(request(None, run=finished)).finished
    assert prepare(request(finished / "run.toml", run=finished)).finished
    assert prepare(request(None, "data.passes=1", run=finished, checkpoint="whole")).finished


@pytest.mark.parametrize(
    ("overrides", "checkpoint", "words"),
    [
        (["model.bottom=[16,8]"], None, r"model\.bottom was \(32, 8\), now \(16, 8\)"),
        (
            ["sync.algorithm=ma", "topology.trainers=2"],
            None,
            r"topology\.trainers was 1, now 2; sync\.algorithm was 'none'",
        ),
        (["data.passes=2"], None, r"data\.passes was 1, now 2"),
        ([], "checkpoint-000099", "--checkpoint checkpoint-000099"),
    ],
)
def test_a_finished_run_with_other_settings_is_named_with_its_differences(finished, overrides, checkpoint, words):
    before = contents(finished)
    with pytest.raises(SettingsError, match=f"this run is finished.*{words}") as refused:
        prepare(request(None, *overrides, run=finished, checkpoint=checkpoint))
    assert "run.folder was" not in str(refused.value)
    assert contents(finished) == before


def test_inspect_does_not_send_a_finished_run_back_to_its_beginning(tmp_path, small_data, capsys):
    run = train_over_threads(tmp_path, small_data, "checkpoint.every_minutes=0").folder
    with pytest.raises(SystemExit) as left:
        cli.main(["inspect", str(run)])
    said = capsys.readouterr().out
    assert not left.value.code
    assert "complete, 6,000 of 6,000 examples" in said
    assert "no checkpoint: the run is finished" in said
    assert "--resume" not in said
