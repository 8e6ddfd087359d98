"""One lane of a group: the model of its home and those of its helpers, which compute each step together by mailboxes::

    the home                                            a helper
                                                        posts WEIGHTS, what it owns of the operators at home
    takes WEIGHTS into its copies
    posts BEGIN, the size and place of its batch        takes BEGIN
    computes its part, forward and backward             computes its part, forward and backward
    posts STEP: the gradients of its copies,            takes STEP, and puts these gradients beside its own
    and the rate's factor
    steps all that it owns                              steps all that it owns
    ...                                                 posts WEIGHTS
    takes WEIGHTS, posts BEGIN of -1 examples           ends

No mailbox is filled again before its last message was read. A value's next message follows the loss of the piece before
at home, which needs what was read, and a gradient's next message follows the value's. BEGIN and STEP follow WEIGHTS, or
else a loss that needed the helper's part; WEIGHTS follow STEP, which the home posts after it has read them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ssmpi.model import blas, brgemm, kernels
from ssmpi.model.estimates import Estimates
from ssmpi.model.executor import CompiledStep, finish, run_step
from ssmpi.model.member_program import FACTOR, MemberProgram
from ssmpi.model.messages import Channel, Mail, mail_of, receive, send
from ssmpi.model.network import floats_in
from ssmpi.model.program import Program
from ssmpi.model.replica import ThreadModel
from ssmpi.model.step_args import GRADIENTS, WEIGHTS
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.protocols import DenseModel, DenseStep

CLOSE = -1  # examples in BEGIN: there are no more
SIZE_BITS = 31  # of BEGIN hold the size of the batch; those above hold the number of its first example


class MemberModel(ThreadModel):
    """A ``part`` over ``memory``, float32, in the part's layout, with gradients of its own, for one lane, whose
    mailboxes are ``channel``. ``estimates`` are those of the whole network. Create it on its thread.
    """

    def __init__(
        self, part: MemberProgram, memory: np.ndarray, precision: str, channel: Channel,
        estimates: Estimates | None = None,
    ) -> None:  # fmt: skip
        self.weights = memory[: floats_in(part.layout)]
        self._gradients, self._owned = aligned(self.weights.shape), floats_in(part.owned.layout)
        self._gradients.fill(0.0)
        self.part, self.channel, sgemm, found = part, channel, blas.sgemm(), brgemm.kernels(precision)
        if not sgemm or (precision == "bf16" and not found):
            raise SettingsError(
                f"model.precision = '{precision}' would be computed by torch on this processor, and a group's members "
                "compute by compiled code only: set 'fp32', or topology.group = 1"
            )
        self.estimates = estimates or Estimates(part.network)
        program = Program(part, precision, self.estimates)
        self._compiled = CompiledStep(program, self.weights, self._gradients, sgemm, found or brgemm.NONE, channel)
        self._words = self._compiled.args.words


class HomeModel(MemberModel):
    """The model of the lane's home."""

    def __init__(
        self, part: MemberProgram, memory: np.ndarray, precision: str, channel: Channel,
        estimates: Estimates | None = None,
    ) -> None:  # fmt: skip
        super().__init__(part, memory, precision, channel, estimates)
        begins = [part.begin(helper) for helper in part.helpers]
        sizes = [floats_in(part.lent.get(helper, ())) for helper in part.helpers]
        self._helpers = np.array([begins, list(part.copies.values()), sizes], np.int64).T.copy()

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``ThreadModel``'s, with the helpers; the gradients of copies are left for ``send_gradients``."""
        assert self._compiled
        logits, by_rows = self._compiled.results.of(rows)
        _step_at_home(self._words, self._helpers, dense, rows, labels, logits, by_rows, first_example)
        self.channel.check()
        return logits, by_rows

    def send_gradients(self, factor: float) -> None:
        """Let the helpers take their step, at ``factor`` times the learning rate."""
        _send_gradients(self._words, self._helpers, self._owned, factor)
        self.channel.check()

    def close(self) -> None:
        """Wait for the helpers' last steps, and let them end."""
        _begin_step(self._words, self._helpers, CLOSE, 0)
        self.channel.check()


class HomeOptimizer:
    """Steps what a home owns by ``own``, and lets the lane's helpers step the rest."""

    def __init__(self, own: DenseStep) -> None:
        self._own = own

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        assert isinstance(model, HomeModel)
        model.send_gradients(factor)
        self._own.step(model, factor)


class HelperModel(MemberModel):
    """The model of another member, for the lane."""

    def __init__(
        self, part: MemberProgram, memory: np.ndarray, precision: str, channel: Channel,
        estimates: Estimates | None = None,
    ) -> None:  # fmt: skip
        super().__init__(part, memory, precision, channel, estimates)
        self._lent, self._begin = _lent(part), part.begin(part.member)
        self._message = np.zeros(int(self._lent[:, 1].sum()) + FACTOR, np.float32)

    def steps(self) -> Iterator[float]:
        """Compute the lane's steps until its home closes it: yields the rate's factor for each, when the gradients of
        all that this member owns are complete, to be applied before the next.
        """
        while True:
            _send_weights(self._words, self._begin, self._lent, self._message)
            count, factor = _help(self._words, self._begin, self._lent, self._message)
            self.channel.check()
            if count == CLOSE:
                return
            yield factor


