"""Both ends of a mirror hold the same to the last bit, and what is sent arrives."""

import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from centers import center_alone
from test_compress import BORDERS, SIZE, TEXTS, decoded, gradient

from ssmpi import compress
from ssmpi.compress import CodecOptions, MirrorReceiver, MirrorSender, PayloadError, ShardCodecs
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import Traffic
from ssmpi.sync import pushes
from ssmpi.sync.async_ps import AsyncPS
from ssmpi.sync.easgd import EASGD
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors
from ssmpi.sync.ma import MA
from ssmpi.sync.mean_mirrors import MeanMirrors
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.sharded_mean import ShardedMean
from ssmpi.sync.shards import packed


def ends(text, size=SIZE, life_span=1000):
    """Of one mirror, from random values on."""
    start, whole = gradient(7, size=size), [[slice(0, size)]]
    codec = compress.parse(text, CodecOptions(life_span=life_span))
    sender, receiver = MirrorSender(ShardCodecs(codec, whole, BORDERS, seed=(3,))), MirrorReceiver(whole, start.copy())
    sender.hold(start, 0)
    return sender, receiver


def walk(steps, size=SIZE):
    """Weights, step by step."""
    weights = gradient(7, size=size)
    for step in range(steps):
        weights = weights + gradient(8, step, size=size)
        yield weights


@pytest.mark.parametrize("text", TEXTS)
def test_both_ends_hold_the_same_to_the_last_bit(text):
    mirror, copy = ends(text)
    for weights in walk(6):
        before = copy.copy.copy()
        (payload,) = mirror.send(weights)
        sent = copy.receive(payload)
        np.testing.assert_array_equal(copy.copy.view(np.uint32), mirror.copy.view(np.uint32))
        assert sent == compress.count_of(payload)[1]
        changed = copy.copy != before
        assert np.count_nonzero(changed) <= sent
        if not compress.make(text, CodecOptions(), 1).half:  # what is sent is as it was
            np.testing.assert_array_equal(copy.copy[changed], weights[changed])


@pytest.mark.parametrize("text", ["dense", "threshold:0", "random-k:0"])
def test_where_nothing_is_dropped_all_arrives_as_it_is(text):
    """Also where sender and receiver are so far apart that the difference would be rounded."""
    mirror, copy = ends(text)
    for weights in walk(3):
        far = weights * np.float32(1e5)
        for x in (far, weights):
            copy.receive(*mirror.send(x))
            np.testing.assert_array_equal(copy.copy, x)


