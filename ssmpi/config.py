"""One run: every component's settings composed. A run file holds what differs from the defaults; the resolved file in
the run folder is itself a run file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from ssmpi import sync
from ssmpi.choices import CHOSEN, Choice, choose
from ssmpi.data.features import Features
from ssmpi.data.reader import DataOptions
from ssmpi.data.schema import MANIFEST_NAME, read_manifest
from ssmpi.embedding import table
from ssmpi.embedding.placement import Placement, place
from ssmpi.embedding.trackers import Tracking
from ssmpi.model import custom_network, graph, top_k
from ssmpi.model.hierarchy_options import HierarchyOptions
from ssmpi.model.member_program import MemberProgram, transform, whole
from ssmpi.model.network import Inputs, Network
from ssmpi.model.networks.zoo import network_of
from ssmpi.model.optimizers import DENSE_OPTIMIZERS
from ssmpi.model.options import DenseOptions, ModelOptions, Schedule
from ssmpi.model.places import Places
from ssmpi.runtime import settings, user_code
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import OWN_CODE, RUN_FILE, is_run_folder
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.run_options import NO_SPLIT, CheckpointOptions, EvaluateOptions, RecoveryOptions, RunOptions
from ssmpi.runtime.settings import require
from ssmpi.runtime.topology import Topology

SHORTEST = (
    "the shortest run file is the line 'data.folder = \"FOLDER\"', which names a folder that 'ssmpi-prepare' made; "
    "README.md has a longer one under 'Runs'"
)
DERIVED = (
    "chosen",
    "topology.homes",
    "sync.code",
    "sync.shared_memory",
    "embedding.shared_memory",
)  # fields that follow from other settings


class HasTables(Protocol):
    """The part of a data set's description that places its tables."""

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Rows of each table; 0 of a keyed one."""

    @property
    def features(self) -> Features:
        """The features."""


@dataclass(frozen=True)
class Config:
    """All sections of a run file."""

    data: DataOptions
    run: RunOptions = field(default_factory=RunOptions)
    topology: Topology = field(default_factory=Topology)
    model: ModelOptions = field(default_factory=ModelOptions)
    embedding: table.EmbeddingOptions = field(default_factory=table.EmbeddingOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    schedule: Schedule = field(default_factory=Schedule)
    hierarchy: HierarchyOptions = field(default_factory=HierarchyOptions)
    sync: sync.Options = field(default_factory=sync.Options)
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    waiting: WaitOptions = field(default_factory=WaitOptions)
    chosen: tuple[Choice, ...] = field(default=(), compare=False, metadata=settings.DERIVED)

    def __post_init__(self) -> None:
        self.hierarchy.check_group(self.topology.group)
        if not user_code.names_file(self.model.name):
            self._check_built_in()
        self._check_priority()
        self._check_evaluations()
        self._check_dense()
        object.__setattr__(self, "topology", dataclasses.replace(self.topology, homes=self.hierarchy.homes))
        for section in ("embedding", "sync"):
            derived = dataclasses.replace(getattr(self, section), shared_memory=self.run.shared_memory)
            object.__setattr__(self, section, derived)
        if self.sync.lacks_code:
            return  # what remains is checked by ``with_code``
        try:
            sync.check_topology(self.sync, self.topology)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def _check_built_in(self) -> None:
        """Refuse what fits neither data with dense features nor data without."""
        try:
            self._check_places(network_of(self.model, Inputs(dense=0, tables=2, dim=self.embedding.dim)))
        except SettingsError:
            self._check_places(network_of(self.model, Inputs(dense=1, tables=1, dim=self.embedding.dim)))

    def _check_places(self, network: Network) -> None:
        """Refuse rules that do not fit the network."""
        if self.topology.group > 1:
            self.hierarchy.places(network, self.topology.group)

    def _check_priority(self) -> None:
        wanted = f'checkpoint.priority = "{self.checkpoint.priority}" saves rows of embedding PSs for partial recovery'
        none = self.checkpoint.priority == "none"
        require(
            none or self.topology.embedding_ps > 0,
            f"{wanted}, and this run has no embedding PSs: set topology.embedding_ps, or priority 'none'",
        )
        require(
            none or self.recovery.may_be_partial,
            f'{wanted}, which recovery.mode = "{self.recovery.mode}" rules out: set it to "auto", or priority "none"',
        )

    def _check_evaluations(self) -> None:
        """Refuse rules about evaluations without evaluations, and those that exclude each other."""
        evaluate, schedule = self.evaluate, self.schedule
        require(
            not self.evaluation_rule or evaluate.split not in ("", NO_SPLIT),
            f"{self.evaluation_rule} needs evaluations while training: set evaluate.split to a split of the data",
        )
        require(
            evaluate.patience > 0 or schedule.cuts or not evaluate.min_gain,
            "evaluate.min_gain says what a gain is for evaluate.patience and schedule.plateau_factor: set one of them"
            " too",
        )
        require(
            not (schedule.cuts and evaluate.patience) or evaluate.patience > schedule.plateau_patience,
            f"evaluate.patience = {evaluate.patience} ends training before schedule.plateau_patience = "
            f"{schedule.plateau_patience} cuts the rates: set evaluate.patience above it, or to 0",
        )

    def _check_dense(self) -> None:
        """Refuse what no rank could compute."""
        dense, algorithm = self.dense, self.sync.algorithm
        require(
            not dense.clip_norm or self.topology.group == 1,
            f"dense.clip_norm = {dense.clip_norm:g} needs all of a step's gradient, and a member of a group has that of"
            " what it owns: set it to 0, or topology.group = 1",
        )
        if self.sync.lacks_code or not sync.algorithm_of(self.sync).steps_elsewhere:
            return
        wanted = f"sync.algorithm = '{algorithm}': sync PSs step shards of the weights by sums of gradients"
        simple = [name for name, kind in DENSE_OPTIMIZERS.items() if not kind.counts]
        require(
            dense.optimizer in simple,
            f"{wanted}, with {' or '.join(simple)}: set dense.optimizer = '{simple[-1]}', or another algorithm",
        )
        for name in ("weight_decay", "clip_norm"):
            value = getattr(dense, name)
            require(not value, f"{wanted}, and dense.{name} = {value:g} is for each step's: set it to 0")

    @property
    def evaluation_rule(self) -> str:
        """A setting that decides by evaluations of ``evaluate.split``; empty where none does."""
        if self.evaluate.keep == "best":
            return 'evaluate.keep = "best"'
        if self.evaluate.patience:
            return f"evaluate.patience = {self.evaluate.patience}"
        return f"schedule.plateau_factor = {self.schedule.plateau_factor:g}" if self.schedule.cuts else ""

    @property
    def saves_rows(self) -> bool:
        """Whether embedding PSs save rows periodically, for partial recovery."""
        return self.recovery.may_be_partial and not self.recovery.why_always_full(self.topology.embedding_ps)

    @property
    def tracking(self) -> Tracking:
        """What is counted where rows are updated."""
        options = self.checkpoint
        return Tracking(options.priority, options.priority_fraction, self.run.seed)

    @cached_property
    def network(self) -> Network:
        """The network to train, over the features of the data in ``data.folder``. The first rank composes it when it
        checks the run; the others receive it with the settings. SettingsError if it does not fit.
        """
        return self.over(read_manifest(Path(self.data.folder)).features).network

    def with_code(self) -> Config:
        """The same settings with the user's own algorithm and codecs, which are checked; without a network."""
        return dataclasses.replace(self, sync=sync.with_code(self.sync))

    def over(self, features: Features) -> Config:
        """The same settings with the network over these features, wherever the data is."""
        return self.with_network(network_of(self.model, inputs_of(features, self.embedding.dim)))

    def with_network(self, network: Network) -> Config:
        """The same settings with this network, for instance of a saved model. ``dataclasses.replace`` drops it."""
        own_operators = custom_network.own_operators(network.operators)
        require(
            not own_operators or self.model.precision == "fp32",
            f"model.precision = '{self.model.precision}': operators of one's own are computed in float32: set 'fp32'",
        )
        if own_operators:
            top_k.check_exact(network)
        copy = dataclasses.replace(self)
        vars(copy)["network"] = network  # where ``cached_property`` stores it: not a setting, so not a field
        self._check_places(network)
        return copy

    def placement(self, data: HasTables) -> Placement:
        """Which embedding PS, or the trainer, holds which rows of the tables of this data; SettingsError if
        ``[embedding.dynamic]`` or ``checkpoint.priority`` does not fit them.
        """
        servers, features = max(1, self.topology.embedding_ps), data.features
        placed = place(data.cardinalities, servers, self.embedding.dynamic, features.sparse, features.ids_per_row)
        require(
            not placed.keyed or self.checkpoint.priority != "scar",
            'checkpoint.priority = "scar" keeps a copy of every row that a table has room for, and dynamic tables have'
            " room for many more than they use: set it to 'mfu' or 'ssu'",
        )
        return placed

    @property
    def places(self) -> Places:
        """Where the members of a group compute the network's operators."""
        return self.hierarchy.places(self.network, self.topology.group)

    @property
    def parts(self) -> list[MemberProgram]:
        """What each member of a group owns, and computes of its own lanes if it has any, or else of the first one's;
        one part, if trainers hold whole replicas.
        """
        if self.topology.group == 1:
            return [whole(self.network)]
        return [
            transform(self.network, self.places, member, member if self.topology.is_home(member) else 0)
            for member in range(self.topology.group)
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Other ranks receive the network as JSON: a custom class cannot be imported there."""
        state = vars(self).copy()
        return state | {"network": graph.as_json(state["network"])} if "network" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "network" in state:
            vars(self)["network"] = graph.from_json(state["network"])

    @cached_property
    def rows(self) -> table.RowOptions:
        """The options of embedding rows, with the network's row layout."""
        return table.RowOptions(self.embedding, self.network.rows)

    def changed(self, name: str, value: object) -> Config:
        """The same settings but for one, ``section.key``; without a network."""
        section, key = name.split(".")
        replaced: Any = {section: dataclasses.replace(getattr(self, section), **{key: value})}
        return dataclasses.replace(self, **replaced)

    def flat(self) -> dict[str, Any]:
        """All settings by their names, ``section.key``."""
        found = settings.flat(dataclasses.asdict(self))
        return {name: value for name, value in found.items() if name not in DERIVED}


def inputs_of(features: Features, dim: int) -> Inputs:
    """A network's inputs for data with these features."""
    return Inputs(len(features.dense), len(features.sparse), dim)


def differences(before: Config, now: Config) -> list[str]:
    """Settings that differ, as text, ignoring the run folder, the spelling of the paths of the data and of the run that
    is continued, and the paths of a user's own files.
    """
    was, are = (config.flat() for config in (before, now))
    for values in (was, are):
        values["run.folder"] = ""
        for name in ("data.folder", "run.continue_from"):
            values[name] = str(Path(values[name]).resolve()) if values[name] else ""
    for name in [name for name in OWN_CODE if was[name] != are[name]]:
        for config, values in ((before, was), (now, are)):
            if user_code.names_file(values[name]):
                values[name] = user_code.identity(values[name], _source(config, name))
    names = [*are, *(name for name in was if name not in are)]
    return [f"{n} was {was.get(n)!r}, now {are.get(n)!r}" for n in names if was.get(n) != are.get(n)]


def load(path: Path, overrides: Sequence[str] = (), *, to_train: bool = True, resumed: Path | None = None) -> Config:
    """Read a run file with overrides; SettingsError says what is wrong with it. What they leave to be chosen is chosen,
    or else as the resolved file of the ``resumed`` run has it. Settings that were removed are ignored, with a warning,
    if the run is not ``to_train``: the model that it has left does not change.
    """
    if is_run_folder(path):
        raise SettingsError(f"{path}: a folder, not a run file; '--resume {path}' resumes the run in it")
    sections = settings.read(path)
    if {"categorical", "list"} & sections.keys() and "data" not in sections:
        raise SettingsError(
            f"{path}: a schema of a table, which 'ssmpi-prepare table' reads, not a run file; a run file names the"
            " folder of the prepared data as data.folder"
        )
    ignored = None if to_train else list[str]()
    given = settings.flat(settings.overridden(sections, overrides))
    if resumed:
        recorded = load(resumed, to_train=False).flat()
        overrides = [*(f"{name}={json.dumps(recorded[name])}" for name in CHOSEN if name not in given), *overrides]
    try:
        found = settings.load(Config, path, overrides, ignored=ignored)
    except settings.UnsetError as error:
        raise SettingsError(f"{error}; {SHORTEST}") from None
    if ignored:
        warn_once(f"{path}: ignored, because an earlier version had it: {', '.join(ignored)}")
    found = _renamed(found, lambda name, setting: user_code.resolved(name, path.parent))
    resolved = resumed or (path.name == RUN_FILE and is_run_folder(path.parent))
    return found if resolved else _with_choices(found, given)


def _with_choices(config: Config, given: Collection[str]) -> Config:
    """With the settings that suit network, ranks and data, if they are there, in place of those that are not given."""
    folder = Path(config.data.folder)
    manifest = read_manifest(folder) if (folder / MANIFEST_NAME).is_file() else None
    chosen = choose(config.flat(), given, manifest)
    for choice in chosen:
        config = config.changed(choice.name, choice.value)
    return dataclasses.replace(config, chosen=tuple(chosen))


@cache
def warn_once(text: str) -> None:
    """Log a warning, however often a process comes by."""
    log.warning(text)


def own_code(config: Config) -> dict[str, bytes]:
    """The texts of the user's own files that the settings name, by setting; SettingsError if one cannot be read."""
    values = config.flat()
    return {name: _source(config, name) for name in OWN_CODE if user_code.names_file(values[name])}


def _source(config: Config, setting: str) -> bytes:
    """The text of the user's own file that a setting names, as it was read before if it was."""
    section, key = setting.split(".")
    return config.sync.source(key) if section == "sync" else user_code.source(config.flat()[setting], setting)


def save(folder: Path, config: Config, code: Mapping[str, bytes] | None = None) -> None:
    """Replace the run folder's settings: a resumed job may have another number of ranks. Copies of the user's own files
    (``code``, if they have been read) are stored beside them, so that the originals are not needed any more.
    """
    for setting, text in (own_code(config) if code is None else code).items():
        file, _ = user_code.parts(config.flat()[setting])
        (folder / OWN_CODE[setting]).mkdir(exist_ok=True)
        atomic_file.write(folder / OWN_CODE[setting] / file.name, text)
    saved = _renamed(config, lambda name, setting: f"{OWN_CODE[setting]}/{user_code.shown(name)}")
    atomic_file.write(folder / RUN_FILE, settings.dump(saved))


def _renamed(config: Config, new: Callable[[str, str], str]) -> Config:
    """The same settings with ``new(name, setting)`` for each that names a user's own file."""
    values = config.flat()
    for setting in [name for name in OWN_CODE if user_code.names_file(values[name])]:
        config = config.changed(setting, new(values[setting], setting))
    return config
