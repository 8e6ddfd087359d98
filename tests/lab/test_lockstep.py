"""Lockstep runs: they compute what real runs compute, wherever those leave nothing to chance."""

import json
from dataclasses import replace

import numpy as np
import pytest
from datasets import make_lists_dataset
from laboratory import lab
from runs import train_over_threads, write_run_file

from jobs.lab.lockstep import lockstep as lockstep_command
from jobs.lab.lockstep import paired
from jobs.lab.lockstep.rounds import LockstepRounds
from jobs.lab.lockstep.run import Lockstep, LockstepRun
from ssmpi.model.replica import ReplicaOptimizer, ThreadModel
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.sync import Options

FIXED_RATE = ("sync.pace=fixed_rate", "sync.every_iterations=4", "sync.alpha=0.3")


def in_lockstep(folder, data, *overrides, **lockstep):
    run = LockstepRun(write_run_file(folder, data, *overrides), Lockstep(**lockstep))
    run.train()
    return run


def dense_of(run):
    return {name: values for name, values, _ in run.trainers[0].replica.datasets(run.rounds.model())}


def assert_same_bits(run, real):
    for name, values in real.dense().items():
        np.testing.assert_array_equal(dense_of(run)[name], values, err_msg=name)
    arena = run.tables.shards[0].rows
    for part, table in zip(sorted(arena.parts, key=lambda part: part.table), real.tables(), strict=True):
        rows = arena.weights[part.base : part.base + part.rows]
        np.testing.assert_array_equal(rows, table, err_msg=f"table {part.table}")


@pytest.mark.parametrize("prefetch", ["true", "false"])
def test_one_trainer_computes_what_a_run_does(tmp_path, small_data, prefetch):
    overrides = (
        "data.passes=2", "evaluate.per_pass=3", f"embedding.prefetch={prefetch}", "data.block_rows=1024",
        "model.center_inputs=true",
        "schedule.warmup_examples=1000", "schedule.decay_start_examples=5000", "schedule.decay_examples=7000",
    )  # fmt: skip
    real = train_over_threads(tmp_path / "real", small_data, *overrides)
    run = in_lockstep(tmp_path / "lockstep", small_data, *overrides)
    np.testing.assert_array_equal(run.progress.losses, real.losses())
    assert_same_bits(run, real)
    assert run.score("test")["log_loss"] == pytest.approx(real.quality()["log_loss"], rel=1e-9)


def test_lists_are_pooled_as_in_a_run(tmp_path):
    data = make_lists_dataset(tmp_path / "data", 500)
    overrides = ("data.batch_size=50", "data.block_rows=200", "model.name=deepfm", "model.deepfm.deep=[8]")
    real = train_over_threads(tmp_path / "real", data, *overrides)
    run = in_lockstep(tmp_path / "lockstep", data, *overrides)
    np.testing.assert_array_equal(run.progress.losses, real.losses())
    assert_same_bits(run, real)
    assert run.score("test")["log_loss"] == pytest.approx(real.quality()["log_loss"], rel=1e-9)


@pytest.mark.parametrize("codec", ["dense", "threshold:0.9"])
def test_rounds_of_one_trainer_and_its_center_are_those_of_a_run(tmp_path, small_data, codec):
    overrides = (*FIXED_RATE, "sync.algorithm=easgd", "topology.sync_ps=1", f"sync.codec={codec}")
    real = train_over_threads(tmp_path / "real", small_data, *overrides)
    run = in_lockstep(tmp_path / "lockstep", small_data, *overrides, gap=4)
    np.testing.assert_array_equal(run.progress.losses, real.losses())
    assert_same_bits(run, real)


