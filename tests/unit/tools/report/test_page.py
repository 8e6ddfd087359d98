"""The report of whole runs compares them; the report of broken ones says what is missing, and never fails over it."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from runs import train_over_threads

from ssmpi import cli
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.topology import Role
from ssmpi.state.recovery import run_record
from ssmpi.tools import report
from ssmpi.tools.report import figures
from ssmpi.tools.report.groups import by_settings
from ssmpi.tools.report.record import Record, read

SETTINGS = ("topology.embedding_ps=0", "run.log_seconds=0.01", "evaluate.per_pass=2")
VOID = {"meta", "img", "source", "link", "br"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_data):
    """Three whole runs: one setting with two seeds, and another."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {"a": ["run.seed=1"], "b": ["run.seed=2"], "c": ["run.seed=1", "dense.rate=0.02"]}
    found = [
        train_over_threads(folder / name, small_data, *SETTINGS, *change).folder for name, change in changes.items()
    ]
    for run in found:
        rank = {"role": "trainer", "index": 0, "peak_memory_bytes": 10**8}
        threads = {"worker": {"threads": 1, "wall_seconds": 2.0, "cpu_seconds": 1.5}}
        (run / "usage").mkdir()
        (run / "usage" / "trainer-0.json").write_text(json.dumps({**rank, "threads": threads}))
    return found


@pytest.fixture(scope="module")
def files(runs, tmp_path_factory):
    """The page of all runs and its pictures."""
    return write(runs, tmp_path_factory.mktemp("report") / "deep" / "page.html")


@pytest.fixture
def undrawn(files, monkeypatch):
    """Pages whose pictures are made and not drawn, for a test of words; drawing is most of a page's time."""
    monkeypatch.setattr(figures, "render", lambda figure, form: b"<svg/>")


@pytest.fixture
def broken(runs, tmp_path):
    """A copy of a whole run, to break."""
    return shutil.copytree(runs[0], tmp_path / "broken")


def write(folders, out):
    """The page of some run folders."""
    return report.write([read(folder) for folder in folders], out)


class Page(HTMLParser):
    """Text, links and pictures of a page; fails on tags that are not closed."""

    def __init__(self, path):
        super().__init__()
        self.words, self.addresses, self._open = [], [], []
        self.feed(path.read_text())
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def test_a_page_needs_nothing_beside_it(files):
    assert [f.name for f in files] == ["page.html", "page-curves.png", "page-speed.png", "page-time.png"]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files[1:])
    page = Page(files[0])
    assert len(page.addresses) == 6  # three pictures, for light and for dark
    for address in page.addresses:
        kind, _, data = address.partition(",")
        assert kind == "data:image/svg+xml;base64"
        svg = ElementTree.fromstring(base64.b64decode(data))
        outside = [v for e in svg.iter() for n, v in e.attrib.items() if n.endswith("href") and not v.startswith("#")]
        assert not outside
    assert "Something is missing" not in page.text


def test_a_page_compares_with_the_first_run(runs, files):
    text = Page(files[0]).text
    a, b, c = (json.loads((run / "result.json").read_text())["evaluations"]["test"]["last"]["ne"] for run in runs)
    assert f"{(a + b) / 2:.5f} ± {abs(a - b) / 2:.5f}" in text
    assert f"{100 * (c / a - 1):+.3f} %" in text  # by the pair of seed 1
    assert "against a/run, b/run; below 0 is better" in text
    differing = text.partition("Settings that differ")[2].partition("All settings")[0]
    assert "dense.rate" in differing
    assert "run.seed" in differing
    assert "embedding.rate" not in differing


def test_a_page_says_where_when_and_with_what_its_runs_were_made(runs, files):
    text = Page(files[0]).text
    record = read(runs[0])
    versions = json.loads((runs[0] / "versions.json").read_text())
    assert record.circumstances == {name: versions[name] for name in ("host", "processor", "started")}
    for value in record.circumstances.values():
        assert value.replace("T", " ").removesuffix("+00:00") in text
    assert f"ssmpi {versions['ssmpi']}" in text
    assert 0 <= record.duration < 600
    assert not any(name in record.versions for name in record.circumstances)


def test_a_page_says_what_was_sent(runs, files):
    found = json.loads((runs[0] / "result.json").read_text())["bytes"]
    assert found["rows_in_place"] > 0
    assert f" {found['rows_in_place']:,.0f} " in Page(files[0]).text.partition("Traffic")[2]