@pytest.mark.parametrize("text", [text for text in TEXTS if "random" not in text])
def test_of_a_vector_that_rests_everything_arrives(text):
    """All that was dropped, and of 16 bits all but float32's own rounding: no residual is needed. A threshold that is
    not found anew would stay above what is left.
    """
    size = 3_000
    mirror, copy = ends(text, size, life_span=1)
    weights = gradient(9, size=size)
    for _ in range(200):
        copy.receive(*mirror.send(weights))
    np.testing.assert_allclose(copy.copy, weights, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_not_finite_is_divergence(text):
    for value in (math.nan, math.inf):
        mirror, _ = ends(text)
        weights = gradient(7)
        weights[SIZE - 1] = value
        with pytest.raises(TrainingError, match="not finite"):
            mirror.send(weights)


def test_a_payload_of_another_vector_is_refused():
    mirror, _ = ends("threshold:0.9")
    with pytest.raises(PayloadError, match="not 5"):
        MirrorReceiver([[slice(0, 5)]]).receive(*mirror.send(gradient(10)))


# Rounds


STEPS, SHARDS = 40, [[slice(0, 900), slice(900, 1_501)], [slice(1_501, 3_000)]]


def same(one, other):
    """To the last bit."""
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("text", [text for text in TEXTS if "whole" not in text])
def test_both_ends_of_elastic_exchanges_hold_the_same(text):
    """After every exchange of two clients with one center, shard by shard."""
    chosen, center = RoundOptions(algorithm="easgd", codec=text), gradient(1, size=3_000)
    trainers = [ReplicaMirrors(chosen, SHARDS, (100, 700), (k, 0)) for k in range(2)]
    clients = [
        [
            ClientMirrors(chosen, packed([[part]]), (2 + k, trainer, 0))
            for k, part in enumerate(part for parts in SHARDS for part in parts)
        ]
        for trainer in range(2)
    ]
    shards = [part for parts in SHARDS for part in parts]
    for step in range(STEPS):
        own, ends, fragment = trainers[step % 3 % 2], clients[step % 3 % 2], step % 2
        theirs = ends[:2] if fragment == 0 else ends[2:]
        payloads = own.replica.send(gradient(2, step, size=3_000), fragment)
        answers = [
            end.exchange(0, payload, center[part], 0.3)
            for end, payload, part in zip(theirs, payloads, SHARDS[fragment], strict=True)
        ]
        own.receive(answers, fragment)
        whole = slice(0, 1_501) if fragment == 0 else slice(1_501, 3_000)
        before, was = (
            (own.center.copy[whole].copy(), own.replica.copy[whole].copy()),
            np.empty((2, whole.stop - whole.start)),
        )
        own.move(whole, 0.3, *was)
        np.testing.assert_array_equal(was, before)
        for end, part in zip(ends, shards, strict=True):
            same(end.replica.copy, own.replica.copy[part])
            same(end.center.copy, own.center.copy[part])


def test_each_sync_ps_draws_other_entries_for_each_client_and_fragment():
    """Of exchanges and of pulls; whoever draws alike would tell all of the same entries."""
    chosen = RoundOptions(algorithm="async_ps", codec="random-k:0.9", pull_codec="random-k:0.9", fragments=2)
    there, nothing, told = gradient(4, size=2_000), pushes.message([], 1.0, Traffic()), []
    halves = [[slice(0, 1_000)], [slice(1_000, 2_000)]]
    payload = compress.make("random-k:0.9", CodecOptions(), 1_000).take(there[:1_000].copy())
    for server in (5, 6):
        center = center_alone(chosen, server)
        for fragment in range(2):
            center.start(fragment, np.zeros(1_000, np.float32))
        for client in ((0, 0), (0, 1), (1, 0)):
            clients = ClientMirrors(chosen, halves, (server, *client))
            for fragment in range(2):
                center.vector[:] = 0.0
                center.fetched(fragment, client)
                center.vector[:] = there
                told.append(decoded(center.answer(fragment, client, nothing)) != 0)
                clients.center.hold(np.zeros(2_000, np.float32), fragment)
                told.append(decoded(clients.exchange(fragment, payload, there.copy(), 0.5)) != 0)
    assert len({each.tobytes() for each in told[::2]}) == len({each.tobytes() for each in told[1::2]}) == 12


@pytest.mark.parametrize("text", [text for text in TEXTS if "whole" not in text])
def test_owners_and_trainers_hold_the_same(text):
    """After every round of three trainers, of which the last one leaves."""
    chosen = RoundOptions(codec=text)
    trainers = [MeanMirrors(chosen, (100, 700), (k, 3), np.zeros(3_000, np.float32)) for k in range(3)]
    for step in range(STEPS // 3):
        active = [True, True, step < 8]
        for k, own in enumerate(trainers):
            for owner, payload in enumerate(own.replica.send(gradient(3, k, step, size=3_000), 0)):
                if owner != k:
                    trainers[owner].receive_replica(k, payload, 0)
        for owner, own in enumerate(trainers):
            payload = own.answer(active, 0)
            for other in trainers[:owner] + trainers[owner + 1 :]:
                other.receive_mean(owner, payload, 0)
        for own in trainers:
            before, was = (own.mean.copy.copy(), own.replica.copy.copy()), np.empty(3_000)
            np.testing.assert_array_equal((own.move(0, 0.3, was), was), before)
        for own in trainers:
            same(own.mean.copy, trainers[0].mean.copy)
            for k, other in enumerate(trainers):
                same(own.replicas[k].shard(0), other.replica.shard(0, own.rank))


class Allocated:
    """``vectors`` of 2,000,000 floats that numpy has allocated since."""

    SIZE = 2_000_000

    def __enter__(self):
        tracemalloc.start()
        return self

    def __exit__(self, *_):
        tracemalloc.stop()

    @property
    def vectors(self):
        return tracemalloc.get_traced_memory()[0] / (4 * self.SIZE)


def close_above(planned, found):
    """Room for bitmaps in payloads is the rest."""
    return found - 0.3 < planned < found + 1.1


@pytest.mark.parametrize("fragments", [1, 4])
@pytest.mark.parametrize("trainers", [2, 5])
def test_plan_counts_what_mirrors_of_means_allocate(trainers, fragments):
    """All arrays of a trainer, with the memory of what the mean has not told."""
    chosen = RoundOptions(algorithm="ma", codec="bf16", fragments=fragments)
    with Allocated() as found:
        pending = np.zeros(found.SIZE, np.float32)
        mirrors = MeanMirrors(chosen, (), (0, trainers), pending)
        own = ShardedMean(SimpleNamespace(rank=0, size=trainers), WaitOptions(), mirrors)
        vectors = found.vectors
    assert own.mirrors is mirrors
    assert close_above(MA.cost(chosen, Topology(trainers=trainers), Allocated.SIZE).mirrors[Role.TRAINER], vectors)


def test_plan_counts_what_mirrors_of_centers_allocate():
    """Of each client at its own end; and at a sync PS of several, which share scratch space, elastic and of pulls."""
    chosen, clients = RoundOptions(algorithm="async_ps", codec="bf16", pull_codec="bf16"), range(3)
    topology, size, ends = Topology(trainers=3, sync_ps=1), Allocated.SIZE, []
    elastic, pulled = (kind.cost(chosen, topology, size).mirrors for kind in (EASGD, AsyncPS))
    whole, center = [[slice(0, size)]], center_alone(chosen)
    center.start(0, np.zeros(size, np.float32))

    def share(scratch):
        return [ClientMirrors(chosen, whole, (1, k, 0), scratch) for k in clients], scratch

    def pulling():
        for k in clients:
            center.fetched(0, (k, 0))

    for planned, make in (
        (elastic[Role.TRAINER], lambda: ReplicaMirrors(chosen, whole, (), (0, 0))),
        (elastic[Role.SYNC_PS], lambda: share(np.zeros(size, np.float32))),
        (pulled[Role.TRAINER], lambda: MirrorReceiver(whole)),
        (pulled[Role.SYNC_PS], pulling),
    ):
        with Allocated() as found:
            ends.append(make())
            assert close_above(planned, found.vectors)
