"""What may never end, such as writing to a disk that hangs or to a reader that does not read, on a thread of its own."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def aside(name: str, body: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start ``body``; the future has its result, or raises its exception. The process may end before it does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(body(*arguments))
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def within(seconds: float, *bodies: Callable[[], Any]) -> None:
    """Run all of these at the same time, and wait no longer than that for them: what is done by then is done."""
    concurrent.futures.wait([aside("aside", body) for body in bodies], seconds)
