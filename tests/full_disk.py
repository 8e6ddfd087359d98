"""A file system without room, for one process."""

import contextlib
import resource
import signal
import sys
from unittest import mock


@contextlib.contextmanager
def full_disk(left):
    """No file can grow beyond ``left`` bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # CPython 3.11 keeps a .pyc that was cut off
    try:
        yield
    finally:
        sys.dont_write_bytecode = compiles
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def full_disk_in(module, name, left):
    """The same while a function of a module is called."""
    real = getattr(module, name)

    def limited(*arguments):
        with full_disk(left):
            return real(*arguments)

    with mock.patch.object(module, name, limited):
        yield
