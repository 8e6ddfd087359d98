"""A sync PS's side of ``async_ps``: shards of the weights that take a step by every push.

With a ``pull_codec`` the center is mirrored by each client, a trainer or one of its threads, and a push is answered
with the entries that differ most from its mirror (EF21; see ``compress.mirror``). Encoded pushes change few entries, so
``threshold:0``, which sends exactly the entries that changed, equals a dense pull to the last bit at a fraction of its
bytes. With any other share the client's mirror, and with it its replica, may have stale entries; nothing is lost,
because every update is in the center or in the pending gradients.

Every client fetches the whole center when it starts, also after a kill, and a trainer's first thread also when a part
of a run ends; both ends then continue from there. Other threads' mirrors continue. So mirrors are neither in
checkpoints nor in memory that outlives a process, and a run can resume with any number of trainers. When the center is
set to other weights, after a warm-up or because it was lost, each client's next pull is dense.

A mirror has one threshold per shard: a sync PS does not know layers.
"""

from __future__ import annotations

import numpy as np

from ssmpi import compress
from ssmpi.compress import MirrorSender, ShardCodecs
from ssmpi.runtime.mpi.push_counts import COUNT, AppliedPushes
from ssmpi.runtime.mpi.rank_memory import ArrayMemory
from ssmpi.runtime.mpi.service import THREADS, Service
from ssmpi.runtime.mpi.shared_memory import placed
from ssmpi.sync import pushes
from ssmpi.sync.center_shard import APPLIED, Center, MakeStep, Step
from ssmpi.sync.codecs import codec_of, pull_codec_of
from ssmpi.sync.options import DENSE, RoundOptions


class GradientCenter(Center):
    """Takes an optimizer step for every push. ``optimizer(weights)`` makes the optimizer of a shard, with its own
    state.
    """

    def __init__(self, optimizer: MakeStep, options: RoundOptions, service: Service, memory: ArrayMemory) -> None:
        super().__init__(options.fragments, service, memory, shared=False)
        self._encoded, self._sum = options.codec != DENSE, np.empty(0, np.float32)
        self._mirrors: dict[tuple[int, int], MirrorSender] = {}  # by client
        self._options, self._mirrored = options, options.pull_codec != DENSE
        if self._mirrored:
            compress.compile_kernels(pull_codec_of(options))
        if self._encoded:
            compress.compile_kernels(codec_of(options))
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
        if not self._mirrored:
            return super().answer(fragment, client, payload)
        self._step(fragment, client, payload.view(np.float32))
        (answer,) = self._mirror(client).send(self.vector, fragment)
        return self.buffer_of(answer)

    def fetched(self, fragment: int, client: tuple[int, int]) -> None:
        """The client now holds the whole shard."""
        if self._mirrored:
            self._mirror(client).hold(self.vector, fragment)

    def _mirror(self, client: tuple[int, int]) -> MirrorSender:
        if client not in self._mirrors:
            codecs = ShardCodecs(pull_codec_of(self._options), self.slices, seed=(self._service.rank, *client))
            self._mirrors[client] = MirrorSender(codecs, scratch=self._sum)  # free again once the step is taken
        return self._mirrors[client]

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
        """Also reset the optimizer state; each client's next pull is dense."""
        if self._steps:
            self._steps[fragment].state[:] = self._optimizer(values).state
        self._mirrors.clear()
        super().start(fragment, values)

    def allocate(self) -> None:
        """Also the optimizer state of each shard, and the count of pushes."""
        super().allocate()
        self._applied = AppliedPushes(self._own, self._service.size)
        self._steps = [self._optimizer(shard) for shard in self.shards]
        self._sum = np.empty(self.largest, np.float32)
        states = [step.state for step in self._steps]
        vector = placed(self._of_optimizer, np.concatenate(states))
        for step, state in zip(self._steps, np.split(vector, np.cumsum([s.size for s in states])[:-1]), strict=True):
            step.state = state