def test_a_page_has_every_evaluation_of_a_run(runs, undrawn, tmp_path):
    result = json.loads((runs[0] / "result.json").read_text())
    page = Page(write([runs[0]], tmp_path / "page.html")[0])
    assert "Run run" in page.text
    table = page.text.partition("Evaluations of")[2].partition("Ranks of")[0]
    for line in read(runs[0]).evaluations:
        assert f"{line['split']} {line['examples']:,}" in table
        assert f"{line['ne']:.5f} {line['log_loss']:.5f} {line['auc']:.5f}" in table
    assert len(read(runs[0]).evaluations) == 3
    assert "last, kept" in table
    assert result["kept"] == "last"


def test_a_page_says_how_a_run_went_on_after_kills(broken, undrawn, tmp_path):
    run_record.begin_start(broken, "launch")
    partial = {"how": "partial", "lost": "the memory of embedding_ps 1 is lost (gone)", "seconds": {"ranks": 1.5}}
    costs = {"examples": 5_000, "batches_repeated": 2, "rows_reloaded": 9_903, "samples_lost": 892, "pls": 0.0372}
    for number, each in enumerate(({**partial, **costs}, {"how": "memory", "lost": "", "seconds": {}})):
        run_record.add(broken, {"start": number + 2, "at": "2026-11-22T12:00:00.000+00:00", **each})
    page, *_ = write([broken], tmp_path / "page.html")
    table = page.read_text().partition("Recoveries of")[2].partition("</table>")[0]
    first, second = (re.findall("<td.*?>(.*?)</td>", row) for row in table.partition("<tbody>")[2].split("</tr>")[:2])
    assert first == [
        "5,000", "partial", "the memory of embedding_ps 1 is lost (gone)", "2", "9,903", "892", "0.0372", "ranks 1.5 s",
    ]  # fmt: skip
    assert second[:3] == ["did not come to training", "memory", "nobody&#39;s"]


def test_a_window_that_the_end_cut_short_is_in_no_curve():
    """70,269 examples per second in a run of 28,470: reported in a moment, trained on before."""
    windows = [{"examples": 140_000 * k, "seconds": 5.0 * k, "eps": 28_000.0, "ne": 0.8} for k in range(1, 6)]
    windows.append({"examples": 750_000, "seconds": 25.4, "eps": 125_000.0, "ne": 0.9})
    record = Record(folder=Path("run"), windows=windows)
    with figures.style(figures.LIGHT):
        figure = figures.curves(by_settings([record]), [("eps", "seconds"), ("ne", "examples")])
    for axes in figure.axes:
        assert len(axes.get_lines()[0].get_xydata()) == 5
    assert figure.axes[0].get_ylim()[1] < 30_000
    assert figure.axes[1].get_ylim()[1] < 0.85
    alone = Record(folder=Path("run"), windows=windows[-1:])  # of one window that is all there is
    with figures.style(figures.LIGHT):
        (axes,) = figures.curves(by_settings([alone]), [("eps", "seconds")]).axes
    assert len(axes.get_lines()[0].get_xydata()) == 1


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (
            lambda run: (run / "result.json").unlink(),
            "no result.json: still running, or killed. Last seen after 6,000 examples",
        ),
        (
            lambda run: (run / "result.json").write_text("{"),
            "result.json: not JSON at line 1, column 2: no final results",
        ),
        (lambda run: (run / "metrics.jsonl").unlink(), "no metrics.jsonl: removed, or it never began to train"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "metrics.jsonl is empty"),
        (
            lambda run: (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + '{"kind": "tr'),
            "metrics.jsonl is broken in line",
        ),
        (lambda run: (run / "result.json").write_text(""), "result.json: empty: no final results"),
        (lambda run: (run / "result.json").write_text("[]"), "result.json: not a JSON object: no final results"),
        (
            lambda run: (run / "result.json").write_text(
                '{"status": "complete", "evaluations": {"test": {"last": 1}}}'
            ),
            "result.json: its values are not those that a run writes: no final results",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"kind": "train"}\n[]\n' * 4),
            "metrics.jsonl is broken in line 1, 2, 3, 4, 5 and 3 more: left out",
        ),
        (lambda run: as_folder(run / "metrics.jsonl"), "metrics.jsonl cannot be read: Is a directory"),
        (lambda run: as_folder(run / "result.json"), "result.json: cannot be read: Is a directory: no final results"),
        (lambda run: (run / "usage/trainer-0.json").write_text('{"threads": {"worker": 3}}'), "none of 1 rank wrote"),
        (lambda run: (run / "run.toml").unlink(), "no run.toml: its settings are not known"),
        (lambda run: (run / "run.toml").write_text("= ="), "run.toml is not readable"),
        (lambda run: (run / "versions.json").unlink(), "versions.json: no such file: versions are not known"),
        (lambda run: shutil.rmtree(run / "usage"), "none of 1 rank wrote where its time went"),
        (
            lambda run: (run / "result.json").write_text(
                '{"status": "stopped", "examples": 70.0, "expected_examples": 6000, "evaluations": {}}'
            ),
            "ended as 'stopped': 70 of 6,000 examples were trained on",
        ),
    ],
)
def test_a_broken_run_says_what_is_missing(broken, breaking, said):
    assert not read(broken).missing
    breaking(broken)
    found = read(broken).missing
    assert any(said in sentence for sentence in found), found


