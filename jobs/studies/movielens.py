"""Quality on real rows: MovieLens-1M in the order of time, networks by ssmpi beside the same ones in plain torch.

Decided before the first run. Both sides have the same rows, networks, initial distributions, optimizers (Adagrad, rows
row-wise), batches of 256 and two passes; the model of the pass with the lower validation NE is kept. Each pair of side
and network chooses its rates on the same grid, by validation NE alone, with seed 0. Then seeds 1 to 5 are trained with
them, and only these read the test rows, once. The users that the test rows are of have ids of their own (``--fit-on
all``), trained or not: GAUC needs them.

    bash jobs/movielens.sh                                  # fetches and sorts the ratings
    python jobs/studies/movielens.py prepare                # adds two counts, makes shards
    python jobs/studies/movielens.py tune                   # appends to the results; begins where it was interrupted
    python jobs/studies/movielens.py final
    python jobs/studies/movielens.py check                  # ssmpi's models under torch's networks
    python jobs/studies/movielens.py table
"""

import argparse
import copy
import json
import math
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import movielens_torch
import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ssmpi import Run

HERE = Path(__file__).parent
RESULTS = HERE / "movielens.jsonl"
SIDES, NETWORKS = ("ssmpi", "torch"), tuple(movielens_torch.NETWORKS)
ROW_RATES, DENSE_RATES = (0.02, 0.06, 0.2), (0.005, 0.02)
CELL = ("side", "network", "row_rate", "dense_rate", "seed")
SEEDS, BATCH, PASSES = (1, 2, 3, 4, 5), 256, 2


def prepare(folder: Path) -> None:
    """Ratings with counts of earlier ones, and shards of them."""
    counted, before = folder / "counted.tsv", ({}, {})
    with (folder / "ratings.tsv").open() as ratings, counted.open("w") as out:
        for line in ratings:
            words = line.rstrip("\n").split("\t")
            counts = [seen.get(word, 0) for seen, word in zip(before, words, strict=False)]
            print(*words, *counts, sep="\t", file=out)
            for seen, word, count in zip(before, words, counts, strict=False):
                seen[word] = count + 1
    words = ["--schema", HERE / "movielens_schema.toml", counted, "--output", folder / "study", "--fit-on", "all"]
    subprocess.run(["ssmpi-prepare", "table", *words], check=True)


class Rows:
    """The rows of a split: dense float32 (rows, 2), ids int64 (rows, 2), labels float32 (rows,)."""

    def __init__(self, folder: Path, split: str) -> None:
        parts = []
        for path in sorted((folder / "study" / split).glob("*.h5")):
            with h5py.File(path, "r", locking=False) as shard:
                parts.append([shard[name][()] for name in ("dense", "ids", "label")])
        dense, ids, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        self.dense, self.ids = torch.from_numpy(dense), torch.from_numpy(ids.astype(np.int64))
        self.labels = torch.from_numpy(labels.astype(np.float32))


def auc(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The share of pairs in the right order; those of equal scores count one half. NaN without pairs."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    some = int(clicked.sum())
    pairs = some * (len(scores) - some)
    return (float(ranks[clicked].sum()) - some * (some + 1) / 2) / pairs if pairs else math.nan


def quality(probabilities: np.ndarray, rows: Rows) -> dict[str, float]:
    """NE, AUC, and GAUC by user: float64 (rows,) against the labels."""
    clicked, users = rows.labels.numpy() == 1, rows.ids[:, 0].numpy()
    loss = -np.log(np.where(clicked, probabilities, 1 - probabilities)).mean()
    rate = clicked.mean()
    found = []
    for user in np.unique(users):
        if user > 1:  # 0 and 1 are no user
            own = users == user
            found.append((int(own.sum()), auc(probabilities[own], clicked[own])))
    known = [(count, value) for count, value in found if not math.isnan(value)]
    counted = sum(count for count, _ in known)
    return {
        "ne": float(loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))),
        "auc": auc(probabilities, clicked),
        "gauc": sum(count * value for count, value in known) / counted,
        "gauc_share": counted / len(users),
        "users": len(known),
    }


