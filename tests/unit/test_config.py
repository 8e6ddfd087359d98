"""Settings that do not fit together, or make no sense, are refused before anything starts."""

import dataclasses
import math
import re
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.lab.study.grid import StudyFile, nested
from ssmpi.cluster import site
from ssmpi.cluster.site import Site
from ssmpi.config import Config, differences, load
from ssmpi.data.features import CRITEO, Features
from ssmpi.model.network import Inputs
from ssmpi.model.networks.zoo import NETWORKS, network_of
from ssmpi.model.options import ModelOptions
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.runtime.settings import build, dump
from ssmpi.state.recovery.start import BEGINNING, Start
from ssmpi.trainer import build_trainer


def read(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nfolder = "d"')
    return load(path, overrides)


def test_the_shortest_run_file_will_do(tmp_path):
    config = read(tmp_path)
    assert config.topology.size >= 1
    assert config.model.bottom[-1] == config.embedding.dim


GROUP = ("topology.trainers=4", "topology.group=2")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (('hierarchy.homes="first"',), r"hierarchy\.homes .*: set topology\.group too, or .* = \"all\""),
        (
            ('hierarchy.tags=["*: home"]',),
            r"hierarchy\.tags .*: set topology\.group too, or set hierarchy\.tags = \[\]",
        ),
        (('hierarchy.plan="data"',), r"hierarchy\.plan says how the members of a group share a replica"),
        ((*GROUP, 'hierarchy.plan="rows"'), r"hierarchy\.plan must be one of data, stages, got 'rows'"),
        ((*GROUP, 'hierarchy.plan="data"', 'hierarchy.tags=["*: home"]'), r"hierarchy\.tags gives: set one of them"),
        (("topology.trainers=3", "topology.group=2"), r"trainers = 3 is not a multiple of topology\.group = 2"),
    ],
)
def test_what_groups_cannot_be_told(tmp_path, overrides, text):
    with pytest.raises(SettingsError, match=text):
        read(tmp_path, *overrides)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (('hierarchy.tags=["*: home", "top.9: 1"]',), r"hierarchy\.tags: .*'top\.9: 1' matches no operator"),
        (('hierarchy.tags=["*: 2"]',), r"hierarchy\.tags: .*'\*: 2'"),
        (('hierarchy.tags=["top.*: column"]',), r"hierarchy\.tags: .*'column'"),
        (('hierarchy.tags=["*: 1"]',), r"hierarchy\.tags: member 0 of 2 would own no parameters: give it an operator"),
        (("topology.trainers=16", "topology.group=16"), r"hierarchy\.plan: member 14 of 16 would own no parameters"),
        (('hierarchy.plan="stages"', "topology.trainers=16", "topology.group=16"), r"hierarchy\.plan: .*16"),
    ],
)
def test_rules_that_fit_no_network(tmp_path, overrides, text):
    with pytest.raises(SettingsError, match=text):
        read(tmp_path, *GROUP, *overrides)
    given = read(tmp_path, "model.name=net.py:network", *GROUP, *overrides)  # which rules fit shows when it is read
    with pytest.raises(SettingsError, match=text):
        given.with_network(network_of(ModelOptions(), Inputs(dense=13, tables=26, dim=given.embedding.dim)))


def test_homes_are_known_to_the_topology(tmp_path):
    config = read(tmp_path, *GROUP, 'hierarchy.homes="first"')
    assert config.topology.homes == "first"
    assert dataclasses.replace(config).topology == config.topology


def test_who_reads_batches_is_no_key_of_the_topology(tmp_path):
    with pytest.raises(SettingsError, match=r"unknown key 'topology.homes'"):
        read(tmp_path, 'topology.homes="all"')
    assert not any("homes" in name for name in read(tmp_path).flat() if name.startswith("topology"))


@pytest.mark.parametrize("text", ["", "[data]\nbatch_size = 64\n", "[topology]\ntrainers = 2\n"])
def test_a_run_file_without_data_is_told_the_shortest_one(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"run\.toml: .*shortest run file is .*README\.md") as refused:
        load(path)
    (shortest,) = re.findall("line '(.*?)'", str(refused.value))
    path.write_text(shortest)
    assert load(path).data.folder == "FOLDER"


