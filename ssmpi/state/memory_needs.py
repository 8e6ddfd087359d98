"""How much memory a rank of each role needs, by arithmetic before a process exists, and how much of it is left for rows
that lie on a disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssmpi.config import Config
from ssmpi.embedding.keyed_memory import KeyMemory
from ssmpi.embedding.placement import Placement
from ssmpi.embedding.trackers import scope_of
from ssmpi.model.network import floats_in
from ssmpi.model.optimizers import optimizer_of
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.host_memory import free_memory, memory_limit
from ssmpi.runtime.mpi.rank_memory import HEADER
from ssmpi.runtime.quality import BINS, SUMS
from ssmpi.runtime.topology import Role
from ssmpi.state.stored_rows import HOT, hot_bytes, hot_rows, occurrences, shares
from ssmpi.sync import RoundCost, algorithm_of


def dense_parameters(config: Config) -> int:
    """Floats of a replica that a trainer owns and meets others with: all, or in a group those of the largest member."""
    return max(floats_in(part.owned.layout) for part in config.parts)


def held_parameters(config: Config) -> int:
    """Floats of a replica that a trainer holds, copies of what others own included."""
    return max(floats_in(part.layout) for part in config.parts)


def memory_of_ranks(config: Config, placement: Placement, *, first: bool = False) -> dict[Role, float]:
    """Expected bytes of one rank of each role, libraries included; of the PS that holds most. Dynamic tables are full,
    or have their ``first`` step. Rows on disk count as none.
    """
    owned, held, topology = dense_parameters(config), held_parameters(config), config.topology
    dense, ids = config.network.inputs.dense, sum(placement.lengths)
    features = ids * config.rows.layout.width * 4 * config.data.batch_size
    block = config.data.block_rows * 2 * (ids + dense + 1) * 4
    activations = config.data.batch_size * 4 * 4 * config.network.activations
    own = 2 if config.model.precision == "bf16" else 1  # of each thread: gradients, and in bf16 the rounded weights
    state = max(1, len(optimizer_of(config.dense).vectors))
    trainer = 4.0 * ((3 + state) * owned + held * (1 + topology.replica_lanes * own)) + topology.threads * (
        6.0 * features + block + activations
    )
    stored = bool(config.embedding.storage)
    rows = max(row_memory(config, placement, server, first=first, stored=stored) for server in range(placement.servers))
    mirrors = mirror_memory(config)
    trainer += mirrors.get(Role.TRAINER, 0.0)
    sync_ps = 8.0 * config.network.parameters / max(1, topology.sync_ps) + mirrors.get(Role.SYNC_PS, 0.0)
    if not topology.embedding_ps:
        trainer += rows
    embedding_ps = float(rows + tracker_memory(config, placement))
    ranks = {Role.TRAINER: trainer, Role.EMBEDDING_PS: embedding_ps, Role.SYNC_PS: sync_ps}
    return {role: ranks.get(role, 0.0) + role.traits.process_bytes for role in Role}


def kept_memory(config: Config, placement: Placement) -> dict[Role, float]:
    """Bytes that one rank of each role, or the largest PS, keeps in a memory file system, or may: dynamic tables are
    full, and their maps grew since the last pause. 0 if a loss ends the job.
    """
    if config.recovery.mode == "off":
        return {}
    promised = 0 if config.embedding.storage else placement.most_rows * config.rows.row_bytes
    promised += KeyMemory(placement, 0).size
    topology, rows = config.topology, float(promised)
    state = len(optimizer_of(config.dense).vectors)
    vectors = 4.0 * (held_parameters(config) + dense_parameters(config) * (state + round_cost(config).kept))
    counts = topology.threads * (2.0 * BINS + len(SUMS) + topology.embedding_ps + 2) * 8
    own = {
        Role.TRAINER: vectors + counts + (0.0 if topology.embedding_ps else rows),
        Role.EMBEDDING_PS: rows + tracker_memory(config, placement) + 8.0 * topology.size,
        Role.SYNC_PS: (1 + state) * 4.0 * config.network.parameters / max(1, topology.sync_ps),
    }
    return {role: own.get(role, 0.0) + HEADER for role in Role}


def row_memory(config: Config, placement: Placement, server: int, *, first: bool = False, stored: bool = False) -> int:
    """Bytes of the rows of one PS, unless they are ``stored`` on disk, and of what finds them by key: of dynamic tables
    at the limit, or at their ``first`` step.
    """
    keys = KeyMemory(placement, server)
    if stored:
        uses = 0 if first else sum(part.rows for part in placement.keyed_parts_of(server))
        return uses + keys.bytes_at(limit=not first)
    rows = (keys.first_of(part) if first else part.rows for part in placement.parts_of(server))
    return sum(rows) * config.rows.row_bytes + keys.bytes_at(limit=not first)


def tracker_memory(config: Config, placement: Placement) -> int:
    """Bytes in which the PS that holds most rows tracks what to save first."""
    scope = scope_of(placement, max(range(placement.servers), key=placement.rows_of))
    if config.checkpoint.priority == "scar":
        return config.rows.weight_bytes * scope.rows
    return config.tracking.bytes_for(scope)


def checkpoint_copies(config: Config, placement: Placement) -> dict[Role, float]:
    """Additional bytes that one rank of a role uses, if there is room, while a checkpoint is written. Rows on disk have
    the room; they are copied if it is large (``arena_writer``).
    """
    if not config.checkpoint.background or config.embedding.storage:
        return {}
    holder = Role.EMBEDDING_PS if config.topology.embedding_ps else Role.TRAINER
    return {holder: float(placement.most_rows * config.rows.row_bytes)}


def round_cost(config: Config) -> RoundCost:
    """What a round of this run costs a trainer."""
    return algorithm_of(config.sync).cost(config.sync, config.topology, dense_parameters(config))


def mirror_memory(config: Config) -> dict[Role, float]:
    """Bytes of mirrors on one rank of each role, if a codec needs them."""
    servers = max(1, config.topology.sync_ps)  # which have every member's center
    floats = {Role.TRAINER: dense_parameters(config), Role.SYNC_PS: config.network.parameters / servers}
    return {role: 4.0 * vectors * floats[role] for role, vectors in round_cost(config).mirrors.items()}


def hot_memory(config: Config, placement: Placement, server: int, roles: Sequence[Role]) -> list[slice]:
    """Which bytes of the rows of PS ``server`` stay in memory although they lie on a disk: HOT of what ranks of these
    ``roles`` leave on this host, in memory and in the folder of the ranks' memory. Where there are keys, their
    tables alone have some, which are chosen by use. None if ids are not counted.
    """
    tables = occurrences(Path(config.data.folder), placement.cardinalities).tables if config.embedding.storage else ()
    if not (tables or (placement.keyed and config.embedding.storage)):
        return []
    ranks, folder = memory_of_ranks(config, placement), Path(config.recovery.memory_folder)
    holders, parts = roles.count(Role.EMBEDDING_PS) or 1, placement.parts_of(server)
    left = [memory_limit() - sum(ranks[role] for role in roles), free_memory()]
    if folder.is_dir():
        left.append(memory_folder.file_system(folder).free - holders * KeyMemory(placement, server).size)
    most = int(HOT * max(0.0, min(left)) / holders / config.rows.row_bytes)
    hot = hot_rows(tables, parts, most) if tables else shares(parts, placement.keyed, most)
    return hot_bytes(config.rows, parts, hot)
