"""Makes ``vocabulary.h5`` from the token counts of pass 1.

The ranks merge features in parallel; rank 0 combines them.

With ``--extend-vocabulary`` it begins with that of earlier rows. Old tokens keep their ids, so that these mean the same
in a model that was trained on the earlier rows; tokens that only the new rows have follow, by frequency. What was
fitted besides, such as means of dense values, stays too. The new vocabulary records the checksums of those it extends,
directly or not: a model of any of them can be continued on its rows. Counts are those of the rows that a token was
added by.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.files import file_checksum, load_json, save_array, save_json
from data_prep.options import PrepareOptions
from data_prep.pieces import Piece
from data_prep.preparation import Preparation
from data_prep.progress import ProgressBar
from data_prep.ranks import RawDataError
from data_prep.raw.text_stream import CHANGED
from data_prep.splits import Ranges
from data_prep.vocabulary.scan import FIT, PieceRecord, ScanResult, Window, scan
from data_prep.vocabulary.vocabulary_file import (
    FREQUENCY,
    RESERVED_IDS,
    STATED_MIN_COUNTS,
    Merged,
    MergedFeature,
    Vocabulary,
    merge_feature,
    read_vocabulary,
    reusable_vocabulary,
    write_vocabulary,
)
from ssmpi.data.schema import EXTENDS, VOCABULARY_NAME
from ssmpi.runtime.errors import UserError

LONGEST = 500  # checksums of 64 characters in an attribute of HDF5, which holds 64 KiB


def extending(options: PrepareOptions, check: Callable[[Vocabulary], None]) -> tuple[PrepareOptions, dict[str, Any]]:
    """The options with ``max_ind_range`` of the vocabulary to extend, which must pass ``check``, and
    what the preparation's identity says of it; both as they are without one.
    """
    given = options.extend_vocabulary
    if given is None:
        return options, {}
    if options.vocabulary is not None:
        raise UserError("--vocabulary fits no vocabulary and --extend-vocabulary fits one: leave one of them out")
    if options.max_ind_range:
        raise UserError("--extend-vocabulary brings its own --max-ind-range: leave it out")
    if options.output.resolve() in (given.resolve(), given.resolve().parent):
        raise UserError(f"--extend-vocabulary {given}: lies in --output {options.output}: give another --output")
    base = reusable_vocabulary(given)
    check(base)
    checksum = file_checksum(base.path)
    return replace(options, max_ind_range=base.max_ind_range), {EXTENDS: checksum}


def fit_vocabulary(job: Preparation, found: ScanResult, ranges: Ranges) -> Vocabulary:
    """The vocabulary of all rows, or of the training rows; one finished by an interrupted run is reused."""
    path = job.options.output / VOCABULARY_NAME
    rows = sum(record.rows for record in found.records)
    if not job.ranks.first(path.is_file):
        counts = found
        if job.fits_first_rows:
            if "train" not in ranges:
                raise RawDataError("--fit-on train: there are no training rows with this --split; use --fit-on all")
            if found.name != FIT:
                counts = _count_training_rows(job, found, ranges["train"])
            rows = ranges["train"][1] - ranges["train"][0]
        _merge(job, job.work / counts.name, counts)
        job.ranks.first(lambda: _assemble(job, path, rows, counts))
        job.ranks.first(lambda: _drop_counts(job, job.work / counts.name))
    vocabulary = job.ranks.together(lambda: read_vocabulary(path))
    if job.options.min_count > 1 and max(vocabulary.cardinalities) == RESERVED_IDS:
        raise RawDataError(f"--min-count {job.options.min_count:,}: no token comes so often; give a smaller one")
    return vocabulary


def _count_training_rows(job: Preparation, found: ScanResult, train: tuple[int, int]) -> ScanResult:
    """Read all rows again, and count training rows."""
    pieces = [(record.key, record.rows) for record in found.records]
    counts = scan(job, FIT, "pass 1: count training rows", training_rows(pieces, train))
    for source in job.sources:
        if _without_moments(found.of(source)) != _without_moments(counts.of(source)):
            raise RawDataError(CHANGED.format(source.path))
    return counts


def unfitted_vocabulary(job: Preparation) -> Vocabulary:
    """The vocabulary of features that are all hashed: it depends on no row, so that it is the same for other files."""
    path, names = job.options.output / VOCABULARY_NAME, job.format.features.sparse

    def write() -> None:
        if not path.is_file():
            about = {"id_order": FREQUENCY, "min_count": 1, "max_ind_range": 0, "fit_on": "none", "fitted_rows": 0}
            fitted = job.format.fitted(np.zeros((len(job.format.features.dense), 3)))
            empty = MergedFeature(np.empty(0, np.uint64), np.empty(0, np.int64), [0] * len(STATED_MIN_COUNTS))
            write_vocabulary(path, dict.fromkeys(names, empty), about | fitted)

    job.ranks.first(write)
    return job.ranks.together(lambda: read_vocabulary(path))


def _without_moments(records: list[PieceRecord]) -> list[PieceRecord]:
    """Records to compare: moments are those of the rows that a scan counts."""
    return [replace(record, moments=[]) for record in records]


def training_rows(pieces: Iterable[tuple[Piece, int]], train: tuple[int, int]) -> Window:
    """For each piece, which of its rows are training rows; ``pieces``: all of them, in input order, with their rows."""
    windows: dict[Piece, tuple[int, int]] = {}
    row = 0
    for piece, rows in pieces:
        windows[piece] = max(train[0] - row, 0), min(train[1] - row, rows)
        row += rows
    return lambda piece: windows.get(piece, (0, 0))


def _merge(job: Preparation, counts: Path, found: ScanResult) -> None:
    def body() -> None:
        names = job.format.features.sparse
        mine = range(job.ranks.rank, len(names), job.ranks.size)
        with ProgressBar(job.ranks, "vocabulary", len(mine), " features") as progress:
            for f in mine:
                place = job.work / "merged" / str(f)
                if not place.with_suffix(".json").is_file():
                    least = job.format.min_counts[f] or job.options.min_count
                    merged = merge_feature(counts, found.parts, f, least, _new_tokens(job, f))
                    save_array(place.with_suffix(".tokens.npy"), merged.tokens)
                    save_array(place.with_suffix(".counts.npy"), merged.counts)
                    save_json(place.with_suffix(".json"), merged.sizes)
                progress.advance(1, 0)

    job.ranks.together(body)


def _new_tokens(job: Preparation, feature: int) -> Callable[[Merged], Merged]:
    """What leaves out the tokens of the vocabulary to extend, if there is one."""
    base = job.options.extend_vocabulary
    if base is None:
        return lambda found: found
    return partial(_unknown, read_vocabulary(base).column(feature, "token"))


def _assemble(job: Preparation, path: Path, rows: int, counts: ScanResult) -> None:
    names, given = job.format.features.sparse, job.options.extend_vocabulary
    base = read_vocabulary(given) if given else None

    def features() -> Iterator[MergedFeature]:
        for f in range(len(names)):
            place = job.work / "merged" / str(f)
            tokens = np.load(place.with_suffix(".tokens.npy"), mmap_mode="r")
            counts = np.load(place.with_suffix(".counts.npy"), mmap_mode="r")
            merged = MergedFeature(tokens, counts, load_json(place.with_suffix(".json")))
            yield _extended(base, f, merged) if base else merged

    options, of = job.options, job.format
    about = {
        "id_order": FREQUENCY,
        "min_count": options.min_count,
        "max_ind_range": options.max_ind_range,
        "fit_on": options.fit_on,
        "fitted_rows": rows,
    }
    moments = sum(np.array(record.moments) for record in counts.records)
    fitted = of.fitted(np.asarray(moments).reshape(-1, 3))
    if base:
        fitted = {name: base.about[name] for name in fitted} | {EXTENDS: _ancestry(base)}
    write_vocabulary(path, dict(zip(names, features(), strict=True)), about | fitted)


def _ancestry(base: Vocabulary) -> list[str]:
    """Checksums of a vocabulary and of those that it extends, the nearest first, as what extends it records them."""
    return [file_checksum(base.path), *base.about.get(EXTENDS, ())][:LONGEST]


def _unknown(known: np.ndarray, ranges: Merged) -> Merged:
    """(tokens, values) of each range without tokens that are ``known``, in any order."""
    known = np.sort(known)
    for tokens, values in ranges:
        places = np.searchsorted(known, tokens)
        new = np.ones(len(tokens), np.bool_)
        inside = places < len(known)
        new[inside] = known[places[inside]] != tokens[inside]
        yield tokens[new], values[new]


def _extended(base: Vocabulary, feature: int, new: MergedFeature) -> MergedFeature:
    """A feature's tokens of ``base``, then ``new`` ones."""
    old = base.column(feature, "token")
    counts = base.column(feature, "count")
    return MergedFeature(
        np.concatenate([old, new.tokens]),
        np.concatenate([counts, new.counts]),
        [len(old) + size for size in new.sizes],
    )


def _drop_counts(job: Preparation, parts: Path) -> None:
    """Delete the counts to free disk space and memory: they are in the vocabulary now."""
    for path in parts.glob("part-*.npy"):
        path.unlink()
    shutil.rmtree(job.work / "merged", ignore_errors=True)
