"""Settings that do not fit together, or make no sense, are refused before anything starts."""

import pytest

from ssmpi.config import load
from ssmpi.errors import SettingsError, UserError


def read(tmp_path, *overrides):
    path = tmp_path / "run.toml"
    path.write_text('[data]\nfolder = "d"')
    return load(path, overrides)


def test_the_shortest_run_file_will_do(tmp_path):
    config = read(tmp_path)
    assert config.topology.size >= 1
    assert config.model.bottom[-1] == config.embedding.dim


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("embedding.dim=8", "model.bottom ends in 16, but embedding.dim = 8"),
        ("sync.algorithm=easgd", "set topology.sync_ps = 1 or more"),
        ("topology.sync_ps=2", "has no use for sync PSs"),
        ("topology.trainers=0", "topology.trainers must be at least 1, got 0"),
        ("sync.alhpa=0.5", "did you mean 'alpha'?"),
        ("sync.alpha=0", "alpha must be in (0, 1], got 0.0"),
        (
            "sync.algorithm=eagsd",
            "algorithm is one of none, easgd, ma, bmuf, slowmo, gossip, async_ps, synchronous, got 'eagsd'",
        ),
        ("sync.pace=shade", "pace is one of shadow, fixed_rate"),
        ("sync.merge=mean", "merge is difference or interpolate"),
        ("sync.algorithm=async_ps", "set topology.sync_ps = 1 or more"),
        ("sync.algorithm=synchronous", "set sync.pace = 'fixed_rate' and sync.every_iterations = 1"),
        ("sync.fragments=0", "fragments must be at least 1, got 0"),
        ("sync.warmup_steps=-1", "warmup_steps must not be negative"),
        ("sync.easgd.coupling=1.0", "coupling must be in [0, 1)"),
        ("sync.slowmo.momentum=1.0", "momentum must be in [0, 1)"),
        ("sync.slowmo.rate=0", "rate must be in (0, 2]"),
        ("sync.bmuf.eta=0", "eta must be in (0, 2]"),
        ("sync.bmuf.momentum=1.0", "momentum must be in [0, 1)"),
        ("model.top=[8,2]", "top must end in 1"),
        ("model.bottom=[]", "bottom must list positive sizes"),
        ("model.name=dlrm2", "name is 'dlrm'"),
        ("data.batch_size=0", "batch_size must be at least 1"),
        ("data.block_rows=64", "block_rows = 64 is less than batch_size = 128"),
        ("data.handout=random", "handout is 'dynamic' or 'static'"),
        ("data.passes=0", "passes must be at least 1"),
        ("embedding.optimizer=adam", "optimizer is 'sgd' or 'rowwise_adagrad'"),
        ("dense.optimizer=adam", "optimizer is 'sgd' or 'adagrad'"),
        ("dense.rate=-1", "rate must not be negative"),
        ("run.seed=-1", "seed must be in [0, 2^31)"),
        ("run.folder=", "folder must not be empty"),
        ("evaluate.per_pass=0", "per_pass must be at least 1"),
        ("waiting.spins=-1", "spins must not be negative"),
        ("waiting.time_limit_seconds=0", "time_limit_seconds must be positive"),
    ],
)
def test_bad_settings_are_refused(tmp_path, override, message):
    with pytest.raises(UserError) as error:
        read(tmp_path, override)
    assert message in str(error.value)


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
        ((*SYNCHRONOUS, "sync.warmup_steps=5"), "set sync.warmup_steps = 0"),
        ((*SYNCHRONOUS, "sync.fragments=2"), "set sync.fragments = 1"),
        (
            (*SYNCHRONOUS, "topology.threads=4", "topology.trainers=3"),
            "set topology.threads = 1 and topology.trainers = 12",
        ),
        ((*SYNCHRONOUS, "topology.sync_ps=1"), "has no use for sync PSs: set topology.sync_ps = 0"),
    ],
)
def test_algorithms_refuse_what_makes_no_sense_for_them(tmp_path, overrides, message):
    with pytest.raises(UserError) as error:
        read(tmp_path, *overrides)
    assert message in str(error.value)


def test_the_decay_starts_after_the_warm_up(tmp_path):
    with pytest.raises(SettingsError, match="decay_start_examples = 5 lies inside the warm-up of 10"):
        read(tmp_path, "schedule.warmup_examples=10", "schedule.decay_start_examples=5", "schedule.decay_examples=9")
