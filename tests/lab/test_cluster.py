"""The emulated cluster's parts on a clock of their own, and its predictions against figures made by hand."""

import math
import threading
from collections import deque
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import virtual_hosts
from datasets import FEW, FEW_CARDINALITIES, make_dataset, make_keyed, make_lists_dataset

from jobs.lab.cluster import cluster
from jobs.lab.cluster import scenarios as cluster_scenarios
from jobs.lab.cluster import table as cluster_table
from jobs.lab.cluster.emulation import (
    Bucket,
    Computing,
    Cores,
    EmulatedTrainer,
    Emulation,
    LimitedLink,
    PseudoGradients,
)
from jobs.lab.cluster.scenarios import SCENARIOS, Scenario
from ssmpi import cli, compress
from ssmpi.bench.harness.jobs import Task
from ssmpi.bench.harness.windows import Timing
from ssmpi.config import load
from ssmpi.data.features import Features, ListOptions
from ssmpi.data.reader import SplitReader
from ssmpi.embedding import wire
from ssmpi.embedding.key_kernels import owner_of
from ssmpi.runtime import traffic
from ssmpi.runtime.errors import SettingsError, UserError
from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.service import GOODBYE, Service
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Topology
from ssmpi.state.requirements import dense_parameters
from ssmpi.sync import ALGORITHMS, SYNC_PS, elastic_mirrors, mean_mirrors
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.pace import Pace
from ssmpi.tools import forecast, forecast_text
from ssmpi.tools.distinct_rows import distinct_rows, sent_bytes
from ssmpi.tools.forecast import EMBEDDING, STEP, SYNC, Compute, Forecast, LinkSpeeds, Rounds


