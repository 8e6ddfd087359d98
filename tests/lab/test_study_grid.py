"""A study file becomes cells, all checked before any of them runs; what is finished is never run again."""

import json
import threading
from pathlib import Path

import pytest

from jobs.lab.study import cell as cells
from jobs.lab.study import study as bench
from jobs.lab.study.grid import load
from ssmpi.runtime.errors import STOPPED, SettingsError
from ssmpi.runtime.settings import dump
from ssmpi.state import run_lock
from ssmpi.tools.report import page

SHIPPED = sorted(Path(__file__).parents[3].glob("jobs/studies/*.toml"))
RUN_FILES = "base", "days", "dynamic", "dynamic_schema", "movielens", "movielens_schema"  # of scripts, not studies
STUDY = """
[study]
folder = "FOLDER"
[settings]
data.folder = "data"
[grid]
topology.trainers = [1, 2]
run.seed = [1, 2]
[cases]
alone = { sync.algorithm = "none", topology.trainers = 1 }
S-MA = { sync.algorithm = "ma" }
S-EASGD = { sync.algorithm = "easgd", topology.sync_ps = 1 }
[reference]
case = "alone"
"""


@pytest.fixture
def study_file(tmp_path):
    """``study_file(text)`` writes a study file; by default the one above."""

    def write(text=STUDY):
        path = tmp_path / "study.toml"
        path.write_text(text.replace("FOLDER", str(tmp_path / "study")))
        return path

    return write


def play(monkeypatch, outcome, with_page=False):
    """Jobs are ``outcome(run folder)`` instead of processes; returns the list of those that were started.

    The page of results, whose pictures take a second, is made only ``with_page``.
    """
    started = []
    if not with_page:
        monkeypatch.setattr(page, "publish", lambda *_: [])

    def launched(where, limit, lock, site):
        started.append(where.run.name)
        where.log.write_text("")
        where.run.mkdir(parents=True, exist_ok=True)
        (where.run / "run.toml").write_text(where.run_file.read_text())
        return outcome(where)

    monkeypatch.setattr(cells, "_launched", launched)
    return started


def complete(where):
    """A job that ends well."""
    evaluations = {"test": {"last": {"ne": 0.8, "auc": 0.7, "log_loss": 0.4}}}
    result = {"status": "complete", "examples": 10.0, "eps": 5.0, "seconds": 2.0, "evaluations": evaluations}
    (where.run / "result.json").write_text(json.dumps(result))
    return 0


# Cells


def test_a_case_that_fixes_an_axis_has_one_cell_along_it(study_file):
    study = load(study_file())
    names = [cell.name for cell in study.cells]
    assert names[:2] == ["alone, trainers 1, seed 1", "alone, trainers 1, seed 2"]
    assert len(names) == len(set(names)) == 2 + 4 + 4
    assert [cell.number for cell in study.cells] == list(range(10))
    last = study.cells[-1].config
    assert (last.sync.algorithm, last.topology.sync_ps, last.topology.trainers, last.run.seed) == ("easgd", 1, 2, 2)
    assert last.run.folder.endswith("study/cells/s-easgd-trainers-2-seed-2")
    assert {tuple(cell.reference.items()) for cell in study.cells} == {(("case", "alone"), ("topology.trainers", 1))}


def test_a_reference_in_one_axis_compares_alike_cells(study_file):
    study = load(study_file(STUDY.replace('case = "alone"', "topology.trainers = 1")))
    compared = {cell.name: cell.reference for cell in study.cells}
    assert compared["S-MA, trainers 2, seed 1"] == {"case": "S-MA", "topology.trainers": 1}
    assert compared["S-EASGD, trainers 2, seed 2"] == {"case": "S-EASGD", "topology.trainers": 1}


