"""Tells the user that kernels are compiled where they are used for the first time, and how far that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from numba.core import event

from ssmpi.compiled.jit import KERNELS

NOTICE = (
    "compiling kernels, because they are new on this machine: this takes about a minute on idle cores, and happens once"
)


@contextlib.contextmanager
def said(say: Callable[[str], object]) -> Iterator[Callable[[], str]]:
    """``say`` so once kernels are compiled in this block. The value says how many of them are."""
    listener = _Listener(say)
    with event.install_listener("numba:compile", listener):
        yield listener.progress


class _Listener(event.Listener):
    """Numba compiles one kernel at a time, with those that it calls."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._begun = say, False

    def on_start(self, event: event.Event) -> None:
        if not self._begun:
            self._begun = True
            self._say(NOTICE)

    def on_end(self, event: event.Event) -> None:
        """Numba counts itself."""

    def progress(self) -> str:
        done = sum(bool(kernel.overloads) for kernel in KERNELS)
        return f", {done} of at most {len(KERNELS)} kernels" if self._begun else ""