class Clock:
    """Time that passes only when somebody says so."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


class Wire:
    """The face of a conversation: messages put into ``waiting`` come at once, what is sent is ``sent`` with its
    time.
    """

    def __init__(self, clock):
        self.clock, self.waiting, self.sent = clock, deque(), []

    def next_message(self, inbox):
        if not self.waiting:
            return None
        source, tag, size = self.waiting.popleft()
        payload = inbox.buffer(size)
        payload[:] = source
        return source, tag, payload

    def isend(self, array, dest, tag):
        self.sent.append((self.clock.time, array.copy(), dest, tag))
        return Done()


class Done:
    def Test(self):  # noqa: N802 - mpi4py's name
        return True


@pytest.mark.parametrize("rate", [1e4, 10e6, 3e9])
@pytest.mark.parametrize("busy", [0.3, 1.0, 4.0])  # offered, as a share of what goes through
def test_a_bucket_lets_through_its_rate_or_what_is_offered(rate, busy):
    chance, bucket, now, total, last = np.random.default_rng(1), Bucket(rate), 50.0, 0, 0.0
    for _ in range(4000):
        size = int(chance.integers(1, 2_000))
        now += chance.exponential(1000 / (rate * busy))
        passed = bucket.passed(size, now)
        assert passed >= max(now, last) + size / rate * (1 - 1e-6)
        total, last = total + size, passed
    assert total / (last - 50.0) == pytest.approx(rate * min(1.0, busy), rel=0.05)


def test_an_idle_link_saves_nothing_up():
    bucket = Bucket(1000.0)
    assert bucket.passed(500, 10.0) == pytest.approx(10.5)
    assert bucket.passed(500, 99.0) == pytest.approx(99.5)


@pytest.mark.parametrize("nap", [1e-5, 7e-4])
def test_a_server_behind_a_link_answers_at_the_links_rate(nap):
    clock = Clock()
    wire, inbox = Wire(clock), Inbox()
    link, rate, size = LimitedLink(wire, 10e6, clock), 10e6, 100_000  # 10 ms a message
    wire.waiting.extend((source, 7, size) for source in range(50))
    came, requests, buffers = [], [], []
    while len(came) < 50 or not all(request.Test() for request in requests):
        clock.time += nap
        if (message := link.next_message(inbox)) is not None:
            source, tag, payload = message
            assert (tag, payload.size, set(payload.tolist())) == (7, size, {source})
            came.append(clock.time)
            buffers.append(np.full(size, source, np.uint8))
            requests.append(link.isend(buffers[-1], source, 3))
    sent = [time for time, *_ in wire.sent]
    assert 50 * size / (came[-1] - 100.0) == pytest.approx(rate, rel=0.05)
    assert 50 * size / (sent[-1] - came[0]) == pytest.approx(rate, rel=0.05)
    assert [dest for *_, dest, _ in wire.sent] == list(range(50))
    assert all((array == dest).all() for _, array, dest, _ in wire.sent)
    # full duplex: the last reply is one message behind the last request, not fifty
    assert sent[-1] - came[-1] == pytest.approx(0.01, abs=2e-3)


def test_a_service_behind_a_link_ends_only_when_every_reply_has_left():
    conversation = Wire(Clock())
    conversation.waiting.extend([(1, 5, 1000), (1, GOODBYE, 0)])
    service = Service(LimitedLink(conversation, 1e6), WaitOptions())

    def answer(source, tag, payload):
        service.reply(source, tag, service.buffer(20_000))

    server = threading.Thread(target=service.serve, args=(1, answer), daemon=True)
    server.start()
    server.join(20)
    assert not server.is_alive()
    assert [(array.size, dest, tag) for _, array, dest, tag in conversation.sent] == [(20_000, 1, 5)]


def test_a_step_takes_its_time_and_no_more_whatever_the_host_adds():
    clock = Clock()
    step = Computing(Cores(1), clock, lambda seconds: clock.sleep(seconds + 0.0008))  # woken late
    step.compute(0.020)
    began = clock.time
    for k in range(100):
        clock.time += 0.001 + 0.018 * (k % 2)  # the rest of a step, nearly as long as the step at times
        step.compute(0.020)
    assert clock.time - began == pytest.approx(2.0, abs=0.001)


def test_rows_that_come_late_and_rounds_in_the_foreground_add_to_a_step():
    clock = Clock()
    step = Computing(Cores(1), clock, clock.sleep)
    step.compute(0.020)
    began = clock.time
    for _ in range(10):
        clock.time += 0.050  # waiting for rows
        step.compute(0.020)
    assert clock.time - began == pytest.approx(0.5)
    began = clock.time
    for _ in range(10):
        clock.time += 0.030
        step.prolong(0.030)
        step.compute(0.020)
    assert clock.time - began == pytest.approx(0.5)


# P = 25,000 floats are 100 kB; a link of 10 MB/s takes 10 ms a direction, 20 ms there and back.
COMPUTE = Compute(0.020, 100, 1)
FR = Forecast(COMPUTE, LinkSpeeds(sync_ps=10e6), Rounds(SYNC_PS, 100_000, period=5))


def with_rounds(model, **changes):
    return replace(model, rounds=replace(model.rounds, **changes))


def with_threads(model, threads):
    return replace(model, compute=replace(model.compute, threads=threads))


def test_foreground_easgd_has_its_plateau_where_the_formula_says():
    one = FR.of(1)
    assert one.eps == pytest.approx(100 / (0.020 + 0.020 / 5))  # 4,167
    assert (one.full, one.gap) == (STEP, 5)
    plateau = 1 * 10e6 * 5 * 100 / (4 * 25_000 * one.eps)  # n = S B k b / (4 P e)
    assert plateau == pytest.approx(12.0)
    assert FR.of(11).eps == pytest.approx(11 * one.eps)
    for n in (13, 64, 256):
        assert FR.of(n).eps == pytest.approx(50_000)  # 100 rounds/s x 5 iterations x 100 examples
        assert FR.of(n).full == SYNC


def test_a_window_has_a_round_of_each_trainer():
    options = cluster.ClusterOptions(seconds=2.0)
    rare = with_rounds(FR, period=200).of(4)  # 200 steps of 20 ms, and a round of 20 ms
    seconds = cluster.seconds_between_rounds(rare, 100)
    assert seconds == pytest.approx(4.02)
    assert cluster.timing_of(options, seconds).seconds == pytest.approx(4.02)
    assert cluster.seconds_between_rounds(with_rounds(FR, partner="", bytes=0, period=0).of(4), 100) == 0
    assert cluster.timing_of(options, 0.0) == cluster.timing_of(options) == Timing(4.0, 2.0, 3)


def test_the_plateau_moves_with_sync_pss_and_period():
    assert with_rounds(FR, period=30).of(10_000).eps == pytest.approx(300_000)
    assert with_rounds(FR, bytes=25_000).of(10_000).eps == pytest.approx(200_000)  # 4 PSs


def test_threads_with_rounds_of_their_own_ask_as_often_as_so_many_trainers():
    assert with_threads(FR, 4).of(1000).eps == pytest.approx(50_000)
    assert with_threads(with_rounds(FR, together=True), 4).of(1000).eps == pytest.approx(200_000)


def test_in_the_background_the_gap_grows_and_examples_do_not_wait():
    shadow = with_rounds(FR, period=0)
    for n, gap in ((1, 1.0), (2, 1.0), (4, 2.0), (16, 8.0), (256, 128.0)):
        assert shadow.of(n).eps == pytest.approx(n * 5000)
        assert shadow.of(n).gap == pytest.approx(gap)  # 4 P n / (S B) / step, from two trainers on
        assert shadow.of(n).full == STEP
    assert with_threads(shadow, 3).of(16).gap == pytest.approx(8.0)  # of a thread
    assert with_rounds(shadow, bytes=50_000, fragments=2).of(16).gap == pytest.approx(8.0)


def test_rings_have_a_nearly_constant_gap():
    ring = Forecast(COMPUTE, LinkSpeeds(trainer=10e6), Rounds("all trainers", 100_000))
    assert ring.of(1).gap is None
    assert ring.of(2).gap == pytest.approx(0.5)
    assert ring.of(256).gap == pytest.approx(2 * 255 / 256 * 0.5)
    assert replace(ring, links=LinkSpeeds()).of(8).gap is None  # as fast as can be: nothing to say
    pairs = with_rounds(ring, partner="another trainer")
    assert [pairs.of(n).gap for n in (1, 2, 64)] == [None, pytest.approx(1.0), pytest.approx(1.0)]


def test_embedding_links_fill_and_slower_iterations_shrink_the_gap():
    tables = Forecast(COMPUTE, LinkSpeeds(10e6, 5e6), Rounds(SYNC_PS, 100_000), iteration_bytes=25_000)
    assert tables.of(4).full == STEP
    assert tables.of(8).eps == pytest.approx(20_000)  # 200 iterations/s
    assert tables.of(8).full == EMBEDDING
    assert tables.of(8).gap == pytest.approx(0.08 * 25)  # a round each 80 ms, an iteration each 40


def read(tmp_path, data, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{data}"')
    return load(path, (*cluster_scenarios.SMALL, *overrides))


def test_distinct_rows_are_those_of_the_data(tmp_path, small_data):
    config = read(tmp_path, small_data, "data.batch_size=2300", "data.block_rows=2300", "topology.embedding_ps=3")
    reader = SplitReader(small_data, "train", 2300)
    shards = [reader.read(block).ids for block in reader.blocks]
    distinct = [sum(len(np.unique(ids[:, f])) for f in range(26)) for ids in shards]
    assert sum(distinct_rows(config)) == pytest.approx(np.mean(distinct))


def test_bytes_are_those_that_the_wire_format_says(tmp_path, small_data):
    config = read(tmp_path, small_data, "data.batch_size=2300", "data.block_rows=2300", "topology.embedding_ps=3")
    width = config.rows.layout.width
    for rows, found in zip(distinct_rows(config), sent_bytes(config), strict=True):
        ids, gradients = np.arange(5, dtype=np.int32), np.zeros((5, width), np.float32)
        head = wire.push(1.0, ids[:0], gradients[:0]).nbytes
        each = (ids.nbytes + wire.push(1.0, ids, gradients).nbytes - head) / 5
        assert found == pytest.approx(head + rows * each)


@pytest.mark.parametrize("servers", [1, 3])
def test_distinct_keys_count_as_rows_while_there_is_room(tmp_path, servers):
    """The reserved rows are counted where they are looked up, and the shared ones where the table is full. A PS on
    another host is asked for rows by key, and one of them for the shared rows, in any case.
    """
    ids = make_dataset(tmp_path / "ids", 400, cardinalities=FEW_CARDINALITIES, features=FEW)
    data = make_keyed(tmp_path / "keys", ids, ("user", "item"))
    one = ("data.batch_size=400", "data.block_rows=400", "embedding.table=dynamic", f"topology.embedding_ps={servers}")
    reader = SplitReader(data, "train", 400)
    batch = reader.read(reader.blocks[0])
    rows = sum(len(np.unique(column)) for column in (*batch.ids.T, *batch.keys.T))
    keys = [set(column.tolist()) - {0} for column in batch.keys.T]
    owners = [int(owner_of(key, servers)) for feature in keys for key in feature]
    asked = [owners.count(server) for server in range(servers)]
    for limit, with_row, left in ((1_000, asked, rows), (1, [2] * servers, rows - sum(asked) + 2 * servers + 2)):
        config = read(tmp_path, data, *one, f"embedding.dynamic.keys={limit}")  # a row a PS and feature, shared ones
        found = distinct_rows(config)
        assert sum(found) == left
        width, expected = config.rows.layout.width, []
        for server in range(servers):
            shared = 2 if server == 1 % servers and limit > 1 else 0  # nobody needs them then
            known, key = found[server] - with_row[server] + shared, np.zeros((1, 3), np.int64)  # key, feature, times
            request = 8 + asked[server] * key.nbytes + 4 * known
            expected.append(request + wire.pushed_bytes(1, found[server], width))
        assert sent_bytes(config) == expected


@pytest.mark.parametrize(("dim", "chosen"), [(4, "trainer"), (256, "server")])
def test_a_forecast_pools_lists_where_a_run_does(tmp_path, dim, chosen):
    """2,000 ids of some 160 rows in 100 lists: short rows are less to send than the lists' ids, long ones are not."""
    features = Features(("age",), ("tags",), {"tags": ListOptions("sum", longest=40, mean_length=20.0)})
    data = make_lists_dataset(tmp_path / "data", 300, features=features, cardinalities=(50_000,))
    settings = ("data.batch_size=100", "topology.embedding_ps=1", f"embedding.dim={dim}", f"model.bottom=[8, {dim}]")
    sent = {
        pooling: sent_bytes(read(tmp_path, data, *settings, f"embedding.pooling={pooling}"))[0]
        for pooling in ("trainer", "server", "auto")
    }
    assert sent["auto"] == sent[chosen] == min(sent.values())
    assert sent["trainer"] != sent["server"]


