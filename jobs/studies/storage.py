"""Rows on disk (``embedding.storage``) in less memory than they need, beside all in memory; STORAGE.md has the results.

python jobs/studies/storage.py data EXPONENT [TABLES]    # ids by Zipf's law; tables of half Criteo Kaggle's sizes
python jobs/studies/storage.py keys EXPONENT             # the same rows with keys in place of ids
python jobs/studies/storage.py run DATA [FOLDER]         # trains with rows in memory, or in a folder on a disk
python jobs/studies/storage.py table                     # from storage.jsonl

A control group limits the memory of a run with rows on disk:
    systemd-run --scope -p MemoryMax=1097M python jobs/studies/storage.py run zipf-1.2 /local/disk
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from data_prep.synthetic.teacher import KAGGLE_CARDINALITIES
from data_prep.vocabulary.vocabulary_file import MergedFeature, write_vocabulary
from ssmpi.data.features import CRITEO
from ssmpi.data.schema import (
    DatasetManifest,
    ShardEntry,
    Split,
    open_shard,
    read_manifest,
    write_manifest,
    write_shard,
)  # fmt: skip
from ssmpi.data.shard_columns import Columns, read_columns
from ssmpi.runtime.host.host_memory import memory_limit
from ssmpi.state.requirements import read_tables

OUT, WORK, KEYS = Path(__file__).with_suffix(".jsonl"), Path("data/storage"), "keys.json"
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


def with_keys(exponent: float, folder: Path) -> None:
    """Shards with a key for each id, and how many keys each feature has."""
    data, entries = WORK / f"zipf-{exponent}", []
    manifest = read_manifest(data)
    seen = [np.zeros(size, bool) for size in manifest.cardinalities]
    for entry in manifest.split("train").shards:
        with open_shard(data, entry, manifest) as shard:
            found = read_columns(shard, 0, entry.rows)
        for mine, ids in zip(seen, found.ids.T, strict=True):
            mine[ids] = True
        keys = mixed((found.ids.astype(np.uint64) + np.uint64(1)) * np.uint64(32) + np.arange(len(seen), dtype="u8"))
        columns = Columns(found.ids[:, :0], found.dense, found.label, keys=keys.view(np.int64))
        size, checksum = write_shard(folder / entry.file, columns, {"split": "train"})
        entries.append(replace(entry, bytes=size, checksum=checksum))
    features = replace(CRITEO, keyed=CRITEO.sparse)
    write_manifest(folder, DatasetManifest((0,) * len(seen), {"train": Split(tuple(entries))}, features=features))
    counts = {name: int(np.count_nonzero(mine)) for name, mine in zip(features.keyed, seen, strict=True)}
    (folder / KEYS).write_text(json.dumps(counts))


def mixed(values: np.ndarray) -> np.ndarray:
    """Random bits of each, uint64 (splitmix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def train(data: Path, disk: str) -> dict[str, Any]:
    """One run. Examples/s and pages read are those of its second half. Runs by key pause three times."""
    run, kind = WORK / "run", data.name
    counts = json.loads((data / KEYS).read_text()) if (data / KEYS).exists() else {}
    more = [f"embedding.dynamic.features.{name}.keys={max(100, count)}" for name, count in counts.items()]
    more += ["evaluate.per_pass=4"] * bool(counts)
    for path in data.glob("train/*"):
        path.read_bytes()  # rows to train on are in memory
    shutil.rmtree(run, ignore_errors=True)
    (empty := WORK / "empty.toml").write_text("")
    rows = f"data.folder={data}", f"run.folder={run}", f"embedding.storage={disk}"
    words = ["ssmpi", "train", empty, *rows, *SAME, *more]
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
        "data": kind, "disk": bool(disk), "limit": memory_limit(), "commit": versions["commit"],
        "eps": (ended - began) / (stop - start),
        "pages": (after - before) / 4096 / (ended - began),
    }  # fmt: skip
    shutil.rmtree(run)
    return record


def table() -> None:
    """A line for each kind of run: medians, and examples/s beside those in memory."""
    found = defaultdict[tuple[str, float, str], list[dict[str, Any]]](list)
    for record in map(json.loads, OUT.read_text().splitlines()):
        limit = record["limit"] if record["disk"] else 0.0
        found[record["data"], limit, record["commit"] if limit else ""].append(record)
    memory = {key[0]: median(each["eps"] for each in of) for key, of in found.items() if not key[1]}
    print("| data | limit, GB | commit | runs | examples/s | of in memory | pages read an example |")
    print("|---|---|---|---|---|---|---|")
    for (data, limit, commit), of in sorted(found.items()):
        eps, pages = (median(each[name] for each in of) for name in ("eps", "pages"))
        shown = (f"{limit / 1e9:.2f}", commit, f"{eps / memory[data]:.2f}", f"{pages:.3f}")
        limit_, commit_, ratio, pages_ = shown if limit else ("none", "", "1", "0")
        print(f"| {data} | {limit_} | {commit_} | {len(of)} | {eps:,.0f} | {ratio} | {pages_} |")


def main() -> None:
    """What the arguments say."""
    match sys.argv[1:]:
        case ["data", exponent]:
            make(float(exponent), SIZES, WORK / f"zipf-{exponent}")
        case ["data", exponent, tables]:
            make(float(exponent), read_tables(Path(tables)), WORK / Path(tables).stem)
        case ["keys", exponent]:
            with_keys(float(exponent), WORK / f"keys-{exponent}")
        case ["run", data, *disk] if len(disk) < 2:
            with OUT.open("a") as out:
                out.write((line := json.dumps(train(WORK / data, "".join(disk)))) + "\n")
            print(line)
        case ["table"]:
            table()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
