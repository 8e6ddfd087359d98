"""``python -m jobs.lab recipes``: what is done, and in which order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs.lab.options import RecipesOptions
from jobs.lab.recipes import runs, table
from ssmpi.data.schema import read_manifest


def measure(options: RecipesOptions, overrides: Sequence[str]) -> None:
    """Prepare the data, make the runs that have no record, and print the tables."""
    records, began = runs.Records(options.records or options.folder / "recipes.jsonl"), time.monotonic()
    for name in options.data:
        runs.prepare(name, options.folder)
    cells = ((name, seed, side) for name in options.data for seed in options.seeds for side in options.sides)
    runs.run_all(cells, options.folder, records, overrides, lambda: time.monotonic() - began < 60 * options.minutes)
    keys = {
        name: runs.key_of(runs.config_of(name, 1, options.folder, overrides)[0], read_manifest(options.folder / name))
        for name in options.data
    }
    some = [line for line in records.lines if line["settings"] == keys.get(line["data"])]
    print(table.table(some))
    if len(some) < len(records.lines):
        print(f"\n{len(records.lines) - len(some)} records of other data sets, settings or rows are left out")
