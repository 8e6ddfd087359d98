"""``--extend-vocabulary``: a vocabulary for new rows that begins with that of earlier ones. Old tokens keep their ids,
so that these mean the same in a model that was trained on the earlier rows; tokens that only the new rows have follow,
by frequency. What was fitted besides, such as means of dense values, stays too.

The new vocabulary records the checksums of those it extends, directly or not: a model of any of them can be continued
on its rows. Counts are those of the rows that a token was added by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from data_prep.files import file_checksum
from data_prep.options import PrepareOptions
from data_prep.vocabulary.vocabulary_file import Merged, MergedFeature, Vocabulary, reusable_vocabulary
from ssmpi.data.schema import EXTENDS
from ssmpi.runtime.errors import UserError

LONGEST = 500  # checksums of 64 characters in an attribute of HDF5, which holds 64 KiB


def opened(options: PrepareOptions, check: Callable[[Vocabulary], None]) -> tuple[PrepareOptions, dict[str, Any]]:
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


def ancestry(base: Vocabulary) -> list[str]:
    """Checksums of a vocabulary and of those that it extends, the nearest first, as what extends it records them."""
    return [file_checksum(base.path), *base.about.get(EXTENDS, ())][:LONGEST]


def unknown(known: np.ndarray, ranges: Merged) -> Merged:
    """(tokens, values) of each range without tokens that are ``known``, in any order."""
    known = np.sort(known)
    for tokens, values in ranges:
        places = np.searchsorted(known, tokens)
        new = np.ones(len(tokens), np.bool_)
        inside = places < len(known)
        new[inside] = known[places[inside]] != tokens[inside]
        yield tokens[new], values[new]


def extended(base: Vocabulary, feature: int, new: MergedFeature) -> MergedFeature:
    """A feature's tokens of ``base``, then ``new`` ones."""
    old = base.column(feature, "token")
    counts = base.column(feature, "count")
    return MergedFeature(
        np.concatenate([old, new.tokens]),
        np.concatenate([counts, new.counts]),
        [len(old) + size for size in new.sizes],
    )