def test_a_schema_is_no_run_file(tmp_path):
    path = tmp_path / "schema.toml"
    path.write_text('label = "click"\n[dense]\nage = "log1p"\n[categorical]\nuser = "integer"\n')
    with pytest.raises(SettingsError, match=r"a schema of a table, which 'ssmpi-prepare table' reads.*data\.folder"):
        load(path)


def test_a_site_file_without_nodes_is_shown_where_one_is(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text("")
    with pytest.raises(SettingsError, match=r"site\.toml: section \[node\] with cores and memory_gb .*jobs/sites/"):
        site.load(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sync.algorithm=easgd", "set topology.sync_ps = 1 or more"),
        ("topology.sync_ps=2", "does not use sync PSs"),
        ("topology.trainers=0", "topology.trainers must be at least 1, got 0"),
        ("sync.alhpa=0.5", "did you mean 'alpha'?"),
        ("sync.alpha=0", "alpha must be in (0, 1], got 0.0"),
        (
            "sync.algorithm=eagsd",
            "is one of none, easgd, ma, bmuf, slowmo, gossip, async_ps, synchronous, or FILE.py:CLASS, got 'eagsd'",
        ),
        ("sync.pace=shade", "pace is one of shadow, fixed_rate"),
        ("sync.merge=interpolate", "'sync.merge' was removed: leave it out; a run behaves as with its default of"),
        ("sync.algorithm=async_ps", "set topology.sync_ps = 1 or more"),
        ("sync.algorithm=synchronous", "set sync.pace = 'fixed_rate' and sync.every_iterations = 1"),
        ("sync.fragments=2", "'sync.fragments' was removed"),
        ("sync.warmup_steps=5", "'sync.warmup_steps' was removed: set schedule.warmup_examples"),
        ("sync.life_span=100", "'sync.life_span' was removed: set sync.threshold_interval"),
        ("sync.threshold_interval=0", "threshold_interval must be at least 1"),
        ("sync.easgd.coupling=0.1", "'sync.easgd.coupling' was removed: leave it out"),
        ("model.top_k_training=laplace", "'model.top_k_training' was removed: write model.top_k = ['OPERATOR: SHARE l"),
        ("model.top_k_scoring=off", "'model.top_k_scoring' was removed: leave it out; a model is scored as it was tra"),
        (
            "model.dlrm_towers.towers=3",
            "'model.dlrm_towers' was removed: write towers as a function of your own",
        ),
        ("sync.slowmo.momentum=1.0", "momentum must be in [0, 1)"),
        ("sync.slowmo.rate=0", "rate must be in (0, 2]"),
        ("sync.bmuf.eta=0", "eta must be in (0, 2]"),
        ("sync.bmuf.momentum=1.0", "momentum must be in [0, 1)"),
        ("model.top=[8,2]", "top must end in 1"),
        (f"model.top=[{'1, ' * 1001}]", "top lists 1,001 layers: at most 1,000"),
        ("model.bottom=[]", "bottom must list positive sizes"),
        ("model.dropout=1", "model.dropout must be in [0, 1), got 1"),
        ("model.dcn_v2.structure=deep", "structure is 'stacked' or 'parallel', got 'deep'"),
        ("model.masknet.structure=stacked", "structure is 'serial' or 'parallel', got 'stacked'"),
        ("model.finalmlp.heads=3", "mlp1 ends in 400, which heads = 3 must divide"),
        ("model.finalnet.block1=[]", "block1 must list sizes, got none"),
        ("model.name=dlrm2", f"model.name is one of {', '.join(NETWORKS)}, got 'dlrm2'"),
        ("data.batch_size=0", "batch_size must be at least 1"),
        ("data.block_rows=64", "block_rows = 64 is less than batch_size = 128"),
        ("data.handout=random", "handout is 'dynamic' or 'static'"),
        ("data.passes=0", "passes must be at least 1"),
        ("embedding.optimizer=adagrad", "optimizer = 'adagrad' is no optimizer; did you mean 'rowwise_adagrad'?"),
        ("embedding.optimizer=adamx", "optimizer = 'adamx' is no optimizer; did you mean 'adam'?"),
        ("dense.optimizer=adamm", "optimizer = 'adamm' is no optimizer; did you mean 'adam'?"),
        ("dense.beta1=1", "dense.beta1 must be in [0, 1), got 1"),
        ("embedding.beta2=-0.1", "embedding.beta2 must be in [0, 1), got -0.1"),
        ("dense.weight_decay=-1e-4", "dense.weight_decay must be at least 0, got -0.0001"),
        ("embedding.weight_decay=-1", "embedding.weight_decay must be at least 0, got -1"),
        ("embedding.table_decay=-1", "embedding.table_decay must be at least 0, got -1"),
        ("dense.clip_norm=-1", "dense.clip_norm must be at least 0, got -1"),
        ("embedding.clip_value=-1", "embedding.clip_value must be at least 0, got -1"),
        ("dense.rate=-1", "rate must be at least 0"),
        ("run.seed=-1", "seed must be in [0, 2^31)"),
        ("run.folder=", "folder must not be empty"),
        ("evaluate.per_pass=0", "per_pass must be at least 1"),
        ("waiting.spins=5", "'waiting.spins' was removed"),
        ("sync.by=trainer", "'sync.by' was removed: leave it out; a run behaves as with its default of \"thread\""),
        *(
            (
                f"{section}.transport=messages",
                f"'{section}.transport' was removed: leave it out, or set run.shared_memory",
            )
            for section in ("sync", "embedding", "hierarchy")
        ),
        ("waiting.time_limit_seconds=0", "time_limit_seconds must be positive"),
        ("waiting.time_limit_seconds=1e300", "time_limit_seconds must be positive and at most 1e+09, got 1e+300"),
        ("waiting.longest_sleep_us=9", "'waiting.longest_sleep_us' was removed: leave it out"),
        (
            "evaluate.stop_at_auc=0.8",
            "'evaluate.stop_at_auc' was removed: leave it out; evaluate.patience ends",
        ),
        ("evaluate.replica=true", "'evaluate.replica' was removed"),
        ("checkpoint.priority_period=9", "'checkpoint.priority_period' was removed: leave it out; 'ssu' samples one a"),
        ("data.folder=", "data.folder must not be empty"),
        ("data.batch_size=10000000000", "data.batch_size must be at most"),
        ("data.block_rows=10000000000", "data.block_rows must be at most"),
        ("data.passes=99999999999", "data.passes must be at most"),
        ("topology.embedding_ps=1000000", "topology.embedding_ps must be at most 65,535, got 1,000,000"),
        ("topology.trainers=1000000", "topology.trainers must be at most 65,535, got 1,000,000"),
        ("model.bottom=[99999999999,16]", "model.bottom[0] must be at most"),
        ("model.top=[99999999999,1]", "model.top[0] must be at most"),
        ("embedding.dim=10000000", "embedding.dim must be at most"),
        ("embedding.rate=1e39", "embedding.rate must be at most 1e+38"),
        ("embedding.epsilon=1e-300", "embedding.epsilon must be at least 1e-38"),
        ("embedding.initial_state=1e39", "embedding.initial_state must be at most 1e+38"),
        ("embedding.pushes_in_flight=1000000", "embedding.pushes_in_flight must be at most 1,000"),
        ("dense.rate=1e39", "dense.rate must be at most 1e+38"),
        ("dense.epsilon=1e-300", "dense.epsilon must be at least 1e-38"),
        ("dense.initial_state=1e39", "dense.initial_state must be at most 1e+38"),
        ("schedule.power=-1", "schedule.power must be at least 0, got -1"),
        ("schedule.power=1e6", "schedule.power must be at most 100"),
        ("schedule.decay_examples=99999999999999999999", "schedule.decay_examples must be at most"),
        ("evaluate.per_pass=10000000", "evaluate.per_pass must be at most 100,000"),
        ("evaluate.batch_size=10000000000", "evaluate.batch_size must be at most"),
        ("sync.every_iterations=99999999999999999999", "sync.every_iterations must be at most"),
        ("sync.every_seconds=1e300", "sync.every_seconds must be at most 1e+09"),
        ("sync.gossip.seed=2", "'sync.gossip.seed' was removed"),
        ("checkpoint.every_minutes=1e300", "checkpoint.every_minutes must be at most"),
        ("checkpoint.every_examples=99999999999999999999", "checkpoint.every_examples must be at most"),
        ("checkpoint.keep=99999999999", "checkpoint.keep must be at most"),
        ("checkpoint.limit_seconds=1e300", "checkpoint.limit_seconds must be positive and at most 1e+09"),
        ("checkpoint.stop_budget_seconds=1e300", "checkpoint.stop_budget_seconds must be positive and at most 1e+09"),
        ("run.log_seconds=1e300", "run.log_seconds must be positive and at most 1e+09"),
        ("run.folder=a\nb", "run.folder = 'a\\nb' has a line break or another control character: remove it"),
    ],
)
def test_bad_settings_are_refused(tmp_path, override, message):
    with pytest.raises(UserError) as error:
        read(tmp_path, override)
    assert message in str(error.value)


