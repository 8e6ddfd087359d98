"""The output folder and its states: empty, begun, interrupted, complete; and its lock.

Everything temporary is in ``.prepare``. Its ``plan.json`` records the arguments and raw files of the folder; the
manifest, written last, keeps that record.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w

from data_prep.files import load_json, save_json
from data_prep.options import PrepareOptions
from data_prep.preparation import Preparation
from data_prep.shards.provenance import written_schema
from ssmpi.data.schema import MANIFEST_NAME, SPLITS, VOCABULARY_NAME, WORK_NAME, DatasetManifest, read_manifest
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file

OWN_NAMES = {MANIFEST_NAME, VOCABULARY_NAME, WORK_NAME, *SPLITS}
TEMPORARY = re.compile(atomic_file.temporary(f"{re.escape(MANIFEST_NAME)}|{re.escape(VOCABULARY_NAME)}"))
PLAN_NAME, LOCK_NAME = "plan.json", "lock"
SHARD_NAME = re.compile(r"\.?shard-\d+\.h5|" + atomic_file.temporary(r"shard-\d+\.h5"))
FRESH, RESUMED, WHOLE = "fresh", "resumed", "whole"
MOST_NAMED = 3  # differences
REMEDY = "give another --output, or --overwrite to make it anew"


class OutputFolder:
    """The output folder, locked by this job while it is open (rank 0 only)."""

    def __init__(self, options: PrepareOptions) -> None:
        self.output = options.output
        self.work = options.output / WORK_NAME
        self._overwrite = options.overwrite
        self._lock: BinaryIO | None = None
        self._made = not options.output.exists()
        if options.vocabulary is not None and options.overwrite:
            vocabulary = Path(os.path.realpath(options.vocabulary))
            if Path(os.path.realpath(self.output)) in (vocabulary, *vocabulary.parents):
                raise UserError(
                    f"--overwrite would remove {options.vocabulary}, which this run needs; give another --output"
                )

    def begin(self, job: Preparation) -> str:
        """Decide whether the folder is new, to be resumed, or complete; DataError if it has other content."""
        if self.output.exists() and not self.output.is_dir():
            raise DataError(f"{self.output}: is a file, not a folder; give another --output")
        strangers = _strangers(self.output) if self.output.is_dir() else []
        if strangers:
            raise DataError(
                f"{self.output}: holds {strangers[0]!r}, which is not of a prepared data set; give another --output"
            )
        if self._overwrite:
            for name in SPLITS:
                if (self.output / name).is_symlink():
                    raise DataError(
                        f"{self.output / name}: is a symbolic link, which --overwrite does not follow; remove it and "
                        "what it leads to, or give another --output"
                    )
            self._take_lock()
            self._clear()
        if (self.output / MANIFEST_NAME).is_file():
            self._compare_whole(job, read_manifest(self.output))
            if self.work.is_dir():
                self._take_lock()
            return WHOLE
        return self._begin_work(job)

    def _begin_work(self, job: Preparation) -> str:
        plan = {"identity": job.identity, "sources": [[s.name, s.size, s.modified] for s in job.sources]}
        path = self.work / PLAN_NAME
        if path.is_file():
            found = load_json(path)
            if found != json.loads(json.dumps(plan)):
                raise DataError(f"{self.output}: an interrupted run with {_difference(found, plan)}; {REMEDY}")
            self._take_lock()
            return RESUMED
        if any((self.output / name).exists() for name in (*SPLITS, VOCABULARY_NAME)):
            raise DataError(f"{self.output}: has parts of a data set but no plan to resume by; {REMEDY}")
        self._take_lock()
        for leftover in self._leftovers():  # of a removal that was interrupted: nobody knows of which arguments
            _remove(leftover)
        save_json(path, plan)
        return FRESH

    def _compare_whole(self, job: Preparation, manifest: DatasetManifest) -> None:
        sources = manifest.provenance.get("sources", [])
        found = {
            "identity": manifest.provenance.get("arguments"),
            "sources": [[s["name"], s["bytes"]] for s in sources],
        }
        asked = {"identity": job.identity, "sources": [[s.name, s.size] for s in job.sources]}
        if found != json.loads(json.dumps(asked)):
            raise DataError(f"{self.output}: already holds a data set made with {_difference(found, asked)}; {REMEDY}")
        for split in manifest.splits.values():
            for shard in split.shards:
                path = self.output / shard.file
                if not path.is_file() or path.stat().st_size != shard.bytes:
                    raise DataError(f"{path}: missing or of another size than the manifest says; {REMEDY}")

    def _take_lock(self) -> None:
        if self._lock:
            return
        self.work.mkdir(parents=True, exist_ok=True)
        lock = (self.work / LOCK_NAME).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{self.output}: another ssmpi-prepare is using this folder; wait for it to end") from None
        except OSError as error:
            print(
                f"{self.output}: no locks on this file system ({error.strerror}): make sure that only one job writes "
                "there",
                flush=True,
            )
        self._lock = lock

    def _leftovers(self) -> list[Path]:
        """Everything temporary but the lock."""
        return [path for path in self.work.iterdir() if path.name != LOCK_NAME] if self.work.is_dir() else []

    def _clear(self) -> None:
        """Remove the files of earlier runs, but not the lock. The manifest goes first: without it the folder is
        incomplete. The plan goes next: without it nothing is resumed.
        """
        (self.output / MANIFEST_NAME).unlink(missing_ok=True)
        (self.work / PLAN_NAME).unlink(missing_ok=True)
        own = [path for path in self.output.iterdir() if path.name != WORK_NAME and _is_own(path.name)]
        for path in [*own, *self._leftovers()]:
            _remove(path)

    def abandon(self) -> None:
        """Remove all unfinished files: these raw files can never complete the folder, and other files may be used
        instead.
        """
        self._clear()
        self.finish()
        if self._made:
            self.output.rmdir()

    def finish(self) -> None:
        """Remove everything temporary, if this job holds the lock: otherwise it is another's."""
        if self._lock:
            self.release()
            shutil.rmtree(self.work, ignore_errors=True)

    def release(self) -> None:
        """Give the lock back, for this process may go on and try again."""
        if self._lock:
            self._lock.close()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_own(name: str) -> bool:
    return name in OWN_NAMES or bool(TEMPORARY.fullmatch(name))


