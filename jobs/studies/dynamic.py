"""A fixed vocabulary against dynamic tables, on rows that drift and tokens that come and go; by pairs of seeds.

    python jobs/studies/dynamic.py choose        # settings of the dynamic arm, by other seeds and earlier days
    python jobs/studies/dynamic.py run [SEEDS]   # seeds 1 to SEEDS (default 5); done ones are not repeated
    python jobs/studies/dynamic.py report        # the tables, from dynamic.jsonl

Rows are those of ``days.py``: 480,000 in eight days; while they pass, effects of half the features turn by 27 degrees
and every token is replaced once. A run is one pass, a part a day: every day is scored before anybody is trained on it.
Days 5, 6 and 7 are reported.

* ``fixed``: the vocabulary of days 0 to 4; rare and new tokens share a row;
* ``dynamic``: a key for each token and no vocabulary, settings as chosen.

``choose`` trains each of ``CHOICES`` on days 0 to 4 of seeds 101 and 102, of which nothing is reported, and takes the
one with the lowest mean NE of days 1 to 4. Everything else is ``days.toml``. One trainer, one thread: another run of a
seed gives the same bits. The fixed arm has no settings to choose: ``--min-count`` is that of ``days.py``.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import days
import numpy as np
from days import ALL, BASE, COUNT, HERE, METRICS, NEXT, ROWS, call, pairs, prepare

from ssmpi.data.features import CRITEO, Features
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import Manifest, ShardEntry, Split, read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns

OUT, CHOSEN, WORK = HERE / "dynamic.jsonl", HERE / "dynamic_choice.json", Path("runs/studies/dynamic")
ARMS, EVERY, CHOOSING = ("fixed", "dynamic"), range(8), (101, 102)
ADMISSION, EXPIRY = "embedding.dynamic.admit_after", "embedding.dynamic.expire_after_examples"
DAY = 60_000  # rows
CHOICES: dict[str, tuple[float, tuple[str, ...]]] = {  # keys of a feature by its rows in the fixed arm, and settings
    "as many rows": (1.0, ()),
    "as many rows, 4th lookup": (1.0, (f"{ADMISSION}=4",)),
    "twice as many": (2.0, ()),
    "twice as many, 4th lookup": (2.0, (f"{ADMISSION}=4",)),
    "twice as many, two days": (2.0, (f"{EXPIRY}={2 * DAY}",)),
    "twice as many, 4th lookup, two days": (2.0, (f"{ADMISSION}=4", f"{EXPIRY}={2 * DAY}")),
}


def clicks_of(raw: Path) -> int:
    """Clicked rows of a day's raw file."""
    with raw.open() as lines:
        return sum(line.startswith("1") for line in lines)


def by_day(source: Path, folder: Path, raw: Sequence[Path], *, keyed: bool) -> Path:
    """The rows of a prepared set with a shard for each day; ids as keys if ``keyed``: any numbers that tell tokens
    apart would do. Returns the folder.
    """
    manifest = read_manifest(source)
    reader = SplitReader(source, "train", 1 << 30)
    found = [reader.read(block) for block in reader.blocks]
    ids, dense, label = (np.concatenate([getattr(each, name) for each in found]) for name in ("ids", "dense", "labels"))
    size, entries = len(ids) // len(raw), []
    for day, path in enumerate(raw):
        rows = slice(day * size, (day + 1) * size)
        clicks = label[rows].astype(np.uint8)
        assert int(clicks.sum()) == clicks_of(path), f"{path}: not the rows of this day"
        columns = Columns(ids[rows], dense[rows], clicks)
        if keyed:
            columns = Columns(np.empty((size, 0), np.int32), dense[rows], clicks, keys=ids[rows].astype(np.int64))
        name = f"train/shard-{day:05}.h5"
        written, checksum = write_shard(folder / name, columns, {"split": "train"})
        entries.append(ShardEntry(name, size, int(clicks.sum()), written, checksum))
    features = Features(CRITEO.dense, CRITEO.sparse, keyed=CRITEO.sparse) if keyed else CRITEO
    sizes = (0,) * len(CRITEO.sparse) if keyed else manifest.cardinalities
    write_manifest(folder, Manifest(sizes, {"train": Split(tuple(entries))}, features=features))
    return folder


