"""What a run requires before a process exists: the placement of rows; and whether its ranks fit in one host's memory
together (``memory_needs``), or which setting would make them fit. ``ssmpi plan`` prints it; ``ssmpi submit`` and
``ssmpi launch`` use it to place the ranks.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.config import Config
from ssmpi.data.features import Features
from ssmpi.data.schema import DatasetManifest, read_manifest
from ssmpi.embedding.keyed_memory import KeyMemory
from ssmpi.embedding.placement import Placement, place
from ssmpi.model import custom_network
from ssmpi.model.networks.zoo import NETWORKS
from ssmpi.runtime.errors import DataError, SettingsError, TopologyError, UserError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.host_memory import memory_limit
from ssmpi.runtime.mpi.shared_memory import NoRoomError, lacking
from ssmpi.runtime.run_options import NO_SPLIT, EvaluateOptions
from ssmpi.runtime.settings import COUNT
from ssmpi.state.memory_needs import memory_of_ranks
from ssmpi.state.stored_rows import occurrences

A_DISK = "/local/disk"  # of the user
LOWERED = ("data.block_rows", "data.batch_size", "embedding.dim", "topology.threads", "topology.trainers")
MIN_COUNT, MIN_COUNTS = "ssmpi-prepare ... --min-count", (2, 3, 4, 5, 8, 10, 20, 50, 100, 200, 500, 1000)


def composed(config: Config, features: Features) -> Config:
    """``config`` with the user's own algorithm and codecs, and the network over these features, after a trial step of
    custom operators; SettingsError if that fails.
    """
    found = config.with_code().over(features)
    if own := custom_network.kinds_of(found.network.operators):
        from ssmpi.model.autograd_step import try_step  # here, because importing torch takes seconds

        if unreached := try_step(found.network):
            log.warning(
                f"{own}: no gradient reaches {', '.join(unreached)}, which will keep its initial value: a by_torch "
                "ignores one of its inputs, or detaches it"
            )
    return found


def splits_to_score(config: Config, manifest: DatasetManifest, overridden: Collection[str] = ()) -> set[str]:
    """The splits to evaluate that have rows; SettingsError if the user has named an empty one. A run file may name the
    defaults, as a resolved one does: an empty default is skipped with a log message.
    """
    defaults, found = EvaluateOptions(), set()
    there = [name for name in manifest.splits if manifest.has_rows(name)]
    for key in ("split", "final"):
        split, setting = getattr(config.evaluate, key), f"evaluate.{key}"
        if split == NO_SPLIT:
            continue
        if split in there:
            found.add(split)
        elif split != getattr(defaults, key) or setting in overridden:
            close = difflib.get_close_matches(split.lower(), [*there, NO_SPLIT], n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"name one of {', '.join(there)}, or {NO_SPLIT}"
            raise SettingsError(f"{setting} = '{split}': {config.data.folder} has no rows of that split; {hint}")
        else:
            log.info(f"no rows in split '{split}' of this data: it is not evaluated ({setting})")
    return found


def placement_of(config: Config, tables_file: Path | None = None) -> Placement:
    """Which PS holds which rows. Table sizes come from the data's manifest or from ``tables_file``."""
    if not tables_file:
        return config.placement(read_manifest(Path(config.data.folder)))
    sizes = read_tables(tables_file)
    return config.placement(DatasetManifest(sizes, {}, features=Features.numbered(0, len(sizes))))


