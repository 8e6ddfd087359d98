"""Measures where the time of a step goes: stopwatches around everything that ``train.hogwild`` and the servers' loop
call.

The loops themselves are unchanged, so the breakdown cannot diverge from the real code. A stopwatch costs about half a
microsecond per call; rates of examples never come from a run with stopwatches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ssmpi.core.topology import Role
from ssmpi.embedding import wire

if TYPE_CHECKING:
    from ssmpi.comm.inbox import Inbox
    from ssmpi.comm.world import World
    from ssmpi.roles.trainer import Trainer

T = TypeVar("T")

now = time.perf_counter


class Stages:
    """Seconds by stage, counted per thread and summed."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[dict[str, float]] = []

    def add(self, stage: str, seconds: float) -> None:
        """Charge a stage on the calling thread."""
        try:
            spent = self._mine.spent
        except AttributeError:
            spent = self._mine.spent = {}
            self._all.append(spent)
        spent[stage] = spent.get(stage, 0.0) + seconds

    def spent(self) -> dict[str, float]:
        """Seconds by stage over all threads so far."""
        total: dict[str, float] = {}
        for spent in self._all:
            for stage, seconds in list(spent.items()):
                total[stage] = total.get(stage, 0.0) + seconds
        return total

    def around(self, owner: object, method: str, stage: str) -> None:
        """Charge the calls of an object's method to a stage."""
        inner: Callable[..., object] = getattr(owner, method)

        def timed(*arguments: object, **named: object) -> object:
            began = now()
            try:
                return inner(*arguments, **named)
            finally:
                self.add(stage, now() - began)

        setattr(owner, method, timed)

    def around_made(self, maker: object, method: str, stages: dict[str, str]) -> None:
        """Charge the methods of the objects that a factory method returns; ``stages`` is by method."""
        inner: Callable[..., object] = getattr(maker, method)

        def made(*arguments: object) -> object:
            thing = inner(*arguments)
            for name, stage in stages.items():
                self.around(thing, name, stage)
            return thing

        setattr(maker, method, made)

    def each(self, items: Iterable[T], stage: str) -> Iterator[T]:
        """Yield the same items; the time to produce them is charged to a stage."""
        iterator = iter(items)
        while True:
            began = now()
            item = next(iterator, None)
            self.add(stage, now() - began)
            if item is None:
                return
            yield item


def of_trainer(trainer: Trainer) -> Stages:
    """Stopwatches around the objects that ``train.py`` works with."""
    stages = Stages()
    stream = trainer.stream
    trainer.stream = lambda thread: stages.each(stream(thread), "read")  # type: ignore[method-assign]
    lookups = {"ask": "ask for rows", "arrive": "wait for rows", "push": "push"}
    stages.around_made(trainer.tables, "lookups", lookups)
    stages.around_made(trainer.replica, "thread_model", {"forward_backward": "forward/backward"})
    stages.around(trainer.progress, "record", "record")
    stages.around(trainer.optimizer, "step", "dense update")
    for synchronizer in trainer.synchronizers:
        stages.around(synchronizer, "round", "shadow round")
    return stages


KINDS = {wire.PULL: "gather and reply", wire.PUSH: "update"}


def of_server(world: World) -> Callable[[], dict[str, float]]:
    """A stopwatch around a server's only source of messages; call the result for seconds by stage since the first
    message.

    Taking a message is ``receive``; from there to the next call is the work for the message; the rest is idle.
    """
    conversation = world.embedding if world.role is Role.EMBEDDING_PS else world.center
    inner = conversation.next_message
    spent = {"receive": 0.0, "idle": 0.0}
    doing, since = "", now()

    def next_message(inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        nonlocal doing, since
        began = now()
        if doing:
            spent[doing] = spent.get(doing, 0.0) + began - since
        found = inner(inbox)
        since = now()
        if found is not None:
            spent["receive"] += since - began
            kind = found[1] // wire.THREADS
            doing = KINDS.get(kind, "other") if world.role is Role.EMBEDDING_PS else "exchange"
        elif doing:  # time before the first message is not idle time
            spent["idle"] += since - began
            doing = "idle"
        return found

    conversation.next_message = next_message  # type: ignore[method-assign]
    return lambda: spent
