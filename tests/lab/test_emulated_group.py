"""What stands in for the members of a group: their waits, by a clock that only counts; their messages, which are real;
and the links between them, on a clock of its own.
"""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from members import Group, Post
from test_cluster import Clock

from jobs.lab.cluster.emulated_group import OfInner, WaitingHelper, Walk, waiting_home
from jobs.lab.cluster.emulation import SIZE, Bucket, Cores, MemberLink
from ssmpi.model.executor import PIECE
from ssmpi.model.lane import HelperModel, HomeModel, HomeOptimizer
from ssmpi.model.network import Inputs
from ssmpi.model.options import DenseOptions, ModelOptions
from ssmpi.model.part import transform
from ssmpi.model.places import places_of
from ssmpi.model.zoo import network_of
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.mpi.mailbox import is_full, post, room, take
from ssmpi.tools.group_forecast import work_of

STEP = 0.2  # seconds
BATCHES = PIECE + 88, 40  # the first in two pieces
RULES = {
    "data": ["*: home"],
    "stages": ["bottom.*: 0", "pairs: 0", "top.*: 1"],
    "columns": ["top.0: columns bf16", "bottom.*: columns", "*: home"],
    "far": ["bottom.0: home", "*: 1"],  # the home computes little of it
}


def batch_of(size):
    chance = np.random.default_rng(size)
    return [chance.normal(size=shape).astype(np.float32) for shape in ((size, 5), (size, 6, 8), (size,))]


class Count:
    """Computing that takes no time: its seconds, and how often the thread waited for a message."""

    def __init__(self):
        self.seconds, self.resumed = 0.0, 0

    def compute(self, seconds):
        self.seconds += seconds

    def resume(self):
        self.resumed += 1


class Emulated(Group):
    """Members whose models wait by a ``Count`` each."""

    def __init__(self, *arguments):
        super().__init__(*arguments, options=DenseOptions(optimizer="sgd", rate=1.0))
        self.counts, self.factors = [Count() for _ in self.parts], []

    def _help(self, member):
        replica = self.replicas[member]
        model = HelperModel(self.parts[member], replica.weights, replica.precision, self.post.channel(member))
        waiting = WaitingHelper(model, Walk(model, self.counts[member], STEP), member)
        for factor in waiting.steps():
            self.optimizers[member].step(waiting, factor)
            self.factors.append(factor)

    def _train(self, batches):
        replica = self.replicas[self.home]
        model = HomeModel(self.parts[self.home], replica.weights, replica.precision, self.post.channel(self.home))
        waiting = waiting_home(model, Walk(model, self.counts[self.home], STEP), self.home)
        optimizer = OfInner(HomeOptimizer(self.optimizers[self.home]))
        for number, batch in enumerate(batches):
            logits, by_rows = waiting.forward_backward(*batch)
            assert (logits.shape, by_rows.shape) == (batch[2].shape, batch[1].shape)
            optimizer.step(waiting, 1 - number / 100)
        model.close()


@pytest.fixture(scope="module")
def compiled():
    """Messages from Python, before anybody waits for one: compiling may take longer than they are waited for."""
    box, value = aligned((room(8),), np.uint8), np.zeros(2, np.float32)
    box[:] = 0
    post(box.ctypes.data, value, 1, 2, 2, False, 1)
    take(box.ctypes.data, value, 1, 2, 2, False, False, 1)
    is_full(box.ctypes.data)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_members_wait_for_their_shares_and_send_what_a_real_step_sends(rules, home):
    network = network_of(ModelOptions(bottom=(32, 8), top=(64, 32, 1)), Inputs(5, 6, 8))
    places = places_of(rules, network, 2)
    group, real = Emulated(network, places, home), Group(network, places, home)
    before = [replica.vector.copy() for replica in group.replicas]
    batches = [batch_of(size) for size in BATCHES]
    for each in (group, real):
        each.train(batches)
    seconds = [count.seconds / len(BATCHES) for count in group.counts]
    assert sum(seconds) == pytest.approx(STEP)
    assert max(seconds) == pytest.approx(STEP * work_of(network, places, 1, [home]).busiest)
    numbers = range(len(group.post.boxes))
    assert [group.post.sent(n) for n in numbers] == [real.post.sent(n) for n in numbers]
    assert group.factors == [1.0, 0.99]
    for old, replica in zip(before, group.replicas, strict=True):
        moved = np.abs(replica.vector - old)
        assert 0 < moved.max() < 20 * SIZE, "pseudo-gradients at rates of 1 and 0.99, not the copies' or real ones"


