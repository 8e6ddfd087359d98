"""Parts of a network against the whole: an interpreter of them by torch, in which messages are lists of at most one."""

from collections import defaultdict

import numpy as np
import torch
from drawn_networks import networks, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from ssmpi.model import reference
from ssmpi.model.edges import Receive, Send
from ssmpi.model.member_program import transform, whole
from ssmpi.model.network import DENSE, ROWS, WEIGHTS
from ssmpi.model.places import places_of


def parts_of(network, places, home):
    return [transform(network, places, member, home) for member in range(places.group)]


class Slot:
    """A mailbox, with vector clocks: nobody may put a message into it who cannot know that the last one was taken."""

    def __init__(self):
        self.message, self.sent, self.taken = None, {}, None

    def put(self, values, member, clock):
        if self.taken:
            reader, moment = self.taken
            assert clock[reader] >= moment, "the last message may not have been read yet"
        assert self.message is None
        clock[member] += 1
        self.message, self.sent, self.taken = values, dict(clock), None

    def take(self, member, clock):
        for other, moment in self.sent.items():
            clock[other] = max(clock[other], moment)
        clock[member] += 1
        values, self.message, self.taken = self.message, None, (member, clock[member])
        return values


class Interpreter:
    """One member's thread for one lane; ``run`` yields where it waits."""

    def __init__(self, part, parameters, slots):
        self.part, self.slots, self.clock = part, slots, defaultdict(int)
        self.parameters = {}
        for name, shape in part.layout:
            if name in parameters:  # and not room in a message
                self.parameters[name] = parameters[name]
                assert self.parameters[name].shape == shape
        self.found = []  # of each piece: logits, gradients of inputs and parameters

    def run(self, pieces):
        for piece in pieces:
            self.values, self.by, self.by_parameters, self.calls = {}, {}, {}, {}
            if self.part.at_home:
                self.values |= piece[0]
            for item in self.part.operators:
                yield from self.forward(item)
            logits = None
            if self.part.at_home:
                last = list(self.part.widths)[-1]
                logits = self.values[last].requires_grad_()
                loss = binary_cross_entropy_with_logits(logits.squeeze(1), piece[1], reduction="mean")
                self.add(last, torch.autograd.grad(loss, logits)[0])
            for item in reversed(self.part.operators):
                yield from self.backward(item)
            self.found.append((logits, dict(self.by), dict(self.by_parameters)))

    def add(self, name, gradient):
        self.by[name] = self.by[name] + gradient if name in self.by else gradient

    def taken(self, number):
        if self.slots[number].message is None:
            yield number
        return self.slots[number].take(self.part.member, self.clock)

    def put(self, number, values):
        self.slots[number].put(values.detach().clone(), self.part.member, self.clock)

    def forward(self, item):
        match item:
            case Send(value, edge):
                self.put(edge, self.values[value])
            case Receive():
                self.values[item.name] = yield from self.taken(item.edge)
            case _:
                inputs = [self.values[name].detach().requires_grad_() for name in item.inputs]
                begin = f"{item.name}."
                own = {n: v.requires_grad_() for n, v in self.parameters.items() if n.startswith(begin)}
                out = reference.output(item, own, inputs)
                self.calls[item.name], self.values[item.name] = (inputs, own, out), out.detach()

    def backward(self, item):
        edges, back = self.part.edges, len(self.part.edges)
        match item:
            case Send(value, edge):
                if edges[edge].gradient:
                    self.add(value, (yield from self.taken(back + edge)))
            case Receive():
                if edges[item.edge].gradient:
                    self.put(back + item.edge, self.by[item.name])
            case _:
                inputs, own, out = self.calls[item.name]
                wanted = [*inputs, *own.values()]
                found = torch.autograd.grad(out, wanted, self.by[item.name], materialize_grads=True)
                for name, gradient in zip(item.inputs, found, strict=False):
                    self.add(name, gradient)
                self.by_parameters |= dict(zip(own, found[len(inputs) :], strict=True))


