"""Two kinds of memory in turns behind the same addresses: each keeps what was written in its own turns."""

import gc

import numpy as np
import pytest

from ssmpi.bench.harness.memory_swap import MemorySwap, mappings_below
from ssmpi.comm.memory_file import MemoryFile, Origin


@pytest.mark.parametrize("shared", [False, True])
def test_each_kind_keeps_its_own_values(tmp_path, shared):
    path = tmp_path / "trainer-0"
    memory = MemoryFile(path, Origin("run", "trainer 0", 1))
    arrays = [memory.array(f"array {k}", (3_000 * (k + 1),), np.int64) for k in range(2)]
    for array in arrays:
        array[:] = np.arange(array.size)
    found = [each for each in mappings_below(tmp_path) if any(each.holds(array) for array in arrays)]
    two = MemorySwap(found if shared else [], [] if shared else found)
    two.exchange()
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(array.size))  # both begin alike
        array[:] = -1
    memory.ready()
    kept = np.frombuffer(path.read_bytes(), np.int64)[-6_000:]
    assert not (kept == -1).any()  # the file has seen nothing of it
    two.exchange()
    for array in arrays:
        np.testing.assert_array_equal(array, np.arange(array.size))
        array[:] = 5
    two.exchange()
    assert all((array == -1).all() for array in arrays)
    two.exchange()
    del arrays, array
    gc.collect()
    assert (np.frombuffer(path.read_bytes(), np.int64)[-6_144:-144] == 5).all()
