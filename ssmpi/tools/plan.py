"""``ssmpi plan``: prints ranks, network, memory and traffic of a run by arithmetic, before any process exists."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ssmpi.cluster.node_layout import NodeLayout, layout_of
from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.data.features import CRITEO, Features, expected_collisions
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest
from ssmpi.embedding import wire
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.pooling import TableTraffic, chosen
from ssmpi.model import top_k
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.host.host_memory import memory_limit
from ssmpi.runtime.row_layout import RowLayout
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link
from ssmpi.runtime.words import counted
from ssmpi.state import stored_rows
from ssmpi.state.checkpoint.arena_writer import MOST
from ssmpi.state.memory_needs import (
    checkpoint_copies,
    kept_memory,
    memory_of_ranks,
    mirror_memory,
    round_cost,
    row_memory,
)
from ssmpi.state.requirements import composed, placement_of, room_for_rows, this_host
from ssmpi.state.stored_rows import HOT
from ssmpi.sync import ALL_TRAINERS, SYNC_PS, algorithm_of
from ssmpi.sync.synchronous_rows import row_gradient_bytes
from ssmpi.tools import group_plan
from ssmpi.tools.units import in_units


def describe(config: Config, where: Site | None = None, tables_file: Path | None = None) -> str:
    """The plan as text. ``where`` adds what each node needs; TopologyError if the ranks do not fit. ``tables_file``
    replaces data that is not prepared yet.
    """
    placement = placement_of(config, tables_file)
    features = features_of(config, placement, known=not tables_file)
    chosen = (
        ["\n".join(["chosen, as nothing sets it:", *(f"  {each}" for each in config.chosen)])] if config.chosen else []
    )
    config = composed(config, features)
    layout = layout_of(config, where, placement) if where else None
    sections = [
        ranks(config),
        *chosen,
        tables(config, placement, features),
        network(config, known=not tables_file),
        *([group_plan.describe(config)] if config.topology.group > 1 else []),
        memory(config, placement),
        *([stored(config, placement, layout, where)] if config.embedding.storage else []),
        *([layout.describe(where), memory_files(config, placement, layout, where)] if where and layout else []),
        traffic(config, placement),
        *([] if tables_file else [work(config)]),
    ]
    return "\n\n".join(sections)


def features_of(config: Config, placement: Placement, *, known: bool) -> Features:
    """The features of the data; before it is prepared, with as many dense ones as Criteo's rows have."""
    if known:
        return read_manifest(Path(config.data.folder)).features
    return Features.numbered(len(CRITEO.dense), len(placement.cardinalities))


def ranks(config: Config) -> str:
    """Ranks by role."""
    topology = config.topology
    lines = [f"ranks: {topology.size} = {topology.arithmetic()}   (mpirun -n {topology.size})"]
    for role, count in topology.counts.items():
        if count:
            span = topology.ranks_of(role)
            threads = f", {counted(topology.threads, 'worker thread')} each" if role is Role.TRAINER else ""
            last = f"to {span.stop - 1:<4}" if count > 1 else " " * 7
            lines.append(f"  {span.start:>4} {last} {role}{threads}")
    return "\n".join(lines)


def tables(config: Config, placement: Placement, features: Features) -> str:
    """The tables of each embedding PS, with memory and expected lookups."""
    row, kept = config.rows.row_bytes, config.embedding.precision
    whole = row + 4 * config.rows.layout.width - config.rows.weight_bytes
    half = f" in {kept} ({row} bytes a row, {whole} in fp32)" if kept != "fp32" else ""
    lines = [
        f"embedding tables: {counted(sum(placement.cardinalities), 'row')} x {_floats(config.rows.layout)}{half}, "
        f"{in_units(sum(placement.cardinalities) * row)} with {config.embedding.optimizer} state"
    ]
    for server in range(placement.servers):
        names = [
            features.sparse[p.table] if p.stride == 1 else f"{features.sparse[p.table]}[{p.first}::{p.stride}]"
            for p in sorted(placement.parts_of(server), key=lambda p: p.table)
        ]
        where = holder(config, server)
        lines.append(
            f"  {where}: {in_units(placement.rows_of(server) * row)}, {placement.lookups_of(server):.2f} lookups an "
            "example: " + " ".join(names)
        )
    if placement.keyed:
        lines += _keyed(config, placement, features)
    return "\n".join(lines)


def holder(config: Config, server: int) -> str:
    """Who holds the rows of a PS."""
    return f"embedding_ps {server}" if config.topology.embedding_ps else "trainer 0"