def test_a_run_file_is_taken_as_it_is(tmp_path, small_data):
    config = read(tmp_path, small_data, *Scenario("easgd", 5, 2).overrides(8))
    found = forecast.forecast(config, 0.02, LinkSpeeds(10e6))
    assert (found.rounds.partner, found.rounds.period, found.rounds.together) == (SYNC_PS, 5, False)
    assert found.rounds.bytes == 4 * dense_parameters(config) / 2
    timed = read(tmp_path, small_data, "sync.algorithm=ma", "sync.pace=fixed_rate", "sync.every_seconds=2.0")
    assert forecast.forecast(timed, 0.02, LinkSpeeds()).rounds.period == pytest.approx(100)
    with pytest.raises(SettingsError, match="no forecast for"):
        forecast.forecast(read(tmp_path, small_data, *SYNCHRONOUS), 0.02, LinkSpeeds())


def test_a_group_is_predicted_by_its_parts(tmp_path, small_data):
    """``data``: every lane sends its gradients of half of the parameters, and gets the weights."""
    config = read(tmp_path, small_data, "sync.algorithm=ma", "topology.trainers=4", "topology.group=2")
    found = forecast.forecast(config, 0.02, LinkSpeeds(trainer=10e6))
    assert found.rounds.bytes == 4 * dense_parameters(config)
    parameters = 4 * config.network.parameters
    assert found.of(4).eps == pytest.approx(4 * 32 / (0.02 + parameters / 10e6))
    text = forecast_text.describe(config, 0.02, LinkSpeeds(trainer=10e6), [2, 8])
    assert "by the cycle of its 2 lanes: 100% of a step, 0.22 MB to wait for" in text
    first = read(tmp_path, small_data, "topology.trainers=4", "topology.group=2", "hierarchy.homes=first")
    assert forecast.forecast(first, 0.02, LinkSpeeds()).of(4).eps == pytest.approx(2 * 32 / 0.02)
    base = tmp_path / "base.toml"
    base.write_text(f'data.folder = "{small_data}"\ntopology.group = 2\ntopology.trainers = 2')
    with pytest.raises(SettingsError, match="give groups by --group"):
        cluster.expected(cluster.ClusterOptions(folder=tmp_path), Scenario(), base)


