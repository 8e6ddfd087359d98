"""Partial recovery: rebuilds the lost memory of some ranks before any role starts, while all other ranks keep theirs.

The rows of a lost embedding PS are loaded here, into new memory that becomes valid once the first trainer books the
loss (``restart.resumed``): if a rank dies before that, the recovery simply starts over. Lost trainers and sync PSs get
new memory too, which their roles fill (``warm_state``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ssmpi.embedding.table import ROWS
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import during
from ssmpi.runtime.topology import Role
from ssmpi.state.checkpoint import parent
from ssmpi.state.checkpoint.rows import newest
from ssmpi.state.checkpoint.rows.newest import Reloaded
from ssmpi.state.checkpoint.store import read_manifest
from ssmpi.state.recovery.decision import over_target
from ssmpi.state.recovery.ledger import Ledger
from ssmpi.state.recovery.row_saves import expected_examples
from ssmpi.state.recovery.start import Repair, Start
from ssmpi.state.recovery.warm_state import NOTHING, deal_left, own_memory
from ssmpi.sync import algorithm_of

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.mpi.world import Job
    from ssmpi.state.recovery.start import ResumePlan


def rebuild_lost_memory(job: Job, plan: ResumePlan, start: Start, lost: Collection[int], number: int) -> Start | str:
    """Every rank calls it, with new memory in its ``start`` if it is among the ``lost``; start ``number`` then created
    that memory. Returns the state that the rank starts from or, on all ranks, why recovery failed or costs too much.
    """
    topology = plan.config.topology
    outcome: Reloaded | str | None = None
    roles = job.on_this_host(topology.role_of(job.rank)[0])
    if job.rank in lost and topology.role_of(job.rank)[0] is Role.EMBEDDING_PS:
        outcome = reload_rows(job.rank, plan, start, roles)
    outcomes = job.gather(outcome)
    for rank, each in enumerate(outcomes):
        if isinstance(each, str):
            return f"that of {topology.name_of(rank)} cannot be rebuilt ({each})"
    of_role = {
        role: frozenset(index for played, index in map(topology.role_of, lost) if played is role) for role in Role
    }
    repair = Repair(
        trainers=of_role[Role.TRAINER],
        sync_ps=of_role[Role.SYNC_PS],
        checkpoint=next(iter(plan.checkpoints), None),
        ranks=dict.fromkeys(lost, number),
        loaded={topology.role_of(rank)[1]: each for rank, each in enumerate(outcomes) if isinstance(each, Reloaded)},
    )
    if repair.loaded and (why := over_target(booked_pls(job, plan, start, repair), plan.config.recovery)):
        return why
    return replace(start, repair=repair)


def booked_pls(job: Job, plan: ResumePlan, start: Start, repair: Repair) -> float:
    """The run's PLS after this recovery, as the first trainer will book it. Every rank calls it."""
    config, topology = plan.config, plan.config.topology
    role, index = topology.role_of(job.rank)
    survives = role is Role.TRAINER and index not in repair.trainers
    found = job.gather(own_memory(config, index, start.memory) if survives else NOTHING)
    trainers = [each for rank, each in enumerate(found) if topology.role_of(rank)[0] is Role.TRAINER]

    def booked() -> float:
        assert start.ledger
        now = deal_left(trainers, repair.trainers).examples
        return start.ledger.reloaded(repair.ranks, repair.taken, now).pls(expected_examples(config))

    return job.agree(booked)


def reload_rows(rank: int, plan: ResumePlan, start: Start, roles: Sequence[Role]) -> Reloaded | str:
    """Load the rows of an embedding PS, on a host with ranks of these ``roles``; returns why, if that fails."""
    config, began = plan.config, time.monotonic()
    index = config.topology.role_of(rank)[1]
    with during(f"reloading the rows of embedding_ps {index}"):
        try:
            arena, *_ = newest.arena_in(start.memory, config, index, roles)
            if plan.parent:  # there is no checkpoint yet
                plan.parent.check()
                model, fresh = plan.parent.folder, config.run.fresh_optimizer
                parent.load_rows(arena, model, index, partial(newest.verify, read_manifest(model)), fresh=fresh)
            found = newest.restore(arena, index, config.run.path, plan.checkpoints, start.timeline)
        except (DataError, OSError) as error:
            return str(error)
    if not start.memory.holds(ROWS):
        return "there is no room for its memory"
    return replace(found, seconds=time.monotonic() - began)


def record_fields(start: Start) -> dict[str, Any]:
    """The fields of this ``start`` in ``recoveries.json`` that are known before its roles start."""
    loaded = start.repair.loaded if start.repair else {}
    return {
        "rows_reloaded": sum(each.rows for each in loaded.values()),
        "sources": {f"embedding_ps {index}": each.source for index, each in loaded.items()},
        "seconds": {"load": round(max((each.seconds for each in loaded.values()), default=0.0), 3)},
    }


def losses(config: Config, start: Start, state: Mapping[str, Any]) -> tuple[Ledger, dict[str, Any]]:
    """The ledger with the losses of this partial recovery, and its fields in ``recoveries.json`` that are known once
    the trainers' ``state`` is merged.
    """
    before, repair, now = start.ledger or Ledger(), start.repair, state["examples"]
    assert repair
    ledger = before.reloaded(repair.ranks, repair.taken, now)
    threads = config.topology.replica_lanes * algorithm_of(config.sync).steps_elsewhere
    return ledger, {
        "samples_lost": ledger.samples_lost - before.samples_lost,
        "updates_lost": repair.updates_lost(before, now),
        "rows_dealt_again": state["reassigned"][1],
        "accounts_lost": len(repair.trainers) * threads,
    }
