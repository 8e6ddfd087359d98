"""A fixed vocabulary against dynamic tables: MovieLens-1M in the order of time, scored before it is trained on.

    bash jobs/movielens.sh                    # fetches and sorts the ratings
    python jobs/studies/dynamic.py choose     # rates of each arm; appends to dynamic.jsonl, goes on where it ended
    python jobs/studies/dynamic.py run        # seeds 1 to 5
    python jobs/studies/dynamic.py report     # the tables

Decided before the first run. A million ratings, 100 parts of 10,000; a run is one pass, and every part is scored before
anybody is trained on it. Arms differ in the tables of user and item alone:

* ``fixed``: the vocabulary of parts 0 to 39 (``--min-count 4``), trained on in all parts; who came later shares a row;
* ``dynamic``: a row for each key from its first lookup on, none ever freed;
* ``bounded``: as many rows of users and of items as the fixed arm has; a key gets one at its fourth lookup, and loses
  it if it was not looked up for 200,000 examples, or if the table is full.

Each arm chooses its rates on one grid, by the NE of parts 40 to 59 with seed 0; these runs read no later part. (The
grid began with row rates from 0.06 on and dense rates to 0.02. All arms chose this corner, so that 0.02 and 0.06 were
added, before any run that is reported.) Then seeds 1 to 5 are trained, and parts 60 to 99 are reported: 60 to 89, where
most rows are of users who have just come, and 90 to 99, where most are of users who were there before (known from the
ratings, not from any run). A seed is other initial weights and another order within a part; arms of a seed are
compared. A difference counts if 0 is outside its 95 % interval (Student's t, 4 degrees of freedom); else it is
undecided. One thread: another run of a seed gives the same bits.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

from ssmpi.data.schema import MANIFEST_NAME, read_manifest
from ssmpi.embedding.dynamic_options import KeyOptions
from ssmpi.embedding.keyed_memory import KeyLayout
from ssmpi.runtime.quality import entropy

HERE = Path(__file__).parent
OUT, DATA, WORK = HERE / "dynamic.jsonl", Path("data/movielens"), Path("runs/studies/dynamic")
RATINGS = DATA / "ratings.tsv"
NO_RATINGS = f"there is no {RATINGS} here: 'bash jobs/movielens.sh' fetches it"
PART, KNOWN, CHOOSING, ALL = 10_000, 40, 60, 100  # rows of a part; parts of the vocabulary, of the choice, in all
ARMS, ROW_RATES, DENSE_RATES, SEEDS = (
    ("fixed", "dynamic", "bounded"),
    (0.02, 0.06, 0.2, 0.6),
    (0.005, 0.02, 0.06),
    (1, 2, 3, 4, 5),
)
CELL = ("arm", "row_rate", "dense_rate", "seed")
ENOUGH, ADMIT_AFTER, EXPIRE_AFTER = 10_000, 4, 200_000  # keys of a feature; lookups; examples
SPANS = {
    "40-59": (40, 60),
    **{f"{k}-{k + 9}": (k, k + 10) for k in range(60, 100, 10)},
    "60-89": (60, 90),
    "60-99": (60, 100),
}
METRICS, PAIRS = ("ne", "auc", "gauc"), (("dynamic", "fixed"), ("bounded", "fixed"), ("bounded", "dynamic"))
STUDENT = 2.776  # t of 97.5 %, 4 degrees of freedom
ROW_BYTES = 4 * (16 + 1)  # a row's vector and its Adagrad state


def call(*words: object) -> None:
    """Run a command to its end; if it fails, exit with what it said."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def prepared(name: str, parts: int, *more: object) -> Path:
    """The first parts as a data set, one shard each; what is there is used again."""
    folder = DATA / f"dynamic-{name}-{parts}"
    if not (folder / MANIFEST_NAME).exists():
        schema = HERE / "dynamic_schema.toml"
        words = ["--split", "none", "--no-shuffle", "--shard-rows", PART, "--output", folder]
        call("ssmpi-prepare", "table", "--schema", schema, ratings(parts), *words, *more)
    return folder


def ratings(parts: int) -> Path:
    """Those of the first parts, with the user once more as the last column."""
    file = DATA / f"dynamic-{parts}.tsv"
    with RATINGS.open() as lines, file.open("w") as out:
        for line in islice(lines, parts * PART):
            row = line.rstrip("\n")
            print(row, row.split("\t")[0], sep="\t", file=out)
    return file