SYNCHRONOUS = ("sync.algorithm=synchronous", "sync.pace=fixed_rate", "sync.every_iterations=1")


def test_the_prediction_shows_its_sums_and_what_is_full_first(tmp_path, small_data):
    config = read(tmp_path, small_data, *Scenario("easgd", 5, 1).overrides(8))
    text = forecast_text.describe(config, 0.02, LinkSpeeds(10e6, 10e6, 10e6), [1, 8, 256])
    assert f"{4 * dense_parameters(config) / 1e6:.3g} MB a round" in text
    assert "first to be full: sync PS link" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["1", "8", "256"]
    assert text.splitlines()[-1].endswith("sync PS link")


@pytest.mark.parametrize(
    ("embedding", "first", "eps"),
    [
        (math.inf, "sync PS link (sync PS link at 2.0 trainers)", "EPS grows with the trainers"),
        (5e6, "sync PS link (sync PS link at 2.0 trainers, embedding PS link at 4.0 trainers)", "from 4.0 trainers on"),
        (
            1e6,
            "embedding PS link (sync PS link at 2.0 trainers, embedding PS link at 0.8 trainers)",
            "from 0.8 trainers on",
        ),
    ],
)
def test_the_prediction_says_once_what_is_full_first_in_the_background(embedding, first, eps):
    """A full sync PS link costs gap there; the table below speaks of what limits EPS."""
    found = Forecast(COMPUTE, LinkSpeeds(10e6, embedding), Rounds(SYNC_PS, 100_000), iteration_bytes=25_000)
    full, background = forecast_text.first_full(found)
    assert full.strip() == f"first to be full: {first}"
    assert "costs gap, not EPS" in background
    assert eps in background


