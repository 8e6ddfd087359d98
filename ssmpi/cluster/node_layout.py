"""Which rank goes to which node: arithmetic over the topology and the site, printable before any process exists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.words import counted
from ssmpi.state.memory_needs import checkpoint_copies, memory_of_ranks
from ssmpi.state.requirements import Host, alternatives, placement_of


class NoMemoryError(TopologyError):
    """A node has too little memory for its ranks."""


@dataclass(frozen=True)
class Resources:
    """What one rank of a role needs on its node. ``spare`` is memory that it uses if there is room: for a copy of its
    rows while a checkpoint is written.
    """

    cores: int
    bytes: float
    spare: float = 0.0


@dataclass(frozen=True)
class NodeLayout:
    """``nodes[r]`` is the node of rank r, counted from 0; ``needs`` is what a rank of each role takes."""

    topology: Topology
    nodes: tuple[int, ...]
    needs: Mapping[Role, Resources]

    @property
    def count(self) -> int:
        """Number of nodes."""
        return max(self.nodes) + 1

    def ranks_on(self, node: int) -> list[int]:
        """World ranks of one node."""
        return self._ranks[node]

    @cached_property
    def _ranks(self) -> list[list[int]]:
        ranks: list[list[int]] = [[] for _ in range(self.count)]
        for rank, node in enumerate(self.nodes):
            ranks[node].append(rank)
        return ranks

    def need_of(self, node: int) -> Resources:
        """What all ranks of one node need together."""
        needs = [self.needs[self.topology.role_of(rank)[0]] for rank in self.ranks_on(node)]
        return Resources(*(sum(getattr(need, name) for need in needs) for name in ("cores", "bytes", "spare")))

    def kept_on(self, node: int, kept: Mapping[Role, float]) -> float:
        """Bytes that all ranks of one node keep in memory files, given those of one rank of each role."""
        return sum(kept.get(self.topology.role_of(rank)[0], 0.0) for rank in self.ranks_on(node))

    @property
    def tasks_per_node(self) -> int:
        """Ranks on the node with the most ranks."""
        return max(len(self.ranks_on(node)) for node in range(self.count))

    @property
    def cores_per_task(self) -> int:
        """Cores to request per task, so that ``tasks_per_node`` tasks cover every node."""
        return math.ceil(max(self.need_of(node).cores for node in range(self.count)) / self.tasks_per_node)

    def memory_gib(self, site: Site) -> int:
        """Memory to request per node, in whole GiB: the largest need and a quarter as reserve, plus ``spare``, but no
        more than a node has.
        """
        needs = [self.need_of(node) for node in range(self.count)]
        wanted = max(1.25 * need.bytes + need.spare for need in needs)
        return min(math.ceil(wanted / 2**30), math.floor(site.node.memory_gb * 1e9 / 2**30))

    def describe(self, site: Site) -> str:
        """Which ranks are on which node, and how much of it they use."""
        count = self.count
        lines = [f"{counted(self.topology.size, 'rank')} ({self.topology.arithmetic()}) on {counted(count, 'node')}:"]
        for node in range(count):
            need = self.need_of(node)
            crowded = " (over-subscribed: they share)" if need.cores > site.node.cores else ""
            names = self.topology.names_of(self.ranks_on(node))
            memory = f"{need.bytes / 1e9:.1f} of {site.node.memory_gb:g} GB"
            if need.bytes + need.spare > site.node.memory_gb * 1e9:
                memory += " (no room for copies: training waits while a checkpoint is written)"
            lines.append(f"  node {node}: {need.cores} of {site.node.cores} cores{crowded}, {memory}: {names}")
        return "\n".join(lines)

    def loads(self) -> list[Host]:
        """What is on each node."""
        holders = self.topology.ranks_of(Role.EMBEDDING_PS) or range(1)
        return [
            Host(self.need_of(node).bytes, sum(rank in holders for rank in self.ranks_on(node)))
            for node in range(self.count)
        ]

    def hosts(self, names: list[str]) -> list[str]:
        """The host of each rank, given the nodes' names."""
        if len(names) < self.count:
            raise TopologyError(
                f"the job is laid out for {counted(self.count, 'node')}, but there are {len(names)} "
                f"({' '.join(names)}): ask for --nodes={self.count}, or let 'ssmpi submit' do that"
            )
        return [names[node] for node in self.nodes]


