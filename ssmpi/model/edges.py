"""The traffic between the members of a group: edges, the instructions that send and receive over
them, and mailboxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

BYTES, WORDS, BITMAP = range(3)  # how places are written: 8 bits each, 16 bits each, or a bit for each value


def coding(width: int, kept: int) -> int:
    """The shortest way to write ``kept`` places among ``width`` values."""
    if width <= 1 << 8:
        return BYTES
    return WORDS if width <= 1 << 16 and 2 * kept <= (width + 7) // 8 else BITMAP


@dataclass(frozen=True)
class Edge:
    """A ``value``, ``width`` numbers an example, goes from member ``source`` to member ``reader``, once for each piece
    of a batch; with ``gradient`` its gradient comes back. ``bf16``: both are rounded to bfloat16. Of what a ``TopK``
    has computed go the values that it has ``kept``, so many an example, and their places, and the gradients at these
    places come back; 0 where the whole value goes, which may be shorter.
    """

    value: str
    width: int
    source: int
    reader: int
    bf16: bool
    gradient: bool
    kept: int = 0

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
    """The value ``name``, ``width`` floats an example, arrives by the edge of that number."""

    name: str
    width: int
    edge: int
    inputs: ClassVar[tuple[str, ...]] = ()  # it reads nothing here


class Mailbox(NamedTuple):
    """What carries one kind of messages of a lane: from a member to another, at most ``size`` bytes each, and in so
    many ``entries`` of a value or its gradient.
    """

    sender: int
    reader: int
    size: int
    entries: int = 0
