"""Members of a group as threads of one process, over mailboxes in its memory."""

import threading

import numpy as np

from ssmpi.model.executor import PIECE
from ssmpi.model.lane import HelperModel, HomeModel, HomeOptimizer
from ssmpi.model.member_program import transform
from ssmpi.model.messages import Channel
from ssmpi.model.options import DenseOptions
from ssmpi.model.parameters import by_name
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.runtime.mpi.mailbox import PAYLOAD, room

LIMIT = 60_000_000_000  # ns
OPTIONS = {name: DenseOptions(optimizer=name, rate=0.01) for name in ("sgd", "adagrad", "adam")}


class Post:
    """The mailboxes of one lane, in memory of this process."""

    def __init__(self, part):
        self.boxes = part.mailboxes(PIECE)
        starts = np.cumsum([0, *(room(box.size) for box in self.boxes)])
        self._memory = np.zeros(starts[-1] + 64, np.uint8)
        first = self._memory.ctypes.data
        self._addresses = first + -first % 64 + starts[:-1]

    def channel(self, member):
        mine = [member in (box.sender, box.reader) for box in self.boxes]
        return Channel(
            np.where(mine, self._addresses, 0), LIMIT, lambda number, code: AssertionError((member, number, code))
        )

    def sent(self, number):
        """How many messages, and bytes of the last one."""
        words = self._memory[self._addresses[number] - self._memory.ctypes.data :][:PAYLOAD]
        return int(words[:4].view(np.uint32)[0]), int(words[184:192].view(np.int64)[0])


class Group:
    """Replicas of a group's members. ``train`` runs one lane of ``home`` over batches."""

    def __init__(self, network, places, home=0, precision="fp32", options=OPTIONS["adagrad"]):
        self.network, self.places, self.home = network, places, home
        parts = [transform(network, places, member, member) for member in range(places.group)]
        self.replicas = [Replica(network, precision, seed=3, part=part) for part in parts]
        self.optimizers = [dense_optimizer(options, replica) for replica in self.replicas]
        self.parts = [transform(network, places, member, home) for member in range(places.group)]
        self.post, self.found, self.moved = Post(self.parts[0]), [], False

    def train(self, batches):
        """Logits and gradients of the rows of each batch."""
        failures = []

        def guarded(body, *arguments):
            try:
                body(*arguments)
            except BaseException as error:
                failures.append(error)

        helpers = [threading.Thread(target=guarded, args=(self._help, member)) for member in self.parts[0].helpers]
        home = threading.Thread(target=guarded, args=(self._train, batches))
        for thread in (*helpers, home):
            thread.start()
        for thread in (home, *helpers):
            thread.join()
        assert not failures, failures
        assert not self.moved, "the home stepped copies of what others own"
        found, self.found = self.found, []
        return found

    def _help(self, member):
        replica = self.replicas[member]
        model = HelperModel(self.parts[member], replica.weights, replica.precision, self.post.channel(member))
        for factor in model.steps():
            self.optimizers[member].step(model, factor)

    def _train(self, batches):
        replica = self.replicas[self.home]
        model = HomeModel(self.parts[self.home], replica.weights, replica.precision, self.post.channel(self.home))
        optimizer, copies = HomeOptimizer(self.optimizers[self.home]), replica.weights[replica.vector.size :]
        for number, batch in enumerate(batches):
            logits, by_rows = model.forward_backward(*batch)
            self.found.append((logits.copy(), by_rows.copy()))
            before = copies.tobytes()
            optimizer.step(model, 1 - number / 100)
            self.moved |= copies.tobytes() != before
        model.close()

    def whole(self, vectors):
        """A vector of the network, from those of the members."""
        found = np.full(self.network.parameters, np.nan, np.float32)
        views = dict(by_name(self.network.layout, found))
        for replica, vector in zip(self.replicas, vectors, strict=True):
            for name, values in by_name(replica.owned.layout, vector):
                views[name][...] = values
        return found

    @property
    def vector(self):
        return self.whole([replica.vector for replica in self.replicas])

    def state(self):
        states = [optimizer.state() for optimizer in self.optimizers]
        counted = [state.pop("step") for state in states if "step" in state]
        assert len({steps.item() for steps in counted}) <= 1  # members step together
        vectors = {name: self.whole([state[name] for state in states]) for name in states[0]}
        return vectors | ({"step": counted[0]} if counted else {})