def test_links_that_carry_anything_are_never_full():
    (line,) = forecast_text.first_full(Forecast(COMPUTE, LinkSpeeds(), Rounds(SYNC_PS, 100_000)))
    assert "none of the links" in line


def test_every_shape_is_a_valid_run(tmp_path, small_data):
    for scenario, trainers in cluster_scenarios.ordered(SCENARIOS, [1, 20]):
        config = read(tmp_path, small_data, *scenario.overrides(trainers))
        assert config.topology.size == scenario.ranks(trainers)
        assert math.isfinite(forecast.forecast(config, 0.02, LinkSpeeds(1e7, 5e6)).of(trainers).eps)
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_each_thread_of_a_trainer_waits_for_itself():
    """And a round in the foreground adds to the step of the thread that runs it."""
    vector = np.zeros(3, np.float32)
    model = SimpleNamespace(arrays=(vector, vector))
    trainer = EmulatedTrainer(
        SimpleNamespace(model_of=lambda _: model, pace=Pace(), progress=None), 0.001, index=0, threads=2
    )
    steps, ends = [], []

    def work(thread):
        trainer.model_of(thread).forward_backward(*3 * (np.zeros((1, 1), np.float32),))
        step = trainer._computing[thread]
        steps.append(step)
        before = step._end
        trainer.pace.after_step(thread)
        ends.append((before, step._end))

    for thread in range(2):
        worker = threading.Thread(target=work, args=(thread,))
        worker.start()
        worker.join()
    assert steps[0] is not steps[1]
    assert all(before < after for before, after in ends)
    assert ends[0][1] == steps[0]._end, "the second thread's round has added nothing to the first one's step"


