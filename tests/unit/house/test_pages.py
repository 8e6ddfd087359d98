"""The pages: links and names of files lead somewhere, what is generated is current, the hooks run the checks of CI."""

import re
import shlex
from pathlib import Path

import pytest

from jobs.lab.__main__ import parser as laboratory
from ssmpi.cli import parse_overrides
from ssmpi.cli.arguments import parser
from ssmpi.tools import settings_text
from ssmpi.trainer.metrics.fields import markdown

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "jobs").rglob("*.md"), *(ROOT / "ssmpi").rglob("*.md")])
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
SCRIPTS = sorted([*(ROOT / "jobs").rglob("*.sh"), *(ROOT / "jobs").rglob("*.toml")])
COMMAND = r"(?:ssmpi|python\s+-m\s+jobs\.lab)"
GONE = [
    "ssmpi bench compression --only links",
    "python -m jobs.lab cluster --group",
]  # cited as what earlier commits had


def cited(path):
    """The commands that a page or a script cites, ours and the laboratory's: whole lines and those in backticks."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL) if path.suffix == ".md" else [text]
    found = [
        line
        for block in blocks
        for line in re.findall(rf"^[ #]*(?:nice -n 19 )?({COMMAND} [a-z].*)$", block, re.MULTILINE)
    ]
    if path.suffix == ".md":
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        found += [" ".join(words.split()) for words in re.findall(rf"`({COMMAND} [a-z][^`]*)`", prose)]
    return [line for line in found if line not in GONE and "..." not in line]


@pytest.mark.parametrize("path", [p for p in (*PAGES, *SCRIPTS) if cited(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_that_are_cited_parse(path, capsys):
    """A citation may leave out values, or have variables and capitals for them; what else it gives has to be right."""
    left_out = r"arguments are required|expected one argument|invalid \w+ value: '(\$|[A-Z]+')"
    wrong = []
    for line in cited(path):
        try:
            words = shlex.split(line, comments=True)
            if words[0] == "python":
                parse_overrides(laboratory(), words[3:])
            else:
                parse_overrides(parser(), words[1:])
        except SystemExit:
            said = capsys.readouterr().err
            if not re.search(left_out, said):
                wrong.append((line, said.splitlines()[-1]))
    assert wrong == []


def test_sections_of_the_table_of_benchmarks_parse():
    """Where the head of a column is the command, its cells are options."""
    page = (ROOT / "jobs/BENCHMARKS.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\|.*\| `(--[^`]*)`[^|]*\|$", page, flags=re.MULTILINE)
    assert len(cells) > 5
    for cell in cells:
        parsed = parse_overrides(parser(), ["bench", "throughput", *shlex.split(cell)])
        assert parsed.only


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page):
    wrong = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"`((?:ssmpi|data_prep|jobs|tests)/[\w./-]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_table_of_metrics_is_that_of_the_code():
    page = (ROOT / "jobs/guide/metrics.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n\n{markdown()}\n")


def test_every_setting_is_on_its_page_with_a_meaning():
    page = (ROOT / "jobs/guide/settings.md").read_text(encoding="utf-8")
    assert page.endswith(f"\n\n{settings_text.markdown()}\n"), "print the page again, as it says"
    assert re.findall(r"^\| .*\|  \|$", page, flags=re.MULTILINE) == []


def test_a_commit_runs_the_checks_that_ci_runs_before_its_tests():
    script = (ROOT / "jobs/test.sh").read_text(encoding="utf-8")
    checks = re.findall(r"^run (?!pytest)(.*)$", script, flags=re.MULTILINE)
    entries = re.findall(r"entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [words[-1] if (words := shlex.split(entry))[0] == "bash" else entry for entry in entries]
    assert checks
    assert [command.removeprefix(".venv-test/bin/") for command in commands] == checks
