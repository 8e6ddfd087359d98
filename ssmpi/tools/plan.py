"""``ssmpi plan``: prints what a run will be and need, by arithmetic alone, before any process exists."""

from __future__ import annotations

from pathlib import Path

from ssmpi.cluster.node_layout import layout_of
from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.core.row_layout import RowLayout
from ssmpi.core.topology import Role
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import SPARSE_FEATURES, SPARSE_NAMES
from ssmpi.embedding.placement import Placement
from ssmpi.run.requirements import checkpoint_copies, dense_parameters, memory_of_ranks, placement_of
from ssmpi.sync import ALGORITHMS


def describe(config: Config, where: Site | None = None, tables_file: Path | None = None) -> str:
    """The plan as text. ``where`` adds what each node needs, TopologyError if the ranks do not fit. ``tables_file``
    stands in for data that is not prepared yet.
    """
    placement = placement_of(config, tables_file)
    sections = [
        ranks(config),
        tables(config, placement),
        network(config),
        memory(config, placement),
        *([layout_of(config, where, placement).describe(where)] if where else []),
        traffic(config, placement),
        *([] if tables_file else [work(config)]),
    ]
    return "\n\n".join(sections)


def ranks(config: Config) -> str:
    """Ranks by role."""
    topology = config.topology
    lines = [f"ranks: {topology.size} = {topology.arithmetic()}   (mpirun -n {topology.size})"]
    for role, count in topology.counts.items():
        if count:
            span = topology.ranks_of(role)
            threads = f", {topology.threads} worker threads each" if role is Role.TRAINER else ""
            lines.append(f"  {span.start:>4} to {span.stop - 1:<4} {role}{threads}")
    return "\n".join(lines)


def tables(config: Config, placement: Placement) -> str:
    """The tables of each embedding PS, with memory and expected lookups."""
    row = config.rows.row_bytes
    lines = [
        f"embedding tables: {sum(placement.cardinalities):,} rows x {_floats(config.rows.layout)}, "
        f"{_bytes(sum(placement.cardinalities) * row)} with {config.embedding.optimizer} state"
    ]
    for server in range(placement.servers):
        names = [
            SPARSE_NAMES[p.table] if p.stride == 1 else f"{SPARSE_NAMES[p.table]}[{p.first}::{p.stride}]"
            for p in sorted(placement.parts_of(server), key=lambda p: p.table)
        ]
        where = f"embedding_ps {server}" if config.topology.embedding_ps else "trainer 0"
        lines.append(
            f"  {where}: {_bytes(placement.rows_of(server) * row)}, {placement.lookups_of(server):.2f} lookups an "
            "example: " + " ".join(names)
        )
    return "\n".join(lines)


def _floats(layout: RowLayout) -> str:
    """Of a row, and what they are where they are not a vector alone."""
    return f"{layout.width} ({layout.describe()})" if layout.weight else f"{layout.width}"


def network(config: Config) -> str:
    """The dense network, an operator a line; widths are floats per example."""
    found = config.network
    head = f"network: {config.model.name}, {found.parameters:,} parameters ({_bytes(4 * found.parameters)})"
    return "\n".join([head, *(f"  {line}" for line in found.describe())])


def memory(config: Config, placement: Placement) -> str:
    """Expected memory of one rank of each role."""
    lines = ["memory of one rank, libraries included:"]
    for role, size in memory_of_ranks(config, placement).items():
        if config.topology.counts[role]:
            lines.append(f"  {role}: about {_bytes(size)}")
    for role, size in checkpoint_copies(config, placement).items():
        lines.append(f"  {role} while a checkpoint is written: {_bytes(size)} more, where there is room for it")
    return "\n".join(lines)


def traffic(config: Config, placement: Placement) -> str:
    """Bytes on the wire per iteration of a thread and per round of a trainer; repeated ids of a batch are sent once."""
    ids = config.data.batch_size * SPARSE_FEATURES
    row = 4 * config.rows.layout.width
    parameters = dense_parameters(config)
    n = config.topology.trainers
    lines = ["on the wire, at most:"]
    if config.topology.embedding_ps:
        lines.append(
            f"  an iteration: {_bytes(ids * (4 + row))} pulled, {_bytes(ids * (4 + row))} pushed, "
            f"{2 * placement.servers} messages out, {placement.servers} in"
        )
    kind, sync = ALGORITHMS[config.sync.algorithm], config.sync
    dense = 4 * parameters / sync.fragments
    when = "an iteration, too" if kind.in_the_step else "a round" if sync.fragments == 1 else "a round of one fragment"
    if kind.in_the_step and n > 1:
        lines.append(f"  an iteration, too: {_bytes((n - 1) / n * ids * (8 + row))} of row gradients to other trainers")
    if kind.partner not in ("", "all trainers"):
        lines.append(f"  {when}: {_bytes(dense)} to {kind.partner} and as much back")
    elif kind.partner:
        lines.append(f"  {when}: {_bytes(2 * (n - 1) / n * dense)} sent by each of {n} trainers (ring all-reduce)")
    return "\n".join(lines) if len(lines) > 1 else "on the wire: nothing"


def work(config: Config) -> str:
    """Rows, iterations and example-level parallelism."""
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    topology, data = config.topology, config.data
    elp = data.batch_size * topology.threads * topology.trainers
    rows = reader.rows * data.passes
    return (
        f"work: {rows:,} examples ({reader.rows:,} rows x {data.passes} passes), {rows // data.batch_size:,} "
        "iterations\n"
        f"  ELP: {elp:,} = batch {data.batch_size} x {topology.threads} threads x {topology.trainers} trainers\n"
        f"  sync: {config.sync.algorithm}, {config.sync.pace} pace"
    )


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
