"""Kills of pretended ranks, which are threads."""

import itertools


class KilledError(Exception):
    """Stands for SIGKILL: whatever a process was about to do it does not do."""


class Kill:
    """Kills at the ``number``-th call of a function, before it does anything, or when it is done."""

    def __init__(self, owner, name, number=1, after=False):
        self._owner, self._name, self._number, self._after = owner, name, number, after

    def __enter__(self):
        self._whole = whole = getattr(self._owner, self._name)
        calls = itertools.count(1)

        def killing(*arguments, **named):
            number = next(calls)
            if number == self._number and not self._after:
                raise KilledError
            result = whole(*arguments, **named)
            if number == self._number:
                raise KilledError
            return result

        setattr(self._owner, self._name, killing)

    def __exit__(self, *error):
        setattr(self._owner, self._name, self._whole)
