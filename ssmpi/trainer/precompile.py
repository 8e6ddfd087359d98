"""Loads or compiles the kernels of steps, of counting and of pauses before the clock starts: the first call of each
takes up to seconds. Codecs compile their own (``compress.compile_kernels``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ssmpi import sync
from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.placement import Placement, place
from ssmpi.embedding.read_ahead import read_ahead_of
from ssmpi.embedding.shards import LocalShard, Tables, local_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import scope_of
from ssmpi.model.lane import HelperModel, HomeModel, MemberModel
from ssmpi.model.member_program import MemberProgram, transform
from ssmpi.model.messages import Channel
from ssmpi.model.network import floats_in
from ssmpi.model.replica import Replica, ThreadModel, dense_optimizer
from ssmpi.runtime.bags import Bags
from ssmpi.runtime.mpi.mailbox import LATE
from ssmpi.trainer.progress import Progress

if TYPE_CHECKING:
    from ssmpi.config import Config

M = TypeVar("M", bound=MemberModel)


DYNAMIC = DynamicOptions(keys=1, expire_after_examples=1)


def compile_kernels(config: Config, replica: Replica, batch: Batch, *, messages: bool, trainer: int) -> None:
    """Steps on the dummy rows of ``batch``, by tables and an optimizer of its own, that leave ``replica`` unchanged;
    ``messages``: rows of some PSs are on other hosts. One finds on disk what another ``trainer`` has compiled: so they
    begin at different ends.
    """
    batch.like(len(batch)).take(np.arange(len(batch)), 0, batch)
    parts = (
        partial(_compile_tables, config, replica, batch, messages),
        partial(_compile_network, config, replica, batch),
    )
    for compile_part in parts[::-1] if trainer % 2 else parts:
        compile_part()


def _compile_tables(config: Config, replica: Replica, batch: Batch, messages: bool) -> None:
    """Pull and push."""
    tables, keyed = replica.network.inputs.tables, batch.keys.shape[1]
    names = [f"C{k + 1}" for k in range(tables)]
    placement = place((0,) * keyed + (1,) * (tables - keyed), 1, DYNAMIC if keyed else DynamicOptions(), names)
    if isinstance(batch.ids, Bags):
        batch.ids.starts[1:-1] = 0  # one long list
    for transport in _transports(config, placement, messages):
        if read_ahead := read_ahead_of(transport):
            read_ahead(batch)
        lookups = Lookups(transport, 0, PrefetchedRows(lambda: False))
        ((_, lookup),) = lookups.prefetched([batch])
        gradients = np.zeros_like(lookup.values)
        lookups.push(lookup, gradients)
        if sync.algorithm_of(config.sync).in_the_step:  # even mapped rows are updated by what trainers have summed
            transport.update(lookup, lookup.summed(gradients), 1.0, 0)
        transport.drain()
        lookup.occurrences()
        pauses = (0, 9) if keyed or config.embedding.table_decay else ()  # date rows, then free them
        for examples in pauses:
            transport.sweep(examples)


def _compile_network(config: Config, replica: Replica, batch: Batch) -> None:
    """Both passes and the optimizer's step, and counting."""
    measured, inputs = replica.measured.values.copy(), replica.network.inputs
    given = batch.dense, np.zeros((len(batch), inputs.tables, replica.network.rows.width), np.float32), batch.labels
    model = replica.thread_model(np.zeros(replica.network.parameters, np.float32))
    logits, _ = model.forward_backward(*given)
    Progress(1, 1, config.schedule).record(0, logits, batch.labels)
    if not replica.owned.complete:
        model = _compile_lanes(config, replica, given)
    model.gradients[:] = 0.0
    dense_optimizer(config.dense, replica).step(model, 0.0)
    replica.measured.values[:] = measured  # dummy rows are no batch


def _transports(config: Config, placement: Placement, messages: bool) -> Iterator[Tables]:
    """Tables in this process, and by ``messages`` those of a PS, for kernels of both ends, with bags that are pooled at
    either.
    """
    arena, scope = Arena(config.rows, placement, 0, seed=0), scope_of(placement, 0)
    if config.tracking.counts:
        arena.set_observer(config.tracking.over(scope, np.zeros(config.tracking.bytes_for(scope), np.uint8)).observe)
    yield local_tables(arena, tracking=config.tracking)
    poolings = ("trainer",) if config.embedding.pooling == "trainer" else ("trainer", "server")
    for pooling in poolings if messages else ():
        settings = replace(config.embedding, pooling=pooling)
        shard = LocalShard(arena, mapped=False, tracking=config.tracking)
        yield Tables([shard], placement, replace(config.rows, settings=settings), tracking=config.tracking)


def _compile_lanes(config: Config, replica: Replica, batch: tuple[np.ndarray, np.ndarray, np.ndarray]) -> ThreadModel:
    """A step in a lane of every home, whose mailboxes have failed, so that it neither sends nor waits; a model of what
    ``replica`` owns.
    """

    def of(kind: type[M], part: MemberProgram) -> M:
        dead = Channel(np.zeros(len(part.mailboxes(0)), np.int64), 1, lambda *_: _Silent(), np.array([0, LATE]))
        return kind(part, np.zeros(floats_in(part.layout), np.float32), replica.precision, dead)

    member = replica.part.member
    for home in filter(config.topology.is_home, range(config.topology.group)):
        part, steps = transform(replica.network, config.places, member, home), list[Callable[[], object]]()
        if part.at_home:
            model = of(HomeModel, part)
            steps += partial(model.forward_backward, *batch), partial(model.send_gradients, 0.0), model.close
        elif member in part.helpers:
            steps.append(partial(next, of(HelperModel, part).steps()))
        for step in steps:
            with contextlib.suppress(_Silent):
                step()
    return of(MemberModel, replica.part)


class _Silent(Exception):  # noqa: N818 - it says that nothing was sent
    """Raised instead of waiting."""