@pytest.mark.parametrize("codec", ["dense", "threshold:0.9", "bf16"])
def test_pushes_of_one_trainer_are_those_of_a_run(tmp_path, small_data, codec):
    """By the message, to the last bit; pulls too."""
    pushes = ("sync.algorithm=async_ps", f"sync.codec={codec}", "sync.threshold_interval=10", "topology.sync_ps=1")
    real = train_over_threads(tmp_path / "real", small_data, *FIXED_RATE, *pushes)
    run = in_lockstep(tmp_path / "lockstep", small_data, *FIXED_RATE, *pushes, gap=4)
    np.testing.assert_array_equal(run.progress.losses, real.losses())
    assert_same_bits(run, real)
    assert run.rounds.figures.get("density") == real.result.get("density")


BLOCK_MOMENTUM = ("sync.algorithm=bmuf", "sync.bmuf.momentum=0.6", "sync.bmuf.eta=0.9")
AHEAD = (*BLOCK_MOMENTUM, "sync.bmuf.nesterov=true")
ALGORITHMS = [("sync.algorithm=ma",), ("sync.algorithm=bmuf",), BLOCK_MOMENTUM, AHEAD]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rounds_of_two_trainers_are_those_of_a_run(tmp_path, small_data, algorithm):
    """Rows stay as they are, because two trainers race for them."""
    overrides = (*FIXED_RATE, *algorithm, "topology.trainers=2", "embedding.rate=0", "data.handout=static")
    real = train_over_threads(tmp_path / "real", small_data, *overrides)
    run = in_lockstep(tmp_path / "lockstep", small_data, *overrides, gap=4)
    assert_same_bits(run, real)
    assert run.rounds.count > 5


class Recorded:
    """Records the batches and the steps of a run."""

    def __init__(self, patch):
        self.batches, self.steps = [], 0
        forward_backward, step = ThreadModel.forward_backward, ReplicaOptimizer.step

        def of_batch(model, dense, rows, labels, first_example):
            self.batches.append((dense.copy(), rows.copy(), labels.copy()))
            return forward_backward(model, dense, rows, labels, first_example)

        def of_gradients(optimizer, model, factor):
            self.steps += 1
            step(optimizer, model, factor)

        patch.setattr(ThreadModel, "forward_backward", of_batch)
        patch.setattr(ReplicaOptimizer, "step", of_gradients)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_gradient_is_applied_after_a_step_of_each_other_thread(tmp_path, small_data, threads, monkeypatch):
    """Against SGD in numpy. All threads computed from the same weights: half as stale as Hogwild's are."""
    overrides = ("dense.optimizer=sgd", "dense.rate=0.1", "embedding.rate=0", "data.batch_size=64")
    given = write_run_file(tmp_path, small_data, *overrides, f"topology.threads={threads}")
    replica = LockstepRun(given, Lockstep()).trainers[0].replica
    with monkeypatch.context() as patch:
        recorded = Recorded(patch)
        run = LockstepRun(given, Lockstep(steps=12))
        run.train()
    model, weights, late, losses = replica.thread_model(), replica.vector, [], []
    for dense, rows, labels in recorded.batches:
        logits, _ = model.forward_backward(dense, rows, labels)
        losses.append(np.mean(np.logaddexp(0, logits) - labels * logits))
        late.append(model.gradients.copy())
        if len(late) == threads:
            weights -= np.float32(0.1) * late.pop(0)
    for gradients in late:
        weights -= np.float32(0.1) * gradients
    assert len(losses) == 12 * threads
    np.testing.assert_allclose(run.progress.losses, losses, rtol=1e-6)
    np.testing.assert_allclose(run.trainers[0].replica.vector, weights, rtol=1e-5, atol=1e-7)


def test_no_gradient_is_lost_when_threads_end_one_after_the_other(tmp_path, small_data, monkeypatch):
    recorded = Recorded(monkeypatch)
    uneven = ("topology.threads=3", "data.block_rows=1024", "data.batch_size=64", "evaluate.per_pass=2")
    run = in_lockstep(tmp_path, small_data, *uneven)
    assert recorded.steps == len(recorded.batches) == len(run.progress.losses) > 6_000 / 64


SEVERAL = ("sync.algorithm=ma", "topology.trainers=2", "topology.threads=2")