def _keyed(config: Config, placement: Placement, features: Features) -> list[str]:
    """About the dynamic tables among them."""
    limits = {features.sparse[table]: each.keys for table, each in placement.dynamic.items()}
    collisions = sum(expected_collisions(keys) for keys in limits.values())
    most = ", ".join(f"{name} up to {keys:,} keys" for name, keys in limits.items())
    return [
        f"  dynamic: {most}, all counted above; memory comes in steps, with what finds rows by key:",
        *(
            f"    {holder(config, server)}: {in_units(row_memory(config, placement, server, first=True))} at first, "
            f"{in_units(row_memory(config, placement, server))} at the limit"
            for server in range(placement.servers)
        ),
        f"  of so many tokens {collisions:.2g} pairs are expected to share a 64-bit key",
    ]


def _floats(layout: RowLayout) -> str:
    """The floats of a row, with their meaning if they are not just a vector."""
    return f"{layout.width} ({layout.describe()})" if layout.weight else f"{layout.width}"


def network(config: Config, *, known: bool = True) -> str:
    """The dense network, an operator a line; widths are floats per example."""
    found = config.network
    parameters = counted(found.parameters, "parameter")
    head = f"network: {config.model.name}, {parameters} ({in_units(4 * found.parameters)})"
    lines = [*found.describe(), *top_k.describe(found)]
    assumed = f"  over {found.inputs.dense} dense features as in Criteo's rows: the data is not prepared yet"
    return "\n".join([head, *([] if known else [assumed]), *(f"  {line}" for line in lines)])


def memory(config: Config, placement: Placement) -> str:
    """Expected memory of one rank of each role."""
    lines, first = ["memory of one rank, libraries included:"], memory_of_ranks(config, placement, first=True)
    for role, size in memory_of_ranks(config, placement).items():
        if config.topology.counts[role]:
            grown = f", {in_units(first[role])} until dynamic tables grow" if first[role] < size else ""
            lines.append(f"  {role}: about {in_units(size)}{grown}")
    if mirrors := mirror_memory(config):
        shown = ", ".join(f"{role} {in_units(size)}" for role, size in mirrors.items())
        lines.append(f"  of that for mirrors of codecs: {shown}")
    if kept := kept_memory(config, placement):
        shown = ", ".join(f"{role} {in_units(size)}" for role, size in kept.items() if config.topology.counts[role])
        lines.append(f"  room in {config.recovery.memory_folder}, to outlive a kill: {shown}")
    if folder := config.embedding.storage:
        stored = in_units(float(placement.most_rows * config.rows.row_bytes))
        lines.append(f"  rows of one PS in {folder}: {stored}; those used most stay in memory that is free")
    for role, size in checkpoint_copies(config, placement).items():
        lines.append(f"  {role} while a checkpoint is written: {in_units(size)} more, if there is room")
    return "\n".join(lines)


def stored(config: Config, placement: Placement, layout: NodeLayout | None, where: Site | None) -> str:
    """What it costs that rows lie on disks, of this host or of the nodes, and whether checkpoints copy them
    (``arena_writer``).
    """
    hosts = layout.loads() if layout else [this_host(config, placement, first=False)]
    room = room_for_rows(hosts, where.node.memory_gb * 1e9 if where else memory_limit())
    copies = placement.servers * placement.most_rows * config.rows.row_bytes * config.checkpoint.background
    copied = 2 * copies <= MOST * (room - min(copies, HOT * room))
    counts = stored_rows.occurrences(Path(config.data.folder), placement.cardinalities)
    lines = [
        f"rows on disk: with {in_units(room)} of memory left for them {counts.misses(config.rows.row_bytes, room)}"
    ]
    if counts.tables or placement.keyed:
        rows = sum(map(placement.rows_of, range(placement.servers)))
        most = in_units(min(HOT * room, float(rows * config.rows.row_bytes)))
        lines.append(f"  hot rows: at most {most} of that, in {config.recovery.memory_folder}")
    if copies:
        also = "for their copy besides" if copied else "would be needed for a copy: training waits"
        lines.append(f"  while a checkpoint is written: {in_units(copies)} {also}")
    return "\n".join(lines)


def memory_files(config: Config, placement: Placement, layout: NodeLayout, where: Site) -> str:
    """What the ranks of a node keep in its memory file system, compared with that file system's default size, half of
    the node's memory.
    """
    kept, folder, room = kept_memory(config, placement), config.recovery.memory_folder, where.node.memory_gb * 1e9 / 2
    if not kept:
        return "memory files: none (recovery.mode = 'off'): a killed rank ends the job"
    needs = [layout.kept_on(node, kept) for node in range(layout.count)]
    lines = [
        f"memory files: node {node} keeps {in_units(need)} in {folder}, more than the {in_units(room)} that it has by "
        f"default: make it larger (mount -o remount,size=...), or a killed rank there costs what came after the newest "
        "checkpoint"
        for node, need in enumerate(needs)
        if need > room
    ]
    most, has = in_units(max(needs)), f"{folder} has {in_units(room)} by default (half of memory)"
    return "\n".join(lines or [f"memory files: at most {most} a node, {has}"])


