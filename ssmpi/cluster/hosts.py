"""Which ranks run on which host, over the starts of one launch: surviving hosts keep their ranks, and with them their
memory; the ranks of a lost host move to a spare host, or to others that have room.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence

from ssmpi.cluster.node_layout import NodeLayout, layout_of
from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host.schedulers import Scheduler
from ssmpi.runtime.mpi.failure import say
from ssmpi.runtime.topology import Topology


class Hosts:
    """The hosts of a launch. ``of_ranks`` is empty if all ranks run on the launcher's host; ``left`` are hosts that
    ranks were moved away from.
    """

    def __init__(self, config: Config, where: Site | None) -> None:
        self.of_ranks: list[str] = []
        self._others: list[str] = []  # hosts that no rank runs on
        self.left: list[str] = []
        names = node_names(where) if where else []
        if where and names:
            self._where, self._layout = where, layout_of(config, where)
            self.of_ranks = self._layout.hosts(names)
            self._others = [name for name in names if name not in self.of_ranks]

    @property
    def used(self) -> list[str]:
        """The hosts with ranks, each once."""
        return sorted(set(self.of_ranks))

    @property
    def every(self) -> list[str]:
        """All hosts, including those that may replace lost ones."""
        return [*self.used, *self._others]

    def replace(self, silent: Sequence[str]) -> bool:
        """Move ranks away from hosts that do not answer, and log where to. False if there is no room for them."""
        lost = [host for host in self.used if host in silent]
        if not lost:
            return True
        spares = [host for host in self._others if host not in silent]
        found = moved(self.of_ranks, lost, spares, self._layout, self._where)
        if found is None:
            say(
                f"error: {', '.join(lost)} did not answer, and its ranks fit nowhere else: there is no other host for"
                " them (placement.spare_hosts, or more launcher.hosts), and the others have no room"
            )
            return False
        topology = self._layout.topology
        say(f"{', '.join(lost)} did not answer: {'; '.join(moves(topology, self.of_ranks, found))}")
        self.of_ranks = found
        self.left += [host for host in lost if host not in self.left]
        self._others = [host for host in (*self._others, *lost) if host not in found]
        return True


def check_names(where: Site) -> None:
    """Raise UserError if one of ``launcher.hosts`` has no address, by its name or by ssh's configuration."""
    if unknown := [name for name in where.launcher.hosts if not _has_address(name)]:
        raise UserError(
            f"launcher.hosts: no host is called {' or '.join(unknown)}: correct the site file, or make the name known"
            " (DNS, /etc/hosts, ~/.ssh/config)"
        )


def _has_address(host: str) -> bool:
    """False only if that is certain: a name server that does not answer says nothing about a name."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_NONAME or _ssh_name(host) not in (None, host)
    return True


def _ssh_name(host: str) -> str | None:
    """What ssh's configuration says to connect to for ``host``; None where there is no ssh."""
    if not shutil.which("ssh"):
        return None
    told = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, errors="replace").stdout
    return next((line.partition(" ")[2] for line in told.splitlines() if line.startswith("hostname ")), None)


def node_names(where: Site) -> list[str]:
    """The hosts that a launch may use; empty if it runs on this host only."""
    return job_hosts(where.scheduler) if where.scheduler else list(where.launcher.hosts)


def job_hosts(scheduler: Scheduler) -> list[str]:
    """Names of the hosts of this job; UserError where it is none, or the batch system does not say them."""
    name, job = scheduler.name, scheduler.job_name()
    if not scheduler.job_number():
        raise UserError(
            f"this site has [{scheduler.section}], but this is not a {name} job: submit it with 'ssmpi submit', "
            "or launch without --site"
        )
    try:
        names = list(dict.fromkeys(scheduler.hosts()))
    except UserError as error:
        raise UserError(f"the hosts of {job} are not known: {error}") from None
    if not names:
        raise UserError(
            f"the hosts of {job} are not known: {name} names none: submit it again, or launch without --site"
        )
    return names


def moved(
    hosts: Sequence[str], lost: Sequence[str], spares: Sequence[str], layout: NodeLayout, where: Site
) -> list[str] | None:
    """The host of each rank without the ``lost`` hosts. All ranks of a lost host go to the next spare host; without
    spares, each goes to the host with the most memory left. None if a rank has no room.
    """
    found, free = list(hosts), list(spares)
    for host in lost:
        ranks = [rank for rank, on in enumerate(found) if on == host]
        if free:
            instead = free.pop(0)
            for rank in ranks:
                found[rank] = instead
            continue
        for rank in ranks:
            found[rank] = ""
        for rank in ranks:
            room = room_for(rank, found, lost, layout, where)
            if not room:
                return None
            found[rank] = max(sorted(room), key=room.__getitem__)
    return found


def room_for(
    rank: int, hosts: Sequence[str], lost: Sequence[str], layout: NodeLayout, where: Site
) -> Mapping[str, float]:
    """The bytes left on each host that ``rank`` fits on, given the other ranks' hosts; empty if it fits on none."""
    room = {}
    for host in set(hosts) - {"", *lost}:
        needs = [
            layout.needs[layout.topology.role_of(other)[0]]
            for other, on in enumerate(hosts)
            if on == host or other == rank
        ]
        left = where.node.memory_gb * 1e9 - sum(need.bytes for need in needs)
        cores = where.node.cores - sum(need.cores for need in needs)
        if left >= 0 and (cores >= 0 or where.scheduler is None):  # without a scheduler ranks may share cores
            room[host] = left
    return room


def moves(topology: Topology, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Which ranks move where, in words."""
    to: dict[str, list[int]] = {}
    for rank, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            to.setdefault(new, []).append(rank)
    return [f"{topology.names_of(ranks)} go{'es' * (len(ranks) == 1)} to {host}" for host, ranks in to.items()]