def as_folder(path):
    path.unlink()
    path.mkdir()


def reported(capsys, *words):
    """``ssmpi report``: its exit code, and what it said to standard error."""
    with pytest.raises(SystemExit) as left:
        cli.main(["report", *map(str, words)])
    return left.value.code, capsys.readouterr().err


def test_what_cannot_be_read_is_said_and_the_rest_shown(runs, broken, undrawn, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert reported(capsys, runs[0], runs[2], "--out", out) == (0, "")
    with (broken / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "tr')
    (broken / "result.json").write_text("")
    count = len((broken / "metrics.jsonl").read_text().splitlines())
    code, said = reported(capsys, runs[2], broken, "--out", out)
    assert code == 0
    assert said.splitlines() == [
        f"warning: {broken}: metrics.jsonl is broken in line {count}: left out",
        f"warning: {broken}: result.json: empty: no final results",
    ]
    assert all(sentence in Page(out).text for sentence in read(broken).missing)


def test_a_run_with_nothing_to_show_is_an_error_after_the_page(runs, broken, undrawn, tmp_path, capsys):
    out = tmp_path / "page.html"
    (broken / "metrics.jsonl").write_text("garbage\n")
    (broken / "result.json").write_text("{")
    code, said = reported(capsys, runs[2], broken, "--out", out)
    assert code == 2
    assert f"error: {broken}: metrics.jsonl is broken in line 1: left out" in said
    assert f"error: {broken}: result.json: not JSON at line 1, column 2" in said
    assert f"{read(runs[2]).number('ne'):.5f}" in Page(out).text


def test_a_page_that_has_no_place_is_an_error_of_the_user(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, said = reported(capsys, runs[0], "--out", tmp_path / "file" / "deep" / "page.html")
    assert code == 2
    assert (
        said
        == f"error: {tmp_path / 'file' / 'deep'}: cannot be made (Not a directory); name another file with --output\n"
    )


def test_a_broken_run_does_not_spoil_the_page_of_the_others(runs, broken, undrawn, tmp_path):
    (broken / "result.json").unlink()
    with (broken / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "tr')
    text = Page(write([runs[2], broken], tmp_path / "page.html")[0]).text
    assert "Something is missing in 1 of 2 runs" in text
    assert all(sentence in text for sentence in read(broken).missing)
    assert f"{read(runs[2]).number('ne'):.5f}" in text
    assert "0 of 1" in text


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_quality_on_another_split_is_not_in_the_table_of_the_test_split(runs, broken, undrawn, tmp_path, order):
    result = json.loads((broken / "result.json").read_text())
    del result["evaluations"]["test"]  # stopped before the final evaluation
    (broken / "result.json").write_text(json.dumps({**result, "status": "stopped"}))
    folders = [(runs[0], broken)[k] for k in order]
    table = Page(write(folders, tmp_path / "page.html")[0]).text.partition("Result on the test split")[2]
    ne, validation = read(runs[0]).number("ne"), result["evaluations"]["validation"]["last"]["ne"]
    assert f" 1 of 2 {ne:.5f} -" in table.partition("Mean")[0]
    assert f"{(ne + validation) / 2:.5f}" not in table


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("run.toml", r'(\[data\]\nfolder = )"[^"]*"', r'\1"other/data"', " in other/data"),
        ("result.json", r'"rows": ', '"rows": 1', ": 1,600 rows of the split test in "),
    ],
)  # fmt: skip
def test_runs_over_other_rows_are_not_compared_in_silence(
    runs, broken, undrawn, tmp_path, capsys, file, old, new, said
):
    assert reported(capsys, runs[0], broken, "--output", tmp_path / "same.html") == (0, "")
    path = broken / file
    path.write_text(re.sub(old, new, path.read_text()))
    code, err = reported(capsys, runs[0], broken, "--output", tmp_path / "other.html")
    assert code == 0
    assert err.startswith("warning: these runs were scored on different rows, so their NE and AUC cannot be compared. ")
    assert said in err
    assert "scored on different rows" in Page(tmp_path / "other.html").text


def test_a_run_that_is_named_by_two_paths_counts_once(runs, undrawn, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(runs[0].parent)
    out = tmp_path / "page.html"
    assert reported(capsys, runs[2], runs[0].name, runs[0], "--out", out) == (0, "")
    assert "2 runs" in Page(out).text


def test_a_run_of_which_only_the_settings_are_there_has_a_page(broken, tmp_path):
    for name in ("metrics.jsonl", "result.json"):
        (broken / name).unlink()
    shutil.rmtree(broken / "usage")
    files = write([broken], tmp_path / "page.html")
    assert [file.name for file in files] == ["page.html"]
    assert "no metrics.jsonl" in Page(files[0]).text


@pytest.mark.parametrize(("make", "said"), [(True, "not a run folder"), (False, "no such folder")])
def test_what_is_no_run_is_refused(tmp_path, make, said):
    if make:
        (tmp_path / "x").mkdir()
    with pytest.raises(DataError, match=said):
        write([tmp_path / "x"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_what_a_run_says_is_not_taken_for_markup(runs, undrawn, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "<script>alert(1)</script>")
    page = write([run, runs[1]], tmp_path / "page.html")[0]
    assert "<script" not in page.read_text()
    assert "alert(1)" in Page(page).text


def test_every_panel_shows_what_the_runs_recorded(runs):
    groups = by_settings([read(run) for run in runs])
    with figures.style(figures.LIGHT):
        figure = figures.curves(groups, figures.CURVES)
    assert [axes.get_title() for axes in figure.axes] == ["log-loss"] * 2 + ["normalized entropy"] * 2 + ["AUC"] * 2
    records = [record for group in groups for record in group.records]
    marks = [e for record in records for e in record.evaluations if e["split"] == "test"]
    for axes, (key, x) in zip(figure.axes, figures.CURVES, strict=True):
        drawn = {(round(a, 9), round(b, 9)) for line in axes.get_lines() for a, b in line.get_xydata()}
        scale = figures.X[x][1]
        assert {(round(e[x] * scale, 9), round(e[key], 9)) for e in marks} <= drawn
        assert len(axes.get_lines()) == 3 * len(records)  # windows, validation, test
        low, high = axes.get_ylim()
        assert all(low < e[key] < high for e in marks)


def test_panels_that_nobody_recorded_are_left_out(runs):
    groups = by_settings([read(runs[0])])
    assert figures.recorded(groups, figures.SPEED) == [("eps", "seconds")]  # one trainer alone has no rounds
    with figures.style(figures.LIGHT):
        assert len(figures.curves(groups, figures.SPEED[:3]).axes) == 3


def test_times_are_those_of_the_ranks_an_example(runs):
    with figures.style(figures.LIGHT):
        axes = figures.times(by_settings([read(run) for run in runs])).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a/run, b/run: trainer", "c/run: trainer"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.5e6 / 6_000] * 2)


def test_times_of_a_resumed_run_are_those_of_its_last_job(broken):
    result = json.loads((broken / "result.json").read_text())
    assert result["job_examples"] == result["examples"] == 6_000
    (broken / "result.json").write_text(json.dumps({**result, "job_examples": 1_500.0}))
    with figures.style(figures.LIGHT):
        axes = figures.times(by_settings([read(broken)])).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.5e6 / 1_500])


def test_long_curves_are_thinned_without_moving_them():
    x = np.arange(10_000.0)
    found = figures.thinned(list(zip(x, 3 * x, strict=True)))
    assert len(found) == figures.POINTS
    np.testing.assert_allclose(found[:, 1], 3 * found[:, 0])
    assert found[0, 0] < 50
    assert found[-1, 0] > 9_950


def test_every_rank_writes_where_its_time_went(tmp_path):
    def spin(seconds):
        import time

        began = time.thread_time()
        while time.thread_time() - began < seconds:
            pass

    before = cpu_usage._threads.copy()
    cpu_usage._threads.clear()
    with cpu_usage.recorded(tmp_path, Role.SYNC_PS, 3):
        spin(0.02)
        cpu_usage.set_up()
        for thread in ("worker 0", "worker 11"):
            with cpu_usage.counted(thread):
                spin(0.01)
    found = json.loads((tmp_path / "usage" / "sync_ps-3.json").read_text())
    cpu_usage._threads.update(before)
    assert (found["role"], found["index"]) == ("sync_ps", 3)
    assert found["peak_memory_bytes"] > 10**7
    assert {kind: spent["threads"] for kind, spent in found["threads"].items()} == {"set-up": 1, "worker": 2, "main": 1}
    assert found["threads"]["worker"]["cpu_seconds"] >= 0.02
    assert found["threads"]["set-up"]["cpu_seconds"] >= 0.02
    assert all(spent["wall_seconds"] >= 0.9 * spent["cpu_seconds"] for spent in found["threads"].values())
