"""``python -m jobs.lab lockstep``: repeats a run with different seeds of initial values, of the order of rows, or of
the interleaving of steps. Nothing else varies, so the spread of the results is due to that seed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.lab.lockstep.rounds import check_algorithm
from jobs.lab.lockstep.run import SEEDS, Lockstep, LockstepRun
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import during

if TYPE_CHECKING:
    from ssmpi.config import Config

CURVE = 20  # means of the training loss in the record of a run


def measure(
    config: Config, lockstep: Lockstep, vary: Sequence[str], runs: int, out: Path | None
) -> list[dict[str, Any]]:
    """Train ``runs`` times, each time with the next seed, from ``lockstep``'s on (at least 1), for everything in
    ``vary``. Prints a line each, then mean and standard deviation; writes all of it as JSON to ``out``.
    """
    if unknown := [name for name in vary if name not in SEEDS]:
        raise SettingsError(f"--vary takes {', '.join(SEEDS)}, got '{unknown[0]}'")
    if runs < 1:
        raise SettingsError(f"--runs must be at least 1, got {runs}")
    if out:
        atomic_file.check(out)
        atomic_file.check_replaceable(out, re.compile(rb'\{\s*"settings": \{\s*"[^"]*": [^{]'))
    config = config.with_code()
    check_algorithm(config.sync)
    data = read_manifest(Path(config.data.folder))
    splits = [split for split in (config.evaluate.split, config.evaluate.final) if data.has_rows(split)]
    print(f"seeds of {', '.join(vary)} vary" if vary else "no seed varies")
    print("seed  " + "  ".join(f"{split + ' NE':>14}" for split in splits))
    found = []
    for k in range(runs):
        seeds = {name: max(1, getattr(lockstep, name)) + k for name in vary}
        seed = next(iter(seeds.values()), k + 1)
        found.append(one(config, dataclasses.replace(lockstep, **seeds), splits))
        print(f"{seed:4}  " + "  ".join(f"{found[-1][split]['ne']:14.5f}" for split in splits), flush=True)
    for split in splits if runs > 1 else []:
        ne = np.array([result[split]["ne"] for result in found])
        spread = float(ne.std(ddof=1))
        print(f"{split}: mean NE {ne.mean():.5f}, standard deviation {spread:.5f} ({spread / ne.mean():.2%}), "
              f"worst {ne.max() / ne.mean() - 1:+.2%}")  # fmt: skip
    if out:
        body = {"settings": config.flat(), "vary": list(vary), "runs": found}
        atomic_file.write(out, json.dumps(body, indent=1) + "\n")
    return found


def one(config: Config, lockstep: Lockstep, splits: Sequence[str]) -> dict[str, Any]:
    """Train once; returns the seeds, the training loss curve, and the metrics on each split."""
    with during("training in lockstep"):
        run = LockstepRun(config, lockstep)
        run.train()
    losses = [float(part.mean()) for part in np.array_split(run.progress.losses or [], CURVE) if len(part)]
    scored = {split: run.score(split) for split in splits}
    return {**dataclasses.asdict(lockstep), "losses": losses, **run.rounds.figures, **scored}
