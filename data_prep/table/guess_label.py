"""Finds for ``guess`` the label of a table, other candidates, and columns that give the label away.

A label is known by its name. Where no name is known, columns with two values such as 0 and 1 or yes and no may be it:
the first or the last one is taken for it, and none of the others becomes a feature, since a label among the features
makes a model that is perfect and useless. Beside a label with a known name, only columns with such names are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.schema import quoted, some

TARGETS = "label", "labels", "target", "y"
LABELS = (
    *TARGETS,
    *("click", "clicked", "clicks", "clk", "conversion", "converted", "convert", "conv", "purchase", "purchased"),
    *("buy", "bought", "order", "ordered", "install", "installed", "attributed", "like", "liked", "response"),
    *("outcome", "class", "action", "success", "positive", "relevant", "subscribe", "subscribed", "follow", "followed"),
    *("share", "shared", "forward", "forwarded", "comment", "commented", "nonclk", "nonclick", "noclick", "unclick"),
)  # the likelier label first
AROUND_LABELS = re.compile(r"^(is|has|was|did)_?(?=.)|_(flag|label)$")  # of is_click, click_flag
POSITIVE = ("yes", "y", "true", "t", "1", "click", "clicked", "conversion", "converted", "positive", "pos")
ANSWERS = {"yes", "y", "true", "t", "1", "no", "n", "false", "f", "0"}
QUESTION = """# label = "..."  # a column of 0 and 1, or a rule: rating >= 4, clicked == 'yes'"""
FIRST = 1000  # rows that show whether a column may have two values alone
TEXTS = pa.string(), pa.large_string()
LEAK_ROWS, LEAST_OF_CLASS = 200_000, 10  # rows to compare with the label; of each class, for a comparison that counts
GIVES_AWAY = 0.999  # an AUC


@dataclass(frozen=True)
class Rule:
    """``label``: the setting that makes a label of a column; ``positive``: its values that are 1; ``doubt``: what has
    to be looked at, if anything; ``usual``: values that labels usually have; ``sure``: whether the setting can be
    written without asking."""

    label: str
    positive: tuple[Any, ...]
    doubt: str = ""
    usual: bool = True
    sure: bool = True


