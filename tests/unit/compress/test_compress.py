"""What every codec promises, over random streams of gradients; a codec that is new is tested too."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from ssmpi import compress
from ssmpi.bench import compression
from ssmpi.bench.options import CompressionOptions
from ssmpi.compress import CodecOptions, PayloadError, payload
from ssmpi.compress.codec import TINY
from ssmpi.compress.kernels import BLOCK
from ssmpi.runtime.errors import SettingsError, TrainingError

SIZE = BLOCK + 1_003  # two blocks, the second not a multiple of anything
BORDERS = (700, 701, 30_000, BLOCK + 17, SIZE)
SHARED = [name for name, kind in compress.CODECS.items() if kind.takes_share]
TEXTS = [
    *(name for name in compress.CODECS if name not in SHARED),
    *(f"{name}:{more}" for name in SHARED for more in ("0", "0.9", "0.99", "0.9:bf16", "0.99:bf16:whole")),
]


def gradient(*seed, size=SIZE):
    """Heavy tails, layers of different scales, and zeros in places, some of them negative."""
    generator = np.random.default_rng(seed)
    values = generator.standard_t(3, size=size) * np.where(np.arange(size) < 30_000, 1e-4, 1e-2)
    values[generator.random(size) < 0.1] = 0.0
    values[::97] = -0.0
    return values.astype(np.float32)


def decoded(sent):
    """The vector of a payload: zeros where nothing was sent."""
    vector = np.zeros(compress.count_of(sent)[0], np.float32)
    compress.add(sent, vector)
    return vector


def stream(text, steps, options=None, size=SIZE):
    """A codec with error feedback: what came, the payload and what was left, step by step."""
    codec = compress.make(text, options or CodecOptions(), size, BORDERS, seed=3)
    left = np.zeros(size, np.float32)
    for step in range(steps):
        came = gradient(1, step, size=size)
        before = left + came
        left += came
        sent = codec.take(left).copy()
        yield codec, before, sent, left.copy()


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_sent_and_what_is_left_are_what_came(text):
    """To the last bit in every step, and in sum over all of them."""
    total_sent, total_came, left = np.zeros(SIZE), np.zeros(SIZE), None
    for step, (_, before, sent, left) in enumerate(stream(text, 5)):
        found = decoded(sent)
        np.testing.assert_array_equal(found + left, before)
        if not compress.make(text, CodecOptions(), 1).half:
            assert not np.any((found != 0) & (left != 0))
        total_sent += found
        total_came += gradient(1, step)
    np.testing.assert_allclose(total_sent + left, total_came, rtol=0, atol=1e-7)


@pytest.mark.parametrize("text", TEXTS)
def test_a_payload_says_all_that_decodes_it_and_is_as_long_as_its_formula(text):
    for codec, _, sent, _ in stream(text, 3):
        assert sent.dtype == np.uint8
        assert compress.length_of(np.concatenate([sent, sent])) == sent.size
        size, count = compress.count_of(sent)
        found = decoded(sent)
        assert size == SIZE
        if codec.takes_share:
            assert np.count_nonzero(found) == count
        by_block = [np.count_nonzero(found[k : k + BLOCK]) for k in range(0, SIZE, BLOCK)]
        kind = int(sent[0])
        assert sent.size == compress.payload_bytes(kind, SIZE, by_block)
        twice = found.copy()
        assert compress.add(sent, twice) == count
        np.testing.assert_array_equal(twice, 2 * found)
        with pytest.raises(PayloadError, match="not 5"):
            compress.add(sent, np.zeros(5, np.float32))


@pytest.mark.parametrize("text", ["threshold:0", "threshold:0:whole", "random-k:0"])
def test_dropping_nothing_is_dense(text):
    for (_, before, sent, left), (_, _, dense, _) in zip(stream(text, 4), stream("dense", 4), strict=True):
        np.testing.assert_array_equal(decoded(sent), decoded(dense))
        np.testing.assert_array_equal(decoded(sent), before)
        assert not left.any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("text", TEXTS)
def test_what_is_not_finite_is_divergence(text, value):
    """Wherever it is, also in an encode that looks for no threshold."""
    for place in (0, BLOCK - 1, SIZE - 1):
        codec = compress.make(text, CodecOptions(), SIZE, BORDERS)
        for step in range(3):
            codec.take(gradient(step))
        bad = gradient(2)
        bad[place] = value
        with pytest.raises(TrainingError, match="not finite"):
            codec.take(bad)


def test_bfloat16_is_rounded_as_torch_rounds_it():
    bits = np.random.default_rng(1).integers(0, 2**32, 50_000, np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.abs(values) < 3e38]
    expected = torch.from_numpy(values.copy()).bfloat16().float().numpy()
    for text in ("bf16", "threshold:0:bf16"):
        found = decoded(compress.make(text, CodecOptions(), values.size).take(values.copy()))
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(TrainingError, match="not finite"):
        compress.make("bf16", CodecOptions(), 1).take(np.array([3.4e38], np.float32))


# Thresholds


def brute_force(values, share):
    """The k-th largest size by sorting, with the paper's k."""
    return np.sort(np.abs(values))[::-1][values.size - math.floor(values.size * share) - 1]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("whole", ["", ":whole"])
