"""A trainer's end of a conversation with sync PSs, which hold a center in shards: see ``center_shard``.

A sync PS on a trainer's host maps its replica and moves it and the center in place: then a round is one short message
and its answer. Each fragment of the vector is dealt to the sync PSs in shards, so that all of them share every round.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod

import numpy as np

from ssmpi.comm.service import Service, say_goodbye
from ssmpi.comm.waiting import wait, wait_all
from ssmpi.core.topology import Topology
from ssmpi.sync.base import SYNC_PS, Synchronizer, cut
from ssmpi.sync.center_shard import FETCH, MAP, MEET, START, THREADS, Center, MakeStep
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.peers import Peers


class Centered(Synchronizer):
    """Exchanges with the center alone and waits for no other trainer. Several worker threads may do so at once, each
    through a synchronizer of its own.
    """

    partner, each_thread = SYNC_PS, True
    in_place = False  # the center can move a replica that it maps

    def __init__(self, options: RoundOptions, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers)
        self._thread, self._servers = thread, peers.sync_ps
        self._shards = [cut(f.stop - f.start, len(self._servers)) for f in self.fragments]
        self._reply = np.empty_like(weights)
        in_place = (
            self.in_place and options.merge == "difference"
        )  # interpolating is to lose what was learned meanwhile
        self._mapped = in_place and options.transport != "messages" and self._map()
        if thread == 0 and peers.trainers.rank == 0:  # every trainer starts equal: the first one says from where
            self._start()

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """A center needs sync PSs."""
        return "" if topology.sync_ps else "keeps its center on sync PSs: set topology.sync_ps = 1 or more"

    @staticmethod
    @abstractmethod
    def server(options: RoundOptions, optimizer: MakeStep, service: Service) -> Center:
        """The center of a sync PS, for the ``[sync]`` settings; ``optimizer`` is for one that takes steps of
        its own.
        """

    def step(self, active: bool = True) -> bool:
        """As the base class; sync PSs that map the replica move it themselves."""
        if not self._mapped:
            return super().step(active)
        self._meet(self.next_fragment())
        return True

    def close(self) -> None:
        """A last round over the whole vector, one for the trainer: nobody waits for it."""
        if self._thread == 0:
            for _ in self.fragments:
                self.round()

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round and before anybody's next."""
        wait(self.peers.trainers.ibarrier(), self.peers.waiting, "the other trainers' last round")
        center = self.fetch()
        wait(self.peers.trainers.ibarrier(), self.peers.waiting, "the other trainers (to fetch the center)")
        return center

    def restart(self) -> None:
        """The first trainer says where the center starts, once more, and nobody asks before it is there."""
        if self.peers.trainers.rank == 0:
            self._start()
            self.fetch()
        wait(self.peers.trainers.ibarrier(), self.peers.waiting, "the other trainers (to end their warm-up)")

    def goodbye(self) -> None:
        """Tell the sync PSs that this trainer will not ask again."""
        say_goodbye(self.peers.center, self._servers, self.peers.waiting)

    def ask(self, kind: int, fragment: int, messages: list[np.ndarray]) -> np.ndarray:
        """Send each sync PS its message about a fragment and receive its shard of it; the whole, until the next
        call.
        """
        reply = self._reply[self.fragments[fragment]]
        self._call(kind, messages, [reply[s] for s in self._shards[fragment]])
        return reply

    def send_all(self, kind: int, messages: list[np.ndarray]) -> None:
        """Send each sync PS its message."""
        sends = [
            self.peers.center.isend(message, r, kind * THREADS + self._thread)
            for r, message in zip(self._servers, messages, strict=True)
        ]
        wait_all(sends, self.peers.waiting, "the sync PSs")

    def _map(self) -> bool:
        """Ask every sync PS to map this replica; whether all of them do."""
        address = self.peers.local.replica.memory.address.decode()
        if not address:
            return False
        messages, answers = [], []
        for server in range(len(self._servers)):
            slices = [
                [part.start + shards[server].start, part.start + shards[server].stop]
                for part, shards in zip(self.fragments, self._shards, strict=True)
            ]
            text = json.dumps({"address": address, "bytes": self.weights.nbytes, "slices": slices})
            messages.append(np.frombuffer(text.encode(), np.uint8))
            answers.append(np.empty(1))
        self._call(MAP, messages, answers)
        return all(bool(answer[0]) for answer in answers)

    def _meet(self, fragment: int) -> None:
        """Let the sync PSs exchange a fragment of the live weights with the center."""
        measures = self.measures_now()
        answers = [np.empty(3) for _ in self._servers]
        self._call(MEET, [np.array([fragment, self.pull(fragment), measures])] * len(answers), answers)
        apart, length, seconds = np.sum(answers, axis=0).tolist()
        self.served_seconds += seconds
        if measures:
            self.divergence = math.sqrt(apart) / max(math.sqrt(length), 1e-30)

    def pull(self, fragment: int) -> float:
        """How far this exchange of a fragment pulls."""
        return self.alpha

    def _call(self, kind: int, messages: list[np.ndarray], answers: list[np.ndarray]) -> None:
        """Send each sync PS its message and wait for its answer."""
        center = self.peers.center
        replies = [center.irecv(answer, r, self._thread) for r, answer in zip(self._servers, answers, strict=True)]
        self.send_all(kind, messages)
        wait_all(replies, self.peers.waiting, "the sync PSs")

    def shards_of(self, vector: np.ndarray, fragment: int) -> list[np.ndarray]:
        """A fragment's vector by sync PS, without copies."""
        return [vector[s] for s in self._shards[fragment]]

    def _start(self) -> None:
        for fragment, part in enumerate(self.fragments):
            self.send_all(START, self.shards_of(self.weights[part], fragment))

    def fetch(self, kind: int = FETCH) -> np.ndarray:
        """What the sync PSs hold, the center or the state of its optimizer, as one vector (parameters,)."""
        nothing = [np.empty(0, np.float32)] * len(self._servers)
        for fragment in range(len(self.fragments)):
            self.ask(kind, fragment, nothing)
        return self._reply.copy()
