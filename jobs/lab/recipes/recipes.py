"""``python -m jobs.lab recipes``: what is done, and in which order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs.lab.options import RecipesOptions
from jobs.lab.recipes import runs, table


def measure(options: RecipesOptions, overrides: Sequence[str]) -> None:
    """Prepare the data, make the runs that have no record, and print the tables."""
    records, began = runs.Records(options.records or options.folder / "recipes.jsonl"), time.monotonic()
    if options.minutes > 0:
        if set(options.sides) != {runs.OURS}:
            runs.check(overrides)
        for name in options.data:
            runs.prepare(name, options.folder)
        cells = ((name, seed, side) for name in options.data for seed in options.seeds for side in options.sides)
        runs.run_all(cells, options.folder, records, overrides, lambda: time.monotonic() - began < 60 * options.minutes)
    last = {line["data"]: line["settings"] for line in records.lines}
    some = [line for line in records.lines if line["settings"] == last[line["data"]]]
    print(table.table(some))
    if len(some) < len(records.lines):
        print(f"\n{len(records.lines) - len(some)} runs of earlier settings or rows are left out")