def read_tables(path: Path) -> tuple[int, ...]:
    """Rows of each table from a text file of whole numbers; # starts a comment."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")  # a binary file has no numbers either
        words = " ".join(line.partition("#")[0] for line in text.splitlines()).split()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; name a text file with the rows of each table") from None
    if wrong := [word for word in words if not (word.isdecimal() and int(word))] or [""] * (not words):
        raise DataError(f"{path}: expected whole numbers, the rows of each table; found {wrong[0] or 'none'}")
    if large := [word for word in words if int(word) > COUNT]:
        raise DataError(f"{path}: a table of {large[0]} rows: ids are int32, so name at most {COUNT:,} rows a table")
    return tuple(map(int, words))


def check_memory(config: Config) -> None:
    """Raise TopologyError if a run whose ranks all run on this host does not fit there. What else is wrong with the run
    is left to its ranks to report.
    """
    try:
        config = config.over(read_manifest(Path(config.data.folder)).features)
        placement = placement_of(config)
    except UserError:
        return
    check_storage(config, placement)
    if why := misfit(config, placement, memory_limit()):
        raise TopologyError(f"{why}. 'ssmpi launch --ignore-memory' starts it anyway")


def check_storage(config: Config, placement: Placement) -> None:
    """DataError unless this host's disk takes the rows of all PSs, if they are to be there. Dynamic tables have their
    first step. Files of launches that have ended count as room: this one goes on with them or replaces them.
    """
    if not config.embedding.storage:
        return
    folder, keys = Path(config.embedding.storage), [KeyMemory(placement, s) for s in range(placement.servers)]
    memory_folder.check_disk(folder)
    rows = sum(each.first_of(part) for s, each in enumerate(keys) for part in placement.parts_of(s))
    left = [each for each in memory_folder.all_in(folder) if not memory_folder.in_use(each)]
    room = memory_folder.file_system(folder).free + sum(sum(memory_folder.files_in(each).values()) for each in left)
    if why := lacking(rows * config.rows.row_bytes, room):
        raise NoRoomError(folder, why)


class Host(NamedTuple):
    """The memory in bytes that the ranks of a host ``need``, and how many PSs with rows are among them: the first
    trainer is one if there is none.
    """

    need: float
    holders: int


def this_host(config: Config, placement: Placement, *, first: bool = True) -> Host:
    """With all ranks. Dynamic tables have their ``first`` step, or are full."""
    ranks = memory_of_ranks(config, placement, first=first)
    return Host(sum(count * ranks[role] for role, count in config.topology.counts.items()), placement.servers)


def room_for_rows(hosts: Sequence[Host], limit: float) -> float:
    """Bytes of memory that are left for rows on the disks of hosts with ``limit`` bytes each."""
    return sum(max(0.0, limit - host.need) for host in hosts if host.holders)


def misfit(config: Config, placement: Placement, limit: float) -> str:
    """Why all ranks do not fit in ``limit`` bytes of one host, and what would help; empty if they fit. Dynamic tables
    have their first step.
    """
    needed = this_host(config, placement).need
    if needed <= limit:
        return ""
    found = alternatives(config, placement, limit, lambda *changed: [this_host(*changed)])
    return (
        f"does not fit: all ranks together need {needed / 1e9:,.1f} GB of memory, and this host has {limit / 1e9:,.1f}"
        f"{found}a site file (--site) puts the ranks on several hosts"
    )


def alternatives(
    config: Config,
    placement: Placement,
    limit: float,
    hosts_of: Callable[[Config, Placement], Sequence[Host]],
    *,
    more_hosts: bool = False,
) -> str:
    """What alone would make a run fit, as the middle of a sentence: each change on a line, with the memory that the
    fullest host needs then. ``hosts_of`` are the hosts of a changed run, of ``limit`` bytes each; UserError if it fails
    for another reason.
    """
    counts = occurrences(Path(config.data.folder), placement.cardinalities)
    features = Features.numbered(config.network.inputs.dense, len(placement.cardinalities))
    sizes = [0 if table in placement.dynamic else rows for table, rows in enumerate(placement.cardinalities)]

    def changed(name: str, value: Any) -> tuple[Config, Placement]:
        by_count = name == MIN_COUNT
        run = config if by_count else config.changed(name, value).over(features)
        rows, servers = counts.sizes(value) if by_count else sizes, max(1, run.topology.embedding_ps)
        return run, place(rows, servers, run.embedding.dynamic, placement.names, placement.lengths)

    def fitting(name: str, value: object) -> str:
        with contextlib.suppress(UserError):  # not a valid value, or a network that does not take these features
            run, placed = changed(name, value)
            hosts = hosts_of(run, placed)
            if (most := max(host.need for host in hosts)) > limit:
                return ""
            line = f"\n  {name} {'' if name == MIN_COUNT else '= '}{json.dumps(value)}: {most / 1e9:,.1f} GB of memory"
            if name == MIN_COUNT:
                line += f", {sum(placed.cardinalities):,} of {sum(placement.cardinalities):,} rows are left"
            if name == "embedding.storage":
                rows, row = sum(placed.cardinalities), run.rows.row_bytes
                disk = row * min(rows, placed.most_rows * max(host.holders for host in hosts))
                line += f", {disk / 1e9:,.1f} GB of disk; {counts.misses(row, room_for_rows(hosts, limit))}"
            return line
        return ""

    choices = _less(config, by_count=bool(counts.tables), more_hosts=more_hosts)
    lines = [next(filter(None, (fitting(name, value) for value in values)), "") for name, values in choices]
    if not any(lines):
        return ": no setting alone makes it fit; "
    return f". Each of these alone makes it fit:{''.join(lines)}\nor "


def _less(config: Config, *, by_count: bool, more_hosts: bool) -> Iterator[tuple[str, Sequence[object]]]:
    """Settings with values that may need less memory of a host: rows of 16 bits or on a disk, more PSs, fewer ids;
    halves, quarters and so on, the largest first; other networks.
    """
    settings, servers = config.flat(), config.topology.embedding_ps
    yield "embedding.precision", ["bf16"]
    yield "embedding.storage", [A_DISK]
    if more_hosts:
        yield "topology.embedding_ps", [max(1, servers) << n for n in range(servers > 0, 5)]
    if by_count:
        yield MIN_COUNT, MIN_COUNTS
    for name in LOWERED:
        yield name, [settings[name] >> n for n in range(1, settings[name].bit_length())]
    for other in NETWORKS:
        yield "model.name", [other]