def test_a_refresh_sends_the_largest_of_each_layer(share, whole):
    codec = compress.make(f"threshold:{share}{whole}", CodecOptions(threshold_interval=1), SIZE, BORDERS)
    for step in range(3):
        values = gradient(step)
        sent = decoded(codec.take(values.copy()))
        edges = [0, SIZE] if whole else [0, *BORDERS]
        for first, last in itertools.pairwise(edges):
            layer = values[first:last]
            tau = brute_force(layer, share) if layer.size > 1 else np.abs(layer)[0]
            np.testing.assert_array_equal(sent[first:last], np.where(np.abs(layer) >= tau, layer, 0))


def test_what_is_left_is_below_the_threshold():
    for codec, _, _, left in stream("threshold:0.95", 20, CodecOptions(threshold_interval=7)):
        for layer, (first, last) in enumerate(itertools.pairwise(codec.edges)):
            assert np.abs(left[first:last]).max() < max(codec.state[1 + layer], TINY)


def test_thresholds_are_computed_once_an_interval_and_more_often_in_the_first():
    """Each encode is of larger gradients, so every refresh shows."""
    codec, changes, before = compress.make("threshold:0.9", CodecOptions(threshold_interval=10), SIZE), set(), 0
    for step in range(25):
        codec.take(gradient(step) * np.float32(1 + step))
        if codec.state[1] != before:
            changes.add(step)
        before = codec.state[1]
    assert changes == {0, 1, 2, 4, 8, 10, 20}


def test_a_layer_of_zeros_is_not_sent_and_gets_its_threshold_later():
    """A threshold of zero would send everything for a whole interval."""
    codec = compress.make("threshold:0.9", CodecOptions(), SIZE, BORDERS)
    for _ in range(3):  # the next encode, the fourth, refreshes nothing
        values = np.zeros(SIZE, np.float32)
        values[:3] = 1.0
        assert compress.count_of(codec.take(values))[1] == 3
    sent = decoded(codec.take(gradient(1)))
    assert np.count_nonzero(sent[30_000:]) <= 0.11 * (SIZE - 30_000)


def test_early_refreshes_bring_the_density_to_its_target():
    """The first threshold alone sends twice as much for a whole interval, because the first residual is small."""
    codec = stream("threshold:0.99", 120, CodecOptions(threshold_interval=1000), size=5_000)
    counts = [compress.count_of(payload)[1] for _, _, payload, _ in codec]
    assert 0.008 < np.mean(counts[60:]) / 5_000 < 0.016


