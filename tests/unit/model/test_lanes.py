"""Members of a group as threads of one process, against one trainer: each step by compiled code and mailboxes."""

import threading
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
from test_networks import example

from ssmpi.comm.mailbox import PAYLOAD, room
from ssmpi.model.executor import PIECE
from ssmpi.model.lane import HelperModel, HomeModel, HomeOptimizer
from ssmpi.model.messages import Channel
from ssmpi.model.network import DENSE, Inputs
from ssmpi.model.optim import dense_optimizer
from ssmpi.model.options import DCNv2Options, DeepFMOptions, DenseOptions, ModelOptions
from ssmpi.model.parameters import by_name
from ssmpi.model.part import Receive, Send, transform
from ssmpi.model.places import PLANS, places_of
from ssmpi.model.replica import Replica
from ssmpi.model.zoo import network_of

LIMIT = 60_000_000_000  # ns


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

    def __init__(self, network, places, home=0, precision="fp32", optimizer="adagrad"):
        self.network, self.places, self.home = network, places, home
        parts = [transform(network, places, member, member) for member in range(places.group)]
        self.replicas = [Replica(network, precision, seed=3, part=part) for part in parts]
        options = DenseOptions(optimizer=optimizer, rate=0.01)
        self.optimizers = [dense_optimizer(options, replica) for replica in self.replicas]
        self.parts = [transform(network, places, member, home) for member in range(places.group)]
        self.post, self.found = Post(self.parts[0]), []

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
        optimizer = HomeOptimizer(self.optimizers[self.home])
        for number, batch in enumerate(batches):
            logits, by_rows = model.forward_backward(*batch)
            self.found.append((logits.copy(), by_rows.copy()))
            optimizer.step(model, 1 - number / 100)
        model.close()

    def whole(self, vectors):
        """A vector of the network, from those of the members."""
        found = np.full(self.network.parameters, np.nan, np.float32)
        views = dict(by_name(self.network.layout, found))
        for replica, vector in zip(self.replicas, vectors, strict=True):
            for name, values in by_name(replica.owned.layout, vector):
                replica.owned.rows_of(name, views[name])[...] = values
        return found

    @property
    def vector(self):
        return self.whole([replica.vector for replica in self.replicas])

    def state(self):
        states = [optimizer.state() for optimizer in self.optimizers]
        return {name: self.whole([state[name] for state in states]) for name in states[0]}


class One:
    """A trainer with one thread."""

    def __init__(self, network, precision="fp32", optimizer="adagrad"):
        self._replica = Replica(network, precision, seed=3)
        self._optimizer = dense_optimizer(DenseOptions(optimizer=optimizer, rate=0.01), self._replica)
        self.model = self._replica.thread_model()

    def train(self, batches):
        found = []
        for number, batch in enumerate(batches):
            found.append([values.copy() for values in self.model.forward_backward(*batch)])
            self._optimizer.step(self.model, 1 - number / 100)
        return found

    @property
    def vector(self):
        return self._replica.vector

    def state(self):
        return self._optimizer.state()


def network_named(name, inputs=None, wide=512):
    options = ModelOptions(
        name=name, bottom=(wide, 64, 16), top=(wide, 256, 1), dcn_v2=DCNv2Options(2, 0),
        deepfm=DeepFMOptions((wide, 300)),
    )  # fmt: skip
    return network_of(options, inputs or Inputs(13, 8, 16))


def places_by_plan(plan, network, group):
    return places_of(PLANS[plan](network, group), network, group)


def batches_of(network, sizes):
    return [example(network, size, seed) for seed, size in enumerate(sizes)]


def read_once(group):
    """Whether no value whose gradient matters is read on two members: then even sums are those of one trainer."""
    readers = defaultdict(set)
    for part in group.parts:
        for item in part.operators:
            if not isinstance(item, Send | Receive):
                for name in item.inputs:
                    readers[name] |= {part.member}
    return all(len(members) == 1 for name, members in readers.items() if name != DENSE)


def assert_same(lane, one, batches, within):
    """Over two parts of a run: logits, row gradients, parameters and optimizer state; to the bit if ``within`` is 0."""
    compare = partial(np.testing.assert_allclose, rtol=within, atol=within)
    for some in (batches[:3], batches[3:]):
        for ours, theirs in zip(lane.train(some), one.train(some), strict=True):
            for values, wanted in zip(ours, theirs, strict=True):
                compare(values, wanted)
    compare(lane.vector, one.vector)
    for name, state in one.state().items():
        compare(lane.state()[name], state)


@pytest.mark.parametrize("plan", ["data", "stages"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("group", [2, 3, 4])
@pytest.mark.parametrize("name", ["dlrm", "dcn_v2", "deepfm"])
def test_a_lane_is_one_trainer(name, group, optimizer, plan):
    """To the bit, with a last batch that is shorter; where a value is read on two members, to rounding."""
    network = network_named(name)
    lane = Group(network, places_by_plan(plan, network, group), group - 1, optimizer=optimizer)
    exact = read_once(lane)
    assert exact or (plan == "stages" and name != "dlrm")
    batches = batches_of(network, [128, 128, 2048, 2048, 700, 77])
    assert_same(lane, One(network, optimizer=optimizer), batches, 0 if exact else 1e-5)