def _strangers(output: Path) -> list[str]:
    """Files in the folder that no preparation wrote; they are never removed."""
    found = {path.name for path in output.iterdir() if not _is_own(path.name)}
    found |= {name for name in SPLITS if (output / name).exists() and not (output / name).is_dir()}
    for split in SPLITS:
        shards = (output / split).iterdir() if (output / split).is_dir() else ()
        found |= {f"{split}/{path.name}" for path in shards if not SHARD_NAME.fullmatch(path.name)}
    return sorted(found)


def _difference(found: dict[str, Any], asked: dict[str, Any]) -> str:
    """The first differences between an earlier run and this one, for a message; those of a schema as TOML."""
    before, now = _settings(found["identity"] or {}), _settings(asked["identity"])
    differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if not differing:
        return "other raw files (name, size or time of change differ)"
    texts = [f"{name} = {_toml(before, name)}, this run has {_toml(now, name)}" for name in differing[:MOST_NAMED]]
    return "; ".join(texts) + f"; and {len(differing) - MOST_NAMED} more" * (len(differing) > MOST_NAMED)


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, those of a schema by their keys in it; without what is not set."""
    options = {name: value for name, value in identity.items() if not name.startswith("schema.")}
    found = options | dict(_flat(written_schema(identity)))
    return {name: value for name, value in found.items() if value not in (None, "")}


def _flat(settings: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{section}{name}.")
        else:
            yield section + name, value


def _toml(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "none"
    return tomli_w.dumps({"value": settings[name]}).removeprefix("value = ").strip()