def row_bytes(config: Config, placement: Placement) -> tuple[float, float]:
    """Payload of pulls and of pushes in an iteration whose ids are all different; with lists as long as on average."""
    width, servers, batch, counted = (
        config.rows.layout.width, placement.servers, config.data.batch_size, config.tracking.counts
    )  # fmt: skip
    weighted = has_weights(config)
    traffic = [TableTraffic.most(placement, t, batch, width, weighted=weighted) for t in range(len(placement.lengths))]
    pooled = chosen(config.rows, np.array(placement.lengths) != 1, traffic)
    singles = batch * sum(length for length, by_bag in zip(placement.lengths, pooled, strict=True) if not by_bag)
    found = [each for each, by_bag in zip(traffic, pooled, strict=True) if by_bag]
    ids, sums = sum(each.ids for each in found), sum(each.sums for each in found)
    of_bags = wire.pulled_bag_bytes(sums, ids, width, weighted=weighted)
    size, numbered = config.rows.pulled_dtype.itemsize, config.embedding.precision != "fp32"
    pulled = wire.pulled_bytes(servers, singles, width, size) + of_bags
    of_bags = wire.pushed_bag_bytes(sums, ids, ids, width, weighted=weighted)
    timed = config.embedding.table_decay > 0
    pushed = wire.pushed_bytes(servers, singles, width, counted=counted, numbered=numbered, timed=timed)
    return pulled, pushed + of_bags


def has_weights(config: Config) -> bool:
    """Whether ids of the run's data have weights, if it is prepared."""
    try:
        return read_manifest(Path(config.data.folder)).features.has_weights
    except DataError:
        return False


def traffic(config: Config, placement: Placement) -> str:
    """Traffic per iteration of a thread and per round of a trainer; repeated ids of a batch are sent once."""
    ids = config.data.batch_size * sum(placement.lengths)
    dim, servers, n = config.rows.layout.width, placement.servers, config.topology.replicas
    lines = ["on the wire, at most:"]
    who = "trainers" if config.topology.group == 1 else "replicas"
    if config.topology.embedding_ps:
        pulled, pushed = row_bytes(config, placement)
        size = config.rows.pulled_dtype.itemsize
        lines.append(
            f"  an iteration: {in_units(pulled)} pulled, {in_units(pushed)} pushed, "
            f"{2 * servers} messages out, {servers} in"
        )
        if keyed := len(placement.keyed):
            asked = wire.key_bytes(config.data.batch_size * keyed) + wire.pulled_bytes(0, keyed, dim, size)
            lines.append(
                f"  and for keys of PSs on other hosts: {in_units(asked)} more, {servers} messages in: keys, and rows "
                "that they share"
            )
    kind, sent = algorithm_of(config.sync), round_cost(config).sent
    when = "an iteration, too" if kind.in_the_step else "a round"
    if kind.in_the_step and n > 1:
        rows = in_units(row_gradient_bytes((n - 1) / n * ids, dim))
        lines.append(f"  an iteration, too: {rows} of row gradients to other trainers")
    if kind.partner == SYNC_PS:
        there, back = (in_units(sent[link]) for link in (Link.CENTER_PUSH, Link.CENTER_PULL))
        lines.append(f"  {when}: {there} to {kind.partner} and {'as much' if there == back else back} back")
    elif kind.partner == ALL_TRAINERS:
        lines.append(f"  {when}: {in_units(sent[Link.TRAINERS])} sent by each of {n} {who} (ring all-reduce)")
    elif kind.partner:
        lines.append(f"  {when}: {in_units(sent[Link.TRAINERS])} to {kind.partner} and as much back")
    return "\n".join(lines) if len(lines) > 1 else "on the wire: nothing"


def work(config: Config) -> str:
    """Rows, iterations and example-level parallelism."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    topology, data = config.topology, config.data
    elp = data.batch_size * topology.lanes
    batches = sum(math.ceil(entry.rows / data.batch_size) for entry in reader.shards)  # the last of a shard is smaller
    threads, trainers = counted(topology.threads, "thread"), counted(topology.home_trainers, "trainer")
    passes = f"{data.passes} pass{'es' * (data.passes != 1)}"
    return (
        f"work: {reader.rows * data.passes:,} examples ({reader.rows:,} rows x {passes}), "
        f"{batches * data.passes:,} iterations\n"
        f"  ELP: {elp:,} = batch {data.batch_size} x {threads} x {trainers}\n"
        f"  sync: {config.sync.algorithm}, {config.sync.pace} pace"
    )
