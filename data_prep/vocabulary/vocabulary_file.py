"""The vocabulary, from tokens to ids: built from the counts of pass 1 and saved as ``vocabulary.h5``.

``vocabulary.h5`` has a group per feature with ``token`` uint32 (tokens,) in id order and ``count`` int64 (tokens,):
token i has id i + 2 (0 missing, 1 rare or unseen), count descending, token ascending; one that extends another begins
with all of that one's tokens. Tables have tokens uint64: integers as they are, 64-bit hashes of strings. A slash in the
name of a feature is %2F in that of its group. Earlier versions could order ids by first appearance, without reserved
ids and counts: such a file is inspected and verified, and used for no other rows.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.files import whole
from data_prep.vocabulary.scan import Spill
from data_prep.vocabulary.token_tables import lookup_table
from ssmpi.data import hdf5_file
from ssmpi.data.features import CRITEO, expected_collisions
from ssmpi.data.schema import vocabulary_group, vocabulary_group_name
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, DataError
from ssmpi.runtime.files import hdf5

FORMAT, VERSION = "ssmpi-vocabulary", 1
FREQUENCY = "frequency"  # the order of ids
ORDERING_BYTES = 40  # per token of a feature: token, count, their order, and the sorted copies
MERGE_ENTRIES = 4 << 20  # counts of several parts merged at once
MERGING_BYTES = 56  # per such entry
STATED_MIN_COUNTS = (1, 2, 3, 10, 15)
RESERVED_IDS = 2
LARGE_COUNT = np.uint16(2**16 - 1)

Merged = Iterator[tuple[np.ndarray, np.ndarray]]  # (tokens ascending, values), one token range after the other


@dataclass(frozen=True)
class MergedFeature:
    """One feature's vocabulary: tokens in id order, their counts, and how many tokens reach each stated min-count."""

    tokens: np.ndarray
    counts: np.ndarray
    sizes: list[int]


