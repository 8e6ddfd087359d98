"""Finished runs of the emulation, one JSON object per line: a command that was killed resumes, and tables are printed
again from what was kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.lab.recovery.emulation import EmulationResult, Loss, SavingStrategy
from ssmpi.config import Config
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import atomic_file
from ssmpi.state.recovery.policy import RecoveryInputs
from ssmpi.trainer.metrics.results import plain

READ = "data.", "dense.", "embedding.", "model.", "schedule.", "evaluate.final", "run.seed", "topology.embedding_ps"


class Trials:
    """The runs in ``path``, by ``key_of`` what they depend on; DataError names a damaged line."""

    def __init__(self, path: Path) -> None:
        self._path, self._done = path, dict[str, EmulationResult]()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # killed while it wrote
            atomic_file.write(path, whole)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                values: dict[str, Any] = json.loads(line)
                key = values.pop("key")
                known: dict[str, Any] = {n: math.nan if v is None else v for n, v in values.items()}
                self._done[key] = EmulationResult(**known)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}, line {number}: not the record of a run; remove that line, and it is run again"
                ) from error

    def find(self, key: str) -> EmulationResult | None:
        """The result of a run, if it is there."""
        return self._done.get(key)

    def note(self, key: str, outcome: EmulationResult) -> None:
        """Append one result."""
        self._done[key] = outcome
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **plain(dataclasses.asdict(outcome))}) + "\n")


def key_of(config: Config, given: RecoveryInputs, strategy: SavingStrategy, losses: Sequence[Loss]) -> str:
    """A digest of all that a run depends on. Without saves and losses that is neither the job that it stands for nor
    its number of embedding PSs.
    """
    manifest = read_manifest(Path(config.data.folder))
    data = {name: [shard.checksum for shard in split.shards] for name, split in sorted(manifest.splits.items())}
    settings = {name: value for name, value in config.flat().items() if name.startswith(READ)}
    settings.pop("data.folder")
    emulated: list[object] = []
    if math.isfinite(strategy.interval) or losses:
        emulated = [dataclasses.asdict(strategy), dataclasses.asdict(given), list(map(dataclasses.asdict, losses))]
    else:
        settings.pop("topology.embedding_ps")
    text = json.dumps([settings, manifest.cardinalities, data, *emulated], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
