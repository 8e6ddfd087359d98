"""Lists of tokens in place of tokens, as MLPerf makes multi-hot data for DLRM DCN v2 of Criteo's one-hot data
(``multi_hot.py`` of facebookresearch/dlrm, distribution ``uniform``): each token is looked up in a table of lists. A
list begins with the token; the others are drawn once for it, uniformly from those of its feature. So lists carry what
tokens carried, and labels and the teacher's scores stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_prep.columns import DENSE_NAMES, SPARSE_FEATURES, SPARSE_NAMES
from data_prep.synthetic.draws import mix
from ssmpi.runtime.compiled.jit import njit

SCHEMA_NAME = "schema.toml"
SHARES = "0.8,0.1,0.1"  # of train, validation and test in the schema
LABEL = "label"
MOST = 1_000  # tokens of a list: a row of text stays far below 1 MiB
BAR = ord("|")


class MultiHot(NamedTuple):
    """``counts`` int64 (26,): tokens of each feature's list; ``cardinality`` int64 (26,): tokens of the feature."""

    counts: np.ndarray
    cardinality: np.ndarray


ONE_HOT = MultiHot(np.ones(SPARSE_FEATURES, np.int64), np.ones(SPARSE_FEATURES, np.int64))


@njit(cache=True, nogil=True)
def other_token(masks: np.ndarray, cardinality: int, token: int, k: int) -> int:
    """The ``k``-th other token in the list of ``token``, by rank; of the same generation, so that they go together.
    ``masks`` uint32 (2,): those of the feature.
    """
    key = (np.uint64(masks[0]) << np.uint64(32)) | np.uint64(masks[1])
    draw = mix(mix(key + np.uint64(token)) + np.uint64(k) * np.uint64(0x9E3779B97F4A7C15))
    rank = np.int64(((draw >> np.uint64(32)) * np.uint64(cardinality)) >> np.uint64(32))
    return int(rank + token // cardinality * cardinality)


def header(labelled: bool) -> bytes:
    """The first line of a file."""
    return "\t".join((LABEL,) * labelled + DENSE_NAMES + SPARSE_NAMES).encode() + b"\n"


def schema(counts: Sequence[int]) -> str:
    """What ``ssmpi-prepare table`` reads the files by: features with one token have ids, the others lists of them."""
    of = dict(zip(SPARSE_NAMES, counts, strict=True))
    lines = [f'label = "{LABEL}"', "", "[table]", 'separator = "\\t"', "", "[dense]"]
    lines += [f'{name} = "log1p"' for name in DENSE_NAMES]
    lines += ["", "[categorical]", *(f'{name} = "string"' for name, count in of.items() if count == 1)]
    lines += ["", "[list]", *(f"{name} = {{ longest = {count} }}" for name, count in of.items() if count > 1)]
    lines += ["", "[split]", 'by = "rows"', f"shares = [{SHARES.replace(',', ', ')}]"]
    return "\n".join(lines) + "\n"