def test_only_a_message_that_is_not_there_yet_ends_a_wait_when_it_comes():
    network = network_of(ModelOptions(bottom=(32, 8), top=(64, 32, 1)), Inputs(5, 6, 8))
    part = transform(network, places_of(RULES["stages"], network, 2), 1, 0)
    channel, count, value = Post(part).channel(1), Count(), np.zeros(2, np.float32)
    walk, (box,) = Walk(SimpleNamespace(part=part, channel=channel), count, STEP), channel.addresses[[part.begin(1)]]

    def took():
        return take(box, value, 1, 2, 2, False, False, 1)

    post(box, value, 1, 2, 2, False, 1)
    walk.awaited([part.begin(1)], took)
    assert count.resumed == 0
    walk.awaited([part.begin(1)], lambda: (post(box, value, 1, 2, 2, False, 1), took()))
    assert count.resumed == 1


def test_threads_take_turns_on_the_cores_of_their_trainer():
    one, two = Cores(1), Cores(2)
    assert [one.take(ready, 2.0) for ready in (10.0, 10.0, 11.0, 20.0)] == [12.0, 14.0, 16.0, 22.0]
    assert [two.take(ready, 2.0) for ready in (10.0, 10.0, 11.0, 20.0)] == [12.0, 12.0, 14.0, 22.0]


class Ether:
    """Conversations of members on one clock: what is sent has arrived at once."""

    def __init__(self, clock, members):
        self.clock, self.sent, self.ends = clock, [], [End(self) for _ in range(members)]


class End:
    def __init__(self, ether):
        self.ether, self.coming = ether, deque()

    def isend(self, array, dest, tag):
        self.ether.sent.append((self.ether.clock.time, tag))
        self.ether.ends[dest].coming.append(SimpleNamespace(size=array.nbytes, tag=tag))
        return SimpleNamespace(Test=lambda: True)

    def next_arrival(self):
        return self.coming.popleft() if self.coming else None


RATE, SIZE_OF_ONE, NAP = 1e6, 100_000, 1e-4  # 0.1 s a message


def delivered(messages, members=3):
    """When each of the ``messages`` (sender, reader), all sent at once, has left and has arrived, by its number."""
    clock = Clock()
    ether, left, came = Ether(clock, members), {}, {}
    links = [MemberLink(end, RATE, clock, lambda seconds: None) for end in ether.ends]
    requests = [
        links[sender].isend(np.zeros(SIZE_OF_ONE, np.uint8), reader, number)
        for number, (sender, reader) in enumerate(messages)
    ]
    while len(came) < len(messages) or len(left) < len(messages):
        clock.time += NAP
        for number, request in enumerate(requests):
            if number not in left and request.Test():
                left[number] = clock.time - 100.0
        for link in links:
            while arrival := link.next_arrival():
                came[arrival.tag] = clock.time - 100.0
    return [(left[n], came[n]) for n in range(len(messages))]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([(0, 1)], [(0.1, 0.1)]),  # bytes arrive as they leave: not twice the time
        ([(0, 1), (1, 0)], [(0.1, 0.1), (0.1, 0.1)]),  # both directions at once
        ([(0, 1), (0, 2)], [(0.1, 0.1), (0.2, 0.2)]),  # one after the other out of a member
        ([(0, 2), (1, 2)], [(0.1, 0.1), (0.1, 0.2)]),  # and into one
        ([(0, 1), (2, 1), (0, 2)], [(0.1, 0.1), (0.1, 0.2), (0.2, 0.2)]),
    ],
)
def test_a_message_takes_its_time_on_both_links(messages, expected):
    for found, wanted in zip(delivered(messages), expected, strict=True):
        assert found == pytest.approx(wanted, abs=5 * NAP)


def test_a_link_sleeps_only_while_it_holds_something_back():
    """A mover that has messages under way hardly sleeps, and would take a core for as long as they are held."""
    clock, naps = Clock(), []
    ether = Ether(clock, 2)
    link, other = (MemberLink(end, RATE, clock, naps.append) for end in ether.ends)
    assert (link.next_arrival(), naps) == (None, [])
    for number in range(2):
        link.isend(np.zeros(SIZE_OF_ONE, np.uint8), 1, number)
    assert (link.next_arrival(), other.next_arrival(), naps) == (None, None, [MemberLink.NAP] * 2)
    assert Bucket(RATE).passed(SIZE_OF_ONE, 100.0) == pytest.approx(100.1)
    clock.time = 100.15
    assert (link.next_arrival(), other.next_arrival().tag) == (None, 0)
    assert [time for time, _ in ether.sent] == [100.0, 100.15]