def test_settings_start_from_a_run_file_beside_the_study_file(study_file, tmp_path):
    (tmp_path / "base.toml").write_text('data.folder = "elsewhere"\ndata.batch_size = 64\ntopology.trainers = 3')
    text = STUDY.replace("[settings]", 'run_file = "base.toml"\n[settings]')
    study = load(study_file(text), ["settings.embedding.rate=0.5", "grid.run.seed=[7]"])
    assert {cell.config.data.folder for cell in study.cells} == {"data"}
    assert {cell.config.data.batch_size for cell in study.cells} == {64}
    assert {cell.config.embedding.rate for cell in study.cells} == {0.5}
    assert {cell.config.run.seed for cell in study.cells} == {7}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[cases]", "[case]", "unknown section 'case'; did you mean 'cases'"),
        ("run.seed = [1, 2]", "run.seed = 1", "grid.run.seed = 1 is not a list of values"),
        ("run.seed = [1, 2]", "run.seed = [1, 1]", "the same value more than once"),
        ("run.seed = [1, 2]", "run.sed = [1, 2]", "cell 'alone, trainers 1, sed 1': unknown key 'run.sed'"),
        ('data.folder = "data"', 'data.folder = "data"\nrun.seed = 3', "run.seed is in [settings] and in [grid]"),
        ('"ma"', '"mb"', "cell 'S-MA, trainers 1, seed 1': sync.algorithm is one of"),
        (", topology.sync_ps = 1", "", "cell 'S-EASGD, trainers 1, seed 1': sync.algorithm = 'easgd' keeps its center"),
        ('case = "alone"', 'case = "S-MB"', "[reference]: case = 'S-MB' is not on its axis"),
        ('case = "alone"', "topology.threads = 1", "[reference]: topology.threads is no axis"),
        ('case = "alone"', "run.seed = 1", "[reference]: run.seed is no axis"),
        ("S-MA =", '"S MA" = { sync.algorithm = "none" }\nS-MA =', "two cells are called"),
        ('folder = "FOLDER"', "", "study.folder' is required"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_before_anything_runs(study_file, old, new, message):
    assert STUDY.count(old) == 1
    with pytest.raises(SettingsError) as caught:
        load(study_file(STUDY.replace(old, new)))
    assert message in str(caught.value)
    assert "study.toml" in str(caught.value)


def test_cells_are_launched_with_the_site_of_the_study(study_file, tmp_path):
    """With one that does not exist, ``ssmpi launch`` says so."""
    study = load(study_file(), [f"study.site={tmp_path / 'nowhere.toml'}"])
    with pytest.raises(cells.CellError, match=r"nowhere\.toml"):
        cells.run(study, study.cells[0])


@pytest.mark.parametrize("path", [p for p in SHIPPED if p.stem not in RUN_FILES], ids=lambda path: path.stem)
def test_shipped_studies_resolve(path):
    study = load(path)
    assert 12 <= len(study.cells) <= 150
    assert all(cell.reference for cell in study.cells)


# Running


def test_a_study_goes_on_where_it_was_stopped(study_file, monkeypatch, tmp_path):
    study = load(study_file())
    started = play(monkeypatch, lambda where: STOPPED if len(started) == 3 else complete(where), with_page=True)
    assert bench.run_all(study) == STOPPED
    first = list(started)
    assert len(first) == 3
    assert bench.run_all(study) == 0
    in_order = [Path(cell.config.run.folder).name for cell in (*study.cells[0::2], *study.cells[1::2])]  # of two seeds
    assert started == first + in_order[2:]
    assert bench.run_all(study) == 0
    assert bench.run_one(study, 4) == 0
    assert len(started) == 11
    assert (tmp_path / "study" / "results-trend.png").is_file()


def test_a_cell_that_fails_does_not_end_the_study_and_is_tried_again(study_file, monkeypatch, tmp_path, capsys):
    def fail_for_ma(where):
        if "s-ma" not in where.run.name or "seed-1" not in where.run.name:
            return complete(where)
        where.log.write_text("starting\nerror: trainer 0: no luck\nprterun noise\n")
        return 1

    study = load(study_file())
    started = play(monkeypatch, fail_for_ma)
    assert bench.run_all(study) == 1
    assert (
        "Not finished, so not in the table: S-MA, trainers 1, seed 1; S-MA, trainers 2, seed 1."
        in capsys.readouterr().out
    )
    results = json.loads((tmp_path / "study" / "results.json").read_text())
    assert results["missing"] == ["S-MA, trainers 1, seed 1", "S-MA, trainers 2, seed 1"]
    assert [row["runs"] for row in results["rows"]] == [2, 1, 1, 2, 2]
    with pytest.raises(cells.CellError, match=r"exit code 1; error: trainer 0: no luck; .*log"):
        cells.run(study, study.cells[2])
    assert bench.run_one(study, 2) == 1
    started.clear()
    monkeypatch.setattr(cells, "_launched", lambda *_: 0)
    assert bench.run_all(study) == 1  # a job that says 0 and leaves no marker has not finished either


def test_a_finished_cell_with_other_settings_is_not_taken_for_this_one(study_file, monkeypatch):
    play(monkeypatch, complete)
    assert bench.run_all(load(study_file())) == 0
    with pytest.raises(SettingsError, match=r"finished with other settings .*embedding.rate was 0.15, now 0.5.*remove"):
        bench.run_all(load(study_file(), ["settings.embedding.rate=0.5"]))
    assert bench.run_all(load(study_file(), ["grid.run.seed=[1,2,3]"])) == 0


def test_a_cell_that_another_process_runs_is_waited_for(study_file, monkeypatch):
    study = load(study_file())
    cell, where = study.cells[0], cells.files_of(study, study.cells[0])
    started = play(monkeypatch, complete)
    where.lock.parent.mkdir(parents=True)
    with cells._held(where, 1):  # the other process
        done = threading.Thread(target=cells.run, args=(study, cell))
        done.start()
        done.join(1.0)
        assert done.is_alive()
        assert not started
        where.run.mkdir(parents=True)
        (where.run / "run.toml").write_text(dump(cell.config))
        complete(where)
    done.join(10)
    assert not done.is_alive()
    assert not started
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.01)
    failing = pytest.raises(cells.CellError, match="another process has been running it")
    with cells._held(where, 1), failing, cells._held(where, 0.05):
        pass


