"""Both ends of a mirror hold the same to the last bit, and what is sent arrives."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from test_compress import BORDERS, SIZE, TEXTS, decoded, gradient

from ssmpi import compress
from ssmpi.compress import CodecOptions, MirrorReceiver, MirrorSender, PayloadError, ShardCodecs
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.topology import Role, Topology
from ssmpi.sync.easgd import EASGD, ClientMirrors, ReplicaMirrors
from ssmpi.sync.options import RoundOptions


def ends(text, size=SIZE, interval=1000):
    """Of one mirror, from random values on."""
    start, whole = gradient(7, size=size), [slice(0, size)]
    codec = compress.parse(text, CodecOptions(threshold_interval=interval))
    sender, receiver = MirrorSender(ShardCodecs(codec, whole, BORDERS, seed=(3,))), MirrorReceiver(whole)
    receiver.receive(*sender.send(start))
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
    mirror, copy = ends(text, size, interval=1)
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
        MirrorReceiver([slice(0, 5)]).receive(*mirror.send(gradient(10)))


# Rounds


STEPS, SHARDS = 40, [slice(0, 900), slice(900, 1_501), slice(1_501, 3_000)]


def same(one, other):
    """To the last bit."""
    np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


@pytest.mark.parametrize("text", [text for text in TEXTS if "whole" not in text])
def test_both_ends_of_elastic_exchanges_hold_the_same(text):
    """After every exchange of two clients with one center, shard by shard."""
    chosen, center = RoundOptions(algorithm="easgd", codec=text), gradient(1, size=3_000)
    trainers = [ReplicaMirrors(chosen, SHARDS, (100, 700), (k, 0)) for k in range(2)]
    clients = [
        [ClientMirrors(chosen, part.stop - part.start, (2 + k, trainer, 0)) for k, part in enumerate(SHARDS)]
        for trainer in range(2)
    ]
    for step in range(STEPS):
        own, ends = trainers[step % 3 % 2], clients[step % 3 % 2]
        payloads = own.replica.send(gradient(2, step, size=3_000))
        answers = [
            end.exchange(payload, center[part], 0.3) for end, payload, part in zip(ends, payloads, SHARDS, strict=True)
        ]
        own.receive(answers)
        before, was = (own.center.copy.copy(), own.replica.copy.copy()), np.empty((2, 3_000))
        own.move(0.3, *was)
        np.testing.assert_array_equal(was, before)
        for end, part in zip(ends, SHARDS, strict=True):
            same(end.replica.copy, own.replica.copy[part])
            same(end.center.copy, own.center.copy[part])


def test_each_sync_ps_draws_other_entries_for_each_client():
    """Whoever draws alike would tell all of the same entries."""
    chosen, center = RoundOptions(algorithm="easgd", codec="random-k:0.9"), gradient(4, size=1_000)
    codec, told = compress.make("random-k:0.9", CodecOptions(), 1_000), set()
    for place in itertools.product((5, 6), (0, 1), (0, 1)):
        client = ClientMirrors(chosen, 1_000, place)
        client.exchange(codec.dense(np.zeros(1_000, np.float32)), np.zeros(1_000, np.float32), 0.5)
        told.add((decoded(client.exchange(codec.take(center.copy()), center.copy(), 0.5)) != 0).tobytes())
    assert len(told) == 8


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


def test_plan_counts_what_mirrors_allocate():
    """Of each client at its own end; and at a sync PS of several, which share scratch space."""
    chosen, size, made = RoundOptions(algorithm="easgd", codec="bf16"), Allocated.SIZE, []
    planned = EASGD.cost(chosen, Topology(trainers=3, sync_ps=1), size).mirrors

    def share(scratch):
        return [ClientMirrors(chosen, size, (1, k, 0), scratch) for k in range(3)], scratch

    for role, make in (
        (Role.TRAINER, lambda: ReplicaMirrors(chosen, [slice(0, size)], (), (0, 0))),
        (Role.SYNC_PS, lambda: share(np.zeros(size, np.float32))),
    ):
        with Allocated() as found:
            made.append(make())
            assert close_above(planned[role], found.vectors)