def finish(members, slots, draw):
    """Run the members' coroutines in any order; each of them must come to its end."""
    waits = dict.fromkeys(range(len(members)))  # for the message in which slot
    while waits:
        ready = [k for k, number in waits.items() if number is None or slots[number].message is not None]
        assert ready, "all wait for each other"
        member = draw(st.sampled_from(ready)) if len(ready) > 1 else ready[0]
        try:
            waits[member] = next(members[member].steps)
        except StopIteration:
            del waits[member]


def of_the_whole(network, parameters, piece):
    """Logits, and gradients by inputs and by parameters, by autograd."""
    values = {name: value.detach().requires_grad_() for name, value in piece[0].items()}
    own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    outputs = dict(values)
    for operator in network.operators:
        mine = {name: value for name, value in own.items() if name.startswith(f"{operator.name}.")}
        outputs[operator.name] = reference.output(operator, mine, [outputs[name] for name in operator.inputs])
    logits = outputs[network.operators[-1].name]
    loss = binary_cross_entropy_with_logits(logits.squeeze(1), piece[1], reduction="mean")
    wanted = {**values, **own}
    return logits, dict(
        zip(wanted, torch.autograd.grad(loss, list(wanted.values()), materialize_grads=True), strict=True)
    )


def random_piece(network, batch, generator):
    widths = network.inputs.widths()
    values = {name: torch.from_numpy(generator.normal(size=(batch, width))) for name, width in widths.items()}
    return values, torch.from_numpy((generator.random(batch) < 0.4).astype(float))


@given(tagged(), st.data())
def test_parts_together_are_the_network(example, data):
    """Whatever the schedule: logits and gradients are autograd's, at their owners; mailboxes are empty when they are
    filled again, and at the end.
    """
    network, places = example
    generator, home = np.random.default_rng(0), data.draw(st.integers(0, places.group - 1))
    parameters = {name: torch.from_numpy(generator.normal(size=shape)) for name, shape in network.layout}
    pieces = [random_piece(network, 3, generator) for _ in range(3)]
    parts = parts_of(network, places, home)
    slots = [Slot() for _ in parts[0].edges * 2]
    members = [Interpreter(part, parameters, slots) for part in parts]
    for member in members:
        member.steps = member.run(pieces)
    finish(members, slots, data.draw)
    assert all(slot.message is None for slot in slots)
    for number, piece in enumerate(pieces):
        logits, expected = of_the_whole(network, parameters, piece)
        torch.testing.assert_close(members[home].found[number][0], logits)
        for name in (ROWS, WEIGHTS):
            found = members[home].found[number][1].get(name, torch.zeros_like(expected[name]))
            torch.testing.assert_close(found, expected[name])
        for member in members:
            for name, found in member.found[number][2].items():
                torch.testing.assert_close(found, expected[name], msg=name)


@given(tagged(), st.data())
def test_every_send_has_its_receive(example, data):
    """And every parameter one owner, and whoever computes with one has it."""
    network, places = example
    home = data.draw(st.integers(0, places.group - 1))
    parts = parts_of(network, places, home)
    for number, edge in enumerate(parts[0].edges):
        sends = [p.member for p in parts for i in p.operators if isinstance(i, Send) and i.edge == number]
        reads = [p.member for p in parts for i in p.operators if isinstance(i, Receive) and i.edge == number]
        assert (sends, reads) == ([edge.source], [edge.reader])
        assert edge.gradient == (edge.value != DENSE)
    for part in parts:
        assert part.edges == parts[0].edges
        assert part.mailboxes(7) == parts[0].mailboxes(7)
        there = part.mailboxes(7)[: len(part.edges)]
        assert [box.size for box in there] == [e.message * 7 for e in part.edges]
        assert [box.entries for box in there] == [(e.kept or e.width) * 7 for e in part.edges]
    assert sorted(name for part in parts for name in part.owned.names) == sorted(name for name, _ in network.layout)


@settings(max_examples=30, deadline=None)
@given(networks(), st.sampled_from(["*: home", "*: 0"]))
def test_a_group_of_one_is_the_network(network, rule):
    """The same operators in the same order; nothing is sent."""
    part, places = whole(network), places_of([rule], network, 1)
    for found in (part, transform(network, places, 0, 0)):
        assert found.operators == network.operators
        assert found.layout == network.layout
        assert not found.edges
        assert not found.mailboxes(7)