def test_the_bottom_mlp_must_fit_rows_where_there_are_dense_features(tmp_path):
    config = read(tmp_path, "embedding.dim=8")
    with pytest.raises(SettingsError, match=r"model\.bottom ends in 16, but embedding\.dim = 8"):
        config.over(Features.numbered(dense=1, sparse=2))
    assert config.over(Features.numbered(dense=0, sparse=2)).network.inputs.dim == 8


PUSHED = ("sync.algorithm=async_ps", "topology.sync_ps=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            (*PUSHED, "dense.optimizer=adam"),
            "with sgd or adagrad: set dense.optimizer = 'adagrad', or another algorithm",
        ),
        ((*PUSHED, "dense.weight_decay=0.1"), "and dense.weight_decay = 0.1 is for each step's: set it to 0"),
        ((*PUSHED, "dense.clip_norm=1"), "and dense.clip_norm = 1 is for each step's: set it to 0"),
        (
            ("topology.group=2", "topology.trainers=2", "hierarchy.plan=data", "dense.clip_norm=1"),
            "dense.clip_norm = 1 needs all of a step's gradient, and a member of a group has that of what it owns",
        ),
        (
            ("embedding.table_decay=0.1", "embedding.optimizer=partial_rowwise_adam"),
            'table_decay does not work with optimizer = "partial_rowwise_adam": set "adam", or use weight_decay',
        ),
        (
            ("embedding.table_decay=10", "embedding.optimizer=sgd", "embedding.rate=0.1"),
            "embedding.rate * table_decay = 1: a step would shrink weights to 0 or beyond",
        ),
    ],
)
def test_optimizers_that_no_rank_could_compute_are_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=re.escape(message)):
        read(tmp_path, *overrides)