def test_a_codec_goes_on_from_its_state():
    """Its numbers and what is left are all there is."""
    whole = [sent for _, _, sent, _ in stream("threshold:0.97", 9, CodecOptions(threshold_interval=5))]
    codec, left, found = None, np.zeros(SIZE, np.float32), []
    for step in range(9):
        state = None if codec is None else codec.state.copy()
        codec = compress.make("threshold:0.97", CodecOptions(threshold_interval=5), SIZE, BORDERS, state)
        left += gradient(1, step)
        found.append(codec.take(left).copy())
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_entries_are_as_many_as_asked_for_and_others_each_time():
    values = np.ones(SIZE, np.float32)
    codec = compress.make("random-k:0.99", CodecOptions(), SIZE, seed=1)
    drawn = [decoded(codec.take(values.copy())) != 0 for _ in range(4)]
    for one in drawn:
        assert one.mean() == pytest.approx(0.01, rel=0.15)
    assert (drawn[0] & drawn[1]).mean() < 0.001
    again = compress.make("random-k:0.99", CodecOptions(), SIZE, seed=1)
    np.testing.assert_array_equal(decoded(again.take(values.copy())) != 0, drawn[0])


# What error feedback and choosing the largest are worth


def descend(text, feedback=True):
    """The loss of 1,500 noisy steps of descent on a quadratic of 2,000 weights; the same seeds for all."""
    generator = np.random.default_rng(1)
    target = generator.standard_t(3, size=2_000).astype(np.float32)
    curve = generator.uniform(0.2, 2, 2_000).astype(np.float32)
    weights, left = np.zeros(2_000, np.float32), np.zeros(2_000, np.float32)
    codec = compress.make(text, CodecOptions(threshold_interval=100), 2_000)
    for _ in range(1_500):
        left += curve * (weights - target) + 0.3 * generator.standard_normal(2_000).astype(np.float32)
        weights -= np.float32(0.01) * decoded(codec.take(left))
        if not feedback:
            left[:] = 0.0
    return float((curve * (weights - target) ** 2).mean() / 2)


def test_without_error_feedback_or_at_random_it_is_clearly_worse():
    """At the same density and the same seeds; at 95 % the threshold is as good as sending all."""
    assert descend("threshold:0.95") < 1.2 * descend("dense")
    thresholded = descend("threshold:0.99")
    assert thresholded < 0.02
    assert descend("threshold:0.99", feedback=False) > 20 * thresholded
    assert descend("random-k:0.99") > 20 * thresholded


# Payloads