def sets(folder: Path, seed: int, span: range) -> tuple[Path, Path, tuple[int, ...]]:
    """The days of a seed, by the vocabulary of days 0 to 4 and by key; and the rows of that vocabulary's tables."""
    shutil.rmtree(folder, ignore_errors=True)
    call("ssmpi-prepare", "synthesize", folder / "raw", "--seed", seed, *ROWS)
    raw = [folder / "raw" / f"day_{day}" for day in span]
    base = prepare(folder, "base", BASE, *ALL, *COUNT)
    known = prepare(folder, "known", span, *ALL, "--no-shuffle", "--vocabulary", base)
    tokens = prepare(folder, "tokens", span, *ALL, "--no-shuffle", "--min-count", "1")
    fixed = by_day(known, folder / "fixed", raw, keyed=False)
    return fixed, by_day(tokens, folder / "keys", raw, keyed=True), read_manifest(base).cardinalities


def dynamic(choice: str, sizes: Sequence[int]) -> Iterator[str]:
    """The settings of a choice; ``sizes`` are the rows of the fixed arm's tables."""
    factor, settings = CHOICES[choice]
    yield "embedding.table=dynamic"
    for name, rows in zip(CRITEO.sparse, sizes, strict=True):
        yield f"embedding.dynamic.features.{name}.keys={round(factor * rows)}"
    yield from settings


