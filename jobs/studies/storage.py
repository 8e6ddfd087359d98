"""Rows on disk (``embedding.storage``) in less memory than they need, beside all in memory; STORAGE.md has the results.

python jobs/studies/storage.py data EXPONENT [TABLES]    # ids by Zipf's law; tables of half Criteo Kaggle's sizes
python jobs/studies/storage.py run EXPONENT [FOLDER]     # trains with rows in memory, or in a folder on a disk
python jobs/studies/storage.py table                     # from storage.jsonl

A control group limits the memory of a run with rows on disk:
    systemd-run --scope -p MemoryMax=2200M python jobs/studies/storage.py run 1.2 /local/disk
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from data_prep.synthetic.teacher import KAGGLE_CARDINALITIES
from data_prep.vocabulary.vocabulary_file import MergedFeature, write_vocabulary
from ssmpi.data.features import CRITEO
from ssmpi.data.schema import DatasetManifest, ShardEntry, Split, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns
from ssmpi.runtime.host.host_memory import memory_limit
from ssmpi.state.requirements import read_tables

OUT, WORK = Path(__file__).with_suffix(".jsonl"), Path("data/storage")
ROWS, SHARD = 3_000_000, 250_000  # to train on, of a shard
COUNTED = 10**12  # rows in which ids were counted: so many that rare ones are counted exactly
DIM, SIZES = 64, [max(3, size // 2) for size in KAGGLE_CARDINALITIES]
SAME = (
    "topology.embedding_ps=0", "topology.threads=2", "checkpoint.every_minutes=0", "run.tensorboard=false",
    "data.passes=1", "evaluate.split=none", "evaluate.final=none", "evaluate.keep=last", f"embedding.dim={DIM}",
    f"model.bottom=[512, 256, {DIM}]",
)  # fmt: skip


def make(exponent: float, sizes: Sequence[int], folder: Path) -> None:
    """Shards whose ids occur by Zipf's law, id 0 most often, and a vocabulary with the expected counts."""
    generator = np.random.default_rng(1)
    shares = [np.arange(1, size + 1.0) ** -exponent for size in sizes]
    sums = [np.cumsum(each / each.sum()) for each in shares]
    entries = []
    for number in range(ROWS // SHARD):
        ids = np.stack([np.searchsorted(each, generator.random(SHARD) * each[-1]) for each in sums], axis=1)
        dense = np.log1p(generator.exponential(5.0, (SHARD, 13))).astype(np.float32)
        label = (generator.random(SHARD) < 0.25 + 0.2 * np.sin(ids[:, 2])).astype(np.uint8)
        name = f"train/shard-{number:05}.h5"
        size, checksum = write_shard(folder / name, Columns(ids.astype(np.int32), dense, label), {"split": "train"})
        entries.append(ShardEntry(name, SHARD, int(label.sum()), size, checksum))
    counts = [(each[2:] / each.sum() * COUNTED).astype(np.int64) for each in shares]  # 0 and 1 have the rest
    found = {
        name: MergedFeature(np.arange(len(each), dtype="u8"), each, [len(each)] * 5)
        for name, each in zip(CRITEO.sparse, counts, strict=True)
    }
    about = {"id_order": "frequency", "min_count": 1, "max_ind_range": 0, "fit_on": "all", "fitted_rows": COUNTED}
    write_vocabulary(folder / "vocabulary.h5", found, about)
    write_manifest(folder, DatasetManifest(tuple(sizes), {"train": Split(tuple(entries))}, True))


def train(exponent: float, disk: str) -> dict[str, Any]:
    """One run. Examples/s and pages read are those of its second half."""
    data, run = WORK / f"zipf-{exponent}", WORK / "run"
    for path in data.glob("train/*"):
        path.read_bytes()  # rows to train on are in memory
    shutil.rmtree(run, ignore_errors=True)
    (empty := WORK / "empty.toml").write_text("")
    words = ["ssmpi", "train", empty, f"data.folder={data}", f"run.folder={run}", *SAME, f"embedding.storage={disk}"]
    marks = []
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as ranks:
        while not marks or marks[-1][0] < 0.95 * ROWS:
            time.sleep(0.2)
            if ranks.poll() is not None:
                raise SystemExit(f"{words}: exit {ranks.returncode}")
            lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
            if len(lines) > len(marks):
                line = json.loads(lines[-1])
                read = int(Path(f"/proc/{ranks.pid}/io").read_text().split("read_bytes: ")[1].split()[0])
                marks += [(line["examples"], line["seconds"], read)] * (len(lines) - len(marks))
        versions = json.loads((run / "versions.json").read_text())
        ranks.kill()  # nobody wants the model
    (began, start, before), (ended, stop, after) = marks[len(marks) // 2], marks[-1]
    record = {
        "exponent": exponent, "disk": bool(disk), "limit": memory_limit(), "commit": versions["commit"],
        "eps": (ended - began) / (stop - start),
        "pages": (after - before) / 4096 / (ended - began),
    }  # fmt: skip
    shutil.rmtree(run)
    return record


def table() -> None:
    """A line for each kind of run: medians, and examples/s beside those in memory."""
    found = defaultdict[tuple[float, float, str], list[dict[str, Any]]](list)
    for record in map(json.loads, OUT.read_text().splitlines()):
        limit = record["limit"] if record["disk"] else 0.0
        found[record["exponent"], limit, record["commit"] if limit else ""].append(record)
    memory = {key[0]: median(each["eps"] for each in of) for key, of in found.items() if not key[1]}
    print("| exponent | limit, GB | commit | runs | examples/s | of in memory | pages read an example |")
    print("|---|---|---|---|---|---|---|")
    for (exponent, limit, commit), of in sorted(found.items()):
        eps, pages = (median(each[name] for each in of) for name in ("eps", "pages"))
        shown = (f"{limit / 1e9:.2f}", commit, f"{eps / memory[exponent]:.2f}", f"{pages:.3f}")
        limit_, commit_, ratio, pages_ = shown if limit else ("none", "", "1", "0")
        print(f"| {exponent} | {limit_} | {commit_} | {len(of)} | {eps:,.0f} | {ratio} | {pages_} |")


def main() -> None:
    """What the arguments say."""
    match sys.argv[1:]:
        case ["data", exponent]:
            make(float(exponent), SIZES, WORK / f"zipf-{exponent}")
        case ["data", exponent, tables]:
            make(float(exponent), read_tables(Path(tables)), WORK / Path(tables).stem)
        case ["run", exponent, *disk] if len(disk) < 2:
            with OUT.open("a") as out:
                out.write((line := json.dumps(train(float(exponent), "".join(disk)))) + "\n")
            print(line)
        case ["table"]:
            table()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
