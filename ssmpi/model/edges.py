"""What goes between the members of a group: edges, the items of a part that send and receive by them, and mailboxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BYTES, WORDS, BITMAP = range(3)  # how places are written: 8 bits each, 16 bits each, or a bit for each column


def coding(width: int, kept: int) -> int:
    """The shortest way to write ``kept`` places among ``width`` columns."""
    if width <= 1 << 8:
        return BYTES
    return WORDS if width <= 1 << 16 and 2 * kept <= (width + 7) // 8 else BITMAP


@dataclass(frozen=True)
class Edge:
    """``columns`` of a ``value`` go from member ``source`` to member ``reader``, once for each piece of a batch; with
    ``gradient`` theirs comes back. ``bf16``: both are rounded to bfloat16. Of what a ``TopK`` has computed go the
    values that it has ``kept``, so many an example, and their places, and the gradients at these places come back; 0
    where all columns go, which may be shorter.
    """

    value: str
    columns: slice
    source: int
    reader: int
    bf16: bool
    gradient: bool
    kept: int = 0

    @property
    def width(self) -> int:
        """Numbers an example."""
        return self.columns.stop - self.columns.start

    @property
    def message(self) -> int:
        """Bytes an example."""
        places = self.kept, 2 * self.kept, (self.width + 7) // 8
        return self._numbers + (places[coding(self.width, self.kept)] if self.kept else 0)

    @property
    def _numbers(self) -> int:
        return self.entries * (2 if self.bf16 else 4)

    @property
    def entries(self) -> int:
        """Numbers an example that go."""
        return self.kept or self.width

    @property
    def entries_back(self) -> int:
        """Numbers an example that come back."""
        return self.entries * self.gradient

    @property
    def back(self) -> int:
        """Bytes an example that come back."""
        return self._numbers * self.gradient


@dataclass(frozen=True)
class Send:
    """A value computed here leaves by the edge of that number."""

    value: str
    edge: int

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.value,)


@dataclass(frozen=True)
class Receive:
    """A value ``width`` floats wide, put together from ``edges`` and, if this member computed some of its columns
    itself, from its own value ``own``, which begins at column ``first``.
    """

    name: str
    width: int
    edges: tuple[int, ...]
    own: str = ""
    first: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads here."""
        return (self.own,) if self.own else ()


class Mailbox(NamedTuple):
    """What carries one kind of messages of a lane: from a member to another, at most ``size`` bytes each, and in so
    many ``entries`` of a value or its gradient.
    """

    sender: int
    reader: int
    size: int
    entries: int = 0
