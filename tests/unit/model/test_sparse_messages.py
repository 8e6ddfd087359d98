"""Messages of edges that leave a TopK: as long as the plan says, and to the bit what was sent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.model.bfloat16 import rows as rounded
from ssmpi.model.edges import BITMAP, BYTES, WORDS, Edge, coding
from ssmpi.model.sparse_messages import post_kept, take_back, take_kept
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.mpi.mailbox import ANOTHER_SIZE, DONE, LATE, PAYLOAD, SIZE, room

LIMIT = 60_000_000_000  # ns
UNUSUAL = np.array([0.0, -0.0, np.nan, np.inf, 1e-40], np.float32)


def edge(width, kept, bf16=False):
    return Edge("x", width, 0, 1, bf16, gradient=True, kept=kept)


def mailbox(size):
    memory = aligned((room(size),), np.uint8)
    memory[:] = 0
    return memory


def words(values, half):
    """The bits of what arrives of float32 values."""
    if not half:
        return values.view(np.uint32)
    halves = np.empty(values.size, np.uint16)
    rounded(np.ascontiguousarray(values).ravel(), 1, values.size, values.size, halves)
    return halves.astype(np.uint32).reshape(values.shape) << 16


@pytest.mark.parametrize(
    ("width", "kept", "how"),
    [
        (1, 1, BYTES), (256, 13, BYTES), (256, 255, BYTES), (257, 16, WORDS), (257, 17, BITMAP), (512, 32, WORDS),
        (512, 33, BITMAP), (65_536, 1, WORDS), (65_537, 1, BITMAP),
    ],
)  # fmt: skip
def test_places_are_written_in_the_shortest_way(width, kept, how):
    assert coding(width, kept) == how
    sizes = {BYTES: kept, WORDS: 2 * kept, BITMAP: (width + 7) // 8}
    assert edge(width, kept).message == 4 * kept + sizes[how]
    possible = [BITMAP] + [BYTES] * (width <= 256) + [WORDS] * (width <= 65_536)
    assert how == BYTES or sizes[how] == min(sizes[each] for each in possible)


def test_the_issues_arithmetic():
    """Width 256 at 0.95, in float32 and in bfloat16: 17.5 and 31.5 times less than 1,024 bytes each way."""
    plain, half = edge(256, 13), edge(256, 13, bf16=True)
    assert (plain.message, plain.back, half.message, half.back) == (65, 52, 39, 26)
    assert (plain.entries, plain.entries_back, edge(256, 0).message) == (13, 13, 1024)


@given(st.sampled_from([1, 2, 9, 256, 257, 600, 65_537]), st.booleans(), st.booleans(), st.data())
def test_kept_values_come_to_their_places_and_gradients_back(width, half, add, data):
    """Zeros elsewhere; and what comes back is written or added at these places, and nowhere else."""
    examples = data.draw(st.integers(0, 3))
    kept = data.draw(st.integers(1, min(width, 40)))
    shape, generator = (examples, width, kept), np.random.default_rng(data.draw(st.integers(0, 99)))
    values = generator.normal(size=(examples, width)).astype(np.float32)
    values[generator.random(values.shape) < 0.3] = generator.choice(UNUSUAL)
    places = np.array(
        [np.sort(generator.choice(width, kept, replace=False)) for _ in range(examples)], np.int32
    ).reshape(examples, kept)
    memory = mailbox(edge(width, kept, half).message * examples)
    box, size = memory.ctypes.data, memory[SIZE:PAYLOAD].view(np.int64)

    assert post_kept(box, values.ravel(), places.ravel(), shape, half, True, LIMIT) == DONE
    assert size == edge(width, kept, half).message * examples
    found, there = np.full(values.size, 7, np.float32), np.full(places.size, -1, np.int32)
    assert take_kept(box, found, there, shape, half, LIMIT) == DONE
    expected = np.zeros(values.shape, np.uint32)
    np.put_along_axis(expected, places, words(np.take_along_axis(values, places, 1), half), 1)
    np.testing.assert_array_equal(found.view(np.uint32).reshape(values.shape), expected)
    np.testing.assert_array_equal(there.reshape(places.shape), places)

    assert post_kept(box, values.ravel(), there, shape, half, False, LIMIT) == DONE
    assert size == edge(width, kept, half).back * examples
    gradient = generator.normal(size=values.shape).astype(np.float32)
    wanted, back = gradient.copy(), np.take_along_axis(expected.view(np.float32), places, 1)
    if add:
        back = back + np.take_along_axis(gradient, places, 1)
    np.put_along_axis(wanted, places, back, 1)
    assert take_back(box, gradient.ravel(), there, shape, half, add, LIMIT) == DONE
    np.testing.assert_array_equal(gradient.view(np.uint32), wanted.view(np.uint32))


def test_what_does_not_fit_or_come_is_told():
    """As by any mailbox: one who expects other sizes, nobody who sends, nobody who takes."""
    memory, shape, another = mailbox(80), (2, 9, 3), (2, 9, 4)
    box, values, places = memory.ctypes.data, np.zeros(18, np.float32), np.tile(np.arange(3, dtype=np.int32), 2)
    more = np.zeros(8, np.int32)
    assert take_kept(box, values, places, shape, False, 1000) == LATE
    assert take_back(box, values, places, shape, False, False, 1000) == LATE
    assert post_kept(box, values, places, shape, False, True, LIMIT) == DONE
    assert post_kept(box, values, places, shape, False, True, 1000) == LATE
    assert take_kept(box, values, more, another, False, LIMIT) == ANOTHER_SIZE
    assert take_back(box, values, more, another, False, False, LIMIT) == ANOTHER_SIZE
    assert take_kept(box, values, places, shape, False, LIMIT) == DONE
