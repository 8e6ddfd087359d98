"""Assigns the row blocks of a pass to worker threads, every block exactly once. The first trainer's main thread owns
the ``BlockDispatcher``; worker threads of all trainers request blocks over the control conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ssmpi.data.reader import DataOptions, shuffled

NOTHING_LEFT = -1
PAUSED = -2  # training pauses: blocks may be left
NOT_YET = -3  # the next block waits for the check of its shard: retry


@dataclass
class BlockDispatcher:
    """The blocks (or other pieces, by number) of one part of a pass, in dealing order, for ``threads`` requesters in
    the job.

    ``dynamic`` gives the next block to whichever thread asks; ``static`` gives requester ``k`` the blocks ``k``, ``k +
    threads``... A block that is not ``ready`` is not skipped: the order never changes. ``on_answer`` is called with the
    requester and the answer; ``lane_of`` numbers requesters without gaps.
    """

    options: DataOptions
    order: list[int]
    threads: int
    ready: Callable[[int], bool] = lambda block: True
    lane_of: Callable[[int], int] = lambda asker: asker
    on_answer: Callable[[int, int], None] = lambda asker, answer: None
    _dealt: int = 0
    _taken: dict[int, int] = field(default_factory=dict)
    log: list[tuple[int, int]] = field(default_factory=list)

    def next_block(self, asker: int) -> int:
        """The next block for one thread (numbered over the job), or NOTHING_LEFT, or NOT_YET."""
        answer = self._next_block(asker)
        self.on_answer(asker, answer)
        return answer

    def _next_block(self, asker: int) -> int:
        if self.options.handout == "static":
            place = self.lane_of(asker) + self.threads * self._taken.get(asker, 0)
        else:
            place = self._dealt
        if place >= len(self.order):
            return NOTHING_LEFT
        if not self.ready(self.order[place]):
            return NOT_YET
        self._taken[asker] = self._taken.get(asker, 0) + 1
        self._dealt += 1
        self.log.append((asker, self.order[place]))
        return self.order[place]

    def waiting(self) -> list[int]:
        """The blocks not assigned yet, in dealing order."""
        gone = {block for _, block in self.log}
        return [block for block in self.order if block not in gone]


def block_order(options: DataOptions, seed: int, pass_index: int, blocks: int, parts: int = 1) -> list[int]:
    """The order in which a pass deals its blocks: a different permutation in every pass, or file order. With several
    ``parts``, which follow each other in file order, a permutation in each.
    """
    if not options.shuffle:
        return list(range(blocks))
    if parts == 1:
        return [int(b) for b in shuffled(seed, 1, pass_index, size=blocks)]
    spans = [part_of(blocks, place, parts) for place in range(parts)]
    return [span[k] for place, span in enumerate(spans) for k in shuffled(seed, 1, pass_index, place, size=len(span))]


def part_of(blocks: int, place: int, parts: int) -> range:
    """Which places in the order of a pass one of its parts has."""
    return range(blocks * place // parts, blocks * (place + 1) // parts)
