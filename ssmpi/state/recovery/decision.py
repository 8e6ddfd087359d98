"""How a run recovers after ranks were killed: warm, partial or full. The first rank decides, from what all ranks have
found; and once lost rows are loaded, by what this loss costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ssmpi.runtime.topology import Role

if TYPE_CHECKING:
    from ssmpi.runtime.run_options import RecoveryOptions
    from ssmpi.runtime.topology import Topology

MEMORY, PARTIAL, FULL = "memory", "partial", "full"
FROM_BEGINNING = "beginning"  # how a run recovers, if not from memory or a checkpoint
SHOWN = 3  # ranks, in a message


class Found(NamedTuple):
    """What a rank has found of its own memory: why it is lost, empty if it is not, and the start that created it."""

    why: str
    start: int = 0


class Choice(NamedTuple):
    """``how`` the run recovers, the ranks whose memory is ``lost``, and ``why``, a sentence without a full stop."""

    how: str
    lost: tuple[int, ...]
    why: str


def choose(found: Sequence[Found], starts: Sequence[int], topology: Topology, options: RecoveryOptions) -> Choice:
    """Warm recovery if no memory is lost, else partial recovery if possible, else full. ``found`` is by rank;
    ``starts`` is the first trainer's note of which start created each rank's memory, if its own memory is intact.
    Whether partial recovery keeps the target PLS is not known before the lost rows are loaded: ``over_target``.
    """
    checked = [_checked(each, start) for each, start in zip(found, starts or [0] * len(found), strict=True)]
    if starts:
        lost = tuple(rank for rank, each in enumerate(checked) if each.why)
    else:
        lost = tuple(rank for rank, each in enumerate(found) if each.why) or (0,)
    if not lost:
        return Choice(MEMORY, (), "")
    why = _names(lost, topology, checked[lost[0]].why or "the last start was killed before every rank had its memory")
    if refusal := _why_not_partial(lost, topology, options):
        return Choice(FULL, lost, f"{why}, {refusal}")
    return Choice(PARTIAL, lost, why)


def over_target(pls: float, options: RecoveryOptions) -> str:
    """Why rows are not recovered in part if that brings the run's PLS, as booked, to ``pls``; empty if they are. Within
    the target it costs less than full recovery in any case, because nothing is trained again.
    """
    if options.mode == PARTIAL or pls <= options.target_pls:
        return ""
    return (
        f"partial recovery would bring the run's PLS to {pls:.3g}, above recovery.target_pls = {options.target_pls:g}"
    )


def _checked(found: Found, start: int) -> Found:
    """``found``, but lost if another start than ``start`` created it: a rank may return to a host that it had left."""
    if not found.why and start and found.start != start:
        return found._replace(why=f"what is there is that of start {found.start}, not {start}")
    return found


def _names(lost: Sequence[int], topology: Topology, why: str) -> str:
    names = [topology.name_of(rank) for rank in lost]
    more = f" and {len(names) - SHOWN} others" * (len(names) > SHOWN)
    return f"the memory of {', '.join(names[:SHOWN])}{more} is lost ({why})"


def _servers(lost: Sequence[int], topology: Topology) -> int:
    """How many of the lost ranks are embedding PSs."""
    return sum(topology.role_of(rank)[0] is Role.EMBEDDING_PS for rank in lost)


def _without_a_twin(lost: Sequence[int], topology: Topology) -> str:
    """A lost trainer whose parameters nobody else has: neither the same member of another replica nor a whole center;
    empty if there is none.
    """
    played = list(map(topology.role_of, lost))
    trainers = [index for role, index in played if role is Role.TRAINER]
    if topology.sync_ps and Role.SYNC_PS not in dict(played):
        return ""
    for trainer in trainers:
        if set(range(trainer % topology.group, topology.trainers, topology.group)) <= set(trainers):
            return topology.name_of(trainer)
    return ""


def _why_not_partial(lost: Sequence[int], topology: Topology, options: RecoveryOptions) -> str:
    """Why partial recovery of this loss is impossible or disabled; empty if it is possible."""
    if (Role.TRAINER, 0) in map(topology.role_of, lost):
        return "and the first trainer's is needed to resume"
    if alone := _without_a_twin(lost, topology):
        return f"and neither another group nor a sync PS has the parameters of {alone}"
    if options.mode == FULL:
        return "and recovery.mode = 'full'"
    if _servers(lost, topology) > (most := options.most_lost(topology.embedding_ps)):
        return f"and recovery.max_lost_fraction = {options.max_lost_fraction:g} allows {most} lost embedding PSs"
    return ""
