"""How fast a group steps, by events: against cycles by hand; and what a step of a lane consists of."""

import numpy as np
import pytest
from drawn_networks import tagged
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.model.executor import PIECE
from ssmpi.model.part import transform
from ssmpi.tools.group_simulation import MOST_THREADS, steps_per_second
from ssmpi.tools.group_walk import Compute, Post, Take, step_of

STEP, SIZE = 0.1, 1_000
FAST = float("inf")


def stages(share):
    """A lane whose home computes a share of a step before and after another member computes the rest of it."""
    there, back = Post(0, SIZE, 1), Take(1, SIZE, 0)
    home = Compute(share / 3), there, back, Compute(2 * share / 3)
    return home, (Take(0, SIZE, 1), Compute(1 - share), Post(1, SIZE, 0))


ALONE = (Compute(1.0),), ()
FAR = (Take(0, 8, 0), Compute(1.0), Post(1, 8, 1)), (Post(0, 8, 0), Take(1, 8, 1))  # the second member is its home


def swapped(lane, other):
    """The same lane with the members' numbers swapped."""

    def of(actions):
        return tuple(a if isinstance(a, Compute) else a._replace(reader=1 - a.reader) for a in actions)

    return of(other), of(lane)


def test_a_lane_takes_its_members_and_messages_in_turn():
    """0.1 s in all, and 1 kB there and back at 20 kB a second."""
    assert steps_per_second((stages(0.4),), STEP, 0.0, 1, FAST) == pytest.approx(10)
    assert steps_per_second((stages(0.4),), STEP, 0.0, 1, 20_000.0) == pytest.approx(1 / 0.2)
    assert steps_per_second((stages(0.4),), STEP, 0.05, 1, 20_000.0) == pytest.approx(1 / 0.25)


def test_lanes_share_the_cores_of_their_members():
    """Two lanes, each alone at its home, or both at the same member; the busier member of two stages decides."""
    assert steps_per_second((ALONE, swapped(*ALONE)), STEP, 0.0, 1, FAST) == pytest.approx(20)
    assert steps_per_second((ALONE, FAR), STEP, 0.0, 1, FAST) == pytest.approx(10)
    home = Post(0, 8, 0), Take(1, 8, 1), Compute(0.7), Post(2, 8, 0)
    helper = Take(0, 8, 0), Compute(0.1), Post(1, 8, 1), Take(2, 8, 0), Compute(0.2)
    assert steps_per_second((stages(0.3), (helper, home)), STEP, 0.0, 1, FAST) == pytest.approx(10 / 0.7)


def test_a_full_link_decides():
    """Of two members, each of which sends 2 kB a step of both lanes at 20 kB a second."""
    pair = stages(0.1), swapped(*stages(0.1))
    assert steps_per_second(pair, 1e-6, 0.0, 1, 20_000.0) == pytest.approx(2 / 0.1, rel=0.01)


@pytest.mark.parametrize("link", [20_000.0, FAST])
def test_many_threads_are_as_some_over_a_slower_link(link):
    pair = stages(0.4), swapped(*stages(0.4))
    few = steps_per_second(pair, STEP, 0.0, MOST_THREADS, link / 4)
    assert steps_per_second(pair, STEP, 0.0, 4 * MOST_THREADS, link) == pytest.approx(4 * few)


def test_members_that_exchange_parts_of_a_value_wait_for_each_other():
    """Each lane computes a half at each member, then the whole of the next at home: 0.25 + 0.5 of a step each. On one
    core a member does its own half, then that of the other lane, and its lane has what it needs only then.
    """
    home = Post(0, 8, 1), Compute(0.25), Take(1, 8, 0), Compute(0.5)
    helper = Take(0, 8, 1), Compute(0.25), Post(1, 8, 0)
    assert steps_per_second(((home, helper), swapped(home, helper)), STEP, 0.0, 1, FAST) == pytest.approx(20)


@given(tagged(), st.sampled_from([1, 100, PIECE + 1]), st.data())
def test_a_step_computes_all_of_a_network_and_moves_what_its_parts_say(tagged_network, examples, data):
    """And is over in no less than its computing and its messages take."""
    network, places = tagged_network
    home = data.draw(st.integers(0, places.group - 1))
    parts = [transform(network, places, member, home) for member in range(places.group)]
    lane = tuple(step_of(part, examples) for part in parts)
    every = [action for actions in lane for action in actions]
    posts, takes = ([a for a in every if isinstance(a, kind)] for kind in (Post, Take))
    assert sum(post.size for post in posts) == parts[home].moved(examples, 1)
    assert sorted(map(tuple, posts)) == sorted(map(tuple, takes))
    boxes = parts[home].mailboxes(examples)
    assert all((boxes[post.box].reader, post.size <= boxes[post.box].size) == (post.reader, True) for post in posts)
    shares = [sum(a.share for a in actions if isinstance(a, Compute)) for actions in lane]
    assert sum(shares) == pytest.approx(1)
    rate = steps_per_second((lane,), 1.0, 0.0, 1, FAST)
    assert 1 - 1e-9 <= rate <= 1 / max(shares) + 1e-9
    assert steps_per_second((lane,), 1.0, 0.0, 1, 1e6) <= min(rate, np.inf if not posts else 1e6 / min(posts).size)
