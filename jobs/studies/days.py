"""Day to day: a model trained once against the same model continued every day, on rows that drift; by pairs of seeds.

    python jobs/studies/days.py run [SEEDS]     # seeds 1 to SEEDS (default 5); done ones are not repeated
    python jobs/studies/days.py report          # the tables, from days.jsonl

A seed is another teacher, other rows and other initial weights. 480,000 rows in eight days; while they pass, effects of
half the features turn by 27 degrees and every token is replaced once. Everybody trains on days 0 to 4, with their
vocabulary. Then days 5, 6 and 7 are scored, each before anybody is trained on it:

* ``fixed``: the model as it was after day 4;
* ``continued``: continued each day, with the vocabulary of days 0 to 4, so that new tokens share the rare one's row;
* ``extended``: continued each day, with the vocabulary extended each day, so that new tokens get rows of their own.

Nothing was tuned for one of them: rates are those of ``jobs/configs/quickstart.toml``. One trainer, one thread: another
run of a seed gives the same bits.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
OUT, WORK = HERE / "days.jsonl", Path("runs/studies/days")
BASE, NEXT = range(5), range(5, 8)
ARMS = ("fixed", "continued", "extended")
METRICS = ("ne", "auc", "calibration")
ROWS = ("--rows", "480k", "--days", "8", "--scale", "0.001", "--drift", "0.3", "--turnover", "1")
ALL, COUNT = ("--split", "none", "--split-name", "train"), ("--min-count", "4")
STUDENT = {4: 2.776, 3: 3.182, 2: 4.303, 1: 12.706}  # t of 97.5 % by degrees of freedom


def call(*words: object) -> str:
    """Run a command to its end; its standard output."""
    done = subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def prepare(folder: Path, name: str, days: range, *more: object) -> Path:
    """Prepare some days' rows as the data set ``name``."""
    raw = [folder / "raw" / f"day_{day}" for day in days]
    call("ssmpi-prepare", "criteo", *raw, "--output", folder / name, *more)
    return folder / name


def train(folder: Path, name: str, data: Path, seed: int, parent: Path | None = None) -> Path:
    """Train the run ``name`` in one pass over ``data``, from the beginning or from a ``parent``'s model."""
    run = folder / name
    more = ["--continue-from", parent] if parent else []
    call("ssmpi", "train", HERE / "days.toml", f"data.folder={data}", f"run.folder={run}", f"run.seed={seed}", *more)
    return run


def ahead(run: Path) -> dict[str, float]:
    """What a day's rows scored before the run was trained on them."""
    found = json.loads((run / "result.json").read_text())["evaluations"]["progressive"]["whole"]
    return {name: found[name] for name in METRICS}


def scored(run: Path, data: Path) -> dict[str, float]:
    """The scores of a model that stays as it is."""
    text = call("ssmpi", "evaluate", run, "--split", "train", "--data", data)
    return {name: float(re.search(rf"{name} ([\d.]+)", text, re.IGNORECASE)[1]) for name in METRICS}  # type: ignore[index]


def one(seed: int) -> dict[str, object]:
    """All arms of a seed."""
    folder = WORK / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    call("ssmpi-prepare", "synthesize", folder / "raw", "--seed", seed, *ROWS)
    first = prepare(folder, "base", BASE, *ALL, *COUNT)
    fixed = continued = extended = train(folder, "run-base", first, seed)
    found: dict[str, object] = {"seed": seed, "base": ahead(fixed)}
    vocabulary = first
    for day in NEXT:
        today = range(day, day + 1)
        known = prepare(folder, f"day-{day}", today, *ALL, "--vocabulary", first)
        vocabulary = prepare(folder, f"day-{day}-extended", today, *ALL, *COUNT, "--extend-vocabulary", vocabulary)
        continued = train(folder, f"run-{day}", known, seed, continued)
        extended = train(folder, f"run-{day}-extended", vocabulary, seed, extended)
        found[str(day)] = {"fixed": scored(fixed, known), "continued": ahead(continued), "extended": ahead(extended)}
    days = json.loads((folder / "raw" / "teacher.json").read_text())["days"]
    found["teacher"] = {str(day): {name: days[f"day_{day}"][name] for name in ("ne", "auc")} for day in NEXT}
    shutil.rmtree(folder)
    return found


def pairs(lines: list[dict], metric: str, arm: str, other: str, days: range) -> str:
    """Mean difference of two arms over ``days``, with the half of its 95 % interval over pairs of seeds."""
    each = [np.mean([line[str(day)][arm][metric] - line[str(day)][other][metric] for day in days]) for line in lines]
    half = STUDENT[len(each) - 1] * np.std(each, ddof=1) / math.sqrt(len(each))
    return f"{np.mean(each):+.5f} ± {half:.5f}"


def report() -> None:
    """Print the tables."""
    lines = [json.loads(line) for line in OUT.read_text().splitlines()]
    print(f"{len(lines)} seeds\n")
    for metric in METRICS:
        print(f"| {metric} | day 5 | day 6 | day 7 |\n|---|---:|---:|---:|")
        for arm in ARMS:
            means = (np.mean([line[str(day)][arm][metric] for line in lines]) for day in NEXT)
            print(f"| {arm} | " + " | ".join(f"{mean:.5f}" for mean in means) + " |")
        if metric in lines[0]["teacher"]["5"]:
            means = (np.mean([line["teacher"][str(day)][metric] for line in lines]) for day in NEXT)
            print("| teacher (the ceiling) | " + " | ".join(f"{mean:.5f}" for mean in means) + " |")
        print()
    print("| difference, by pairs of seeds | NE, day 6 and 7 | AUC, day 6 and 7 |\n|---|---:|---:|")
    for arm, other in (("continued", "fixed"), ("extended", "fixed"), ("extended", "continued")):
        cells = (pairs(lines, metric, arm, other, range(6, 8)) for metric in ("ne", "auc"))
        print(f"| {arm} - {other} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run what is missing, or report."""
    if sys.argv[1:2] == ["report"]:
        report()
        return
    done = {json.loads(line)["seed"] for line in OUT.read_text().splitlines()} if OUT.exists() else set()
    for seed in range(1, int((sys.argv[2:] or ["5"])[0]) + 1):
        if seed not in done:
            line = json.dumps(one(seed))
            with OUT.open("a") as out:
                out.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