def layout_of(config: Config, site: Site, placement: Placement | None = None) -> NodeLayout:
    """The layout of a run; reads the data's manifest unless ``placement`` says where rows go. TopologyError, with what
    would make them fit, if the ranks do not.
    """

    def laid(config: Config, placement: Placement) -> NodeLayout:
        return lay_out(config.topology, site, memory_of_ranks(config, placement), checkpoint_copies(config, placement))

    placement = placement or placement_of(config)
    try:
        return laid(config, placement)
    except NoMemoryError as error:
        limit, placed = site.node.memory_gb * 1e9, site.placement
        found = alternatives(config, placement, limit, lambda *run: laid(*run).loads(), more_hosts=True)
        others = ["lower placement.trainers_per_node"] * (placed.trainers_per_node > 1)
        others += ['set placement.servers = "packed"'] * (placed.servers == "spread")
        raise TopologyError(f"{error}{found}{' or '.join(others) or 'take nodes with more memory'}") from None


def lay_out(
    topology: Topology, site: Site, memory: Mapping[Role, float], spare: Mapping[Role, float] | None = None
) -> NodeLayout:
    """Put every rank on a node as the site file says; ``memory`` and ``spare`` are bytes of one rank of each role.

    Raises TopologyError, with the arithmetic, if the ranks do not fit.
    """
    placement = site.placement
    trainer_cores = placement.trainer_cores or topology.threads + 1
    cores = {role: placement.server_cores if role.traits.serves else trainer_cores for role in Role}
    needs = {role: Resources(cores[role], memory[role], (spare or {}).get(role, 0.0)) for role in Role}
    trainers = math.ceil(topology.trainers / placement.trainers_per_node)
    nodes = [index // placement.trainers_per_node for index in range(topology.trainers)]
    if placement.servers == "spread":
        nodes += [index % trainers for index in range(topology.embedding_ps + topology.sync_ps)]
    else:
        nodes += _packed(topology, site, needs, first=trainers)
    layout = NodeLayout(topology, tuple(nodes), needs)
    _check(layout, site)
    return layout


def _packed(topology: Topology, site: Site, needs: Mapping[Role, Resources], first: int) -> list[int]:
    """Put PSs on nodes from ``first`` on; fill one node after the other."""
    nodes: list[int] = []
    node, cores, size = first, 0, 0.0
    for role in (role for role in Role if role.traits.serves):
        for _ in topology.ranks_of(role):
            cores, size = cores + needs[role].cores, size + needs[role].bytes
            if nodes and (cores > site.node.cores or size > site.node.memory_gb * 1e9):
                node, cores, size = node + 1, needs[role].cores, needs[role].bytes
            nodes.append(node)
    return nodes


def _check(layout: NodeLayout, site: Site) -> None:
    """Raise TopologyError if the ranks do not fit."""
    available, spare = site.nodes, site.placement.spare_hosts
    if available is not None and layout.count + spare > available:
        trainers = counted(site.placement.trainers_per_node, "trainer")
        nodes = f"{layout.count} + {spare} spare nodes" if spare else counted(layout.count, "node")
        raise TopologyError(
            f"{nodes} needed ({layout.topology.arithmetic()}, {trainers} a node, servers {site.placement.servers}), "
            f"the site has {available}: raise placement.trainers_per_node, or lower topology.trainers"
        )
    for node in range(layout.count):
        need, names = layout.need_of(node), layout.topology.names_of(layout.ranks_on(node))
        if need.bytes > site.node.memory_gb * 1e9:
            raise NoMemoryError(
                f"does not fit: node {node} ({names}) needs {need.bytes / 1e9:,.1f} GB of memory, the site's nodes"
                f" have {site.node.memory_gb:g}"
            )
        if need.cores > site.node.cores and site.scheduler:
            raise TopologyError(
                f"does not fit: node {node} ({names}) needs {need.cores} cores, "
                f"the site's nodes have {site.node.cores}: "
                'lower topology.threads or placement.trainers_per_node, or set placement.servers = "packed"'
            )
