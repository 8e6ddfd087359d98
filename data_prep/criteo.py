"""``ssmpi-prepare criteo``: turns Criteo's raw click logs into shards, vocabulary and manifest.

Also the entry point for programs: ``encode`` turns raw files into blocks of arrays with a saved vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data_prep.files import file_checksum
from data_prep.options import PrepareOptions
from data_prep.passes import compare_views, run
from data_prep.preparation import Preparation, are_days
from data_prep.progress import say
from data_prep.ranks import Ranks
from data_prep.raw.criteo_rows import BlockParser, CriteoFormat, have_labels
from data_prep.raw.parser import logarithms
from data_prep.raw.parts import expand
from data_prep.raw.pieces import TextPiece
from data_prep.raw.sources import TextStream, open_sources
from data_prep.vocabulary import extension
from data_prep.vocabulary.encoding import in_memory
from data_prep.vocabulary.vocabulary_file import reusable_vocabulary
from ssmpi.data.schema import Manifest
from ssmpi.runtime.errors import DataError


def prepare(raw: Sequence[Path], options: PrepareOptions, ranks: Ranks) -> Manifest:
    """Prepare raw files into ``options.output``; resumes an interrupted run of the same arguments and files.

    Every rank of the job calls it. Raises DataError, on all ranks, for invalid input.
    """
    return run(lambda: _open_job(raw, options, ranks))


def encode(
    raw_paths: Sequence[Path | str], vocabulary_file: Path | str
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Encode raw files, labelled or not, with a saved vocabulary, in order, block by block.

    Yields (ids int32 (n, 26), dense float32 (n, 13), label uint8 (n,) or None for unlabelled files); n varies.
    ``vocabulary_file`` may be a prepared folder. Raises DataError at the first bad row, naming file and line.
    """
    encoder = in_memory(reusable_vocabulary(Path(vocabulary_file)))
    sources = open_sources([Path(path) for path in raw_paths])
    labelled = have_labels(sources, skip_bad_rows=False)
    parse = BlockParser(labelled)
    for source in sources:
        with TextStream(source) as stream:
            piece = (source.index, 0)
            opened = TextPiece(piece=piece, stop=1 << 62, stream=stream, source=source, parse=parse)
            for text, offset in stream.blocks(opened.stop):
                rows = parse(text, offset, opened)
                ids = np.ascontiguousarray(encoder.ids(rows).T)
                yield ids, logarithms(rows.integers), rows.label.copy() if labelled else None


def _open_job(raw: Sequence[Path], options: PrepareOptions, ranks: Ranks) -> Preparation:
    if not raw:
        raise DataError("no raw file given; name train.txt or day_0 ... day_23, also .gz")
    options, base = ranks.first(lambda: extension.opened(options, extension.check_criteo))
    files = ranks.first(lambda: expand(raw))
    sources = ranks.together(lambda: open_sources(files))
    compare_views(sources, ranks)
    labelled = ranks.first(lambda: have_labels(sources, options.skip_bad_rows))
    kind, name = options.chosen_split(labelled=labelled, days=are_days(sources))
    given = options.vocabulary
    checksum = ranks.first(lambda: file_checksum(reusable_vocabulary(given).path)) if given is not None else None
    identity = (
        options.identity() | {"split": kind, "split_name": name, "labelled": labelled, "vocabulary": checksum} | base
    )
    if not labelled and kind != "none":
        say(ranks, f"note: the files have no labels; split {kind!r} is made all the same")
    return Preparation(options, ranks, sources, labelled, CriteoFormat(labelled), identity)
