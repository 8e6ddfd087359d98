"""A sync PS's side of ``async_ps``: shards of the weights that take a step by every push."""

from __future__ import annotations

import numpy as np

from ssmpi import compress
from ssmpi.comm.rank_memory import RankMemory
from ssmpi.comm.service import Service
from ssmpi.comm.shared_memory import placed
from ssmpi.embedding.push_counts import AppliedPushes
from ssmpi.embedding.wire import COUNT
from ssmpi.sync import pushes
from ssmpi.sync.center_shard import APPLIED, THREADS, Center, MakeStep, Step
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pulls import PullMirrors


class GradientCenter(Center):
    """Takes an optimizer step for every push. ``optimizer(weights)`` makes the optimizer of a shard, with its own
    state.
    """

    def __init__(self, optimizer: MakeStep, options: RoundOptions, service: Service, memory: RankMemory) -> None:
        super().__init__(options.fragments, service, memory, shared=False)
        self._encoded, self._sum = options.codec != DENSE, np.empty(0, np.float32)
        self._mirrors = PullMirrors(options, service.rank) if options.pull_codec != DENSE else None
        if self._encoded:
            compress.compile_kernels(DENSE)  # decoding is the same for all
        self._optimizer, self._of_optimizer = optimizer, memory.part("optimizer", shared=False)
        self._steps: list[Step] = []
        optimizer(np.empty(0, np.float32))(np.empty(0, np.float32), 0.0)  # compiles now, not in the first round

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """As the base class; also answers how many pushes were applied."""
        kind, thread = divmod(tag, THREADS)
        if not self.shards:
            super().handle(source, tag, payload)  # deferred until START
        elif kind == APPLIED:
            buffer = self._service.buffer(COUNT)
            self._applied.answer(source, buffer)
            self._service.reply(source, thread, buffer)
        else:
            super().handle(source, tag, payload)

    def exchange(self, fragment: int, client: tuple[int, int], words: np.ndarray, reply: np.ndarray) -> None:
        """The weights after the step."""
        self._step(fragment, client, words)
        reply[:] = self.shards[fragment]

    def answer(self, fragment: int, client: tuple[int, int], payload: np.ndarray) -> np.ndarray:
        """The same; with a pull codec, a payload of what this client lacks."""
        if self._mirrors is None:
            return super().answer(fragment, client, payload)
        self._step(fragment, client, payload.view(np.float32))
        return self.buffer_of(self._mirrors.answer(client, fragment, self.shards[fragment]))

    def fetched(self, fragment: int, client: tuple[int, int]) -> None:
        """The client now holds the whole shard."""
        if self._mirrors is not None:
            self._mirrors.fetched(client, fragment, self.shards[fragment])

    def _step(self, fragment: int, client: tuple[int, int], words: np.ndarray) -> None:
        if self._encoded:
            gradients = self._sum[: self.shards[fragment].size]
            self._steps[fragment](gradients, pushes.read_push(words.view(np.uint8), gradients))
        else:
            self._steps[fragment](words[:-1], float(words[-1]))
        self._applied.by_client[client[0]] += 1

    def state(self, fragment: int) -> np.ndarray:
        """The optimizer state of this shard."""
        return self._steps[fragment].state

    def start(self, fragment: int, values: np.ndarray) -> None:
        """Also reset the optimizer state and the clients' mirrors."""
        if self._steps:
            self._steps[fragment].state[:] = self._optimizer(values).state
        if self._mirrors:
            self._mirrors.started(fragment)
        super().start(fragment, values)

    def allocate(self) -> None:
        """Also the optimizer state of each shard, and the count of pushes."""
        super().allocate()
        self._applied = AppliedPushes(self._own, self._service.size)
        self._steps = [self._optimizer(shard) for shard in self.shards]
        self._sum = np.empty(max(shard.size for shard in self.shards), np.float32)
        states = [step.state for step in self._steps]
        vector = placed(self._of_optimizer, np.concatenate(states))
        for step, state in zip(self._steps, np.split(vector, np.cumsum([s.size for s in states])[:-1]), strict=True):
            step.state = state
