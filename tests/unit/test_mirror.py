"""Both ends of a mirror hold the same to the last bit, and what is sent arrives."""

import math

import numpy as np
import pytest
from test_compress import BORDERS, SIZE, TEXTS, gradient

from ssmpi import compress
from ssmpi.compress import CodecOptions, Copy, Mirror, PayloadError
from ssmpi.core.errors import TrainingError


def ends(text, size=SIZE, life_span=1000):
    """Of one mirror, from random values on."""
    start = gradient(7, size=size)
    codec = compress.make(text, CodecOptions(life_span=life_span), size, BORDERS, seed=3)
    return Mirror(codec, start.copy()), Copy(start.copy())


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
        payload = mirror.send(weights)
        sent = copy.receive(payload)
        np.testing.assert_array_equal(copy.copy.view(np.uint32), mirror.copy.view(np.uint32))
        assert sent == compress.count_of(payload)[1]
        changed = copy.copy != before
        assert np.count_nonzero(changed) <= sent
        if "bf16" not in text:  # what is sent is as it was
            np.testing.assert_array_equal(copy.copy[changed], weights[changed])


@pytest.mark.parametrize("text", ["dense", "threshold:0", "random-k:0"])
def test_where_nothing_is_dropped_all_arrives_as_it_is(text):
    """Also where sender and receiver are so far apart that the difference would be rounded."""
    mirror, copy = ends(text)
    for weights in walk(3):
        far = weights * np.float32(1e5)
        for x in (far, weights):
            copy.receive(mirror.send(x))
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
        copy.receive(mirror.send(weights))
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
        Copy(np.zeros(5, np.float32)).receive(mirror.send(gradient(10)))