def test_a_codec_sends_about_its_share_of_pseudo_gradients():
    """Constant gradients would pass a threshold together: 8 % at 0.99 from the fourth push on."""
    size, made = 100_000, PseudoGradients(100_000, trainer=3)
    codec, pending, sent = compress.parse("threshold:0.99", compress.CodecOptions()), np.zeros(size, np.float32), []
    codecs = compress.ShardCodecs(codec, [[slice(0, size)]], (), seed=(3,))
    for _ in range(24):
        for _ in range(10):
            pending += made.next()
        (payload,) = codecs.take(pending, 0)
        sent.append(compress.count_of(payload)[1] / size)
    assert 0.01 <= np.mean(sent) < 0.025


def test_a_task_carries_its_emulation(tmp_path):
    for more in ({}, asdict(Emulation(0.02, 1e7, None))):
        task = Task("run.toml", ("a=1",), Timing(), more=more)
        task.write(tmp_path / "task.json")
        assert Task.read(tmp_path / "task.json") == task


def test_groups_run_beside_as_many_trainers_alone(tmp_path, small_data):
    """By every plan and link, where the trainers can be grouped so; each job once."""
    options = cluster.ClusterOptions(group=(1, 2, 4), trainers=(2, 8), rank_link_mb=(5.0, 10.0))
    found = cluster_scenarios.visits(options)
    assert [n for scenario, n in found if scenario.group == 1] == [1, 2, 4, 8]
    groups = [(s.group, n) for s, n in found if s.plan == "stages" and s.link_mb == 5.0]
    assert groups == [(2, 2), (2, 8), (4, 8)]
    assert len(found) == 4 + 3 * 3 * 2
    for scenario, trainers in found:
        config = read(tmp_path, small_data, *scenario.overrides(trainers))
        assert (config.topology.group, config.hierarchy.plan) == (scenario.group, scenario.plan)
        link = 1e6 * scenario.link_mb if scenario.group > 1 else None
        assert cluster.emulation(options, scenario) == Emulation(0.05, 4e6, None, link)


def test_a_table_of_groups_compares_each_with_as_many_trainers_alone():
    row = {"predicted_eps": 100.0, "deviation": 0.0, "cores": 1.0, "host": 0.5, "host_full": False, "full": "x"}
    alone = {**row, "shape": "no rounds", "group": 1, "eps": 80.0, "gap": None, "predicted_gap": None}
    group = {**row, "shape": "groups of 2, data, 5 MB/s", "group": 2, "trainers": 8, "eps": 120.0}
    rows = [group, {**alone, "trainers": 8}, {**alone, "trainers": 4}]
    assert cluster_table.gain(group, rows) == (1.5, 1.0)
    assert cluster_table.gain(group, rows[:2]) == (None, None)
    options = cluster.plain(cluster.ClusterOptions(group=(2,)))
    text = cluster.table({"options": options, "header": {"cores": 2, "load_before": 0.5}, "rows": rows})
    assert "links of members as named" in text
    assert "1.50      1.00" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"trainers": ()}, {"trainers": (0,)}, {"step_ms": 0.0}, {"link_mb": -1.0}, {"group": ()}, {"group": (0, 2)},
        {"rank_link_mb": ()}, {"rank_link_mb": (5.0, 0.0)},
    ],
)  # fmt: skip
def test_options_without_sense_are_refused(wrong):
    with pytest.raises(SettingsError, match="must"):
        cluster.ClusterOptions(**wrong)


@pytest.mark.parametrize("name", ["cluster.toml", "base.toml"])
def test_a_run_file_is_not_replaced(tmp_path, small_data, name):
    """It was emptied before it was read."""
    given = tmp_path / name
    given.write_text(f'[data]\nfolder = "{small_data}"\n')
    with pytest.raises(SettingsError, match="choose another --folder"):
        cluster.run_file_for(cluster.ClusterOptions(folder=tmp_path), given, ())
    assert str(small_data) in given.read_text()


