"""Tells the user that kernels are being compiled, where they are used for the first time, and how many are done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from numba.core import event

NOTICE = "compiling kernels that are new on this machine: 20 to 35 s on idle cores, once for each kind of network"
TYPICAL = 90  # kernels of the quickstart's network


@contextlib.contextmanager
def said(say: Callable[[str], object]) -> Iterator[Callable[[], str]]:
    """Call ``say`` when this block begins to compile kernels. Yields a function that tells how many it has compiled."""
    listener = _Listener(say)
    with event.install_listener("numba:compile", listener):
        yield listener.progress


class _Listener(event.Listener):
    """Numba compiles one kernel at a time, and in it those that it calls."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._begun, self._compiled = say, False, 0

    def on_start(self, event: event.Event) -> None:
        if not self._begun:
            self._begun = True
            self._say(NOTICE)

    def on_end(self, event: event.Event) -> None:
        self._compiled += 1

    def progress(self) -> str:
        return f", {self._compiled} of about {TYPICAL} kernels" if self._begun else ""