def test_seeds_decide_all(tmp_path, small_data):
    seeds = {"gap": 3, "staleness": 1, "dense": 2, "embedding": 3, "order": 4, "interleaving": 5}
    first = in_lockstep(tmp_path / "first", small_data, *SEVERAL, **seeds)
    assert first.score("test") == in_lockstep(tmp_path / "again", small_data, *SEVERAL, **seeds).score("test")
    for name in ("gap", "staleness", "dense", "embedding", "order", "interleaving"):
        other = in_lockstep(tmp_path / name, small_data, *SEVERAL, **{**seeds, name: seeds[name] + 1})
        assert first.progress.losses != other.progress.losses, name


def test_a_run_of_so_many_steps_is_the_beginning_of_the_whole_one(tmp_path, small_data):
    whole = in_lockstep(tmp_path / "whole", small_data, *SEVERAL)
    part = in_lockstep(tmp_path / "part", small_data, *SEVERAL, steps=5)
    assert len(part.progress.losses) == 5 * 4  # a loss of each of two threads of two trainers
    assert part.progress.losses == whole.progress.losses[: 5 * 4]
    assert part.rounds.count == 5


def rounds_of(replicas, gap=1.0, staleness=0, **options):
    return LockstepRounds(Options(alpha=0.5, **options), replicas, gap, staleness)


def test_a_stale_merge_keeps_what_was_learned_meanwhile():
    replicas = [np.array([0.0], np.float32), np.array([4.0], np.float32)]
    rounds = rounds_of(replicas, gap=2, staleness=1, algorithm="ma")
    rounds.after_tick(1, [0, 1])
    rounds.after_tick(2, [0, 1])  # snapshots 0 and 4, mean 2
    replicas[0] += 10
    assert [replica.item() for replica in replicas] == [10, 4]
    rounds.after_tick(3, [0, 1])
    assert [replica.item() for replica in replicas] == [11, 3]


def test_who_has_ended_follows_without_weight():
    replicas = [np.array([0.0], np.float32), np.array([4.0], np.float32)]
    rounds_of(replicas, algorithm="ma").after_tick(1, [0])
    assert [replica.item() for replica in replicas] == [0, 2]


def test_elastic_rounds_conserve_the_sum_and_take_turns():
    replicas = [np.array([8.0], np.float32), np.array([8.0], np.float32)]
    rounds = rounds_of(replicas, gap=4, algorithm="easgd")
    replicas[1] += 8
    for tick in range(1, 5):
        rounds.after_tick(tick, [0, 1])
        assert sum(replica.item() for replica in replicas) + rounds.model().item() == 32
        assert rounds.count == (0, 1, 1, 2)[tick - 1]


def test_a_gap_below_one_is_several_rounds_a_tick():
    replicas = [np.array([0.0], np.float32), np.array([16.0], np.float32)]
    rounds_of(replicas, gap=0.5, algorithm="ma").after_tick(1, [0, 1])
    assert [replica.item() for replica in replicas] == [6, 10]


@pytest.mark.parametrize("wrong", [{"gap": 0.0}, {"staleness": -1}, {"order": -1}, {"steps": -1}])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Lockstep(**wrong)


def test_the_first_case_is_not_charged_for_compiling():
    """The reference, which comes first, took three times as long as with a codec."""
    seconds = {"dense": [9.0, 1.0, 1.5, 1.0], "codec": [2.0, 2.0, 2.0, 1.0]}
    runs = [
        {"case": name, "test": {"ne": 0.7 + s}, "losses": [0.5], "cpu_seconds": s}
        for name, each in seconds.items()
        for s in each
    ]
    lines = paired.table(runs, list(seconds), "test").splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["1.2", "2.0"]


