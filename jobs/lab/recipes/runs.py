"""The data sets, the runs of both sides, and their records, of which a killed study is continued."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs.lab.options import RECIPE_SIDES
from ssmpi.api import Run
from ssmpi.config import Config, load
from ssmpi.data.schema import DatasetManifest, read_manifest
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.host.mpi_environment import PYTHON
from ssmpi.runtime.host.versions import commit

JOBS = Path(__file__).parents[2]
RUN_FILE, RATINGS = JOBS / "studies/recipes.toml", Path("data/movielens/ratings.tsv")
FUXICTR = "fuxictr==2.3.10"
OURS, _, OWN_START = RECIPE_SIDES
DATA = {  # what 'ssmpi-prepare synthesize' makes, least count of an id, and settings besides those of the run file
    "movielens": ((), 0, ("data.batch_size=1024",)),
    "quickstart": (("--rows", "1200000", "--seed", "1"), 10, ()),
    "rare": (("--rows", "300000", "--seed", "1", "--scale", "0.3", "--skew", "0.8"), 1, ("data.batch_size=1024",)),
}
APART = "run.folder", "data.folder", "run.seed"  # settings that make no other recipe
TAKEN = (
    "data.batch_size", "data.passes", "model.top", "model.dropout", "model.dcn_v2.layers", "embedding.dim",
    "embedding.table_decay", "evaluate.patience", "evaluate.batch_size",
)  # fmt: skip


def check(overrides: Sequence[str]) -> None:
    """UserError for a setting that FuxiCTR's side does not take: the sides would have different recipes."""
    for word in overrides:
        if word.partition("=")[0] not in TAKEN:
            only = f"or run ssmpi alone by --sides {OURS}"
            raise UserError(f"{word}: FuxiCTR's side does not take this; override one of {', '.join(TAKEN)}, {only}")


def prepare(name: str, folder: Path) -> None:
    """Make the shards of a data set in ``folder / name``, unless they are there. UserError if rows are missing."""
    (synthesize, least, _), shards = DATA[name], folder / name
    if (shards / "manifest.json").is_file():
        return
    if not synthesize:
        if not RATINGS.is_file():
            raise UserError(f"{RATINGS}: no such file; 'bash jobs/movielens.sh' makes it")
        rows, schema = RATINGS, JOBS / "schemas/movielens.toml"
    else:
        rows, schema = folder / f"{name}-raw/train.txt", folder / f"{name}.toml"
        _call("data_prep", "synthesize", rows.parent, *synthesize, "--overwrite")
        schema.write_text((JOBS / "schemas/criteo_x4.toml").read_text().replace("= 10 }", f"= {least} }}"))
    _call("data_prep", "table", "--schema", schema, rows, "--output", shards)


def install(folder: Path) -> None:
    """Put FuxiCTR into ``folder``, unless it is there, and let this process find it, behind all else. Its preparation
    of data is left out: it imports Ray.
    """
    package = folder / "fuxictr"
    if not package.is_dir():
        pip = "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder
        _call(*pip, "polars", "pyyaml")
        _call(*pip, "--no-deps", FUXICTR)
    (package / "preprocess/__init__.py").write_text("")  # also after a kill between the two
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _call(*words: object) -> None:
    done = subprocess.run([*PYTHON, "-m", *map(str, words)])
    if done.returncode:
        raise UserError(f"'python -m {' '.join(map(str, words))}' ended with exit code {done.returncode}")


