"""What the members of a group do for a step of a lane, as actions: ``group_simulation`` plays them, and what ``python
-m jobs.lab cluster`` emulates waits and sends as they say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ssmpi.model.edges import Receive, Send
from ssmpi.model.executor import PIECE
from ssmpi.model.network import floats_in
from ssmpi.model.part import Item, Part

FORWARD = 1 / 3  # of an operator's time: its backward pass computes two products for each of the forward one


class Compute(NamedTuple):
    """Compute for this share of a step of the whole network."""

    share: float


class Post(NamedTuple):
    """Send so many bytes by a mailbox to a member."""

    box: int
    size: int
    reader: int


class Take(NamedTuple):
    """Wait for what ``Post`` sends."""

    box: int
    size: int
    reader: int


Action = Compute | Post | Take
Actions = tuple[Action, ...]


def shares_of(part: Part) -> dict[str, float]:
    """The share of the network's products that each operator of a part computes."""
    forms = part.network.forms
    products = sum(form.products for form in forms.values())
    return {
        name: forms[name].products / products * width / forms[name].width
        for name, width in part.widths.items()
        if name in forms
    }


def walk(part: Part, examples: int) -> Iterator[Action]:
    """Forward and backward through a part, in pieces as in ``executor.run_step``; what is computed without a message in
    between is one action.
    """
    share = 0.0
    for action in _by_item(part, examples):
        if isinstance(action, Compute):
            share += action.share
        else:
            if share:
                yield Compute(share)
            share = 0.0
            yield action
    if share:
        yield Compute(share)


def _by_item(part: Part, examples: int) -> Iterator[Action]:
    shares, boxes, size = shares_of(part), part.mailboxes(1), -(-examples // -(-examples // PIECE))

    def message(kind: type[Post | Take], box: int, n: int) -> Iterator[Action]:
        if boxes[box].size:
            yield kind(box, n * boxes[box].size, boxes[box].reader)

    def actions(item: Item, n: int, *, back: bool) -> Iterator[Action]:
        first = len(part.edges) if back else 0
        if isinstance(item, Send):
            yield from message(Take if back else Post, first + item.edge, n)
        elif isinstance(item, Receive):
            for edge in reversed(item.edges) if back else item.edges:
                yield from message(Post if back else Take, first + edge, n)
        else:
            yield Compute((1 - FORWARD if back else FORWARD) * n / examples * shares[item.name])

    for start in range(0, examples, size):
        n = min(size, examples - start)
        for item in part.operators:
            yield from actions(item, n, back=False)
        for item in reversed(part.operators):
            yield from actions(item, n, back=True)


def step_of(part: Part, examples: int) -> Actions:
    """All that the part's member does for a step of the lane, by the protocol of ``model.lane``; a helper's begins with
    what it sends after the step before.
    """
    lent = {helper: 4 * floats_in(part.lent.get(helper, ())) for helper in part.helpers}
    begins = {helper: part.begin(helper) for helper in part.helpers}
    if part.at_home:
        weights = [Take(begins[helper] + 2, size, part.home) for helper, size in lent.items() if size]
        begin = [Post(box, 8, helper) for helper, box in begins.items()]
        end = [Post(box + 1, 8 + lent[helper], helper) for helper, box in begins.items()]
        return (*weights, *begin, *walk(part, examples), *end)
    if part.member not in begins:
        return ()
    box, size = begins[part.member], lent[part.member]
    lends = [Post(box + 2, size, part.home)] if size else []
    return (*lends, Take(box, 8, part.member), *walk(part, examples), Take(box + 1, 8 + size, part.member))