def sets(parts: int) -> tuple[Path, Path]:
    """The first parts, by the vocabulary of the first ``KNOWN`` and by key."""
    fixed = prepared("fixed", parts, "--vocabulary", prepared("known", KNOWN, "--min-count", ADMIT_AFTER))
    keyed = prepared("keys", parts, "--hash")
    assert clicks_of(fixed) == clicks_of(keyed), "both have the same parts"
    assert len(clicks_of(fixed)) == parts
    return fixed, keyed


def clicks_of(folder: Path) -> list[int]:
    """Of each part."""
    return [shard.positives for shard in read_manifest(folder).split("train").shards]


def limits(arm: str, fixed: Path) -> dict[str, KeyOptions]:
    """Of user and item, where they have keys."""
    if arm == "dynamic":
        return dict.fromkeys(("user", "item"), KeyOptions(keys=ENOUGH))
    rows = read_manifest(fixed).cardinalities[:2]
    bounded = [KeyOptions(n - 2, ADMIT_AFTER, expire_after_examples=EXPIRE_AFTER) for n in rows]
    return dict(zip(("user", "item"), bounded, strict=True)) if arm == "bounded" else {}


def settings(keys: dict[str, KeyOptions]) -> Iterator[str]:
    """As the command line has them; ``who`` needs rows too, although nobody reads them."""
    yield f"embedding.dynamic.features.who.keys={ENOUGH}"
    for feature, options in keys.items():
        for name in ("keys", "admit_after", "expire_after_examples"):
            yield f"embedding.dynamic.features.{feature}.{name}={getattr(options, name)}"


def train(cell: dict[str, Any], parts: int) -> dict[str, Any]:
    """One run: its scores by span, what its tables hold in the end, and the memory of its user and item tables."""
    fixed, keyed = sets(parts)
    keys, run = limits(cell["arm"], fixed), WORK / f"{cell['arm']}-{cell['seed']}"
    call(
        "ssmpi", "train", HERE / "dynamic.toml", f"data.folder={keyed if keys else fixed}", f"run.folder={run}",
        f"run.seed={cell['seed']}", f"embedding.rate={cell['row_rate']}", f"dense.rate={cell['dense_rate']}",
        f"evaluate.per_pass={parts}", *settings(keys), "--overwrite",
    )  # fmt: skip
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    windows = [line for line in lines if line["kind"] == "evaluation" and line["split"] == "progressive"]
    assert [line["rows"] for line in windows] == [PART] * parts
    held = json.loads((run / "result.json").read_text())["keys"]
    rows = read_manifest(fixed).cardinalities[:2]
    beside = sum(KeyLayout(options.rows(1), options.counts).bytes_at(options.rows(1)) for options in keys.values())
    reserved = sum(options.rows(1) for options in keys.values()) if keys else sum(rows)
    return {
        "spans": {name: scores(windows, clicks_of(fixed), *span) for name, span in SPANS.items() if span[1] <= parts},
        "rows": reserved,
        "bytes": reserved * ROW_BYTES + beside,
        "keys": {feature: held[feature] for feature in keys},
    }


def scores(windows: Sequence[dict[str, Any]], clicks: Sequence[int], first: int, end: int) -> dict[str, float]:
    """Of some parts together: NE of all their rows; AUC and GAUC are the mean of the parts', by rows."""
    some, over = windows[first:end], sum(line["gauc_share"] for line in windows[first:end])
    loss = statistics.fmean(line["log_loss"] for line in some)
    return {
        "ne": loss / entropy(sum(clicks[first:end]) / (PART * len(some))),
        "auc": statistics.fmean(line["auc"] for line in some),
        "gauc": sum(line["gauc"] * line["gauc_share"] for line in some) / over,
        "gauc_share": over / len(some),
    }


def lines(phase: str) -> list[dict[str, Any]]:
    """What was found in a phase."""
    every = OUT.read_text().splitlines() if OUT.exists() else []
    return [line for line in map(json.loads, every) if line["phase"] == phase]


def chosen(arm: str) -> dict[str, Any]:
    """The rates with the lowest NE of the parts to choose by."""
    grid = [line for line in lines("choose") if line["arm"] == arm]
    best = min(grid, key=lambda line: float(line["spans"]["40-59"]["ne"]))
    return {name: best[name] for name in ("arm", "row_rate", "dense_rate")}