def config_of(name: str, seed: int, folder: Path, overrides: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """The settings of a run of a data set in ``folder``, and what overrides those of the run file."""
    places = [f"data.folder={folder / name}", f"run.folder={folder / 'run'}", f"run.seed={seed}"]
    words = [*places, *DATA[name][2], *overrides]
    return load(RUN_FILE, words), words


def key_of(config: Config, manifest: DatasetManifest) -> str:
    """A digest of the recipe and the rows of a run."""
    settings = {name: value for name, value in config.flat().items() if name not in APART}
    rows = {name: [shard.checksum for shard in split.shards] for name, split in sorted(manifest.splits.items())}
    return hashlib.sha256(json.dumps([settings, rows], sort_keys=True, default=str).encode()).hexdigest()[:12]


def by_ssmpi(words: Sequence[str]) -> dict[str, Any]:
    """One run by ``ssmpi launch``. The AUC of test rows is exact, by their scores."""
    from sklearn.metrics import roc_auc_score

    done = Run(RUN_FILE, *words).launch(overwrite=True, quiet=True)
    lines, passes, before = done.metrics, list[dict[str, float]](), 0.0
    train, scored = lines["train"], lines["evaluation"]
    for k in (scored["split"] == "validation").nonzero()[0]:
        seconds = float(scored["seconds"][k])
        last = (train["examples"] <= scored["examples"][k]).nonzero()[0][-1]
        values = {name: float(scored[name][k]) for name in ("auc", "log_loss", "auc_error")}
        passes.append({"seconds": seconds - before, **values, "rate": 0.001 * float(train["rate_factor"][last])})
        before = seconds
    usage = json.loads((done.folder / "usage/trainer-0.json").read_text())["threads"]
    labels, probabilities = done.scores("test")
    test = done.result["evaluations"]["test"]["best"]
    found = {"auc": float(roc_auc_score(labels, probabilities)), "log_loss": test["log_loss"]}
    cpu = sum(value["cpu_seconds"] for name, value in usage.items() if name != "set-up")
    return {"passes": passes, "test": found, "cpu_seconds": cpu}


def by_fuxictr(config: Config, manifest: DatasetManifest, folder: Path, *, own_start: bool) -> dict[str, Any]:
    """One run by FuxiCTR."""
    from jobs.lab.recipes import by_fuxictr as side

    return side.run(config, tuple(manifest.cardinalities), folder / "fuxictr-runs", own_start=own_start)


class Records:
    """The finished runs in a file. DataError names a damaged line."""

    def __init__(self, path: Path) -> None:
        self._path, self.lines = path, list[dict[str, Any]]()
        text = path.read_text() if path.exists() else ""
        self._end = "\n" * bool(text and not text.endswith("\n"))  # of a last line that was cut there
        for number, line in enumerate(text.splitlines(keepends=True), 1):
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                raise DataError(f"{path}, line {number}: not the record of a run; remove this line") from None

    def has(self, **key: object) -> bool:
        """Whether there is a record with these values."""
        return any(all(line.get(name) == value for name, value in key.items()) for line in self.lines)

    def add(self, record: dict[str, Any]) -> None:
        """Append one."""
        self.lines.append(record)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(f"{self._end}{json.dumps(record)}\n")
        self._end = ""


def run_all(
    cells: Iterator[tuple[str, int, str]], folder: Path, records: Records, overrides: Sequence[str],
    go_on: Callable[[], bool],
) -> None:  # fmt: skip
    """Run the cells, data set, seed and side, that have no record, as long as ``go_on``."""
    for name, seed, side in cells:
        config, words = config_of(name, seed, folder, overrides)
        manifest = read_manifest(folder / name)
        key = {"data": name, "seed": seed, "side": side, "settings": key_of(config, manifest)}
        if records.has(**key) or not go_on():
            continue
        began = time.monotonic()
        if side == OURS:
            found = by_ssmpi(words)
        else:
            install(folder / "packages")
            found = by_fuxictr(config, manifest, folder, own_start=side == OWN_START)
        records.add({**key, **found, "run_seconds": time.monotonic() - began, "commit": commit()})
        aucs = " ".join(f"{one['auc']:.5f}" for one in found["passes"])
        print(f"{name}, seed {seed}, {side}: validation {aucs}; test {found['test']['auc']:.5f}", flush=True)