def numbers(cls=Config, prefix=""):
    """Every setting that is a number, by name, with its type."""
    for name, hint in typing.get_type_hints(cls).items():
        hint = typing.get_args(hint)[0] if type(None) in typing.get_args(hint) else hint
        if dataclasses.is_dataclass(hint):
            yield from numbers(hint, f"{prefix}{name}.")
        elif hint in (int, float, tuple[int, ...]):
            yield f"{prefix}{name}", hint


def test_run_folders_of_earlier_versions_are_read(tmp_path):
    """They hold every setting with its value, of settings that are gone too."""
    path = tmp_path / "run.toml"
    path.write_text("[data]\nfolder = 'x'\n[waiting]\nspins = 0\n[sync]\nby = 'thread'\n[sync.easgd]\ncoupling = 0.0\n")
    assert load(path) == load(path, ("waiting.time_limit_seconds=300",))


def test_settings_of_single_features_are_kept_and_compared(tmp_path):
    """A run folder has those that are set and no others; leaving one out later is a difference, too."""
    common = ("embedding.dynamic.keys=9",)
    config = read(tmp_path, *common, "embedding.dynamic.features.user.admit_after=3")
    (tmp_path / "run.toml").write_text(dump(config))
    assert "[embedding.dynamic.features.user]\nadmit_after = 3\n" in (tmp_path / "run.toml").read_text()
    assert load(tmp_path / "run.toml") == config
    before = read(tmp_path, *common)
    assert "features" not in dump(before)
    name = "embedding.dynamic.features.user.admit_after"
    assert f"{name} was 3, now None" in differences(config, before)
    assert f"{name} was None, now 3" in differences(before, config)


