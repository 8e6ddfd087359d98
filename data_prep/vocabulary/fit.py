"""Makes ``vocabulary.h5`` from the token counts of pass 1.

The ranks merge features in parallel; rank 0 combines them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from data_prep.files import load_json, save_array, save_json
from data_prep.preparation import Piece, Preparation
from data_prep.progress import ProgressBar
from data_prep.ranks import RawDataError
from data_prep.raw.text_stream import CHANGED
from data_prep.splits import Ranges
from data_prep.vocabulary import extension
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
    write_vocabulary,
)
from ssmpi.data.schema import EXTENDS, VOCABULARY_NAME


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
                    least = job.format.least_count(f, job.options)
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
    return partial(extension.unknown, read_vocabulary(base).column(feature, "token"))


def _assemble(job: Preparation, path: Path, rows: int, counts: ScanResult) -> None:
    names, given = job.format.features.sparse, job.options.extend_vocabulary
    base = read_vocabulary(given) if given else None

    def features() -> Iterator[MergedFeature]:
        for f in range(len(names)):
            place = job.work / "merged" / str(f)
            tokens = np.load(place.with_suffix(".tokens.npy"), mmap_mode="r")
            counts = np.load(place.with_suffix(".counts.npy"), mmap_mode="r")
            merged = MergedFeature(tokens, counts, load_json(place.with_suffix(".json")))
            yield extension.extended(base, f, merged) if base else merged

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
        fitted = {name: base.about[name] for name in fitted} | {EXTENDS: extension.ancestry(base)}
    write_vocabulary(path, dict(zip(names, features(), strict=True)), about | fitted)


def _drop_counts(job: Preparation, parts: Path) -> None:
    """Delete the counts to free disk space and memory: they are in the vocabulary now."""
    for path in parts.glob("part-*.npy"):
        path.unlink()
    shutil.rmtree(job.work / "merged", ignore_errors=True)