def by_ssmpi(folder: Path, cell: dict[str, Any], *, test: bool) -> dict[str, Any]:
    """One run: the kept model's validation NE and, of test rows, its quality."""
    run = Run(
        HERE / "movielens.toml",
        data={"folder": folder / "study"},
        run={"folder": folder / "runs" / f"{cell['network']}-{cell['seed']}", "seed": cell["seed"]},
        model={"name": cell["network"]},
        embedding={"rate": cell["row_rate"]},
        dense={"rate": cell["dense_rate"]},
        evaluate={"final": "test" if test else "none"},
    )
    done = run.launch(quiet=True, overwrite=True)
    best = done.result["evaluations"]["validation"]["best"]
    found = {"validation_ne": best["ne"], "examples": best["after_examples"]}
    if test:
        rows, own = Rows(folder, "test"), done.result["evaluations"]["test"]["best"]  # of the kept model
        labels, probabilities = done.scores("test")
        assert np.array_equal(labels, rows.labels)
        found["test"] = quality(probabilities, rows)
        for name in ("ne", "gauc"):  # what the program reports is what is computed here
            assert abs(own[name] - found["test"][name]) < 1e-6, (name, own, found)
        assert abs(own["auc"] - found["test"]["auc"]) <= own["auc_error"] + 1e-7, (own, found)
    return found


@torch.inference_mode()
def probabilities_of(model: torch.nn.Module, rows: Rows) -> np.ndarray:
    """float64 (rows,)."""
    parts = [model(dense, ids) for dense, ids in zip(rows.dense.split(8192), rows.ids.split(8192), strict=True)]
    return torch.sigmoid(torch.cat(parts).squeeze(1).double()).numpy()


def sizes_of(folder: Path) -> tuple[int, ...]:
    """Rows of the tables."""
    return tuple(json.loads((folder / "study" / "manifest.json").read_text())["cardinalities"])


def by_torch(folder: Path, cell: dict[str, Any], *, test: bool) -> dict[str, Any]:
    """The same in plain torch, on one thread."""
    torch.manual_seed(cell["seed"])
    model = movielens_torch.NETWORKS[cell["network"]](2, sizes_of(folder))
    rows, validation = Rows(folder, "train"), Rows(folder, "validation")
    named = {name: value for name, value in model.named_parameters() if name.startswith(("emb_l.", "first_l."))}
    tables, others = list(named.values()), [value for name, value in model.named_parameters() if name not in named]
    dense = torch.optim.Adagrad(
        others, cell["dense_rate"], initial_accumulator_value=movielens_torch.DENSE_STATE, eps=movielens_torch.EPSILON
    )
    sparse = movielens_torch.RowwiseAdagrad(tables, cell["row_rate"])
    kept: tuple[float, int, Any] = (math.inf, 0, None)
    for number in range(1, PASSES + 1):
        for some in torch.randperm(len(rows.labels)).split(BATCH):
            logits = model(rows.dense[some], rows.ids[some]).squeeze(1)
            binary_cross_entropy_with_logits(logits, rows.labels[some]).backward()
            dense.step()
            dense.zero_grad()
            sparse.step()
        ne = quality(probabilities_of(model, validation), validation)["ne"]
        if ne < kept[0]:
            kept = ne, number * len(rows.labels), copy.deepcopy(model.state_dict())
    found = {"validation_ne": kept[0], "examples": kept[1]}
    if test:
        model.load_state_dict(kept[2])
        last = Rows(folder, "test")
        found["test"] = quality(probabilities_of(model, last), last)
    return found


TRAIN = {"ssmpi": by_ssmpi, "torch": by_torch}


def lines(phase: str) -> list[dict[str, Any]]:
    """What was found in a phase."""
    every = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [line for line in map(json.loads, every) if line["phase"] == phase]