def by_hand(sent):
    """A sparse payload read with nothing but its table in ``ssmpi.compress.payload``."""
    words = np.frombuffer(sent.tobytes(), "<u4")
    size, found, at = int(words[1]), [], 6
    for start in range(0, size, BLOCK):
        block = min(BLOCK, size - start)
        bits, count, at = words[at] >> 31, int(words[at] & 0x7FFFFFFF), at + 1
        if bits:
            length = -(-block // 32)
            places = np.flatnonzero(np.unpackbits(words[at : at + length].view(np.uint8), bitorder="little"))
        else:
            length = -(-count // 2)
            places = words[at : at + length].view("<u2")[:count]
        values = words[at + length : at + length + count].view("<f4")
        vector = np.zeros(block, np.float32)
        vector[places] = values
        found.append(vector)
        at += length + count
    return np.concatenate(found)


@pytest.mark.parametrize("share", [0.5, 0.93, 0.94, 0.99])
def test_places_are_bits_or_numbers_whichever_is_shorter(share):
    """Break-even is at one in sixteen."""
    values = gradient(1)
    sent = compress.make(f"threshold:{share}:whole", CodecOptions(), SIZE).take(values.copy())
    np.testing.assert_array_equal(by_hand(sent), decoded(sent))
    assert bool(sent.view(np.uint32)[6] >> 31) == (np.count_nonzero(by_hand(sent)[:BLOCK]) > BLOCK / 16)


def damages(sent, generator):
    """Ways in which a payload may come changed."""
    flipped = sent.copy()
    flipped[generator.integers(sent.size)] ^= 1 << generator.integers(8)
    yield flipped
    words = sent.copy().view(np.uint32)
    words[generator.integers(words.size, size=generator.integers(1, 5))] = generator.integers(2**32, dtype=np.uint64)
    yield words.view(np.uint8)
    first, second = generator.integers(0, sent.size // 4, 2)
    swapped = sent.copy().view(np.uint32)
    swapped[[first, second]] = swapped[[second, first]]
    yield swapped.view(np.uint8)
    yield sent[: generator.integers(sent.size)]
    yield np.concatenate([sent, generator.integers(0, 256, generator.integers(1, 9), np.uint8)])
    yield generator.integers(0, 256, sent.size, np.uint8)


@pytest.mark.parametrize("text", ["dense", "bf16", "threshold:0.99", "threshold:0.5", "threshold:0.9:bf16"])
def test_a_damaged_payload_is_refused(text):
    generator = np.random.default_rng(1)
    sent = compress.make(text, CodecOptions(), 3_001).take(gradient(1, size=3_001)).copy()
    vector = np.zeros(3_001, np.float32)
    for damaged in itertools.chain.from_iterable(damages(sent, generator) for _ in range(200)):
        if not np.array_equal(damaged, sent):
            with pytest.raises(PayloadError, match="damaged"):
                compress.add(damaged, vector)


@pytest.mark.parametrize("text", ["threshold:0.99", "threshold:0.5", "threshold:0.9:bf16"])
def test_a_wrong_body_under_a_right_checksum_is_refused_or_stays_inside(text):
    """As from another version: nothing is written beyond the vector, and what is read is what it says."""
    generator, size = np.random.default_rng(2), 3_001
    sent = compress.make(text, CodecOptions(), size).take(gradient(1, size=size)).copy()
    for _ in range(300):
        words = sent.copy().view(np.uint32)
        words[6 + generator.integers(words.size - 6)] = generator.integers(2**32, dtype=np.uint64)
        changed = payload.seal(words.view(np.uint8), int(sent[0]), size, int(words[2]))
        room = np.zeros(size + 2 * BLOCK, np.float32)
        try:
            compress.add(changed, room[BLOCK : BLOCK + size])
        except PayloadError:
            continue
        finally:
            assert not room[:BLOCK].any()
            assert not room[BLOCK + size :].any()


@pytest.mark.parametrize("text", ["tau", "threshold", "dense:0.5", "threshold:x", "threshold:1", "threshold:0.9:fp16"])
def test_an_unknown_codec_is_refused(text):
    with pytest.raises(SettingsError):
        compress.parse(text)


@pytest.mark.parametrize("others", [0, 9])
def test_no_threshold_is_searched_for_where_all_but_few_entries_are_zero(others, monkeypatch):
    """As in a mirror with little to tell: those few are all sent, and the search comes when there are more."""
    codec, searched, partition = compress.make("threshold:0.99", CodecOptions(), 1_000), [], np.partition
    monkeypatch.setattr(np, "partition", lambda *given: searched.append(0) or partition(*given))
    for number in (others, others, others, 10):
        vector = np.zeros(1_000, np.float32)
        vector[:number] = 1.0 + np.arange(number)
        assert compress.count_of(codec.take(vector))[1] <= max(number, 10)
        assert len(searched) == (number >= 10)
    assert codec.state[1] > 0


def test_what_codecs_cost_is_printed(tmp_path, capsys):
    """A line each, with what their payloads say."""
    out = tmp_path / "costs.json"
    out.write_text(json.dumps({"codecs": []}, indent=1))  # of an earlier one, and replaced
    found = compression.measure(
        CompressionOptions(codecs=("dense", "threshold:0.99"), entries=20_000, rounds=3, output=out)
    )
    written = json.loads(out.read_text())
    assert [cost["codec"] for cost in written["codecs"]] == ["dense", "threshold:0.99"]
    assert found[0].bytes_an_entry == (24 + 80_000) / 20_000
    assert 0.008 < found[1].density < 0.012
    printed = capsys.readouterr().out
    assert "threshold:0.99" in printed
    assert all(cost.encode_ns > 0 < cost.decode_ns for cost in found)