def cells(phase: str) -> list[dict[str, Any]]:
    """The runs of a phase."""
    if phase == "choose":
        return [dict(zip(CELL, (*each, 0), strict=True)) for each in product(ARMS, ROW_RATES, DENSE_RATES)]
    return [{**chosen(arm), "seed": seed} for seed, arm in product(SEEDS, ARMS)]


def measure(phase: str) -> None:
    """Run what is missing."""
    done = [[line[name] for name in CELL] for line in lines(phase)]
    for cell in cells(phase):
        if list(cell.values()) not in done:
            line = {"phase": phase, **cell, **train(cell, CHOOSING if phase == "choose" else ALL)}
            with OUT.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


def report() -> None:
    """Print the tables."""
    grid = list(product(ROW_RATES, DENSE_RATES))
    ne = {tuple(line[name] for name in CELL[:3]): line["spans"]["40-59"]["ne"] for line in lines("choose")}
    show(
        ["NE of parts 40 to 59", *(f"{row}, {dense}" for row, dense in grid)],
        [[arm, *(f"{ne[arm, *rates]:.5f}" for rates in grid)] for arm in ARMS],
    )
    runs = {(line["arm"], line["seed"]): line for line in lines("run")}
    if len(runs) < len(ARMS) * len(SEEDS):
        sys.exit(f"{OUT} has {len(runs)} of {len(ARMS) * len(SEEDS)} runs: 'python {sys.argv[0]} run' runs the others")
    for metric in METRICS:
        of_spans(metric, {key: line["spans"] for key, line in runs.items()})
    if RATINGS.exists():
        show(["parts", "rows of users of the same part", "rows of users not in the vocabulary"], newcomers())
    else:
        print(f"rows of new users are not counted: {NO_RATINGS}", file=sys.stderr)
    counts = "keys", "expired", "evicted", "refused"
    show(
        ["arm", "rows", "memory", "keys in the end", *counts[1:]],
        [
            [arm, f"{line['rows']:,}", f"{line['bytes'] / 1e6:.2f} MB"]
            + [f"{sum(one[name] for one in line['keys'].values()):,}" if line["keys"] else "" for name in counts]
            for arm in ARMS
            for line in (runs[arm, SEEDS[0]],)
        ],
    )


def newcomers() -> list[list[str]]:
    """Of spans of parts: rows of users who come in the same part, and of users that the vocabulary does not know."""
    with RATINGS.open() as rows:
        users = [row.split("\t", 1)[0] for row in islice(rows, ALL * PART)]
    came = {user: number // PART for number, user in reversed(list(enumerate(users)))}
    times = Counter(users[: KNOWN * PART])
    body = []
    for first, end in ((60, 90), (90, 100)):
        rows_of = users[first * PART : end * PART]
        new = sum(came[user] == first + number // PART for number, user in enumerate(rows_of)) / len(rows_of)
        unknown = sum(times[user] < ADMIT_AFTER for user in rows_of) / len(rows_of)
        body.append([f"{first}-{end - 1}", f"{new:.1%}", f"{unknown:.1%}"])
    return body


def of_spans(metric: str, spans: dict[tuple[str, int], dict[str, Any]]) -> None:
    """The table of one metric: means of arms, and differences by pairs of seeds."""
    names, body = [name for name in SPANS if name != "40-59"], []
    for arm in ARMS:
        means = (statistics.fmean(spans[arm, seed][name][metric] for seed in SEEDS) for name in names)
        body.append([arm, *(f"{mean:.5f}" for mean in means)])
    for arm, other in PAIRS:
        each = ([spans[arm, s][name][metric] - spans[other, s][name][metric] for s in SEEDS] for name in names)
        body.append([f"{arm} - {other}", *map(difference, each)])
    show([f"{metric.upper()}, parts", *names], body)


def show(head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    """Print a table as Markdown."""
    for row in (head, ["---", *["---:"] * (len(head) - 1)], *body):
        print("| " + " | ".join(row) + " |")
    print()


def difference(values: Sequence[float]) -> str:
    """Mean, standard error, and whether it counts."""
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:+.5f} ± {error:.5f}" + ("" if abs(mean) > STUDENT * error else ", undecided")


def main() -> None:
    """Choose, run, or report."""
    if sys.argv[1:] == ["report"]:
        report()
    elif sys.argv[1:] in (["choose"], ["run"]):
        if not RATINGS.exists():
            sys.exit(f"error: {NO_RATINGS}")
        measure(sys.argv[1])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
