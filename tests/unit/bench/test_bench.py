"""The arithmetic of the benchmark, against cases that can be done by hand, and its report of what is missing."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import LIST_CARDINALITIES, make_lists_dataset

from ssmpi.bench import (
    contenders,
    data,
    dense,
    jobs,
    loop,
    plain_pytorch,
    probes,
    process_usage,
    render,
    reporting,
    sections,
    stages,
    throughput,
    windows,
)
from ssmpi.bench.contenders import BARE, GEMM, PYTORCH, SSMPI, TUNED, Contender
from ssmpi.bench.loop import TickingPace
from ssmpi.bench.plain_pytorch import BatchSource
from ssmpi.bench.windows import Ticks, Timing
from ssmpi.cli import main
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches_in
from ssmpi.embedding import wire
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.model import reference
from ssmpi.model.network import Inputs
from ssmpi.model.networks import zoo
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import by_name
from ssmpi.model.replica import Replica, ThreadModel
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.mpi.service import request_tag
from ssmpi.runtime.topology import Role
from ssmpi.sync.pace import Pace
from ssmpi.train import hogwild

CORES = 2


def ticks_of(*threads):
    ticks = Ticks(len(threads))
    ticks.times = [list(times) for times in threads]
    ticks.done = [list(range(len(times))) for times in ticks.times]
    return ticks


def test_a_steady_thread_has_its_rate_in_every_window():
    steady = ticks_of(np.arange(0.013, 20, 0.25))
    assert steady.rates([1.1, 2.17, 3.9, 9.99]) == pytest.approx([4.0, 4.0, 4.0])


def test_threads_add_up_and_a_batch_across_an_edge_counts_by_its_share():
    slow = [0.0, 4.0, 8.0]  # the batch that ends at 8 spends a quarter of its time in the window 5 to 6
    quick = [0.0, 5.0, 5.5, 6.0, 7.0]
    assert ticks_of(slow, quick).rates([5.0, 6.0]) == pytest.approx([0.25 + 2])


def test_a_thread_that_never_ticked_adds_nothing():
    assert ticks_of([0.0, 1.0, 2.0], []).rates([0.0, 2.0]) == pytest.approx([1.0])


def test_a_thread_that_has_rested_did_nothing_meanwhile():
    """Else the batch after a rest is spread over all of the rest."""
    ticks = ticks_of([0.0, 1.0, 5.0, 6.0])
    ticks.done = [[0, 1, 1, 2]]
    assert ticks.rates([0.0, 1.0, 5.0, 6.0]) == pytest.approx([1.0, 0.0, 1.0])


def test_windows_lie_one_after_the_other_behind_the_warm_up():
    timing = Timing(warmup=0.5, seconds=2.0, windows=3)
    assert timing.edges(10.0) == [10.5, 12.5, 14.5, 16.5]
    assert timing.total == 6.5


@pytest.mark.parametrize(
    ("values", "median", "best"),
    [([7.0], 7, 7), ([1.0, 5.0], 3, 5), ([4.0, 1.0, 3.0, 2.0], 2.5, 4), ([1, 2, 3, 4, 5, 6, 7, 8.0], 4.5, 7.5)],
)
def test_median_and_mean_of_the_fastest_quarter(values, median, best):
    assert windows.median(values) == median
    assert windows.best_quarter(values) == best


def test_only_growth_within_the_windows_counts():
    readings = [{"cpu/workers": 5.0, "rss/x": 1.0}, {"cpu/workers": 6.0}, {"cpu/workers": 7.5, "cpu/shadow": 0.25}]
    assert windows.spent(readings, "cpu") == {"workers": 2.5, "shadow": 0.25}


def test_processor_seconds_are_the_threads_own():
    release, busy = threading.Event(), threading.Event()

    def work():
        while time.thread_time() < 0.2:  # /proc counts in hundredths
            sum(range(10_000))
        busy.set()
        release.wait(30)

    me = threading.Thread(target=work, name="worker 0")
    lazy = threading.Thread(target=release.wait, args=(30,), name="shadow")
    me.start()
    lazy.start()
    assert busy.wait(60)
    found = process_usage.own_cpu()
    release.set()
    me.join()
    lazy.join()
    while Path(f"/proc/self/task/{me.native_id}").exists():  # Python's thread ends a moment before the kernel's
        time.sleep(0.001)
    assert found["cpu/workers"] >= 0.1
    assert found["cpu/shadow"] < 0.1
    after = process_usage.own_cpu()["cpu/workers"]  # when they have ended, as workers do with each pass
    assert after >= found["cpu/workers"] - 0.02


def test_a_host_is_busy_where_the_job_may_run():
    """With 2 of 64 cores those of the other jobs counted, against 2 cores: the host was thousands of percent full."""
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 50 900 30 0 0 50 7 7\ncpu1 5 0 0 900 0 0 0 0 0 0\n"
    stat += "cpu10 1 2 3 4 5 6 7 8 0 0\nintr 1\n"
    assert process_usage.busy(stat, {0}) == 200 / process_usage.TICKS
    assert process_usage.busy(stat, {1, 10}) == (5 + 27) / process_usage.TICKS
    own = process_usage.host_busy()
    assert 0 < own <= process_usage.busy(Path("/proc/stat").read_text(), range(os.cpu_count()))


def test_the_grid_has_every_kind_batch_algorithm_and_thread_count():
    found = contenders.grid([128, 2048], CORES, short=False)
    assert len({contender.name for contender in found}) == len(found)
    for batch in (128, 2048):
        names = {
            contender.short_name for contender in found if contender.batch == batch and contender.precision == "fp32"
        }
        assert names >= {
            "bare step 1t",
            "bare step 2t",
            "gemm 1t",
            "gemm 2t",
            "pytorch 2t",
            "tuned pytorch 2p",
            "ssmpi 1x1 none",
            "ssmpi 1x2 none",
            "ssmpi 1x2 none by messages",
        }
        assert names >= {f"ssmpi 2x1 {algorithm}" for algorithm in ("none", "easgd", "ma", "bmuf")}


def test_the_grid_suits_one_core():
    assert {(c.trainers, c.threads) for c in contenders.grid([128], 1, short=False)} == {(1, 1), (2, 1)}


def test_bf16_is_a_setting_of_the_same_run():
    low = [c for c in contenders.grid([128], CORES, short=False) if c.precision == "bf16"]
    assert {c.kind for c in low} == {BARE, GEMM, SSMPI}
    assert all("model.precision=bf16" in c.overrides for c in low)


@pytest.mark.parametrize("pattern", ["", "2x1", "ssmpi*2048", "2x1 easgd, 2048"])
def test_a_pattern_may_stand_anywhere_in_a_name(pattern):
    assert reporting.chosen("ssmpi 2x1 easgd, 2048, fp32", pattern)
    assert not reporting.chosen("ssmpi 2x1 easgd, 2048, fp32", pattern + "x y")
    assert reporting.chosen("ssmpi 2x1 easgd, 2048, fp32", f"gemm|{pattern}")


def figures(eps, **more):
    return {"median": eps, "best_quarter": eps, **more}


def test_the_other_way_runs_in_the_second_and_third_of_four_windows():
    edges = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    asked = [9.9, 10.0, 10.9, 11.0, 12.9, 13.0, 14.5, 15.5, 16.0, 99.0]
    assert [probes.others_window(edges, now) for now in asked] == [False] * 3 + [True] * 2 + [False] * 2 + [True] + [
        False
    ] * 2
    assert not probes.others_window((), 1.0)


def probed(ticks):
    """What a probe works with, of a trainer without a job."""
    return probes.Probed(None, None, TickingPace(Pace(), ticks))


def test_other_threads_pause_in_the_other_windows_uncounted(monkeypatch):
    ticks, asked = Ticks(2), iter([0.5, 0.6, 1.9, 2.1])  # the other way's windows are those from 0 to 2
    monkeypatch.setattr(probes, "clock", lambda: next(asked))
    given = probed(ticks=ticks)
    probes.OneThreadProbe(given).begin([-1.0, 0.0, 1.0, 2.0, 3.0])
    given.pace.after_step(0)
    given.pace.after_step(1)
    assert ticks.done == [[1], [1, 1]]
    assert next(asked, None) is None  # it has waited for the last


def test_rounds_cost_the_mean_ratio_of_windows_with_and_without():
    rates = [9, 10, 10, 9, 11, 10, 10, 11, 8]
    found = sections.on_over_off({"eps": rates, "interrupted": [False] * 9})
    assert found["ratio"] == pytest.approx(1.0)
    assert found["error"] == pytest.approx(0.1)


@pytest.mark.parametrize(("ends", "ratio"), [((), 1.0), ((1,), 1.1), ((6,), 0.9), ((8,), 1.0), ((1, 6), 1.0)])
def test_windows_in_which_a_pass_ended_do_not_count(ends, ratio):
    job = {
        "eps": [9, 10, 10, 9, 11, 10, 10, 11, 8],
        "interrupted": [k in ends for k in range(9)],
        "rounds": 0,
        "seconds": 1,
    }
    assert sections.on_over_off(job)["ratio"] == pytest.approx(ratio)


def test_windows_in_which_a_starved_host_did_nothing_say_nothing():
    job = {"eps": [1.0, 0.0, 0.0, 1.0, 9.0, 10.0, 10.0, 9.0], "interrupted": [False] * 8, "rounds": 0, "seconds": 1}
    assert sections.on_over_off(job)["ratio"] == 0.9
    starved = {name: values[:4] for name, values in job.items() if name in ("eps", "interrupted")}
    assert math.isnan(sections.on_over_off(starved)["ratio"])


def test_trainers_of_a_job_are_put_together():
    reading = {"cpu/workers": 1.0, "rounds/all": 0.0, "rounds/seconds": 1.0, "host/busy": 4.0, "rss/trainer 0": 7.0}
    later = {"cpu/workers": 3.0, "rounds/all": 5.0, "rounds/seconds": 1.5, "host/busy": 9.0, "rss/trainer 0": 8.0}
    one = {**jobs.of_trainer([0.0, 2.0], [reading, later]), "eps": [10.0], "interrupted": [False]}
    other = {**one, "eps": [20.0], "interrupted": [True], "rounds": 6.0, "rss": {"trainer 1": [1.0, 2.0]}}
    found = jobs.together([one, other])
    assert (found["eps"], found["interrupted"], found["seconds"], found["rounds"]) == ([30.0], [True], 2.0, 5.5)
    assert found["cpu"] == {"workers": 4.0}
    assert found["round_seconds"] == 1.0
    assert found["rss"] == {"trainer 0": [7.0, 8.0], "trainer 1": [1.0, 2.0]}
    assert found["host"] == {"busy": 5.0}


def test_a_thread_without_data_is_not_kept_waiting_by_those_that_rest(monkeypatch):
    ticks = Ticks(2)
    given = probed(ticks=ticks)
    monkeypatch.setattr(probes, "clock", lambda: 0.5)
    for module in (windows, loop):
        monkeypatch.setattr(module, "clock", lambda: 0.5)
    probes.OneThreadProbe(given).begin([-1.0, 0.0, 1.0, 2.0, 3.0])
    given.pace.begin()
    resting = threading.Thread(target=given.pace.after_step, args=(1,), daemon=True)
    resting.start()
    resting.join(0.1)
    assert resting.is_alive()  # as long as the clock stands still
    given.pace.thread_done(0)
    resting.join(30)
    assert not resting.is_alive()
    given.pace.after_step(1)  # works on what it has
    assert ticks.interrupted([-1.0, 0.0, 0.5, 1.0]) == [False, False, True]


def test_the_short_benchmark_is_planned_for_a_minute():
    options = throughput.short(throughput.ThroughputOptions(seconds=3.0))
    names = [name for name in sections.SECTIONS if name not in sections.NOT_SHORT]
    visited = contenders.grid(options.batch, CORES, short=True)
    assert throughput.estimate(options, visited) + throughput.seconds_of_short_sections(options, names) <= 60


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_the_torch_model_of_a_network_scores_as_ours(name):
    network = zoo.network_of(ModelOptions(name=name, bottom=(24, 4), top=(16, 1)), Inputs(13, 5, 4))
    generator, plain = np.random.default_rng(0), plain_pytorch.PlainNetwork(network, (7,) * 5, seed=3)
    ids = generator.integers(0, 7, (9, 5))
    batch = Batch(ids, generator.normal(size=(9, 13)).astype(np.float32), np.zeros(9, np.float32))
    dense, columns, _ = plain_pytorch.collated(batch)
    tables = [table.weight.detach().numpy() for table in plain.tables]
    rows = np.stack([table[column] for table, column in zip(tables, ids.T, strict=True)], axis=1)
    expected = Replica(network, "fp32", seed=3).thread_model().score(batch.dense, rows)
    np.testing.assert_allclose(plain(dense, columns).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_torch_models_pool_lists_as_numpy_does(tmp_path):
    data = make_lists_dataset(tmp_path / "data", 200)
    reader = SplitReader(data, "train", 200)
    batch = next(iter(batches_in(np.arange(5, 45), reader.read(reader.blocks[0]), 40)))
    network = zoo.network_of(ModelOptions(name="deepfm"), Inputs(2, 5, 4))
    plain = plain_pytorch.PlainNetwork(network, LIST_CARDINALITIES, seed=3)
    merged = plain_pytorch.MergedNetwork(network, LIST_CARDINALITIES, seed=3)
    merged.table[:] = torch.cat([table.weight.detach() for table in plain.tables])
    expected, bags = np.zeros((40, 5, network.rows.width), np.float32), batch.ids
    for bag in range(200):
        row, feature = divmod(bag, 5)
        for at in range(bags.starts[bag], bags.starts[bag + 1]):
            vector = plain.tables[feature].weight[bags.ids[at]].detach().numpy()
            expected[row, feature] += vector * bags.weights[at]
    logits = Replica(network, "fp32", seed=3).thread_model().score(batch.dense, expected)
    dense, columns, _ = plain_pytorch.collated(batch)
    np.testing.assert_allclose(plain(dense, columns).detach().numpy(), logits, rtol=1e-4, atol=1e-5)
    whole = plain_pytorch.MergedBatch.of(batch, merged.offsets)
    found = whole.pooled(merged.table[whole.ids])
    np.testing.assert_allclose(found.numpy().reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def config_of(tmp_path, small_data):
    """The settings of a contender."""

    def load(contender):
        (tmp_path / "run.toml").write_text(f'[data]\nfolder = "{small_data}"\n')
        return data.load(tmp_path / "run.toml", [*contender.overrides, "dense.rate=0.01", "dense.initial_state=1e-3"])

    return load


def counted(monkeypatch, owner, name):
    """Calls of a function, which is called all the same: a list of their arguments."""
    calls, whole = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **named: (calls.append(args), whole(*args, **named))[1])
    return calls


DCN, HALF_DLRM = Contender(SSMPI, 64, network="dcn_v2"), Contender(SSMPI, 64, 1, "bf16", network="dlrm")


@pytest.mark.parametrize(("contender", "tolerance"), [(DCN, 1e-5), (HALF_DLRM, 2e-3)])
def test_the_bare_step_is_that_of_autograd_on_given_rows(config_of, monkeypatch, contender, tolerance):
    config, replicas = config_of(contender), []
    passes = counted(monkeypatch, ThreadModel, "forward_backward")
    monkeypatch.setattr(dense, "Replica", lambda *args: replicas.append(Replica(*args)) or replicas[-1])
    (step,), source = dense.steps_of(BARE, config), BatchSource(config)
    (replica,) = replicas
    mine = [torch.from_numpy(a.copy()).requires_grad_() for _, a in by_name(config.network.layout, replica.vector)]
    names = [name for name, _ in by_name(config.network.layout, replica.vector)]
    optimizer = torch.optim.Adagrad(mine, 0.01, initial_accumulator_value=1e-3, eps=config.dense.epsilon)
    for number, (batch, rows) in enumerate(source.with_rows(0)[:3], 1):
        step()
        logits = reference.logits(
            config.network, dict(zip(names, mine, strict=True)), torch.from_numpy(batch.dense), torch.from_numpy(rows)
        )
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels)).backward()
        optimizer.step()
        assert len(passes) == number
    for (name, found), expected in zip(by_name(config.network.layout, replica.vector), mine, strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("contender", [DCN, HALF_DLRM])
def test_the_gemm_bound_is_of_all_products_of_a_step(config_of, monkeypatch, contender):
    """Three products of each layer, without the gradients by the features, and of the interaction."""
    config = config_of(contender)
    calls = [*(counted(monkeypatch, torch, name) for name in ("mm", "bmm"))]
    (step,) = dense.steps_of(GEMM, config)
    step()
    multiplications = sum(left.numel() * right.shape[-1] for call in calls for left, right in call)
    shapes = [shape for name, shape in config.network.layout if name.endswith("weight")]
    expected = 3 * sum(map(math.prod, shapes)) - math.prod(shapes[0])
    if contender.network == "dlrm":
        expected += 3 * 27 * 27 * config.embedding.dim
    assert multiplications == 64 * expected
    assert {each.dtype for call in calls for pair in call for each in pair} == {
        torch.bfloat16 if contender.precision == "bf16" else torch.float32
    }


@pytest.mark.parametrize("optimizers", ["adagrad", "adam"])
def test_plain_pytorch_trains_rows_and_network(config_of, monkeypatch, optimizers):
    """Against dense tables and one Adagrad over all parameters, or Adam over those of the network and SparseAdam over
    the rows of a batch; by one forward and backward pass a step.
    """
    config, models = config_of(dataclasses.replace(DCN, optimizers=optimizers)), []
    make = plain_pytorch.PlainNetwork
    monkeypatch.setattr(plain_pytorch, "PlainNetwork", lambda *args: models.append(make(*args)) or models[-1])
    (step,), source = dense.steps_of(PYTORCH, config), BatchSource(config)
    (model,), logits_of = models, reference.logits
    mine = [p.detach().clone().requires_grad_() for p in (*model.dense, *(table.weight for table in model.tables))]
    tables = mine[len(model.dense) :]
    kinds = {"adagrad": [torch.optim.Adagrad] * 2, "adam": [torch.optim.Adam, torch.optim.SparseAdam]}[optimizers]
    steps = kinds[0](mine[: len(model.dense)], config.dense.rate), kinds[1](tables, config.embedding.rate)
    forward, backward = counted(monkeypatch, reference, "logits"), counted(monkeypatch, torch.Tensor, "backward")
    for number, batch in enumerate(source.batches(0)[:3], 1):
        step()
        assert len(forward) == len(backward) == number
        rows = torch.stack([table[ids] for table, ids in zip(tables, batch.ids.T, strict=True)], dim=1)
        parameters = dict(zip(model.names, mine, strict=False))
        logits = logits_of(config.network, parameters, torch.from_numpy(batch.dense), rows)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        for parameter, gradient in zip(mine, torch.autograd.grad(loss, mine), strict=True):
            parameter.grad = gradient
        for table in tables if optimizers == "adam" else ():
            table.grad = table.grad.to_sparse(1)
        for optimizer in steps:
            optimizer.step()
    for found, expected in zip((*model.dense, *(table.weight for table in model.tables)), mine, strict=True):
        apart = (found - expected).abs() > 1e-3
        assert apart.double().mean() <= (
            1e-4 if optimizers == "adam" else 0
        )  # where a gradient is rounding, so is its sign


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_the_tuned_pytorch_step_is_that_of_autograd_on_a_table_per_feature(config_of, monkeypatch, optimizer):
    """Its loss, one backward pass a step, dense parameters and every row, ids that occur twice in a batch included."""
    config, models = config_of(Contender(TUNED, 64)), []
    config = dataclasses.replace(
        config,
        embedding=dataclasses.replace(config.embedding, optimizer=optimizer, rate=0.05),
        dense=dataclasses.replace(config.dense, optimizer="sgd", rate=0.05),
    )
    whole = plain_pytorch.MergedNetwork
    monkeypatch.setattr(plain_pytorch, "MergedNetwork", lambda *args: models.append(whole(*args)) or models[-1])
    (step,), source = dense.steps_of(TUNED, config, 1), BatchSource(config)
    (model,) = models
    before = model.table.clone()
    tables = [part.clone().requires_grad_() for part in model.table.split(source.cardinalities)]
    mine = {name: value.detach().clone().requires_grad_() for name, value in model.parameters.items()}
    states = [torch.full((len(table), 1), config.embedding.initial_state) for table in tables]
    backward = counted(monkeypatch, torch.Tensor, "backward")
    for number, batch in enumerate(source.batches(1)[:3], 1):
        step()
        assert len(backward) == number
        assert any(len(np.unique(column)) < len(column) for column in batch.ids.T)
        columns = torch.from_numpy(batch.ids.astype(np.int64)).T
        rows = torch.stack([table[column] for table, column in zip(tables, columns, strict=True)], dim=1)
        logits = reference.logits(config.network, mine, torch.from_numpy(batch.dense), rows)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        gradients = torch.autograd.grad(loss, [*mine.values(), *tables])
        with torch.no_grad():
            for value, gradient in zip(mine.values(), gradients, strict=False):
                value -= 0.05 * gradient
            for table, gradient, state in zip(tables, gradients[len(mine) :], states, strict=True):
                if optimizer != "sgd":
                    state += gradient.square().mean(dim=1, keepdim=True)
                    gradient /= state.sqrt() + config.embedding.epsilon
                table -= 0.05 * gradient
    for name, found in model.parameters.items():
        np.testing.assert_allclose(found.detach(), mine[name].detach(), rtol=0, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(model.table, torch.cat(tables).detach(), rtol=0, atol=1e-5)
    assert not torch.equal(model.table, before)


def test_optimizers_that_pytorch_has_not_are_refused(config_of):
    """They ended in a KeyError, or were taken for Adagrad."""
    for kind, contender in ((PYTORCH, DCN), (TUNED, dataclasses.replace(DCN, optimizers="adam"))):
        config = config_of(contender)
        name = "partial_rowwise_adam" if kind == PYTORCH else "adam"
        config = dataclasses.replace(config, embedding=dataclasses.replace(config.embedding, optimizer=name))
        with pytest.raises(SettingsError, match=f"has no optimizer '{name}' for this"):
            dense.steps_of(kind, config)


def test_processes_of_a_contender_have_different_rows_and_count_together(config_of):
    config = config_of(Contender(TUNED, 64))
    first, second = (BatchSource(config).batches(process)[0] for process in (0, 1))
    assert not np.array_equal(first.ids, second.ids)
    visit = {"eps": [10.0, 20.0], "seconds": 2.0, "cpu": {"process": 1.5}, "host": {"busy": 4.0}, "rounds": 0.0}
    one, other = ({**visit, "rss": {"process": [k, k + 1]}} for k in (1.0, 5.0))
    found = contenders.side_by_side([one, {**other, "eps": [1.0, 2.0]}])
    assert found["eps"] == [11.0, 22.0]
    assert found["cpu"] == {"process": 3.0}
    assert found["host"] == {"busy": 4.0}
    assert found["rss"] == {"process 0": [1.0, 2.0], "process 1": [5.0, 6.0]}


def test_all_processes_of_a_contender_start_at_one_time():
    box = SimpleNamespace(value=0.0)
    start, found = contenders.CommonStart(threading.Barrier(3), box), []
    threads = [threading.Thread(target=lambda: found.append(start())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [box.value] * 3
    assert box.value > 0


def test_what_is_missing_is_said_loudly():
    assert render.half({"missing": "not measured"}) == "!!! not measured"


def test_cores_by_part_and_those_that_others_took():
    visit = {
        "eps": [10.0, 30.0],
        "seconds": 2.0,
        "rounds": 0.0,
        "cpu": {"workers": 3.0, "shadow": 0.2},
        "host": {"busy": 4.0},
        "rss": {},
    }
    found = throughput.figures(Contender(SSMPI, 128, 2), [visit, {**visit, "eps": [20.0], "host": {"busy": 3.2}}])
    assert found["windows"] == [10.0, 30.0, 20.0]
    assert found["median"] == 20.0
    assert found["cores"] == pytest.approx({"workers": 1.5, "shadow": 0.1})
    assert found["per_core_second"] == pytest.approx(20.0 / 1.6)
    assert found["others"] == pytest.approx((4.0 + 3.2) / 4 - 1.6)


def test_shares_account_for_the_rest():
    assert sections.shares({"read": 1.0, "push": 2.0}, 4.0) == {"read": 0.25, "push": 0.5, "rest": 0.25}
    assert sections.shares({"receive": 1.0, "idle": 3.0}) == {"receive": 0.25, "idle": 0.75}


def test_stopwatches_keep_results_and_order_and_count_each_thread(monkeypatch):
    seconds = iter(range(1_000))
    monkeypatch.setattr(stages, "now", lambda: float(next(seconds)))  # every reading of the clock is a second later
    watch = stages.Stages()
    assert list(watch.each(iter([1, 2, 3]), "read")) == [1, 2, 3]
    assert watch.call("squares", lambda x: x * x, 7) == 49
    other = threading.Thread(target=watch.call, args=("squares", lambda x: x * x, 2))
    other.start()
    other.join()
    with pytest.raises(ZeroDivisionError):
        watch.call("failing", lambda: 1 / 0)
    assert watch.spent() == {"read": 4.0, "squares": 2.0, "failing": 1.0}


def test_all_that_the_loop_calls_has_a_stopwatch(config_of, monkeypatch):
    """With the loop itself: each call takes from one reading of the clock to the next."""
    seconds = iter(range(1_000))
    monkeypatch.setattr(stages, "now", lambda: float(next(seconds)))
    config, placement, told = config_of(Contender(SSMPI, 128)), place((5,) * 26, 1), []
    options = dataclasses.replace(config.rows, settings=dataclasses.replace(config.embedding, prefetch=False))
    arena = Arena(options, placement, 0, 1)
    batches = [Batch(np.zeros((2, 26), np.int32), np.zeros((2, 13), np.float32), np.zeros(2, np.float32))] * 3
    found = np.zeros(2, np.float32), np.ones((2, 26, config.embedding.dim), np.float32)
    model = SimpleNamespace(arrays=(None, None), forward_backward=lambda *_: found)
    trainer = SimpleNamespace(
        progress=SimpleNamespace(rate_factor=lambda: 1.0, record=lambda *_: told.append("record")),
        pace=Pace(), model_of=lambda thread: model, stream=lambda thread: iter(batches),
        optimizer_of=lambda thread: SimpleNamespace(step=lambda *_: told.append("step")),
        lookups=lambda thread, kind: kind(local_tables(arena), thread),
    )  # fmt: skip
    view, before = stages.StagedTrainer(trainer), arena.weights.copy()
    hogwild(0, view)
    assert told == ["record", "step"] * 3
    assert np.any(arena.weights != before)
    called = "ask for rows", "wait for rows", "forward/backward", "record", "push", "dense update"
    assert view.stages.spent() == {"read": 4.0, **dict.fromkeys(called, 3.0)}


def test_a_servers_time_is_charged_to_what_the_message_asked_for(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(stages, "now", lambda: clock[0])
    incoming = [
        None,
        (0, request_tag(wire.PULL, 3), b""),
        None,
        (0, request_tag(wire.PUSH, 1), b""),
        (0, request_tag(wire.DRAIN, 0), b""),
    ]

    def next_message(inbox):
        clock[0] += 1.0  # a look at the mail takes a second, found or not
        return incoming.pop(0)

    spent = {}
    server = stages.StagedServer(spent, Role.EMBEDDING_PS, SimpleNamespace(next_message=next_message, isend=None))
    for handling in (100.0, 10.0, 20.0, 3.0, 0.0):  # the first is spent before anybody asked
        server.next_message(None)
        clock[0] += handling
    incoming.append(None)
    server.next_message(None)
    assert spent == {"gather and reply": 10.0, "idle": 1.0 + 20.0 + 1.0, "update": 3.0, "other": 0.0, "receive": 3.0}


def test_threads_are_counted_by_what_they_are(monkeypatch):
    names = ["worker 0", "helper 1", "shadow", "mover", "meter"]
    there = [SimpleNamespace(native_id=k, name=name) for k, name in enumerate(names)]
    monkeypatch.setattr(process_usage.threading, "enumerate", lambda: there)
    monkeypatch.setattr(process_usage, "threads_cpu", lambda pid: {k: float(10**k) for k in range(len(names))})
    monkeypatch.setattr(process_usage, "_cpu", lambda place: 11111.0 + 0.5)  # an ended thread's too
    expected = {"cpu/workers": 11.5, "cpu/shadow": 100.0, "cpu/mover": 1000.0, "cpu/supervision": 10000.0}
    assert process_usage.own_cpu() == pytest.approx(expected)


def test_a_fresh_process_returns_its_result_and_its_exception(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    assert contenders.in_fresh_process(divmod, 7, 2) == (3, 1)
    assert contenders.in_fresh_process(
        eval, "'torch' in __import__('sys').modules"
    )  # by the process that it is forked from
    with pytest.raises(ZeroDivisionError):
        contenders.in_fresh_process(divmod, 7, 0)


def test_steps_repeat_until_the_windows_are_over():
    calls = [0, 0]

    def step_of(k):
        def step():
            calls[k] += 1
            threading.Event().wait(0.001)

        return step

    edges, ticks, readings = contenders.run([step_of(0), step_of(1)], Timing(0.01, 0.02, 3))
    assert len(edges) == len(readings) == 4
    assert [len(times) + 1 for times in ticks.times] == calls  # one call before the threads start
    assert all(times[-1] >= edges[-1] for times in ticks.times)


def test_the_benchmark_itself_needs_neither_mpi_nor_torch():
    code = "import sys, ssmpi.bench.throughput; sys.exit('mpi4py.MPI' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_that_measure_nothing_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="--rounds must be at least 1"):
        throughput.ThroughputOptions(rounds=0)
    assert list(tmp_path.iterdir()) == []  # nothing was made


def bench(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "throughput", *arguments])
    return ended.value.code


@pytest.mark.parametrize(
    ("pattern", "close"),
    [
        ("threadss", "'threads'"),
        ("zzz|netwerks", "'networks'"),
        ("ssmpi*1x1 nome", "'ssmpi 1x1 none, 128, fp32'"),
        ("PyTorch", "'pytorch 2t, 128, fp32'"),
    ],
)
def test_a_pattern_that_selects_nothing_is_answered_with_a_few_names(tmp_path, capsys, pattern, close):
    assert bench("--only", pattern, "--folder", str(tmp_path / "made")) == 2
    error = capsys.readouterr().err
    assert f"--only '{pattern}' lets nothing through; the nearest of " in error
    assert close in error
    assert len(error) < 300
    assert not (tmp_path / "made").exists()
    assert "; 'ssmpi bench throughput --names' prints all" in error
    assert bench("--names") == 0
    assert {close.strip("'"), "stages", "threads"} <= set(capsys.readouterr().out.splitlines())


def test_names_are_those_that_would_be_measured(tmp_path, capsys):
    assert bench("--folder", str(tmp_path / "made"), "--short", "--only", "gemm|stages|half", "--names") == 0
    assert capsys.readouterr().out.splitlines() == [f"gemm {reporting.cores()}t, 128, fp32", "stages"]
    assert not (tmp_path / "made").exists()


def test_data_that_cannot_be_made_are_said_with_the_reason(tmp_path):
    (tmp_path / "raw-40000").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot make data to measure on: .*synthesize"):
        data.synthetic(tmp_path, 40_000)


def test_a_given_run_file_is_the_base_with_its_overrides(tmp_path, small_data):
    given = tmp_path / "run.toml"
    given.write_text(f'[data]\nfolder = "{small_data}"\n[dense]\nrate = 0.25\n')
    base = data.base_run_file(given, ["embedding.dim=8", "model.bottom=[8]"], tmp_path, short=True)
    assert data.load(base).dense.rate == 0.25
    assert data.load(base).model.bottom == (8,)


def test_the_report_says_that_pytorch_has_more_optimizer_state():
    assert "embedding.optimizer=rowwise_adagrad" in Contender(PYTORCH, 128, network="dcn_v2").overrides
    assert "Adagrad (of rows: PyTorch's by weight, the loop's by row)" in render.networks({})


def test_results_are_json_that_every_reader_takes(tmp_path, capsys):
    """What is not finite was written as NaN, which is Python's alone."""
    report = {"best": math.nan, "sections": {"shadow": {"gap": (math.inf, 3.0)}}}
    reporting.publish(tmp_path / "found.json", report, "text")
    found = json.loads((tmp_path / "found.json").read_text(), parse_constant=pytest.fail)
    assert found == {"best": None, "sections": {"shadow": {"gap": [None, 3.0]}}}


def test_other_programs_are_compared_with_ssmpi_on_as_many_threads():
    ours, tuned, single = Contender(SSMPI, 128, 2), Contender(TUNED, 128, 2), Contender(BARE, 128, 1)
    visit = {"seconds": 1.0, "rounds": 0.0, "cpu": {"process": 1.0}, "host": {"busy": 1.0}, "rss": {}}
    rates = {ours: 60.0, tuned: 40.0, single: 30.0}
    found = {c.name: throughput.figures(c, [{**visit, "eps": [rate]}]) for c, rate in rates.items()}
    assert [render.over(figures, found) for figures in found.values()] == ["-", "1.50", "-"]
    text = render.contenders(found)
    assert re.search(r"^tuned pytorch 2p, 128, fp32 +40 +40 +1 +1\.50 ", text, flags=re.MULTILINE)


def test_the_median_of_nothing_is_not_a_number():
    assert math.isnan(windows.median([]))