@pytest.mark.parametrize("texts", [["gap=7", "gap=7"], [""]])
def test_a_case_that_is_there_twice_is_refused(tmp_path, small_data, texts):
    """Its table ended with a broadcasting error after all of the runs."""
    with pytest.raises(SettingsError, match="is there twice"):
        paired.cases_of(texts, lambda words: write_run_file(tmp_path, small_data, *words), Lockstep())


def test_a_group_is_refused_with_what_it_is_in_lockstep(tmp_path, small_data):
    """It was told to set two trainers, of four."""
    with pytest.raises(SettingsError, match=r"set topology\.group = 1, trainers = 2 and threads = 6"):
        in_lockstep(tmp_path, small_data, "topology.trainers=4", "topology.threads=3", "topology.group=2")


def test_an_algorithm_without_lockstep_rounds_is_refused(tmp_path, small_data):
    """Of several cases, before the first one trains."""
    with pytest.raises(SettingsError, match="none, easgd, ma, bmuf, slowmo, async_ps and those derived"):
        in_lockstep(tmp_path, small_data, "sync.algorithm=gossip", "topology.trainers=2")
    with pytest.raises(SettingsError, match=r"lockstep knows .* got 'gossip'"):
        paired.cases_of(
            ["sync.algorithm=gossip"], lambda words: write_run_file(tmp_path, small_data, *words), Lockstep()
        )


def test_cases_are_compared_by_pairs_of_seeds(tmp_path, small_data, monkeypatch, capsys):
    """The reference varies with its seed by more than the case differs from it."""
    given = write_run_file(tmp_path, small_data)
    cases = paired.cases_of(
        ["sync.alpha=0.25 feedback=off gap=7 rounding=nearest"],
        lambda words: write_run_file(tmp_path, small_data, *words),
        Lockstep(),
    )
    given_lockstep = [(case.lockstep.feedback, case.lockstep.gap, case.lockstep.nearest) for case in cases]
    assert given_lockstep == [(True, 1.0, False), (False, 7.0, True)]
    assert (cases[0].config, cases[1].config.sync.alpha) == (given, 0.25)

    def one(config, lockstep, splits):
        other = config.sync.alpha == 0.25
        seeds = lockstep.dense, lockstep.embedding, lockstep.order
        assert len(set(seeds)) == 1
        ne = seeds[0] * (1.01 if other else 1.0) + (0.002 * seeds[0] * (seeds[0] - 2) if other else 0)
        found = {"push_bytes": 50.0, "pull_bytes": 100.0, "density": 0.05}
        losses = [9.0] * 15 + [ne] * 4 + [ne * ne if other else ne]  # the last quarter counts
        return {
            "test": {"ne": ne},
            "losses": losses,
            "gap": lockstep.gap,
            "staleness": lockstep.staleness,
            **(found if other else {"push_bytes": 1000.0, "pull_bytes": 1000.0}),
        }

    monkeypatch.setattr(paired, "one", one)
    paired.measure(cases, "test", 3, tmp_path / "out.json")
    line = capsys.readouterr().out.splitlines()[-1].split()
    expected = np.array([0.8, 1.0, 1.2])
    assert line[-15:-11] == [f"+{expected.mean():.3f}", "±", f"{expected.std(ddof=1) / 3**0.5:.3f}", "%"]
    ratio = 1 + expected / 100
    loss = 100 * ((4 + np.arange(1, 4) * ratio) * ratio / 5 - 1)
    assert line[-11:-7] == [f"+{loss.mean():.3f}", "±", f"{loss.std(ddof=1) / 3**0.5:.3f}", "%"]
    assert (line[-7], line[-4:-1]) == ("0.0500", ["20.0", "10.0", "13.3"])  # pushes, pulls and both
    body = json.loads((tmp_path / "out.json").read_text())
    assert len(body["runs"]) == 6
    with pytest.raises(SettingsError, match="--runs must be at least 2"):
        paired.measure(cases, "test", 1, None)
    body["runs"] = [run for run in body["runs"] if run["seed"] != 2]
    (tmp_path / "out.json").write_text(json.dumps(body))
    made = []
    monkeypatch.setattr(paired, "one", lambda *of: made.append(of[1].dense) or one(*of))
    paired.measure(cases, "test", 3, tmp_path / "out.json")
    assert made == [2, 2], "the others are kept"
    assert capsys.readouterr().out.splitlines()[-1].split()[:-1] == line[:-1]
    changed = [replace(case, config=write_run_file(tmp_path, small_data, "dense.rate=0.125")) for case in cases]
    with pytest.raises(SettingsError, match=r"'as given' ran with dense\.rate = 0\.005, not 0\.125: name another"):
        paired.measure(changed, "test", 3, tmp_path / "out.json")


