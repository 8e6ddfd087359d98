"""One fault injector for all tests, after torchft's: at a call of a named function something happens, before it or when
it is done. It is held, it fails, or its rank is killed.
"""

import errno
import itertools
import os
from pathlib import Path


class Fault:
    """``happens(*arguments)`` at the ``number``-th call of a function (a range: at those; None: at every one) whose
    arguments ``where`` picks, such as those of one rank. For a block, or from ``start`` to ``stop``.
    """

    def __init__(self, owner, name, happens, number=None, *, after=False, where=lambda *arguments: True):
        self._owner, self._name, self._happens, self._after, self._where = owner, name, happens, after, where
        self._numbers = (number,) if isinstance(number, int) else number

    def start(self):
        self._own, whole, calls = (
            vars(self._owner).get(self._name),
            getattr(self._owner, self._name),
            itertools.count(1),
        )

        def broken(*arguments, **named):
            now = self._where(*arguments) and (self._numbers is None or next(calls) in self._numbers)
            if now and not self._after:
                self._happens(*arguments)
            result = whole(*arguments, **named)
            if now and self._after:
                self._happens(*arguments)
            return result

        setattr(self._owner, self._name, broken)
        return self

    def stop(self):
        if self._own is None:  # it is inherited
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        self.stop()


class KilledError(Exception):
    """Stands for SIGKILL of a pretended rank: whatever it was about to do it does not do."""


class Kill(Fault):
    """Kills a pretended rank, which is a thread."""

    def __init__(self, owner, name, number=1, after=False):
        super().__init__(owner, name, die, number, after=after)


def die(*arguments):
    raise KilledError


def io_error(number):
    """What happens where the system refuses: an OSError with the path that is among the arguments, if one is."""

    def happens(*arguments):
        path = next((str(each) for each in arguments if isinstance(each, str | Path)), None)
        raise OSError(number, os.strerror(number), path)

    return happens


no_room, broken_disk = io_error(errno.ENOSPC), io_error(errno.EIO)
