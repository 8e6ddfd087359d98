"""Computes the row ranges of the splits.

Rows are numbered over all sources in order; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssmpi.data.schema import SPLITS
from ssmpi.runtime.errors import UserError

Ranges = dict[str, tuple[int, int]]

KAGGLE_DAYS = 7


def parse_fractions(text: str) -> tuple[float, ...]:
    """``0.8,0.1,0.1`` as numbers for train, validation, test; UserError unless they are 1 to 3 and add up to 1."""
    try:
        fractions = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--split {text!r}: not kaggle, days, none or fractions; write for example --split 0.8,0.1,0.1"
        ) from None
    if not 1 <= len(fractions) <= len(SPLITS) or not all(0 <= x <= 1 for x in fractions):
        raise UserError(f"--split {text}: give one to three fractions between 0 and 1 (train,validation,test)")
    if abs(sum(fractions) - 1) > 1e-9:
        raise UserError(f"--split {text}: the fractions add up to {sum(fractions):g}, not 1")
    return fractions


def split_rows(kind: str, rows_per_source: Sequence[int], name: str = "train") -> Ranges:
    """The row ranges of the splits, empty ones left out.

    ``kaggle``: seven equal ranges, the first ones taking the remainder; six train, the first half of the last is test,
    the second validation (the arithmetic of facebookresearch/dlrm). ``days``: the same halves of the last file.
    ``none``: all rows in split ``name``. Otherwise fractions, in the order train, validation, test.
    """
    total = sum(rows_per_source)
    if kind == "none":
        ranges = {name: (0, total)}
    elif kind == "kaggle":
        ranges = _halve_last(total - total // KAGGLE_DAYS, total)
    elif kind == "days":
        ranges = _halve_last(total - rows_per_source[-1], total)
    else:
        fractions = parse_fractions(kind)
        cuts = [round(total * sum(fractions[:i])) for i in range(len(fractions))] + [total]
        ranges = {split: (cuts[i], cuts[i + 1]) for i, split in enumerate(SPLITS[: len(fractions)])}
    return {split: ranges[split] for split in SPLITS if split in ranges and ranges[split][0] < ranges[split][1]}


def _halve_last(start: int, total: int) -> Ranges:
    middle = start + (total - start + 1) // 2
    return {"train": (0, start), "test": (start, middle), "validation": (middle, total)}
