"""Every network on real and on synthetic rows, tuned alike; LEADERBOARD.md has what came out.

bash jobs/movielens.sh; bash jobs/quickstart.sh                       # the data
python jobs/studies/leaderboard.py tune [DATA ...] [NETWORK ...]      # seed 1001; done runs are not repeated
python jobs/studies/leaderboard.py score [DATA ...] [NETWORK ...]     # seeds 1 to 5, with the rates that were best
python jobs/studies/leaderboard.py time [DATA ...] [NETWORK ...]      # two threads on two idle cores: the minutes
python jobs/studies/leaderboard.py table                              # from leaderboard.jsonl
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from defaults import READY, kept

from ssmpi.data.schema import read_manifest
from ssmpi.model.networks.zoo import NETWORKS

OUT, WORK = Path(__file__).with_suffix(".jsonl"), Path("data/leaderboard")
DATA = "movielens-1m", "quickstart"
ROW_RATES, DENSE_RATES = (0.05, 0.15, 0.45), (0.005, 0.02)  # 0.15 and 0.005 are the defaults
TUNING_SEED, SEEDS = 1001, range(1, 6)
SAME = (
    "topology.embedding_ps=0", "checkpoint.every_minutes=0", "run.tensorboard=false", "data.passes=1",
    "schedule.power=1.0", "model.precision=bf16",
)  # fmt: skip
Record = dict[str, Any]


def records(kind: str, data: str, network: str) -> list[Record]:
    """Those that are there, of one kind: tune, score or time."""
    lines = OUT.read_text().splitlines() if OUT.exists() else []
    key = {"kind": kind, "data": data, "network": network}
    return [record for record in map(json.loads, lines) if key.items() <= record.items()]


def best(data: str, network: str) -> tuple[float, float]:
    """The rates, of rows and of dense parameters, with the least NE of validation rows so far."""
    found = records("tune", data, network)
    if not found:
        raise SystemExit(f"{network} on {data}: not tuned; first: leaderboard.py tune {data} {network}")
    rows, dense = min(found, key=lambda record: record["validation"]["ne"])["rates"]
    return rows, dense


def runs(kind: str, data: str, network: str) -> Iterator[tuple[tuple[float, float], int]]:
    """Rates and seed of every run of one kind. Row rates are tried at the default dense rate, then dense rates at the
    best of them.
    """
    if kind == "tune":
        yield from (((rate, DENSE_RATES[0]), TUNING_SEED) for rate in ROW_RATES)
        rows = best(data, network)[0]
        yield from (((rows, rate), TUNING_SEED) for rate in DENSE_RATES)
    else:
        yield from ((best(data, network), seed) for seed in (SEEDS if kind == "score" else SEEDS[:1]))


def train(kind: str, data: str, network: str, rates: tuple[float, float], seed: int) -> Record:
    """One run by one thread, in which the rates fall to 0 along a line; by two to ``time`` it."""
    folder, run = READY[data], WORK / f"{data}-{network}"
    shutil.rmtree(run, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    (empty := WORK / "empty.toml").write_text("")
    settings = (
        f"data.folder={folder}", f"run.folder={run}", f"run.seed={seed}", f"model.name={network}",
        f"embedding.rate={rates[0]}", f"dense.rate={rates[1]}", f"topology.threads={2 if kind == 'time' else 1}",
        f"schedule.decay_examples={read_manifest(folder).splits['train'].rows}",
    )  # fmt: skip
    subprocess.run(["ssmpi", "train", empty, *settings, *SAME], check=True, stderr=subprocess.DEVNULL)
    result, versions = (json.loads((run / name).read_text()) for name in ("result.json", "versions.json"))
    what = {"kind": kind, "data": data, "network": network, "rates": rates, "seed": seed}
    scores = kept(run)
    shutil.rmtree(run)
    return what | scores | {"seconds": result["seconds"], "commit": versions["commit"]}


def table() -> None:
    """A table for each data set, best NE first."""
    for data in DATA:
        print(f"\n{data}\n\n| network | rates: rows, dense | NE | AUC | minutes |\n|---|---|---:|---:|---:|")
        rows = []
        for network in NETWORKS:
            if scored := records("score", data, network):
                shown = [spread([record["test"][name] for record in scored]) for name in ("ne", "auc")]
                took = [f"{record['seconds'] / 60:.2f}" for record in records("time", data, network)] or ["-"]
                mean = statistics.mean(record["test"]["ne"] for record in scored)
                rates = ", ".join(map(str, scored[0]["rates"]))
                rows.append((mean, f"| `{network}` | {rates} | {shown[0]} | {shown[1]} | {took[0]} |"))
        print("\n".join(line for _, line in sorted(rows)))


def spread(scores: list[float]) -> str:
    """Mean and standard deviation, with the number of seeds if some are missing."""
    seeds = f" ({len(scores)})" if len(scores) < len(SEEDS) else ""
    return f"{statistics.mean(scores):.4f} ± {statistics.stdev(scores) if len(scores) > 1 else 0:.4f}{seeds}"


def main() -> None:
    """Make the runs of one kind that have no record, or print the tables."""
    kind, *only = sys.argv[1:] or ["help"]
    if kind not in ("tune", "score", "time", "table") or set(only) - {*DATA, *NETWORKS}:
        sys.exit(__doc__)
    if kind == "table":
        table()
        return
    chosen = [[name for name in names if name in only] or list(names) for names in (DATA, NETWORKS)]
    for data, network in itertools.product(*chosen):
        for rates, seed in runs(kind, data, network):
            if any((tuple(done["rates"]), done["seed"]) == (rates, seed) for done in records(kind, data, network)):
                continue
            record = train(kind, data, network, rates, seed)
            with OUT.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(f"{data}, {network}, {rates}, seed {seed}: {record['validation']}", flush=True)


if __name__ == "__main__":
    main()
