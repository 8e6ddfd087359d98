"""The folder of a run's checkpoints. One is committed when its manifest, written last and renamed, is there; until then
it does not count, and the newest committed one is never touched::

    checkpoints/checkpoint-000007/   dense.h5  embedding-0000.h5 ...  trainer-0000.h5 ...  manifest.json
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DataError, json_problem
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import (
    ASIDE,
    BEST,
    CHECKPOINT,
    CHECKPOINTS,
    MANIFEST_NAME,
    MODEL,
    RESULT_NAME,
    checkpoint_number,
)
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.files import Entry, verify

FORMAT, VERSION = "ssmpi-checkpoint", 1
START_OVER = "launch the run file with --overwrite"


@dataclass(frozen=True)
class CheckpointManifest:
    """What a folder holds: its files, and ``state``, all that is not arrays."""

    files: tuple[Entry, ...]
    state: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(entry.bytes for entry in self.files)


def commit(folder: Path, manifest: CheckpointManifest) -> None:
    """Make ``folder`` a committed checkpoint or model. Its files must have been synced."""
    disk.sync_folder(folder)
    beside = folder / f".{MANIFEST_NAME}.tmp"
    body = {"format": FORMAT, "version": VERSION, "files": [asdict(e) for e in manifest.files], "state": manifest.state}
    disk.write(beside, (json.dumps(body, indent=1) + "\n").encode())
    disk.rename(beside, folder / MANIFEST_NAME)
    disk.sync_folder(folder)
    disk.sync_folder(folder.parent)


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read and check a manifest; DataError says what is wrong with the folder."""
    path = folder / MANIFEST_NAME
    try:
        body = parse_json(path.read_text(encoding="utf-8"))
        found = body["format"], body["version"]
        manifest = CheckpointManifest(tuple(Entry(**entry) for entry in body["files"]), dict(body["state"]))
    except FileNotFoundError:
        raise DataError(f"{path}: missing: the save was not completed") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {json_problem(error)}") from error
    if found != (FORMAT, VERSION):
        raise DataError(f"{path}: format {found[0]!r} version {found[1]}, this program reads {FORMAT!r} {VERSION}")
    return manifest


def check(folder: Path, share: int = 0, shares: int = 1) -> None:
    """Raise DataError if a file does not match the manifest; each of several ranks checks its share of the files."""
    for entry in read_manifest(folder).files[share::shares]:
        verify(folder, entry)


def find_error(folder: Path, share: int, shares: int) -> str:
    """The message of ``check``; empty if all is well."""
    try:
        check(folder, share, shares)
    except DataError as error:
        return str(error)
    return ""


class Store:
    """The checkpoints of one run. Only one job at a time may write here."""

    def __init__(self, run: Path) -> None:
        self.folder = run / CHECKPOINTS

    def committed(self) -> list[Path]:
        """Folders of committed checkpoints, the oldest first."""
        return [path for path in self._all() if (path / MANIFEST_NAME).is_file()]

    def named(self, name: str) -> Path:
        """One of the committed checkpoints; DataError names those there are."""
        there = self.committed()
        for path in there:
            if path.name == name:
                return path
        raise DataError(
            f"{self.folder}: no checkpoint '{name}'; there are {', '.join(path.name for path in there) or 'none'}"
        )

    def clear(self) -> None:
        """Remove unfinished checkpoints of an earlier job."""
        there = self.committed()
        for path in self._all():
            if path not in there:
                try_to_remove(path)

    def begin(self, after: int = 0) -> Path:
        """Make the folder of a new checkpoint and remove unfinished ones. Its number is above those of all that there
        are, and above ``after``.
        """
        numbers = [after, *map(checkpoint_number, [*self._all(), *self.set_aside()])]
        self.clear()
        disk.make_folder(self.folder)  # not the run folder: one that has vanished must not be recreated
        disk.sync_folder(self.folder.parent)
        folder = self.path(max(numbers) + 1)
        disk.make_folder(folder)
        return folder

    def path(self, number: int) -> Path:
        """The folder of the checkpoint with this number."""
        return self.folder / f"{CHECKPOINT}{number:06}"

    def retire(self, keep: int) -> None:
        """Remove all but the newest ``keep`` checkpoints. A failure is logged."""
        try:
            for path in self.committed()[:-keep]:
                try_to_remove(path)
        except OSError as error:
            log.warning(f"{self.folder}: older checkpoints are not removed: {error}")

    def set_aside_after(self, path: Path) -> list[Path]:
        """Rename all checkpoints newer than ``path`` so that they are ignored; returns their new paths."""
        found = []
        for newer in self.committed():
            if newer.name > path.name:
                found.append(newer.with_name(f"{ASIDE}{newer.name}"))
                disk.rename(newer, found[-1])
        if found:
            disk.sync_folder(self.folder)
        return found

    def set_aside(self) -> list[Path]:
        """The checkpoints set aside, oldest first."""
        return [path for path in self._entries() if path.name.startswith(f"{ASIDE}{CHECKPOINT}")]

    def _all(self) -> list[Path]:
        """All checkpoint folders, committed or not, by number."""
        found = [path for path in self._entries() if path.name.startswith(CHECKPOINT)]
        return [path for path in found if path.name.removeprefix(CHECKPOINT).isdigit()]

    def _entries(self) -> list[Path]:
        """What is in the folder, sorted; OSError if it cannot be read, which ``Path.glob`` would take for an empty one:
        the run would start over, and its checkpoints would be retired.
        """
        try:
            return sorted(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []


def try_to_remove(folder: Path) -> None:
    """Remove the manifest first: a half-removed checkpoint is not committed. A failure, as on NFS while a file is open,
    does not affect newer ones.
    """
    try:
        disk.remove_file(folder / MANIFEST_NAME)
        disk.sync_folder(folder)
        disk.remove_folder(folder)
    except OSError as error:
        log.warning(f"{folder} cannot be removed and keeps using disk space: {error}")


def remedy_for_checkpoint(run: Path, damaged: Path, tried: Collection[Path] = ()) -> str:
    """What to do if the checkpoint ``damaged`` cannot be used, and those ``tried`` before are damaged too: use another
    checkpoint or a kept model, or start over. Does not read the files of other checkpoints.
    """
    store = Store(run)
    others = [path.name for path in store.committed() if path != damaged and path not in tried]
    older = [name for name in others if name < damaged.name]
    if older:
        return f"an older one is used with --checkpoint {older[-1]}, the newest intact one with --checkpoint whole"
    if others:
        return f"there is no older one, but newer ones: leave out --checkpoint to use {others[-1]}"
    ways = [f"there is no other one: to start from the beginning, remove {run / CHECKPOINTS} and resume again, or "]
    ways[0] += START_OVER
    if aside := store.set_aside():
        before = aside[-1].name.removeprefix(ASIDE)
        ways += [f"{aside[-1]} was set aside when the run resumed from this one: rename it to {before} to use it"]
    if best := sorted((run / BEST).glob("after-*"), key=lambda path: path.stat().st_mtime):
        ways += [f"{best[-1]} is the best model so far: copy it to {run / MODEL} to score or export it"]
    return "; ".join(ways)


def remedy_for_model(run: Path) -> str:
    """What to do if the model of a finished run is damaged."""
    newest = Store(run).committed()[-1:]
    if not newest or find_error(newest[0], 0, 1):
        return f"restore an intact copy, or train again: {START_OVER}"
    return (
        f"restore an intact copy, or remove {run / RESULT_NAME} and resume again: the run then resumes from"
        f" {newest[0].name} and saves its model again"
    )