@dataclass(frozen=True)
class LabelGuess:
    """``column``: the label, empty if none was chosen; ``lines`` of the schema; ``left_out``: other columns that may be
    labels, with the reason; ``remark``: what the user has to be told; ``positive``: the values of the column that are
    1.
    """

    column: str
    lines: Sequence[str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""
    positive: tuple[Any, ...] = ()


def guess_label(rows: pa.Table, plain: Mapping[str, str]) -> LabelGuess:
    """The label of a table; ``plain``: the names of its columns without what file formats add to them."""
    named = {name: rank for name in rows.column_names if (rank := rank_of(plain[name])) is not None}
    rules = {name: _rule(name, plain[name], rows[name]) for name in named}
    good = {name: rule for name in sorted(named, key=named.__getitem__) if (rule := rules[name])}
    if any(rule.sure for rule in good.values()) or len(good) == 1:
        chosen = next((name for name, rule in good.items() if rule.sure), next(iter(good)))
        reason = f"may be a second label beside {chosen}"
        return _chosen(chosen, good[chosen], rows[chosen], {name: reason for name in good if name != chosen})
    others = {name: rule for name in rows.column_names if (rule := _rule(name, "", rows[name])) and rule.usual}
    for name, place in ((rows.column_names[0], "first"), (rows.column_names[-1], "last")):
        if not good and name in others and not rows[name].null_count:
            doubt = f"the {place} column, with two values: is it the label?"
            rule = replace(others[name], doubt="; ".join([others[name].doubt, doubt]).removeprefix("; "))
            reason = f"may be the label in place of {name}"
            found = _chosen(name, rule, rows[name], {other: reason for other in others if other != name})
            return replace(found, remark=f"{name} is {doubt}")
    return _asked(good | others)


def rank_of(plain: str) -> int | None:
    """How likely a name is that of the label, 0 for the likeliest; None for other names."""
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", plain.strip()).lower().replace("-", "_").replace(" ", "_")
    words = AROUND_LABELS.sub("", AROUND_LABELS.sub("", name))
    if name == "rating":
        return 0
    return next((LABELS.index(word) for word in (name, words, words.replace("_", "")) if word in LABELS), None)


def _chosen(name: str, rule: Rule, column: pa.ChunkedArray, left_out: Mapping[str, str]) -> LabelGuess:
    line = ("" if rule.sure else "# ") + f"label = {quoted(rule.label)}" + f"  # {rule.doubt}" * bool(rule.doubt)
    gaps = column.null_count
    line += f"  # missing in {gaps:,} rows, which are bad ones: --on-bad-row skip" * bool(gaps)
    remark = f"{name} may be the label: {rule.doubt}" if not rule.sure else ""
    return LabelGuess(name, [line], left_out, remark, rule.positive)


def _asked(candidates: Mapping[str, Rule]) -> LabelGuess:
    """No label was chosen: its line for each candidate, as comments."""
    if not candidates:
        return LabelGuess("", [QUESTION], remark="no column looks like the label, which training needs")
    lines = ["# Which of these is the label? Uncomment its line, and below those of the others if they are features."]
    lines += [
        f"# label = {quoted(rule.label)}" + f"  # {rule.doubt}" * bool(rule.doubt) for rule in candidates.values()
    ]
    remark = f"which column is the label, which training needs? It may be {some(candidates)}"
    return LabelGuess("", lines, dict.fromkeys(candidates, "may be the label"), remark)


def _rule(name: str, plain: str, column: pa.ChunkedArray) -> Rule | None:
    """How a column could be the label, None if it could not; without a ``plain`` name, it is known by its values."""
    column, kind = column.drop_null(), column.type
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if plain.lower() == "rating":
        return Rule(f"{name} >= 4", tuple(v for v in pc.unique(column).to_pylist() if v >= 4)) if numbers else None
    if pa.types.is_boolean(kind):
        return Rule(name, (True,))
    if not (numbers or kind in TEXTS):
        return None
    if pc.count_distinct(column[:FIRST]).as_py() > 2 or pc.count_distinct(column).as_py() > 2:
        target = numbers and plain.lower() in TARGETS
        return Rule(f"{name} > 0", (), "it has more than two values: which are 1?", sure=False) if target else None
    values = sorted(pc.unique(column).to_pylist())
    if numbers:
        return _of_numbers(name, values, known=bool(plain))
    if len(values) < 2 or not (plain or {value.strip().lower() for value in values} <= ANSWERS):
        return None
    chosen = [value for value in values if value.lower() in POSITIVE]
    one = chosen[0] if len(chosen) == 1 else values[0]
    other = f"else {quoted(values[values[0] == one])}"
    sure = len(chosen) == 1
    return Rule(f"{name} == '{one}'", (one,), other if sure else f"{other}: say which of them is 1", sure=sure)


def _of_numbers(name: str, values: Sequence[Any], *, known: bool) -> Rule | None:
    """As ``_rule``, of one or two numbers; ``known``: the name is that of a label."""
    if set(values) <= {0, 1}:
        return Rule(name, (1,)) if known or len(values) == 2 else None
    if len(values) < 2:
        return None
    least, most = values
    usual = (least, most) == (-1, 1)
    doubt = f"else {least:g}" + f"; is {most:g} the one that counts?" * (not usual)
    return Rule(f"{name} == {most:g}", (most,), doubt, usual=usual) if known or usual else None


def area_alone(rows: pa.Table, label: LabelGuess, name: str) -> float:
    """How well a column alone tells the label: the AUC of its values, or, of categories, of how often those of one half
    of the rows were clicked, on the other half. 0 for columns of other types, and where there are too few rows.
    """
    if not label.positive:
        return 0.0
    rows = rows.select([label.column, name]).filter(rows[label.column].is_valid())
    rows = rows.take(np.random.default_rng(0).permutation(rows.num_rows)[:LEAK_ROWS])
    clicked = pc.is_in(rows[0], pa.array(label.positive, rows[0].type)).to_numpy()
    column, half = rows[1], len(rows) // 2
    if min(clicked[half:].sum(), (~clicked[half:]).sum(), clicked[:half].sum()) < LEAST_OF_CLASS:
        return 0.0
    numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    scores = [_numbers(column)[half:]] if numbers else []
    if column.type in TEXTS or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        scores.append(_rates(column, clicked, half))
    areas = [_auc(one, clicked[half:]) for one in scores]
    return max((max(area, 1 - area) for area in areas), default=0.0)


def _rates(column: pa.ChunkedArray, clicked: np.ndarray, half: int) -> np.ndarray:
    """Scores of the second half of the rows: how often the first half was clicked, of rows with the same value."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    seen, clicks = np.bincount(codes[:half], minlength=codes.max() + 1), np.bincount(codes[:half][clicked[:half]])
    rates = np.full(len(seen), clicked[:half].mean())
    clicks = np.append(clicks, np.zeros(len(seen) - len(clicks)))
    np.divide(clicks, seen, out=rates, where=seen > 0)
    return rates[codes[half:]]


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float64 (rows,), the least where missing."""
    values = column.cast(pa.float64(), safe=False).to_numpy()
    return np.nan_to_num(values, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def _auc(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The area under the ROC curve; ties count one half."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    ones = int(clicked.sum())
    return float((ranks[places][clicked].sum() - ones * (ones + 1) / 2) / (ones * (len(clicked) - ones)))
