"""Status messages between the first trainer and the embedding PSs, exchanged without waiting for an answer: the number
of samples of all trainers, and the row saves of a PS.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.embedding import wire
from ssmpi.runtime.mpi.service import THREADS, request_tag
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.topology import Role

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

THREAD = THREADS - 2  # a client id of its own: the main thread may be waiting for another answer


class StatusExchange:
    """The first trainer's side; used on its main thread only."""

    def __init__(self, conversation: Conversation, waiting: WaitOptions) -> None:
        self._conversation, self._waiting = conversation, waiting
        self._servers = list(conversation.directory.ranks_of(Role.EMBEDDING_PS))
        self._under_way: dict[int, tuple[list[MPIRequest], np.ndarray, np.ndarray]] = {}  # by PS

    def exchange(self, samples: int) -> list[dict[str, Any]]:
        """Send the number of samples to each PS that has answered the previous message; return the answers received
        meanwhile, with the PS's index as ``ps``.
        """
        found = []
        for index, server in enumerate(self._servers):
            if index in self._under_way:
                requests, _, answer = self._under_way[index]
                if not all(request.Test() for request in requests):
                    continue
                found += [{"ps": index, **each} for each in json.loads(wire.read_text(answer))]
            self._under_way[index] = self._send(server, samples)
        return found

    def finish(self) -> None:
        """Wait for the last answers, so that no message is left in flight."""
        wait_all([request for requests, *_ in self._under_way.values() for request in requests], self._waiting, "PSs")
        self._under_way = {}

    def _send(self, server: int, samples: int) -> tuple[list[MPIRequest], np.ndarray, np.ndarray]:
        message, answer = np.array([samples], np.int64), np.empty(wire.TEXT, np.uint8)
        requests = [
            self._conversation.irecv(answer, server, THREAD),
            self._conversation.isend(message, server, request_tag(wire.SAMPLES, THREAD)),
        ]
        return requests, message, answer
