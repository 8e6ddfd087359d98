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
        ("sync.algorithm=eagsd", "algorithm is one of none, easgd, ma, bmuf, got 'eagsd'"),
        ("sync.pace=shade", "pace is one of shadow, fixed_rate"),
        ("sync.merge=mean", "merge is difference or interpolate"),
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


def test_the_decay_starts_after_the_warm_up(tmp_path):
    with pytest.raises(SettingsError, match="decay_start_examples = 5 lies inside the warm-up of 10"):
        read(tmp_path, "schedule.warmup_examples=10", "schedule.decay_start_examples=5", "schedule.decay_examples=9")
