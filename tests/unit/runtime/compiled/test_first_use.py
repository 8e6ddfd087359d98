"""That kernels are compiled is said once, with how many are done; nothing where they are loaded."""

from numba.core import event

from ssmpi.runtime.compiled import first_use


def test_compiling_is_said_once_and_counted():
    said = []
    with first_use.said(said.append) as progress:
        assert (said, progress()) == ([], "")
        for _ in range(2):
            with event.trigger_event("numba:compile"), event.trigger_event("numba:compile"):
                pass
        assert (said, progress()) == ([first_use.NOTICE], ", 4 of about 90 kernels")
    with event.trigger_event("numba:compile"):
        pass
    assert progress() == ", 4 of about 90 kernels"