def train(run: Path, data: Path, seed: int, parts: int, *settings: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train in one pass; what each part scored before it was trained on, and the result."""
    call(
        "ssmpi", "train", HERE / "days.toml", f"data.folder={data}", f"run.folder={run}", f"run.seed={seed}",
        f"evaluate.per_pass={parts}", *settings,
    )  # fmt: skip
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    windows = [line for line in lines if line["kind"] == "evaluation" and line["split"] == "progressive"]
    assert [line["rows"] for line in windows] == [DAY] * parts, "a part is a day"
    return windows, json.loads((run / "result.json").read_text())


def choose() -> None:
    """Choose the settings of the dynamic arm."""
    scores: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    for seed in CHOOSING:
        folder = WORK / f"choose-{seed}"
        _, keys, sizes = sets(folder, seed, BASE)
        for number, choice in enumerate(CHOICES):
            windows, _ = train(folder / f"run-{number}", keys, seed, len(BASE), *dynamic(choice, sizes))
            scores[choice].append(float(np.mean([line["ne"] for line in windows[1:]])))
            print(f"seed {seed}: {choice}: {scores[choice][-1]:.5f}", flush=True)
        shutil.rmtree(folder)
    best = min(scores, key=lambda choice: float(np.mean(scores[choice])))
    CHOSEN.write_text(json.dumps({"chosen": best, "ne": scores}, indent=1) + "\n")


def one(seed: int, choice: str) -> dict[str, Any]:
    """Both arms of a seed."""
    folder = WORK / f"seed-{seed}"
    fixed, keys, sizes = sets(folder, seed, EVERY)
    by_arm, results = {}, {}
    for arm, data, settings in (("fixed", fixed, ()), ("dynamic", keys, tuple(dynamic(choice, sizes)))):
        by_arm[arm], results[arm] = train(folder / f"run-{arm}", data, seed, len(EVERY), *settings)
    found: dict[str, Any] = {"seed": seed, "choice": choice, "rows": sum(sizes), "keys": results["dynamic"]["keys"]}
    for day in EVERY:
        found[str(day)] = {arm: {name: by_arm[arm][day][name] for name in METRICS} for arm in ARMS}
    ceiling = json.loads((folder / "raw" / "teacher.json").read_text())["days"]
    found["teacher"] = {str(day): {name: ceiling[f"day_{day}"][name] for name in ("ne", "auc")} for day in NEXT}
    shutil.rmtree(folder)
    return found


def report() -> None:
    """Print the tables."""
    choice = json.loads(CHOSEN.read_text())
    print("| choice | NE of days 1 to 4, seeds 101 and 102 |\n|---|---:|")
    for name, scores in choice["ne"].items():
        print(f"| {name} | {np.mean(scores):.5f} |")
    lines = [json.loads(line) for line in OUT.read_text().splitlines()]
    print(f"\nchosen: {choice['chosen']}; {len(lines)} seeds\n")
    for metric in METRICS:
        print(f"| {metric} | " + " | ".join(f"day {day}" for day in NEXT) + " |\n|---|---:|---:|---:|")
        for arm in ARMS:
            means = (np.mean([line[str(day)][arm][metric] for line in lines]) for day in NEXT)
            print(f"| {arm} | " + " | ".join(f"{mean:.5f}" for mean in means) + " |")
        if metric in lines[0]["teacher"]["5"]:
            means = (np.mean([line["teacher"][str(day)][metric] for line in lines]) for day in NEXT)
            print("| teacher (the ceiling) | " + " | ".join(f"{mean:.5f}" for mean in means) + " |")
        print()
    print("| difference, by pairs of seeds | NE, days 5 to 7 | AUC, days 5 to 7 |\n|---|---:|---:|")
    print(
        "| dynamic - fixed | " + " | ".join(pairs(lines, name, "dynamic", "fixed", NEXT) for name in METRICS[:2]) + " |"
    )
    print("\n| of dynamic - fixed | " + " | ".join(f"day {day}" for day in NEXT) + " |\n|---|---:|---:|---:|")
    each = (pairs(lines, "ne", "dynamic", "fixed", range(day, day + 1)) for day in NEXT)
    print("| NE | " + " | ".join(each) + " |")
    totals = {name: [sum(f[name] for f in line["keys"].values()) for line in lines] for name in ("keys", "evicted")}
    rows = np.mean([line["rows"] for line in lines])
    print(
        f"\nrows of the fixed arm {rows:,.0f}; keys of the dynamic one in the end {np.mean(totals['keys']):,.0f}, ",
        end="",
    )
    print(f"evicted {np.mean(totals['evicted']):,.0f}")
    beside()


def beside() -> None:
    """The extended vocabulary of ``days.py``, on the same rows of the same seeds, days 6 and 7."""
    theirs = {line["seed"]: line for line in map(json.loads, days.OUT.read_text().splitlines())}
    ours = [json.loads(line) for line in OUT.read_text().splitlines()]
    both = [
        {day: {**theirs[line["seed"]][day], **line[day]} for day in ("6", "7")}
        for line in ours
        if line["seed"] in theirs
    ]
    print("\n| beside days.py, days 6 and 7 | NE | AUC |\n|---|---:|---:|")
    for arm, other in (("fixed", "continued"), ("dynamic", "extended")):
        cells = (pairs(both, name, arm, other, range(6, 8)) for name in METRICS[:2])
        print(f"| {arm} - {other} of days.py | " + " | ".join(cells) + " |")


def main() -> None:
    """Choose, run what is missing, or report."""
    what = sys.argv[1]
    if what == "choose":
        choose()
    elif what == "report":
        report()
    else:
        choice = json.loads(CHOSEN.read_text())["chosen"]
        done = {json.loads(line)["seed"] for line in OUT.read_text().splitlines()} if OUT.exists() else set()
        for seed in range(1, int((sys.argv[2:] or ["5"])[0]) + 1):
            if seed not in done:
                line = json.dumps(one(seed, choice))
                with OUT.open("a") as out:
                    out.write(line + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
