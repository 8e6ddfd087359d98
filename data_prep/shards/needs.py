"""The memory and disk that a preparation needs, printed and checked before it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from data_prep.options import BASE_BYTES, PrepareOptions
from data_prep.preparation import Preparation
from data_prep.shards.packing import item_type
from data_prep.vocabulary.scan import ScanResult
from data_prep.vocabulary.vocabulary_file import MERGE_ENTRIES, MERGING_BYTES, ORDERING_BYTES, Vocabulary
from ssmpi.data.features import Features
from ssmpi.data.schema import MANIFEST_NAME
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.words import counted

MOST_FILES = 100_000
GUESSED_VOCABULARY_BYTES_PER_ROW = 40


def announce(job: Preparation) -> bool:
    """Print the plan and the memory and disk it needs; DataError if the disk is too small. Returns whether it has room
    for the rows that a pass may keep.
    """
    options = job.options
    rows = sum(job.format.estimated_rows(source) for source in job.sources)
    _refuse_crumbs(job, rows)
    kind = f"{'' if job.format.labelled else 'un'}labelled, split {job.identity['split']}"
    size = gigabytes(sum(source.size for source in job.sources))
    files, ranks = counted(len(job.sources), "raw file"), counted(job.ranks.size, "rank")
    print(f"{files}, {size}, about {counted(rows, 'row')}, {kind}, {ranks}")
    output, temporary = _disk_need(job, rows, GUESSED_VOCABULARY_BYTES_PER_ROW * rows * job.counting)
    kept = job.format.kept_bytes(job.sources)
    keeps = 0 < kept <= _room(options.output)[0] - output - temporary
    print(_plan(job, keeps=keeps))
    if job.counting and options.fit_on == "all" and job.identity["split"] != "none":
        print(
            "vocabulary: from all rows, validation and test included, as in facebookresearch/dlrm; with "
            "--fit-on train, tokens seen only there get id 1 (rare)"
        )
    print(_memory(job, rows))
    if (options.output / MANIFEST_NAME).is_file() and not options.overwrite:
        return False  # whole, or refused: nothing will be written
    free = _check_space(options.output, output + temporary)
    temporary += kept * keeps
    print(
        f"disk: about {gigabytes(output)} of output and {gigabytes(temporary)} of temporary files; {free}", flush=True
    )
    return keeps


def shard_row_bytes(features: Features) -> int:
    """Bytes of a row in a shard, without the ids of lists."""
    wide = len(features.keyed) + len(features.lists)
    return 4 * (len(features.sparse) + wide + len(features.dense)) + 1


def most_packed_bytes(features: Features) -> int:
    """The most bytes of a packed row, without the ids of lists: integers take up to 8."""
    return shard_row_bytes(features) + 4 * len(features.dense)


def memory_bound(options: PrepareOptions, rows: int, features: Features, *, counting: bool) -> int:
    """The maximum of private bytes per rank in either pass, assuming the shortest possible rows; ``counting`` tokens.
    Ordering a vocabulary has a separate bound.
    """
    row, tables = most_packed_bytes(features), options.table_bytes * counting
    piece = options.piece_bytes // (len(features.dense) + len(features.sparse)) * (row + 16)
    if features.lists:  # an id takes two bytes of text at least, and four twice in memory
        piece += 4 * options.piece_bytes
    copies = 3 if features.weighted else 2  # of the ids of a shard
    lists = copies * np.dtype(item_type(features)).itemsize * sum(one.longest for one in features.lists.values())
    shard = min(options.shard_rows, rows) * (2 * row + 8 + lists)
    return BASE_BYTES + max(3 * tables, tables + piece, shard)


def _memory(job: Preparation, rows: int) -> str:
    """The memory that about so many rows need."""
    options, features = job.options, job.format.features
    bound = memory_bound(options, rows, features, counting=job.counting)
    tables = f" ({gigabytes(options.table_bytes)} of token tables)" if job.counting else ""
    alone = job.counting and job.ranks.size == 1
    larger, sharing = (" beyond the size of those", "") if alone else ("", ", shared by the ranks of a host")
    text = f"memory: at most {gigabytes(bound)} private per rank{tables}; lookup tables{larger} are mapped from files"
    tokens = rows * max((one.longest for one in features.lists.values()), default=1)
    ordering = MERGING_BYTES * MERGE_ENTRIES + ORDERING_BYTES * min(tokens, options.max_ind_range or 2**32)
    if not job.counting or BASE_BYTES + ordering <= bound:
        return text + sharing
    most = f"{ORDERING_BYTES} bytes per token of the largest feature: at most {gigabytes(BASE_BYTES + ordering)}"
    return (
        f"{text}{sharing}\nmemory: ordering a vocabulary takes {most}, if no token of it came twice; --max-ind-range "
        "bounds it"
    )


def _plan(job: Preparation, *, keeps: bool) -> str:
    """How often the raw files are read, and why; ``keeps``: once, for their rows are kept."""
    why = ", ".join(job.format.awaits(fitting=job.fitting))
    lines_counted = job.counts_rows_first and not job.format.knows_rows
    first = " their rows are counted first;" if lines_counted and not job.format.hashes_alone else ""
    if keeps:
        needs = f":{first} to encode them needs {why}" if why else ""
        return f"passes: the files are read once, and their rows are kept on disk{needs}"
    needs = f"for {why}" if why else "to check all rows"
    if why and job.fits_first_rows and not job.counts_rows_first:
        return (
            "passes: the files are read three times: to count good rows and so find the training rows; "
            f"{needs}; to encode"
        )
    return f"passes: the files are read twice:{first} {needs}; to encode"


def _refuse_crumbs(job: Preparation, rows: int) -> None:
    """DataError if shards or pieces are so small that there would be too many files."""
    size = sum(source.size for source in job.sources)
    for name, each, whole_size in (
        ("shard-rows", job.options.shard_rows, rows),
        ("piece-bytes", job.options.piece_bytes, size),
    ):
        if whole_size > each * MOST_FILES:
            raise DataError(
                f"--{name} {each:,} would make about {whole_size // each:,} files; "
                f"give at least {-(-whole_size // MOST_FILES):,}"
            )


def check_space_again(job: Preparation, found: ScanResult, vocabulary: Vocabulary, packed_bytes: int) -> bool:
    """As ``announce`` does for the disk, when the rows and ids have been counted. Returns whether the rows that are
    kept leave enough of it.
    """
    rows = sum(record.rows for record in found.records)
    tokens = sum(vocabulary.cardinalities)
    listed = sum(record.listed for record in found.records)
    output, temporary = _disk_need(job, rows, 27 * tokens, packed_bytes, listed)
    kept = _used_bytes(job.kept_folder)
    keeps = kept <= _room(job.options.output)[0] - output - temporary
    free = _check_space(job.options.output, output + temporary + kept * keeps)
    print(
        f"{counted(rows, 'row')}, {tokens:,} ids; "
        f"disk {gigabytes(output)} and {gigabytes(temporary)} temporary; {free}",
        flush=True,
    )
    return keeps


def _disk_need(
    job: Preparation, rows: int, vocabulary_bytes: int, packed_bytes: int | None = None, listed: int | None = None
) -> tuple[int, int]:
    """Bytes of (output, temporary files), with ``listed`` ids in lists. Before rows have been read, four bytes for each
    packed value are enough for all but extreme integers, and a list is taken to have one id.
    """
    each = shard_row_bytes(job.format.features)
    features = job.format.features
    lists = np.dtype(item_type(features)).itemsize * (rows * len(features.lists) if listed is None else listed)
    return rows * each + lists + vocabulary_bytes, rows * (packed_bytes or each) + lists + 2 * vocabulary_bytes


def _used_bytes(folder: Path) -> int:
    """Bytes already in a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else 0


def _room(output: Path) -> tuple[int, int]:
    """Bytes for a folder, those already in it included, and those that are free."""
    existing = output
    while not existing.exists():
        existing = existing.absolute().parent
    free = shutil.disk_usage(existing).free
    return _used_bytes(output) + free, free


def _check_space(output: Path, need: int) -> str:
    """Compare the need with the free space; DataError if it does not fit. Returns a phrase for the report."""
    room, free = _room(output)
    if (missing := need - room) > 0:
        raise DataError(
            f"{output}: needs {gigabytes(need)} of disk (output and temporary files), {gigabytes(free)} are free; free "
            f"{gigabytes(missing)} or give an --output elsewhere"
        )
    return f"{gigabytes(free)} free"


def gigabytes(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"