class _PartReader:
    """The entries of one feature in one part, ascending by token and read a few at a time. No file stays open: there
    may be more parts than a process may open files.
    """

    def __init__(self, folder: Path, part: Spill, feature: int) -> None:
        paths = [folder / f"{part.name}.{name}.npy" for name in ("tokens", "values")]
        heads: list[np.memmap] = [np.load(path, mmap_mode="r") for path in paths]
        self._columns = [(path, head.dtype, head.offset) for path, head in zip(paths, heads, strict=True)]
        self._at, self._stop = part.bounds[feature], part.bounds[feature + 1]
        self.last_token = int(np.iinfo(heads[0].dtype).max)
        self._tokens, self._values = np.empty(0, heads[0].dtype), np.empty(0, np.int64)

    def fill(self, entries: int) -> int:
        """Have up to ``entries`` in memory; returns the token up to which all are."""
        if len(self._tokens) <= entries // 2 and self._at < self._stop:
            count = min(entries - len(self._tokens), self._stop - self._at)
            tokens, values = (self._read(*column, count) for column in self._columns)
            self._tokens = np.concatenate([self._tokens, tokens])
            self._values = np.concatenate([self._values, values])
            self._at += count
        return int(self._tokens[-1]) if self._at < self._stop else self.last_token

    def _read(self, path: Path, kind: np.dtype[Any], offset: int, count: int) -> np.ndarray:
        """The next entries of a column. Mapping its file each time would take longer than to read them."""
        entries: np.ndarray = np.fromfile(path, kind, count, offset=offset + self._at * kind.itemsize)
        if len(entries) < count:
            raise OSError(errno.EIO, "ends too early", str(path))
        return entries

    def take(self, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Remove (tokens, values) up to token ``last`` from memory."""
        count = np.searchsorted(self._tokens, self._tokens.dtype.type(last), side="right")
        taken = self._tokens[:count], self._values[:count]
        self._tokens, self._values = self._tokens[count:], self._values[count:]
        return taken


def _merged_ranges(spans: Sequence[_PartReader]) -> Merged:
    """Yield (tokens ascending, their counts added up), one token range after the other, of at most ``MERGE_ENTRIES``
    entries however the tokens are distributed.
    """
    last = -1
    while spans and last < spans[0].last_token:
        last = min(span.fill(max(1, MERGE_ENTRIES // (2 * len(spans)))) for span in spans)
        taken = [span.take(last) for span in spans]
        tokens = np.concatenate([tokens for tokens, _ in taken])
        values = np.concatenate([values for _, values in taken])
        if len(tokens):
            by_token = np.argsort(tokens, kind="stable")
            tokens, values = tokens[by_token], values[by_token]
            starts = np.flatnonzero(np.r_[True, tokens[1:] != tokens[:-1]])
            yield tokens[starts], np.add.reduceat(values, starts)


def merge_feature(
    folder: Path,
    parts: Sequence[Spill],
    feature: int,
    min_count: int,
    among: Callable[[Merged], Merged] = lambda merged: merged,
) -> MergedFeature:
    """Merge the sorted parts of one feature and sort its tokens by id, with ``ORDERING_BYTES`` per token; ``among``
    leaves some out.
    """
    spans = [_PartReader(folder, part, feature) for part in parts]
    sizes = np.zeros(len(STATED_MIN_COUNTS), dtype=np.int64)
    tokens, counts = _kept(among(_merged_ranges(spans)), min_count, sizes)
    by_id = by_count(counts)
    return MergedFeature(tokens[by_id], counts[by_id], sizes.tolist())


def by_count(counts: np.ndarray) -> np.ndarray:
    """The order int64 of counts, descending; equal ones stay in order. Nearly all counts fit into 16 bits, of which
    numpy sorts by radix, in a quarter of the time.
    """
    order = np.argsort(LARGE_COUNT - np.minimum(counts, LARGE_COUNT).astype(np.uint16), kind="stable")
    large = order[: np.count_nonzero(counts >= LARGE_COUNT)]
    large[:] = large[np.argsort(-counts[large], kind="stable")]
    return order


def _kept(ranges: Merged, min_count: int, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, counts) that reach ``min_count``, concatenated; adds the tokens that reach each stated min-count to
    ``sizes`` int64.
    """
    tokens, counts = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
    for some_tokens, some_counts in ranges:
        sizes += [np.count_nonzero(some_counts >= least) for least in STATED_MIN_COUNTS]
        kept = some_counts >= min_count
        tokens.append(some_tokens[kept])
        counts.append(some_counts[kept])
    tokens = tokens[1:] or tokens
    return np.concatenate(tokens), np.concatenate(counts)


def write_vocabulary(path: Path, features: Mapping[str, MergedFeature], attributes: Mapping[str, Any]) -> None:
    """Write ``vocabulary.h5`` atomically. ``attributes``: id_order, min_count, max_ind_range, fit_on, fitted_rows."""
    content = sum(merged.tokens.nbytes + merged.counts.nbytes + hdf5_file.OVERHEAD for merged in features.values())
    with whole(path) as beside, hdf5_file.create(beside, content) as out:
        cardinalities, sizes = [], []
        for name, merged in features.items():
            group = out.create_group(vocabulary_group_name(name))
            hdf5_file.write(group, "token", merged.tokens, "<u8" if "features" in attributes else "<u4")
            hdf5_file.write(group, "count", merged.counts, "<i8")
            cardinalities.append(_cardinality(name, len(merged.tokens), attributes))
            sizes.append(merged.sizes)
        if max(cardinalities) >= 2**31:
            raise DataError("more than 2**31 ids for one feature: use --max-ind-range or --min-count")
        body = {"format": FORMAT, "version": VERSION, "cardinalities": cardinalities, "sizes": sizes, **attributes}
        out.attrs["about"] = json.dumps(body)


def _cardinality(name: str, tokens: int, about: Mapping[str, Any]) -> int:
    """The ids of a feature with so many tokens, the reserved ones included; 0 if it has keys."""
    if name in about.get("keyed", ()):
        return 0
    return about.get("hashed", {}).get(name, tokens) + (RESERVED_IDS if about["id_order"] == FREQUENCY else 0)


@dataclass(frozen=True)
class Vocabulary:
    """The content of a vocabulary file. ``sizes`` (sparse, 5): tokens that reach the stated min-counts."""

    path: Path
    id_order: str
    max_ind_range: int
    cardinalities: list[int]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> Sequence[str]:
        """The sparse features."""
        found: Sequence[str] = self.about.get("features", CRITEO.sparse)
        return found

    @property
    def hashed(self) -> dict[int, int]:
        """The ranges of features without a vocabulary."""
        return {f: self.about["hashed"][n] for f, n in enumerate(self.names) if n in self.about.get("hashed", {})}

    @property
    def keyed(self) -> list[int]:
        """The features that have keys in place of ids, by number."""
        return [self.names.index(name) for name in self.about.get("keyed", ())]

    @property
    def counted(self) -> list[int]:
        """The features whose tokens have ids of their own, by number."""
        return [f for f in range(len(self.names)) if f not in self.hashed and f not in self.keyed]

    @property
    def reserved(self) -> bool:
        """Whether ids 0 and 1 are missing and rare."""
        return self.id_order == FREQUENCY

    def lookup(self, feature: int) -> np.ndarray:
        """The lookup table of one feature, for ``token_tables.look_up``."""
        return lookup_table(self.column(feature, "token"), RESERVED_IDS)

    def readable(self, feature: int) -> bool:
        """Whether the tokens of a feature are kept: those of Criteo and integers are, of strings only hashes."""
        return "table" not in self.about or self._is_integer(feature)

    def texts(self, feature: int) -> Callable[[int], str]:
        """Readable tokens of a feature for people: integers in decimal, Criteo's in hexadecimal."""
        tokens = self.column(feature, "token")
        if self._is_integer(feature):
            return lambda i: str(tokens.view(np.int64)[i])
        return lambda i: f"{tokens[i]:08x}"

    def _is_integer(self, feature: int) -> bool:
        table = self.about.get("table", {})
        types = {name: kind for name, kind, *_ in (*table.get("categorical", ()), *table.get("lists", ()))}
        return types.get(self.names[feature]) in ("integer", "bucket")

    def column(self, feature: int, name: str) -> np.ndarray:
        """``token`` uint32 or ``count`` int64 of one feature, in id order."""
        try:
            with hdf5.opened(self.path) as file:
                column: np.ndarray = vocabulary_group(file, self.names[feature])[name][:]
        except hdf5.UNREADABLE as error:
            place = f"{self.names[feature]}/{name}"
            raise DamageError(self.path, f"damaged at {place} ({error})", "make it again") from error
        return column


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the metadata of a vocabulary file, or of that in a prepared folder; DataError if it is not a vocabulary."""
    if path.is_dir():
        path = path / "vocabulary.h5"
    if not path.is_file():
        raise DataError(
            f"{path}: no such vocabulary file; 'ssmpi-prepare criteo' writes vocabulary.h5 beside the shards"
        )
    try:
        with hdf5.opened(path) as file:
            about = parse_json(file.attrs["about"])
            names = about.get("features", CRITEO.sparse)
            expected = [_cardinality(name, len(vocabulary_group(file, name)["token"]), about) for name in names]
        found = (about["format"], about["version"])
        if found != (FORMAT, VERSION):
            raise DamageError(path, f"format {found}, this program reads {(FORMAT, VERSION)}", "make it again")
        vocabulary = Vocabulary(path, about["id_order"], about["max_ind_range"], about["cardinalities"], about)
        if vocabulary.cardinalities != expected:
            raise DamageError(path, "damaged: cardinalities do not agree with the tokens", "make it again")
    except DamageError:
        raise
    except hdf5.UNREADABLE as error:
        raise DamageError(path, f"not a readable vocabulary file ({error})", "give a vocabulary.h5") from error
    return vocabulary


def reusable_vocabulary(path: Path) -> Vocabulary:
    """As ``read_vocabulary``, for other rows; DataError if it has no id for tokens that it does not know."""
    vocabulary = read_vocabulary(path)
    if not vocabulary.reserved:
        raise DataError(
            f"{vocabulary.path}: its ids are in the order of first appearance (--id-order {vocabulary.id_order}), "
            "which has none for new tokens; prepare the first rows again, without that option"
        )
    return vocabulary


def described(vocabulary: Vocabulary, rows: int) -> str:
    """What the features of so many rows have, as text: ids (reserved ones included), as many as the stated min-counts
    would give; hashes; keys, with the collisions to expect.
    """
    lines = [_size_table(vocabulary)] if vocabulary.counted else []
    hashed = [f"{vocabulary.names[f]} ({slots:,} ids)" for f, slots in vocabulary.hashed.items()]
    if hashed:
        lines.append(f"hashed: {', '.join(hashed)}")
    if vocabulary.keyed:
        names = ", ".join(vocabulary.names[f] for f in vocabulary.keyed)
        lines.append(
            f"64-bit keys: {names}; of n different tokens n (n - 1) / 2^65 pairs are expected to share one: "
            f"{expected_collisions(rows):.2g}, if all {rows:,} rows had others"
        )
    return "\n".join(lines)


def _size_table(vocabulary: Vocabulary) -> str:
    head = "ids per feature   " + "".join(f"{'min-count ' + str(c):>15}" for c in STATED_MIN_COUNTS)
    sizes = np.array(vocabulary.about["sizes"]).reshape(len(vocabulary.names), -1) + RESERVED_IDS
    sizes, names = sizes[vocabulary.counted], [vocabulary.names[f] for f in vocabulary.counted]
    lines = [f"  {n:<16}" + "".join(f"{s:>15,}" for s in row) for n, row in zip(names, sizes, strict=True)]
    return "\n".join([head, *lines, f"  {'all':<16}" + "".join(f"{s:>15,}" for s in sizes.sum(axis=0))])
