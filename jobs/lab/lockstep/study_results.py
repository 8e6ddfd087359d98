"""The results of a lockstep study: tuned settings, NE of every arm, verdicts; as Markdown, JSON and pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jobs.lab.lockstep import comparisons, study_picture
from jobs.lab.lockstep.design import Choice, StudyDesign, Subject
from jobs.lab.lockstep.equivalence import Verdict, judge
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.tools.report.groups import name_of


@dataclass(frozen=True)
class Findings:
    """The tuned settings, the complete seeds, NE on the test split by arm, and the commits that computed it."""

    chosen: Mapping[Subject, Choice]
    seeds: Sequence[int]
    ne: comparisons.Results
    commits: Sequence[str]


def write(design: StudyDesign, findings: Findings) -> tuple[str, list[Path]]:
    """Write ``results.md``, ``results.json`` and pictures of the complete seeds; returns the text and the files."""
    options, results = design.options, findings.ne
    decided = verdicts(design, findings)
    text = markdown(design, findings, decided)
    files = [design.folder / "results.md", design.folder / "results.json"]
    body = {
        "title": options.title,
        "commits": list(findings.commits),
        "seeds": list(findings.seeds),
        "chosen": [{"algorithm": s.algorithm, **s.key, "choice": c} for s, c in findings.chosen.items()],
        "arms": [{"arm": a.name, **a.subject.key, "ne": list(ne)} for a, ne in results.items()],
        "verdicts": [{**asdict(verdict), "text": verdict.text} for verdict in decided],
    }
    atomic_file.write(files[0], text)
    atomic_file.write(files[1], json.dumps(body, indent=1) + "\n")
    try:
        files += study_picture.draw(design, results, decided)
    except UserError as error:
        log.info("no pictures: %s", error)
    return text, files


def verdicts(design: StudyDesign, findings: Findings) -> list[Verdict]:
    """What the tests decide."""
    return judge(comparisons.of(design, findings.ne), design.options.margin, design.options.level)


def markdown(design: StudyDesign, findings: Findings, decided: Sequence[Verdict]) -> str:
    """All tables, with notes on how to read them."""
    options = design.options
    code = ", ".join(commit or "not recorded" for commit in findings.commits)
    whose = f"{design.subjects[0].size}, others on as many rows" if options.sizes else "every replica"
    lines = [
        f"## {options.title}",
        "",
        f"`python -m jobs.lab equivalence {design.path}`: {len(findings.seeds)} of {options.seeds} seeds, "
        f"{options.steps:,} steps of {whose}, commit {code}. Lockstep: a shadow round is as stale as its gap is long, "
        "one in the foreground not at all.",
        "",
        *_arms(findings, "trainers x threads" if options.sizes else "trainers"),
        "",
        f"Equal: two one-sided t-tests show the mean difference of NE to lie within {options.margin:.1%}. Worse or "
        f"better: a two-sided t-test shows that it is not 0. Both at {options.level:.0%}, by pairs of seeds, with "
        "Holm's correction for the tests of one family; intervals are without it. Below 0 the first is better.",
    ]
    for family in comparisons.FAMILIES:
        found = [verdict for verdict in decided if verdict.comparison.family == family]
        if not found:
            continue
        lines += ["", f"**{family[0].upper()}{family[1:]}**", "", *_table(found, options.level)]
    return "\n".join(lines) + "\n"


def _arms(findings: Findings, size: str) -> list[str]:
    heads = ["arm", size, "tuned", "test NE", "standard deviation", "worst run"]
    rows = []
    for arm, ne in findings.ne.items():
        values, choice = np.array(ne), findings.chosen[arm.subject]
        mean, spread = values.mean(), values.std(ddof=1)
        rows.append([
            arm.name, arm.subject.size.removesuffix(" trainers"), name_of(choice), f"{mean:.5f}",
            f"{spread / mean:.2%}", f"{values.max() / mean - 1:+.2%}",
        ])  # fmt: skip
    return _lines(heads, rows)


def _table(verdicts: Sequence[Verdict], level: float) -> list[str]:
    heads = ["", "mean difference", f"{1 - level:.0%} interval", "p equal", "p different", "decided"]
    rows = [
        [
            v.comparison.name, f"{v.mean:+.3%}", f"{v.interval[0]:+.3%} to {v.interval[1]:+.3%}",
            f"{v.p_equal:.3f}", f"{v.p_different:.3f}", v.text,
        ]
        for v in verdicts
    ]  # fmt: skip
    return _lines(heads, rows)


def _lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with the first column left-aligned."""
    rule = ["---", *["---:" for _ in heads[1:-1]], "---"]
    return [f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows)]
