"""The passes of every preparation, from raw files to the manifest. The first checks all rows and counts what has to be
known of them, the second encodes them. Both read the raw files, unless the format keeps rows as they are read
(``RowFormat.kept_bytes``) and the disk has room for them: then the second pass gets them from there.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from data_prep.files import file_checksum, whole
from data_prep.kept_rows import KeptRows
from data_prep.options import PrepareOptions
from data_prep.pieces import OpenPiece, RawSource
from data_prep.preparation import Preparation, RowFormat
from data_prep.progress import ProgressBar, say
from data_prep.ranks import Ranks, RawDataError
from data_prep.raw.sources import expand, open_sources
from data_prep.raw.text_stream import CHANGED, whole_digest
from data_prep.shards.gather import write_shards
from data_prep.shards.needs import announce, check_space_again, gigabytes
from data_prep.shards.output_folder import WHOLE, OutputFolder
from data_prep.shards.packing import Packer, packed_limits, row_bytes, widths
from data_prep.shards.provenance import data_set_id, make_manifest, skipped_lines, summary
from data_prep.shards.scatter import place, scatter
from data_prep.splits import Ranges, ShardLayout, split_rows
from data_prep.vocabulary.encoding import drop_tables, shared
from data_prep.vocabulary.fit import extending, fit_vocabulary, training_rows, unfitted_vocabulary
from data_prep.vocabulary.scan import FIT, SCAN, ScanResult, every_row, scan
from data_prep.vocabulary.vocabulary_file import Vocabulary, described, read_vocabulary, reusable_vocabulary
from ssmpi.data.schema import SPLITS, VOCABULARY_NAME, DatasetManifest, read_manifest, write_manifest
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.words import counted

HASHES_ALONE = "of hashes alone"  # a vocabulary that depends on no row


def run(job: Preparation) -> DatasetManifest:
    """Bring a job to its end; resumes an interrupted one of the same arguments and files.

    Every rank calls it. Raises DataError, on all ranks, for invalid input.
    """
    began = time.monotonic()
    ranks = job.ranks
    _require_training_rows(job, [source.size for source in job.sources])  # nearly always detected before a row is read
    folder = OutputFolder(job.options)
    keeps = ranks.first(lambda: announce(job))
    if ranks.first(lambda: folder.begin(job)) == WHOLE:
        return _already_whole(job, folder)
    ranks.first(lambda: shutil.rmtree(job.kept_folder, ignore_errors=True))  # of a killed job: nobody reads them
    if keeps:
        job.kept = KeptRows(job.kept_folder)
    try:
        manifest = _make(job)
        ranks.first(folder.finish)
    except RawDataError:
        ranks.first(folder.abandon)
        raise
    finally:
        folder.release()
    _report(job, manifest.provenance["rows"], time.monotonic() - began)
    return manifest


def open_job(
    files: Sequence[Path],
    options: PrepareOptions,
    ranks: Ranks,
    open_format: Callable[[list[RawSource], PrepareOptions], RowFormat],
    check_vocabulary: Callable[[Vocabulary], None],
    multiline: str = "",
) -> Preparation:
    """A preparation of ``files``, folders or patterns of them. Every rank calls it, and calls ``open_format`` with the
    raw files. ``check_vocabulary`` raises if a given vocabulary is of other columns; ``multiline``: see ``RawSource``.
    """
    options, base = ranks.first(lambda: extending(options, check_vocabulary))
    paths = ranks.first(lambda: expand(files))
    sources = ranks.together(lambda: open_sources(paths, multiline))
    _compare_views(sources, ranks)
    of = open_format(sources, options)

    def checksum() -> str | None:
        if options.vocabulary is None:
            return HASHES_ALONE if of.hashes_alone else None
        vocabulary = reusable_vocabulary(options.vocabulary)
        check_vocabulary(vocabulary)
        return file_checksum(vocabulary.path)

    kind, name = of.chosen_split(options)
    chosen = {"split": kind, "split_name": name, "labelled": of.labelled, "vocabulary": ranks.first(checksum)}
    return Preparation(options, ranks, sources, of, options.identity() | of.identity() | chosen | base)


def _make(job: Preparation) -> DatasetManifest:
    """Both passes, from raw text to the manifest."""
    options, ranks = job.options, job.ranks
    found = _first_pass(job)
    job.format.check(found.records, job.sources, fitting=job.fitting)
    ranges = _split(job, found)
    vocabulary = _vocabulary(job, found, ranges)
    say(ranks, described(vocabulary, sum(record.rows for record in found.records)))
    features = job.format.features
    largest = np.max([record.largest for record in found.records], axis=0).tolist()
    if job.format.packs_floats:
        largest = [2**32 - 1] * len(largest)
    wide = widths(packed_limits(features, vocabulary.cardinalities), features.key_columns, largest)
    keeps = ranks.first(lambda: check_space_again(job, found, vocabulary, row_bytes(wide)))
    if job.kept and not keeps:
        job.kept.drop()

    layout = ShardLayout(ranges, options.shard_rows, options.seed, options.shuffle)
    data_set = ranks.first(lambda: data_set_id(job, found.records, file_checksum(vocabulary.path)))
    placed = place(found.records, job.format.splits_rows)
    if job.kept:
        job.kept.is_last_pass = True
    scatter(job, placed, Packer(shared(job, vocabulary), job.format, wide), layout)
    # shards take the memory and the disk of the packer's tables
    ranks.first(lambda: drop_tables(job))
    common = {"data_set": data_set, "cardinalities": vocabulary.cardinalities}
    written = write_shards(job, placed, layout, wide, common)

    manifest = ranks.first(lambda: make_manifest(job, found.records, ranges, vocabulary, written))
    ranks.first(lambda: str(write_manifest(options.output, manifest)))
    ranks.first(lambda: say(ranks, summary(job, found.records, manifest)))
    return manifest


def _first_pass(job: Preparation) -> ScanResult:
    """Check all rows, and count those that the vocabulary is fitted on, if they are known before."""
    if not job.fitting or job.format.hashes_alone or (job.fits_first_rows and not job.counts_rows_first):
        return scan(job, SCAN, "pass 1: check", None)
    if not job.fits_first_rows:
        return scan(job, SCAN, "pass 1: check and count", every_row)
    pieces = job.format.count_rows(job)
    rows = [sum(n for (index, _), n in pieces if index == source.index) for source in job.sources]
    train = split_rows(job.identity["split"], rows, job.identity["split_name"]).get("train", (0, 0))
    found = scan(job, FIT, "pass 1: check and count", training_rows(pieces, train))
    differing = set(pieces) ^ {(record.key, record.rows) for record in found.records}
    if differing:
        (source, _), _ = min(differing)
        raise RawDataError(CHANGED.format(job.sources[source].path))
    return found


def _vocabulary(job: Preparation, found: ScanResult, ranges: Ranges) -> Vocabulary:
    if not job.fitting:
        return _given_vocabulary(job)
    return unfitted_vocabulary(job) if job.format.hashes_alone else fit_vocabulary(job, found, ranges)


def _compare_views(sources: list[RawSource], ranks: Ranks) -> None:
    """DataError unless all ranks see the same files: dealing other pieces, they would lose or double rows."""
    views = ranks.allgather([(source.name, source.size) for source in sources])
    for rank, view in enumerate(views):
        for source, expected, found in zip(sources, views[0], view, strict=True):
            if found != expected:
                raise DataError(
                    f"{source.path}: {found[1]:,} bytes ({found[0]}) on rank {rank}, {expected[1]:,} bytes "
                    f"({expected[0]}) on rank 0; give raw files that are the same on all hosts, and let no other "
                    "program write to them"
                )


def _already_whole(job: Preparation, folder: OutputFolder) -> DatasetManifest:
    """Compare the raw files with those that the folder was made from; writes nothing."""
    manifest = read_manifest(job.options.output)

    def digest(opened: OpenPiece, progress: ProgressBar) -> str:
        for read in opened.read_through():
            progress.advance(read, 0)
        return opened.digest

    digests = job.of_all_pieces("compare raw files", digest)
    for source, recorded in zip(job.sources, manifest.provenance["sources"], strict=True):
        if whole_digest([d for (index, _), d in digests if index == source.index]) != recorded["checksum"]:
            raise DataError(
                f"{job.options.output}: was made from another {source.name} (same size, other content); give another "
                "--output, or --overwrite to make it anew"
            )
    job.ranks.first(folder.finish)
    say(job.ranks, f"{job.options.output}: already complete and made from these files; nothing to do")
    return manifest


def _split(job: Preparation, found: ScanResult) -> Ranges:
    rows = [sum(r.rows for r in found.records if r.source == source.index) for source in job.sources]
    if sum(rows) == 0:
        why = "; ".join(skipped_lines(job, found.records))
        raise RawDataError("not one good row in the raw files" + f": {why}" * bool(why))
    if job.format.splits_rows:
        return _ranges_of_splits(np.sum([record.splits for record in found.records], axis=0).tolist())
    _require_training_rows(job, rows)
    ranges = split_rows(job.identity["split"], rows, job.identity["split_name"])
    if job.identity["split"] in ("kaggle", "days"):
        for name in ("train", "validation", "test"):
            if name not in ranges:
                say(job.ranks, f"note: {sum(rows):,} rows are too few for split {name!r}: it is left out")
    return ranges


def _ranges_of_splits(rows: list[int]) -> Ranges:
    """The ranges of rows that say their split, counted split by split."""
    if not rows[0]:
        raise RawDataError("no row is in split 'train': change [split] of the schema")
    ends = np.cumsum(rows).tolist()
    return {name: (end - n, end) for name, n, end in zip(SPLITS, rows, ends, strict=True) if n}


def _require_training_rows(job: Preparation, sizes: Sequence[int]) -> None:
    """RawDataError if the split of labelled files, of ``sizes`` in rows or bytes, has no training rows."""
    kind = job.identity["split"]
    if not job.format.labelled or kind == "none" or job.format.splits_rows or "train" in split_rows(kind, sizes):
        return
    why = "trains on all files but the last, and those have no rows" if kind == "days" else "leaves no rows to train on"
    raise RawDataError(
        f"--split {kind} {why}: give more files, or --split kaggle, or fractions such as 0.8,0.1,0.1; for rows "
        "that are only scored --split none --split-name test"
    )


def _given_vocabulary(job: Preparation) -> Vocabulary:
    given = job.options.vocabulary
    assert given is not None
    path = job.options.output / VOCABULARY_NAME

    def copy() -> None:
        if not path.is_file():
            with whole(path) as beside:
                shutil.copyfile(read_vocabulary(given).path, beside)

    job.ranks.first(copy)
    return job.ranks.together(lambda: read_vocabulary(path))


def _report(job: Preparation, rows: int, seconds: float) -> None:
    peaks = job.ranks.allgather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    rate = rows / seconds / job.ranks.size
    say(
        job.ranks,
        f"{counted(rows, 'row')} in {seconds:.1f} s, {rate / 1e6:.2f} M rows/s per rank; "
        f"peak memory of a rank {gigabytes(max(peaks))}",
    )
