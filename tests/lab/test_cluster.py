"""The emulated cluster's parts on a clock of their own."""

import threading
from collections import deque
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from jobs.lab import cluster
from jobs.lab.cluster import SCENARIOS
from jobs.lab.emulation import Bucket, Computing, EmulatedTrainer, Emulation, LimitedLink, PseudoGradients
from ssmpi import compress
from ssmpi.bench.jobs import Task
from ssmpi.bench.windows import Timing
from ssmpi.config import load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.service import GOODBYE, Service
from ssmpi.state.requirements import placement_of
from ssmpi.sync.pace import Pace
from ssmpi.tools.bottleneck import STEP, Estimate, LinkSpeeds, estimate


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
    service = Service(LimitedLink(conversation, 1e6))

    def answer(source, tag, payload):
        service.reply(source, tag, service.buffer(20_000))

    server = threading.Thread(target=service.serve, args=(1, answer), daemon=True)
    server.start()
    server.join(20)
    assert not server.is_alive()
    assert [(array.size, dest, tag) for _, array, dest, tag in conversation.sent] == [(20_000, 1, 5)]


def test_a_step_takes_its_time_and_no_more_whatever_the_host_adds():
    clock = Clock()
    step = Computing(0.020, clock, lambda seconds: clock.sleep(seconds + 0.0008))  # woken late
    step.step()
    began = clock.time
    for k in range(100):
        clock.time += 0.001 + 0.018 * (k % 2)  # the rest of a step, nearly as long as the step at times
        step.step()
    assert clock.time - began == pytest.approx(2.0, abs=0.001)


def test_rows_that_come_late_and_rounds_in_the_foreground_add_to_a_step():
    clock = Clock()
    step = Computing(0.020, clock, clock.sleep)
    step.step()
    began = clock.time
    for _ in range(10):
        clock.time += 0.050  # waiting for rows
        step.step()
    assert clock.time - began == pytest.approx(0.5)
    began = clock.time
    for _ in range(10):
        clock.time += 0.030
        step.prolong(0.030)
        step.step()
    assert clock.time - began == pytest.approx(0.5)


def test_each_thread_of_a_trainer_waits_for_itself():
    """And a round in the foreground adds to the step of the thread that runs it."""
    vector = np.zeros(3, np.float32)
    model = SimpleNamespace(arrays=(vector, vector))
    trainer = EmulatedTrainer(SimpleNamespace(model_of=lambda _: model, pace=Pace(), progress=None), 0.001, index=0)
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
    codecs = compress.ShardCodecs(codec, [slice(0, size)], seed=(3,))
    for _ in range(24):
        for _ in range(10):
            pending += made.next()
        (payload,) = codecs.take(pending)
        sent.append(compress.count_of(payload)[1] / size)
    assert 0.01 <= np.mean(sent) < 0.025


def test_a_task_carries_its_emulation(tmp_path):
    for more in ({}, asdict(Emulation(0.02, 1e7))):
        task = Task("run.toml", ("a=1",), Timing(), more=more)
        task.write(tmp_path / "task.json")
        assert Task.read(tmp_path / "task.json") == task


@pytest.mark.parametrize("wrong", [{"trainers": ()}, {"trainers": (0,)}, {"step_ms": 0.0}, {"link_mb": -1.0}])
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
    predicted = Estimate({STEP: 100 / 0.024}, 5.0)
    found = {
        "eps": [900.0, 1000.0, 1100.0],
        "seconds": 3.0,
        "rounds": 10.0,
        "cpu": {"workers": 1.5, "shadow": 0.3},
        "host": {"busy": 2.99 * cluster.reporting.cores()},
    }
    row = {"shape": "FR-EASGD-5, 1 sync PS", "trainers": 1, **cluster.figures(predicted, found, examples=100)}
    assert row["gap"] == pytest.approx(3.0)  # 30 iterations
    assert row["deviation"] == pytest.approx(1000 / (100 / 0.024) - 1)
    assert row["host_full"]
    assert row["cores"] == pytest.approx(0.6)
    options = cluster.plain(cluster.ClusterOptions())
    text = cluster.table({"options": options, "header": {"cores": 2, "load_before": 0.5}, "rows": [row]})
    for words in (
        "Emulated on one host",
        "a wait of 50 ms",
        "sync PS links are token buckets of 4 MB/s",
        "0 of 1 jobs",
        "over 90%",
        "1 of 1 jobs;",
    ):
        assert words in text


def test_every_shape_is_a_valid_run(tmp_path, small_data):
    base = cluster.run_file_for(cluster.ClusterOptions(folder=tmp_path), None, [f"data.folder={small_data}"])
    for scenario in SCENARIOS:
        for trainers in filter(scenario.fits, (1, 20)):
            config = load(base, scenario.overrides(trainers))
            assert config.topology.size == scenario.ranks(trainers)
            found = estimate(config, placement_of(config), 0.02, LinkSpeeds(sync_ps=1e7))
            assert 0 < found.eps <= trainers * 32 / 0.02
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
