"""Verifies the contents of the training shards against their checksums, once per run, in the background of training:
every trainer a share, on one low-priority thread. The dealer deals no row of a shard before its check is done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING

from ssmpi.state.checkpoint.pending_save import NICENESS

if TYPE_CHECKING:
    from ssmpi.data.reader import SplitReader


def share(needed: Iterable[int], checked: Set[int], trainer: int, trainers: int) -> list[int]:
    """The shards that one of ``trainers`` checks, out of those ``needed``, given and returned in the order of need."""
    return [shard for shard in dict.fromkeys(needed) if shard not in checked][trainer::trainers]


def check(reader: SplitReader, shards: Iterable[int], told: Callable[[int], None]) -> None:
    """The body of the thread; ``told`` is called with every intact shard. DataError for the first damaged one. Reads
    are few and large: small ones starve beside busy Python threads.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    for shard in shards:
        reader.verify(shard)
        told(shard)