def cells(phase: str) -> Iterator[dict[str, Any]]:
    """The runs of a phase, by seeds."""
    if phase == "tune":
        for network, row_rate, dense_rate, side in product(NETWORKS, ROW_RATES, DENSE_RATES, SIDES):
            yield {"side": side, "network": network, "row_rate": row_rate, "dense_rate": dense_rate, "seed": 0}
        return
    for seed, network, side in product(SEEDS, NETWORKS, SIDES):
        yield {**chosen(side, network), "seed": seed}


def chosen(side: str, network: str) -> dict[str, Any]:
    """The rates with the lowest validation NE."""
    grid = [line for line in lines("tune") if (line["side"], line["network"]) == (side, network)]
    assert len(grid) == len(ROW_RATES) * len(DENSE_RATES), "tune first"
    best = min(grid, key=lambda line: line["validation_ne"])
    return {name: best[name] for name in ("side", "network", "row_rate", "dense_rate")}


def train(folder: Path, phase: str, seconds: float, sides: Sequence[str]) -> None:
    """The runs of a phase, of some sides, that there are no results of; none is begun after ``seconds``."""
    begin = time.monotonic()
    done = [{name: line[name] for name in CELL} for line in lines(phase)]
    for cell in cells(phase):
        if cell in done or cell["side"] not in sides or time.monotonic() - begin > seconds:
            continue
        began = time.monotonic()
        found = TRAIN[cell["side"]](folder, cell, test=phase == "final")
        with RESULTS.open("a") as out:
            took = round(time.monotonic() - began, 1)
            print(json.dumps({"phase": phase, **cell, **found, "seconds": took}), file=out)
        print(cell, found, flush=True)


def check(folder: Path) -> None:
    """Models that ssmpi has trained, under torch's networks: the largest difference of a test row's probability."""
    for network in NETWORKS:
        run, rows = folder / "runs" / f"{network}-1", Rows(folder, "test")
        subprocess.run(["ssmpi", "export", run, "--output", run / "model.pt"], check=True, stdout=subprocess.DEVNULL)
        model = movielens_torch.NETWORKS[network](2, sizes_of(folder))
        model.load_state_dict(torch.load(run / "model.pt", weights_only=True), strict=True)
        apart = np.abs(probabilities_of(model, rows) - Run.open(run).scores("test").probabilities).max()
        print(f"{network}: probabilities differ by at most {apart:.1e}")
        assert apart < 1e-5


def table() -> None:
    """The page's tables, in Markdown."""
    print("| network | side | row rate | dense rate | NE | AUC | GAUC |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for network in NETWORKS:
        values: dict[str, list[list[float]]] = {}
        for side in SIDES:
            runs = [line for line in lines("final") if (line["side"], line["network"]) == (side, network)]
            values[side] = [[line["test"][name] for line in runs] for name in ("ne", "auc", "gauc")]
            shown = " | ".join(f"{statistics.fmean(some):.5f} ± {error(some):.5f}" for some in values[side])
            rates = f"{runs[0]['row_rate']:g} | {runs[0]['dense_rate']:g}"
            print(f"| {network} | {side} ({len(runs)} seeds) | {rates} | {shown} |")
        both = zip(values["ssmpi"], values["torch"], strict=True)
        apart = ((statistics.fmean(a) - statistics.fmean(b), math.hypot(error(a), error(b))) for a, b in both)
        print(f"| {network} | difference | | | " + " | ".join(f"{d:+.5f} ± {e:.5f}" for d, e in apart) + " |")


def error(values: list[float]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    """One of the steps above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "tune", "final", "check", "table"))
    parser.add_argument("--data", type=Path, default=Path("data/movielens"), help="folder with ratings.tsv")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="to train")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so many")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.step in ("tune", "final"):
        train(given.data, given.step, given.seconds, given.sides)
    elif given.step == "table":
        table()
    else:
        {"prepare": prepare, "check": check}[given.step](given.data)


if __name__ == "__main__":
    main()
