"""A process that starts looks for no garbage, and for all that is made later it does."""

import gc
import weakref

from ssmpi.runtime.host.startup import without_garbage_collection


class Node:
    """Garbage as soon as nobody else knows it: it refers to itself."""

    def __init__(self):
        self.own = self


def test_garbage_is_looked_for_again_afterwards():
    try:
        with without_garbage_collection():
            assert not gc.isenabled()
            early = weakref.ref(Node())
        assert gc.isenabled()
        late = weakref.ref(Node())
        gc.collect()
        assert early()  # never looked at again
        assert not late()
    finally:
        gc.unfreeze()
