"""Turns parsed rows into ids: the lookup tables of a vocabulary, of several ranks in files that they share by mmap."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.files import save_array
from data_prep.preparation import Preparation
from data_prep.rows import Rows
from data_prep.vocabulary.token_tables import LAYOUT, look_up, lookup_bytes
from data_prep.vocabulary.vocabulary_file import RESERVED_IDS, Vocabulary
from ssmpi.data.schema import KEY_OF_ZERO, MISSING_ID, MISSING_KEY


@dataclass(frozen=True)
class Encoder:
    """A vocabulary ready for use: one lookup table per feature."""

    vocabulary: Vocabulary
    tables: Sequence[np.ndarray]

    def ids(self, rows: Rows) -> np.ndarray:
        """Ids int32 (features with ids, rows)."""
        with_ids = [f for f in range(self._single(rows)) if f not in self.vocabulary.keyed]
        ids = np.empty((len(with_ids), rows.rows), np.int32)
        for f, out in zip(with_ids, ids, strict=True):
            out[:] = self._ids_of(rows, f)
        return ids

    def keys(self, rows: Rows) -> np.ndarray:
        """Keys int64 (keyed, rows): the tokens, which are 64-bit hashes."""
        found = np.empty((len(self.vocabulary.keyed), rows.rows), np.uint64)
        for f, keys in zip(self.vocabulary.keyed, found, strict=True):
            tokens = rows.tokens_of(f)
            there = np.where(tokens.values == 0, KEY_OF_ZERO, tokens.values)
            keys[:] = tokens.by_row(np.where(tokens.missing, MISSING_KEY, there))
        return found.view(np.int64)

    def list_ids(self, rows: Rows) -> list[np.ndarray]:
        """Ids int32 (tokens,) of each list feature's tokens."""
        return [self._ids_of(rows, f) for f in range(self._single(rows), len(self.vocabulary.names))]

    def _single(self, rows: Rows) -> int:
        """How many sparse features are no lists; they come first."""
        return len(self.vocabulary.names) - len(rows.lists)

    def _ids_of(self, rows: Rows, feature: int) -> np.ndarray:
        """Ids int32 (rows,) of a sparse feature, or (tokens,) of its lists."""
        tokens = rows.tokens_of(feature).modulo(self.vocabulary.max_ind_range)
        if slots := self.vocabulary.hashed.get(feature):
            ids = RESERVED_IDS + (tokens.values % np.uint64(slots)).astype(np.int32)
            return tokens.by_row(np.where(tokens.missing, np.int32(MISSING_ID), ids))
        return look_up(tokens, self.tables[feature])


def in_memory(vocabulary: Vocabulary) -> Encoder:
    """An encoder with its tables in this process's memory."""
    return Encoder(vocabulary, [vocabulary.lookup(f) for f in range(len(vocabulary.names))])


def shared(job: Preparation, vocabulary: Vocabulary) -> Encoder:
    """An encoder with its tables in files of the work folder, written by all ranks together and mapped read-only. A
    rank alone has them in its own memory, if the bound of the token tables leaves room for them.
    """
    room = job.options.table_bytes * job.counting
    if job.ranks.size == 1 and sum(map(lookup_bytes, vocabulary.cardinalities)) <= room:
        return in_memory(vocabulary)
    paths = [_folder(job) / f"{f}.npy" for f in range(len(vocabulary.names))]

    def body() -> None:
        for f in range(job.ranks.rank, len(paths), job.ranks.size):
            job.ranks.check()
            if not paths[f].is_file():
                save_array(paths[f], vocabulary.lookup(f))

    job.ranks.together(body)
    # a plain view: indexing np.memmap is slow, and numba would compile another version for it
    tables = job.ranks.together(lambda: [np.load(path, mmap_mode="r").view(np.ndarray) for path in paths])
    return Encoder(vocabulary, tables)


def drop_tables(job: Preparation) -> None:
    """Delete the files of ``shared``; their memory is free once no rank has its encoder any more."""
    shutil.rmtree(_folder(job), ignore_errors=True)


def _folder(job: Preparation) -> Path:
    return job.work / f"lookup-{LAYOUT}"