def test_a_table_says_what_is_emulated_and_marks_a_full_host():
    found = {
        "eps": [900.0, 1000.0, 1100.0],
        "seconds": 3.0,
        "rounds": 10.0,
        "cpu": {"workers": 1.5, "shadow": 0.3},
        "host": {"busy": 2.99 * cluster.reporting.cores()},
    }
    row = cluster.figures(Scenario("easgd", 5, 1), FR.of(1), found, examples=100)
    assert row["gap"] == pytest.approx(3.0)  # 30 iterations
    assert row["deviation"] == pytest.approx(1000 / (100 / 0.024) - 1)
    assert row["host_full"]
    assert row["cores"] == pytest.approx(0.6)
    options = cluster.plain(cluster.ClusterOptions())
    text = cluster.table({"options": options, "header": {"cores": 2, "load_before": 0.5}, "rows": [row]})
    for words in (
        "Emulated on one host",
        "a wait of 50 ms",
        "sync PS links carry 4 MB/s",
        "a token bucket at its rank",
        "0 of 1 jobs",
        "over 90%",
        "1 of 1 jobs;",
    ):
        assert words in text
    report = {"options": {**options, "virtual_hosts": True}, "header": {"cores": 2, "load_before": 0.5}, "rows": [row]}
    assert "virtual host" in cluster.table(report)


def test_either_the_server_or_the_kernel_limits_a_link():
    scenario = Scenario("easgd", 5, 2, embedding_ps=1, narrow=True)
    inside, kernel = (cluster.ClusterOptions(virtual_hosts=there) for there in (False, True))
    assert cluster.emulation(inside, scenario) == Emulation(0.05, 4e6, 2e6)
    assert cluster.emulation(kernel, scenario) == Emulation(0.05, None, None)
    assert cluster.rates(kernel, scenario) == [2e6, 4e6, 4e6]  # in rank order: embedding PSs come before sync PSs
    assert cluster.rates(kernel, Scenario()) == [None]
    with pytest.raises(SettingsError, match="leave out --virtual-hosts, or --group and --edges"):
        cluster.ClusterOptions(virtual_hosts=True, group=(1, 2))


def test_virtual_hosts_are_refused_with_a_reason_where_there_can_be_none(monkeypatch, tmp_path):
    monkeypatch.setattr(virtual_hosts, "missing", lambda: "virtual hosts need root")
    with pytest.raises(UserError, match="need root; without --virtual-hosts"), virtual_hosts.limited_hosts(1, tmp_path):
        pass
    monkeypatch.setattr(virtual_hosts, "missing", lambda: "")
    monkeypatch.chdir("/tmp")
    with pytest.raises(UserError, match="folders of their own in /tmp"), virtual_hosts.limited_hosts(1, tmp_path):
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(virtual_hosts, "VirtualHosts", None)  # none is made
    spaced = virtual_hosts.limited_hosts(1, tmp_path / "my runs")
    with pytest.raises(UserError, match="my runs: virtual hosts need folders without spaces"), spaced:
        pass  # a mount in the first host failed


def test_the_command_line_predicts_or_says_what_it_lacks(tmp_path, small_data, capsys):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\n')
    asked = ["plan", str(path), "--predict", "--trainers", "3"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*asked, "--step-ms", "10", "--link-mb", "1000"])
    assert not ended.value.code
    predicted = capsys.readouterr().out.partition("\n\noverhead of recovery, ")[0]
    assert predicted.splitlines()[-1].split()[:3] == ["3", f"{3 * 128 / 0.010:,.0f}", "100%"]
    for wrong, word in (([], "--step-ms"), (["--step-ms", "1", "--link-mb", "0"], "0 bytes a second")):
        with pytest.raises(SystemExit) as ended:
            cli.main([*asked, *wrong])
        assert ended.value.code == 2
        assert word in capsys.readouterr().err


RUN = {"step": 0.01, "links": LinkSpeeds(sync_ps=1e6, trainer=1e6)}


def coded_and_dense(tmp_path, data, algorithm, *overrides):
    """Forecasts of a run with and without a codec, over links of 1 MB/s."""
    (tmp_path / "run.toml").write_text(f"[data]\nfolder = '{data}'")
    servers = ALGORITHMS[algorithm].partner == SYNC_PS
    given = (f"sync.algorithm={algorithm}", f"topology.sync_ps={int(servers)}", *overrides)
    return [
        forecast.forecast(load(tmp_path / "run.toml", (*given, f"sync.codec={codec}")), **RUN)
        for codec in ("threshold:0.99", "dense")
    ]