def test_models_of_finished_cells_are_deleted_unless_kept(study_file, monkeypatch, tmp_path):
    def with_model(where):
        (where.run / "model").mkdir()
        return complete(where)

    play(monkeypatch, with_model)
    bench.run_all(load(study_file(), ["grid.run.seed=[1]", "study.keep_models=true"]))
    models = list((tmp_path / "study" / "cells").glob("*/model"))
    assert len(models) == 5
    bench.run_all(load(study_file(), ["grid.run.seed=[1]"]))
    assert not any(model.exists() for model in models)


def test_a_table_of_nothing_is_refused(study_file, capsys):
    assert bench.conclude(load(study_file())) == 1
    assert not capsys.readouterr().out


def test_cells_run_seed_by_seed(study_file, monkeypatch):
    """All seeds of the first case ran before the second case, so that none had its pair when time ended."""
    started = play(monkeypatch, complete)
    bench.run_all(load(study_file(), ["grid.run.seed=[2,1]", "grid.topology.trainers=[1]"]))
    assert [name[-6:] for name in started] == ["seed-2"] * 3 + ["seed-1"] * 3


def test_the_table_says_where_and_when_cells_ran_not_where_it_was_made(study_file, monkeypatch, tmp_path, capsys):
    """It named the day and the host of 'study --table'."""
    days, hosts = iter(["2026-01-09", "2026-01-11", "2026-01-10"]), iter(["old one", "new one", "old one"])

    def outcome(where):
        versions = {"ssmpi": "0.1.0", "processor": next(hosts), "started": f"{next(days)}T10:00:00+00:00"}
        (where.run / "versions.json").write_text(json.dumps(versions))
        return complete(where)

    play(monkeypatch, outcome)
    bench.run_all(load(study_file(), ["grid.run.seed=[1]", "grid.topology.trainers=[1]"]))
    assert "study.toml`, 2026-01-09 to 2026-01-11, old one; new one, ssmpi 0.1.0" in capsys.readouterr().out
    body = json.loads((tmp_path / "study" / "results.json").read_text())
    assert (body["date"], body["machine"]) == ("2026-01-09 to 2026-01-11", "old one; new one")


def test_the_table_says_which_cells_ran_with_other_code(study_file, monkeypatch, tmp_path, capsys):
    def by(commit):
        def outcome(where):
            versions = {"ssmpi": "0.1.0", **({"commit": commit} if commit else {})}
            (where.run / "versions.json").write_text(json.dumps(versions))
            return complete(where)

        return outcome

    play(monkeypatch, by("1234567890ab"))
    bench.run_all(load(study_file(), ["grid.run.seed=[1]"]))
    same = capsys.readouterr().out
    assert "ssmpi 0.1.0, commit 1234567890ab, data" in same
    assert "same code" not in same
    play(monkeypatch, by("fedcba098765, modified"))
    bench.run_all(load(study_file(), ["grid.run.seed=[1,2]", "grid.topology.trainers=[1]"]))
    play(monkeypatch, by(""))
    bench.run_all(load(study_file(), ["grid.run.seed=[1,2,3]", "grid.topology.trainers=[1]"]))
    text = capsys.readouterr().out.rpartition("## ")[2]
    assert "**Not all cells ran with the same code**" in text
    assert "with ssmpi 0.1.0, commit fedcba098765, modified: alone-trainers-1-seed-2, s-ma-trainers-1-seed-2" in text
    assert "with ssmpi 0.1.0, commit not recorded: alone-trainers-1-seed-3" in text
    code = json.loads((tmp_path / "study" / "results.json").read_text())["code"]
    assert sorted(map(len, code.values())) == [3, 3, 3]
