"""The pages: links and names of files lead somewhere, what is generated is current, the hooks run the checks of CI."""

import re
import shlex
from pathlib import Path

import pytest

from ssmpi.metrics.fields import markdown

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "jobs").rglob("*.md"), *(ROOT / "ssmpi").rglob("*.md")])
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


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


def test_a_commit_runs_the_checks_that_ci_runs_before_its_tests():
    script = (ROOT / "jobs/test.sh").read_text(encoding="utf-8")
    checks = re.findall(r"^run (?!pytest)(.*)$", script, flags=re.MULTILINE)
    entries = re.findall(r"entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [words[-1] if (words := shlex.split(entry))[0] == "bash" else entry for entry in entries]
    assert checks
    assert [command.removeprefix(".venv-test/bin/") for command in commands] == checks
