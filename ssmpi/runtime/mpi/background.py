"""Runs calls that may block forever, such as a write to a hung disk or a full pipe, on threads of their own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


def start_background(name: str, body: Callable[[*Arguments], T], *arguments: *Arguments) -> Future[T]:
    """Start ``body`` on a daemon thread; the future holds its result or its exception. Process exit does not wait for
    it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(body(*arguments))
        except BaseException as error:  # raised again where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_with_timeout(seconds: float, *bodies: Callable[[], object]) -> None:
    """Run all ``bodies`` concurrently and wait for them at most ``seconds``; late ones continue in the background. What
    they raise is lost.
    """
    running = []
    for body in bodies:
        try:
            running.append(start_background("start_background", body))
        except RuntimeError:  # there may be no more threads, which is what is to be reported
            with contextlib.suppress(Exception):
                body()
    concurrent.futures.wait(running, seconds)
