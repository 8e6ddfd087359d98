"""What goes between the members of a group: edges, the items of a part that send and receive by them, and mailboxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Edge:
    """``columns`` of a ``value`` go from member ``source`` to member ``reader``, once for each piece of a batch; with
    ``gradient`` theirs comes back. ``bf16``: both are rounded to bfloat16.
    """

    value: str
    columns: slice
    source: int
    reader: int
    bf16: bool
    gradient: bool

    @property
    def width(self) -> int:
        """Numbers an example."""
        return self.columns.stop - self.columns.start

    @property
    def message(self) -> int:
        """Bytes an example."""
        return self.width * (2 if self.bf16 else 4)

    @property
    def entries(self) -> int:
        """Numbers an example that go."""
        return self.width

    @property
    def entries_back(self) -> int:
        """Numbers an example that come back."""
        return self.entries * self.gradient

    @property
    def back(self) -> int:
        """Bytes an example that come back."""
        return self.message * self.gradient


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