@pytest.mark.parametrize(("name", "hint"), [*numbers(), *numbers(StudyFile), *numbers(Site)])
def test_every_number_has_bounds(tmp_path, name, hint):
    """A new setting without them fails here."""
    cls = next(cls for cls in (Config, StudyFile, Site) if name in dict(numbers(cls)))
    needed = {
        Config: {"data.folder": "d"},
        StudyFile: {"study.folder": "s"},
        Site: {"node.cores": 4, "node.memory_gb": 9.0},
    }
    values = [10**30, -(10**30)] if hint is not float else [math.inf, -math.inf, math.nan, 1e300, -1e300]
    for value in values:
        with pytest.raises(UserError) as error:
            build(cls, nested({**needed[cls], name: [value] if hint == tuple[int, ...] else value}))
        assert name in str(error.value)


@pytest.mark.parametrize("rate", [(), ("sync.every_iterations=3", "sync.every_seconds=1.0")])
def test_the_fixed_rate_needs_exactly_one_rate(tmp_path, rate):
    with pytest.raises(SettingsError, match="needs either every_iterations or every_seconds"):
        read(tmp_path, "sync.algorithm=ma", "sync.pace=fixed_rate", *rate)


SYNCHRONOUS = ("sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("sync.algorithm=gossip", "sync.pace=fixed_rate", "sync.every_iterations=5"), "set sync.pace = 'shadow'"),
        ((*SYNCHRONOUS[:2], "sync.every_iterations=2"), "set sync.pace = 'fixed_rate' and sync.every_iterations = 1"),
        (
            (*SYNCHRONOUS, "topology.threads=4", "topology.trainers=3"),
            "set topology.threads = 1 and topology.trainers = 12",
        ),
        ((*SYNCHRONOUS, "topology.sync_ps=1"), "does not use sync PSs: set topology.sync_ps = 0"),
    ],
)
def test_algorithms_refuse_what_makes_no_sense_for_them(tmp_path, overrides, message):
    with pytest.raises(UserError) as error:
        read(tmp_path, *overrides)
    assert message in str(error.value)


def test_the_decay_starts_after_the_warm_up(tmp_path):
    with pytest.raises(SettingsError, match="decay_start_examples = 5 lies inside the warm-up of 10"):
        read(tmp_path, "schedule.warmup_examples=10", "schedule.decay_start_examples=5", "schedule.decay_examples=9")


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (
            ["sync.every_iterations=5", "sync.every_seconds=1.0", "sync.cpu_share=0.5"],
            ["every_iterations", "every_seconds"],
        ),
        (["sync.pace=fixed_rate", "sync.every_iterations=5", "sync.cpu_share=0.5"], ["cpu_share"]),
        (["sync.pace=fixed_rate", "sync.every_seconds=1.0"], []),
        (["sync.algorithm=none", "sync.every_iterations=5"], []),
    ],
)
def test_settings_of_the_other_pace_are_named(monkeypatch, tmp_path, overrides, names):
    said = []
    monkeypatch.setattr(build_trainer.log, "warning", said.append)
    config = read(tmp_path, "topology.trainers=2", "topology.threads=1", *overrides).over(CRITEO)
    build_trainer.warn(config, SimpleNamespace(oversubscribed="", index=0), BEGINNING)
    pace = config.sync.pace
    assert said == [f"sync.{name} has no effect, because sync.pace = '{pace}': leave it out" for name in names]


@pytest.mark.parametrize(
    ("overrides", "index", "start", "told"),
    [
        ([], 0, BEGINNING, True),
        ([], 1, BEGINNING, False),
        (["topology.threads=1"], 0, BEGINNING, False),
        (["dense.optimizer=sgd"], 0, BEGINNING, False),
        (["schedule.warmup_examples=1"], 0, BEGINNING, False),
        ([], 0, Start(checkpoint=Path("checkpoint")), False),  # which has the optimizer's state
        ([], 0, Start(memory=SimpleNamespace(kept=True)), False),  # so does memory
    ],
)
def test_threads_that_would_begin_with_adagrads_full_steps_are_told(
    monkeypatch, tmp_path, overrides, index, start, told
):
    said = []
    monkeypatch.setattr(build_trainer.log, "warning", said.append)
    ranks = "topology.trainers=2", "topology.threads=3", "data.batch_size=10", "schedule.warmup_examples=0"
    config = read(tmp_path, *ranks, *overrides).over(CRITEO)
    build_trainer.warn(config, SimpleNamespace(oversubscribed="", index=index), start)
    assert [text for text in said if "schedule.warmup_examples = 6000" in text] == said
    assert bool(said) == told