@pytest.mark.parametrize(
    ("algorithm", "trainers", "low", "high"),
    [("async_ps", 1, 1.9, 2), ("easgd", 1, 50, 67), ("ma", 2, 50, 67), ("ma", 4, 50, 67)],
)
def test_a_codec_shortens_rounds_by_what_both_directions_share(algorithm, trainers, low, high, tmp_path, small_data):
    """With whole pulls less than twice, however few are pushed; both ways as often as there are fewer bytes."""
    coded, dense = coded_and_dense(tmp_path, small_data, algorithm, f"topology.trainers={trainers}")
    assert low < dense.round_seconds(4) / coded.round_seconds(4) < high
    assert coded.dense == dense
    if algorithm == "async_ps":
        assert coded.round_capacity == dense.round_capacity
        assert "a round is 2.0 times as fast" in "\n".join(forecast_text.arithmetic(coded))
    assert "codec" not in "\n".join(forecast_text.arithmetic(dense))


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if not kind.no_codec])
def test_whoever_takes_a_codec_says_what_it_takes_of_the_processors(name):
    """And nothing where there is none."""
    topology = Topology(trainers=2, sync_ps=int(ALGORITHMS[name].partner == SYNC_PS))
    for codec, cost in compress.CODECS.items():
        options = RoundOptions(algorithm=name, codec=f"{codec}:0.9" if cost.takes_share else codec)
        seconds = ALGORITHMS[name].cost(options, topology, 1_000).codec_seconds
        assert (seconds > 0) == (codec != "dense")


def test_elastic_rounds_take_two_mirrors_at_both_ends():
    """A mirror costs what a pull does; and both mirrors are moved at both ends."""
    topology = Topology(trainers=2, sync_ps=1)
    for codec in ("threshold:0.99", "bf16"):
        pull = ALGORITHMS["async_ps"].cost(RoundOptions(pull_codec=codec), topology, 10**9).codec_seconds
        elastic = ALGORITHMS["easgd"].cost(RoundOptions(codec=codec), topology, 10**9).codec_seconds
        assert elastic == pytest.approx(2 * pull + elastic_mirrors.PASSES)
        assert elastic_mirrors.PASSES > 0


CODED = Rounds(SYNC_PS, 200_000, 1.0, pushed=4_000, codec_seconds=75e-6)  # 1.5 ns each of 50,000 entries


@pytest.mark.parametrize("period", [1.0, 0.0], ids=["foreground", "background"])
def test_fewer_pushes_gain_nothing_over_a_link_full_of_whole_pulls(period):
    """They go the other way."""
    found = [Forecast(COMPUTE, LinkSpeeds(1e6), replace(CODED, period=period, pulled=size)) for size in (None, 4_000)]
    predictions = [each.of(16) for each in (found[0].dense, *found)]
    dense, pushed, both = (each.eps if period else 1 / each.gap for each in predictions)
    assert (pushed / dense, both / dense) == pytest.approx((1, 50))  # as many times as there are fewer bytes


def test_rounds_of_all_trainers_by_a_codec_take_what_owners_get_and_send(tmp_path, small_data):
    """By hand: each trainer sends a payload of its replica and one of the mean, but for its own shard, over its link;
    beside that there is what mirrors take of the processors.
    """
    path = tmp_path / "run.toml"
    path.write_text(f"[data]\nfolder = '{small_data}'\n[sync]\nalgorithm = 'ma'\ncodec = 'threshold:0.99'\n")
    config = load(path, ("topology.trainers=4", "sync.fragments=3"))
    size = dense_parameters(config)
    sent = ALGORITHMS["ma"].cost(config.sync, config.topology, size).sent[traffic.Link.TRAINERS]
    found = forecast.forecast(config, 0.01, LinkSpeeds(trainer=1e6))
    cost = compress.CODECS["threshold"].nanoseconds
    seconds = 1e-9 * (1.25 * cost.send + 1.5 * cost.receive + mean_mirrors.PASSES) * size
    assert 3 * found.round_seconds(4) == pytest.approx(sent / 1e6 + seconds)
    assert found.round_seconds(1) == 0  # nobody is told