def _lent(part: MemberProgram) -> np.ndarray:
    """int64 (ranges, 2): where in a helper's memory the parameters lie that it lends, and how many floats."""
    lent, found, place = {name for name, _ in part.lent.get(part.member, ())}, list[list[int]](), 0
    for name, shape in part.owned.layout:
        size = floats_in([(name, shape)])
        if name in lent and found and sum(found[-1]) == place:
            found[-1][1] += size
        elif name in lent:
            found.append([place, size])
        place += size
    return np.array(found, np.int64).reshape(-1, 2)


@njit(cache=True, nogil=True)
def _take_weights(args: np.ndarray, helpers: np.ndarray) -> None:
    """Take new copies from their owners."""
    weights, mail = array_at(args, WEIGHTS, np.float32), mail_of(args)
    for begin, place, size in helpers:
        if size:
            receive(mail, begin + 2, weights[place:], size, False, False)


@njit(cache=True, nogil=True)
def _begin_step(args: np.ndarray, helpers: np.ndarray, examples: int, first_example: int) -> None:
    """Take new copies, and tell all helpers the size of the batch, and the number of its first example."""
    _take_weights(args, helpers)
    mail, number = mail_of(args), np.full(1, examples | first_example << SIZE_BITS, np.int64)
    for begin, _, _ in helpers:
        send(mail, begin, number.view(np.float32), FACTOR, False)


@njit(cache=True, nogil=True)
def _step_at_home(
    args: np.ndarray, helpers: np.ndarray, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray,
    logits: np.ndarray, by_rows: np.ndarray, first_example: int,
) -> None:  # fmt: skip
    _begin_step(args, helpers, len(logits), first_example)
    run_step(args, dense, rows, labels, logits, by_rows, first_example)


@njit(cache=True, nogil=True)
def _send_gradients(args: np.ndarray, helpers: np.ndarray, owned: int, factor: float) -> None:
    """Send each helper the rate's factor and the gradients of its parameters; copies lie behind what is ``owned``."""
    finish(args, owned)
    gradients, mail = array_at(args, GRADIENTS, np.float32), mail_of(args)
    words = np.full(1, factor, np.float64).view(np.float32)
    for begin, place, size in helpers:
        kernels.copy(words, gradients[place + size :])
        send(mail, begin + 1, gradients[place:], size + FACTOR, False)


@njit(cache=True, nogil=True)
def _help(args: np.ndarray, begin: int, lent: np.ndarray, message: np.ndarray) -> tuple[int, float]:
    """Wait for a batch, however long that takes, compute this part of it, and take the gradients of ``lent`` parameters
    by ``message``: the size of the batch and the rate's factor.
    """
    count, first_example = _await_batch(args, begin)
    if count == CLOSE:
        return CLOSE, 0.0
    rows, nothing = np.empty((0, 0, 0), np.float32), np.empty(0, np.float32)
    run_step(args, np.empty((0, 0), np.float32), rows, nothing, np.empty(count, np.float32), rows, first_example)
    return count, _take_gradients(args, begin, lent, message)


@njit(cache=True, nogil=True)
def _await_batch(args: np.ndarray, begin: int) -> tuple[int, int]:
    """The size of the next batch, and the number of its first example; CLOSE also if a message has failed."""
    mail, number = mail_of(args), np.full(1, CLOSE, np.int64)
    patient = Mail(mail.addresses, mail.failed, 0)
    receive(patient, begin, number.view(np.float32), FACTOR, False, False)
    if number[0] == CLOSE:
        return CLOSE, 0
    return number[0] & ((1 << SIZE_BITS) - 1), number[0] >> SIZE_BITS


@njit(cache=True, nogil=True)
def _take_gradients(args: np.ndarray, begin: int, lent: np.ndarray, message: np.ndarray) -> float:
    """Take STEP: gradients of ``lent`` parameters, and the rate's factor."""
    gradients, mail = array_at(args, GRADIENTS, np.float32), mail_of(args)
    receive(mail, begin + 1, message, message.size, False, False)
    place, factor = 0, np.empty(1, np.float64)
    for first, size in lent:
        kernels.copy(message[place : place + size], gradients[first:])
        place += size
    kernels.copy(message[place:], factor.view(np.float32))
    rate_factor: float = factor[0]
    return rate_factor


@njit(cache=True, nogil=True)
def _send_weights(args: np.ndarray, begin: int, lent: np.ndarray, message: np.ndarray) -> None:
    """Send the home what it computes with of this member's parameters, if there are any."""
    weights, mail, size = array_at(args, WEIGHTS, np.float32), mail_of(args), message.size - FACTOR
    if len(lent) == 1:
        send(mail, begin + 2, weights[lent[0, 0] :], size, False)
    elif size:
        place = 0
        for first, some in lent:
            kernels.copy(weights[first : first + some], message[place:])
            place += some
        send(mail, begin + 2, message, size, False)
