"""Turns parsed rows into ids: the lookup tables of a vocabulary, in files that the ranks of a host share by mmap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.files import save_array
from data_prep.preparation import Preparation, Rows
from data_prep.ranks import RawDataError
from data_prep.vocabulary.lookup import look_up
from data_prep.vocabulary.scan import reduce_tokens
from data_prep.vocabulary.vocabulary_file import RESERVED_IDS, Vocabulary
from ssmpi.data.schema import KEY_OF_ZERO, MISSING_ID, MISSING_KEY


@dataclass(frozen=True)
class Encoder:
    """A vocabulary ready for use: one lookup table per feature."""

    vocabulary: Vocabulary
    tables: Sequence[np.ndarray]

    def ids(self, rows: Rows) -> np.ndarray:
        """Ids int32 (features with ids, rows); DataError for an unseen token if the vocabulary has no id for it (dlrm
        order).
        """
        tokens = reduce_tokens(rows.tokens, self.vocabulary.max_ind_range)
        ids = look_up(tokens, rows, self.tables, reserved=self.vocabulary.reserved)
        for f, slots in self.vocabulary.hashed.items():
            if f < len(tokens):
                missing, _ = rows.missing_bit(f)
                ids[f] = np.where(missing, MISSING_ID, _hashed(tokens[f], slots))
        if not self.vocabulary.reserved and ids.size and ids.min() < 0:
            row, feature = np.argwhere(ids.T < 0)[0]
            raise RawDataError(
                f"token {tokens[feature, row]:08x} of {self.vocabulary.names[feature]} is not in "
                f"{self.vocabulary.path.name}, and dlrm order has no id for unseen tokens; use a "
                "vocabulary in frequency order"
            )
        return np.delete(ids, keyed, axis=0) if (keyed := self.vocabulary.keyed) else ids

    def keys(self, rows: Rows) -> np.ndarray:
        """Keys int64 (keyed, rows): the tokens, which are 64-bit hashes."""
        found = np.empty((len(self.vocabulary.keyed), rows.rows), np.uint64)
        for f, keys in zip(self.vocabulary.keyed, found, strict=True):
            missing, _ = rows.missing_bit(f)
            keys[:] = np.where(missing, MISSING_KEY, np.where(rows.tokens[f] == 0, KEY_OF_ZERO, rows.tokens[f]))
        return found.view(np.int64)

    def list_ids(self, rows: Rows) -> list[np.ndarray]:
        """Ids int32 (tokens,) of each list feature's tokens."""
        found = []
        for f, one in enumerate(rows.lists, start=len(rows.tokens)):
            slots = self.vocabulary.hashed.get(f)
            tokens = one.tokens[None]
            found.append(
                _hashed(one.tokens, slots) if slots else look_up(tokens, rows, self.tables, reserved=True, first=f)[0]
            )
        return found


def _hashed(tokens: np.ndarray, slots: int) -> np.ndarray:
    """Ids int32 of tokens in a range of so many."""
    return RESERVED_IDS + (tokens % np.uint64(slots)).astype(np.int32)


def in_memory(vocabulary: Vocabulary) -> Encoder:
    """An encoder with its tables in this process's memory."""
    return Encoder(vocabulary, [vocabulary.lookup(f) for f in range(len(vocabulary.names))])


def shared(job: Preparation, vocabulary: Vocabulary) -> Encoder:
    """An encoder with its tables in files of the work folder, written by all ranks together and mapped read-only."""
    paths = [job.work / "lookup" / f"{f}.npy" for f in range(len(vocabulary.names))]

    def body() -> None:
        for f in range(job.ranks.rank, len(paths), job.ranks.size):
            job.ranks.check()
            if not paths[f].is_file():
                save_array(paths[f], vocabulary.lookup(f))

    job.ranks.together(body)
    # a plain view: indexing np.memmap is slow, and numba would compile another version for it
    tables = job.ranks.together(lambda: [np.load(path, mmap_mode="r").view(np.ndarray) for path in paths])
    return Encoder(vocabulary, tables)