def lockstep(folder, data, *arguments):
    run_file = folder / "run.toml"
    run_file.write_text(
        f"[data]\nfolder = '{data}'\npasses = 1\n[model]\nbottom = [16, 4]\ntop = [1]\n[embedding]\ndim = 4\n"
    )
    return lab("lockstep", run_file, "sync.algorithm=none", *arguments)


def test_the_command_varies_one_seed(tmp_path, small_data):
    out = tmp_path / "order.json"
    done = lockstep(tmp_path, small_data, "--seed=7", "--vary=order", "--runs=2", "--out", out).check()
    runs = json.loads(out.read_text())["runs"]
    assert [(run["dense"], run["embedding"], run["order"]) for run in runs] == [(7, 7, 7), (7, 7, 8)]
    ne = [run["test"]["ne"] for run in runs]
    assert ne[0] != ne[1]
    assert f"test: mean NE {np.mean(ne):.5f}, standard deviation {np.std(ne, ddof=1):.5f}" in done.out
    assert all(f"{value:.5f}" in done.out for value in ne)


def test_seeds_begin_with_the_given_one(monkeypatch, tmp_path, small_data, capsys):
    """All seeds vary by default, from 1 on, so that ``--seed`` did nothing; nor did it with cases."""
    seen = []

    def one(config, lockstep, splits):
        seen.append((lockstep.dense, lockstep.embedding, lockstep.order, lockstep.interleaving))
        return {"losses": [0.5], **{split: {"ne": 0.7 + seen[-1][0] / 1000} for split in splits}}

    for module in (lockstep_command, paired):
        monkeypatch.setattr(module, "one", one)
    config, given = write_run_file(tmp_path, small_data), Lockstep(1.0, 0, 7, 7, 7, 0)
    lockstep_command.measure(config, given, ["dense", "embedding", "order"], 2, tmp_path / "seeds.json")
    assert seen == [(7, 7, 7, 0), (8, 8, 8, 0)]
    seen.clear()
    lockstep_command.measure(config, given, ["interleaving"], 2, tmp_path / "seeds.json")
    assert seen == [(7, 7, 7, 1), (7, 7, 7, 2)]
    seen.clear()
    paired.measure(paired.cases_of(["gap=2"], lambda words: config, given), "test", 2, None)
    assert seen == [(7, 7, 7, 0)] * 2 + [(8, 8, 8, 0)] * 2
    assert "seed 8, gap=2: NE 0.70800" in capsys.readouterr().out


def test_the_command_names_the_seeds_that_there_are(tmp_path, small_data):
    done = lockstep(tmp_path, small_data, "--vary=rows")
    assert done.code == 2
    assert "--vary takes dense, embedding, order, interleaving, got 'rows'" in done.err


@pytest.mark.parametrize(
    "measure",
    [
        lambda out: lockstep_command.measure(None, Lockstep(), [], 1, out),
        lambda out: paired.measure([], "test", 2, out),
    ],
)
@pytest.mark.parametrize("content", ["[data]\n", '{"status": "complete"}\n'])
def test_results_replace_no_other_file(measure, content, tmp_path):
    out = tmp_path / "run.toml"
    out.write_text(content)
    with pytest.raises(UserError, match=r"run\.toml: is there, and not an earlier output of this command"):
        measure(out)
    assert out.read_text() == content
