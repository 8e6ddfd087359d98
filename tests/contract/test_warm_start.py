"""A run whose processes are killed and started again goes on with what their memory has kept."""

import json
import mmap
import re
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from faults import Kill, KilledError
from ranks import PATIENCE, over_threads
from runs import Run, assert_same_model, train_over_threads, write_run_file

from ssmpi import sync
from ssmpi.config import load
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.mpi import rank_memory
from ssmpi.runtime.mpi.rank_memory import LostMemoryError, MemoryFile, Origin
from ssmpi.runtime.mpi.service import request_tag
from ssmpi.runtime.topology import Topology
from ssmpi.state import run_folder
from ssmpi.state.checkpoint import pending_save
from ssmpi.state.checkpoint.arena_writer import ArenaWriter
from ssmpi.state.memory_needs import kept_memory
from ssmpi.state.recovery import restart
from ssmpi.state.recovery.start import Start
from ssmpi.state.recovery.warm_state import RecoveryNotes
from ssmpi.state.requirements import placement_of
from ssmpi.sync import ALGORITHMS, SYNC_PS
from ssmpi.sync import Options as RoundOptions
from ssmpi.sync.async_ps import AsyncPS, GradientCenter, ParameterServerExchange
from ssmpi.sync.center import EXCHANGE, FETCH, START
from ssmpi.train import PARTS
from ssmpi.trainer import sync_ps
from ssmpi.trainer.evaluate import Evaluator
from ssmpi.trainer.metrics.results import RunResults
from ssmpi.trainer.progress import Progress
from ssmpi.trainer.trainer import Trainer

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SERVICE = SimpleNamespace(size=1)
ONE = ("embedding.prefetch=false", "data.block_rows=600", "data.passes=2", "run.log_seconds=0.01")
RUN = "run"


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Pretended ranks share a process, which does not let go of what they mapped."""
    monkeypatch.setattr(rank_memory, "_lock", lambda file, path: None)


def play(world, config, folder, start):
    """A body: one rank's part in the ``start``-th start of a run, from what the first has left."""
    path = folder / world.who.replace(" ", "-")
    memory = MemoryFile.found(path, RUN, world.who) if start > 1 else MemoryFile(path, Origin(RUN, world.who, start))
    return PARTS[world.role](config, world, Start(memory=memory))


def train_with_kills(folder, data, kills, *overrides):
    """A run over threads in which each of ``kills``, context managers, makes a ``KilledError`` come."""
    config = write_run_file(folder, data, *overrides)
    run_folder.make(Path(config.run.folder), config, overwrite=False)
    others = set(threading.enumerate())  # that other tests of this process have left
    for number, kill in enumerate(kills, 1):
        with kill, pytest.raises(KilledError):
            over_threads(config.topology, play, config, folder / "memory", number)
        for thread in {each for each in threading.enumerate() if each.name.startswith(("worker", "shadow"))} - others:
            thread.join(PATIENCE)  # unlike killed ones they end at their next message only
    over_threads(config.topology, play, config, folder / "memory", len(kills) + 1)
    return Run(Path(config.run.folder))


ADAM = ("dense.optimizer=adam", "dense.rate=0.001", "embedding.optimizer=adam", "embedding.rate=0.01")


@pytest.mark.parametrize(
    "optimizers",
    [(), ADAM, (*ADAM, "embedding.table_decay=0.001", "embedding.precision=bf16")],
    ids=["adagrad", "adam", "adam of tables that decay, in 16 bits"],
)
def test_one_thread_goes_on_as_if_it_had_not_been_killed(tmp_path, small_data, optimizers):
    """Killed between two batches: in the midst of a piece, in the second pass, and at the very first."""
    through = train_over_threads(tmp_path / "through", small_data, *ONE, *optimizers)
    kills = [Kill(Progress, "record", number) for number in (30, 25, 1)]
    killed = train_with_kills(tmp_path / "killed", small_data, kills, *ONE, *optimizers)
    assert_same_model(through, killed)
    tail = killed.losses()
    np.testing.assert_array_equal(tail, through.losses()[-len(tail) :])
    assert killed.result["status"] == "complete"
    for name in ("examples", "iterations", "evaluations"):
        assert killed.result[name] == through.result[name], name
    assert killed.result["progressive_ne"] == through.result["progressive_ne"]


def test_a_batch_that_was_under_way_comes_again_and_counts_once(tmp_path, small_data):
    """Killed after its update, with the next batch's rows on their way: before its thread has counted it."""
    kills = [Kill(Progress, "record", 20, after=True), Kill(Lookups, "push", 33, after=True)]
    run = train_with_kills(tmp_path, small_data, kills, *ONE[1:], "topology.threads=2")
    assert (run.result["status"], run.result["examples"]) == ("complete", 12_000)
    scored = run.result["evaluations"]["test"]["last"]
    assert scored["after_examples"] == 12_000
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["examples"] for line in lines if line["kind"] == "evaluation"] == [6_000, 12_000, 12_000]
    places = [line["examples"] for line in lines]
    assert places == sorted(places)


CUT = ("schedule.plateau_factor=0.1", "evaluate.min_gain=0.9", "data.passes=3")  # in the third pass


@pytest.mark.parametrize(("first", "more"), [(1, ()), (2, CUT)], ids=["", "before a cut"])
def test_a_kill_in_an_evaluation_scores_again(tmp_path, small_data, first, more):
    """And then decides the same, which outlives a kill in the next pass."""
    through = train_over_threads(tmp_path / "through", small_data, *ONE, *more)
    kills = [
        Kill(Evaluator, "run", first),
        Kill(Evaluator, "run", 1, after=True),
        Kill(RecoveryNotes, "evaluated", 1, after=True),
        Kill(Progress, "record", 10),
    ]
    killed = train_with_kills(tmp_path / "killed", small_data, kills, *ONE, *more)
    assert_same_model(through, killed)
    assert killed.result["evaluations"] == through.result["evaluations"]


@pytest.mark.parametrize("which", ["last", pytest.param("best", marks=pytest.mark.soak)])
def test_a_kill_while_saving_or_scoring_the_model_repeats_it(tmp_path, small_data, which):
    """When its files are written, when they are in place, after the last evaluation, and before the results are
    written. A best model was saved long before.
    """
    keeping = (*ONE, "data.passes=1", f"evaluate.keep={which}")
    through = train_over_threads(tmp_path / "through", small_data, *keeping)
    saving = [Kill(ArenaWriter, "begin"), Kill(pending_save, "move_into_place", after=True)]
    kills = [*saving * (which == "last"), Kill(Trainer, "evaluate_final", after=True), Kill(RunResults, "finish")]
    killed = train_with_kills(tmp_path / "killed", small_data, kills, *keeping)
    assert_same_model(through, killed)
    assert (killed.result["status"], killed.result["kept"]) == ("complete", which)
    for name in ("examples", "evaluations"):
        assert killed.result[name] == through.result[name]
    assert {path.name for path in killed.folder.iterdir()} - {path.name for path in through.folder.iterdir()} == set()


def test_what_a_codec_has_not_sent_outlives_a_kill(tmp_path, small_data):
    """With its thresholds: killed between two batches, whose push is done."""
    steps = ("sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1", "topology.sync_ps=2")
    codec = (*ONE[:2], *steps, "sync.codec=threshold:0.9", "sync.threshold_interval=20")
    codec = (*codec, "dense.optimizer=sgd")
    through = train_over_threads(tmp_path / "through", small_data, *codec)
    killed = train_with_kills(tmp_path / "killed", small_data, [Kill(Progress, "record", n) for n in (30, 7)], *codec)
    assert_same_model(through, killed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_trainers_go_on_together(tmp_path, small_data, algorithm):
    """By messages: the team of a host waits for its leader, however long."""
    kills = [Kill(Progress, "record", 20), Kill(Progress, "record", 10, after=True)]
    several = ("topology.trainers=2", "topology.embedding_ps=2", "checkpoint.every_examples=2000", *BY[algorithm])
    run = train_with_kills(
        tmp_path, small_data, kills, *several, f"sync.algorithm={algorithm}", "run.shared_memory=false"
    )
    assert (run.result["status"], run.result["examples"]) == ("complete", 6_000)
    check_sizes(tmp_path, load(run.folder / "run.toml"))
    assert run.result["iterations"] == pytest.approx(6_000 / 128, rel=0.3)


def test_synchronous_trainers_and_tables_count_the_same_steps_after_a_kill(tmp_path, small_data):
    """A row that nobody looked up has decayed by as many steps as there were: at least half as many as batches; and
    some more where one trainer has batches left, or repeats one.
    """
    several = (
        "topology.trainers=2", "sync.algorithm=synchronous", *BY["synchronous"], "topology.embedding_ps=2",
        "embedding.prefetch=false", "embedding.optimizer=sgd", "embedding.rate=0.01", "embedding.table_decay=1",
    )  # fmt: skip
    kills = [Kill(Progress, "record", 20), Kill(Progress, "record", 10, after=True)]
    run = train_with_kills(tmp_path, small_data, kills, *several)
    config = load(run.folder / "run.toml")
    steps, arena = run.result["iterations"] / 2, Arena(config.rows, placement_of(config), 0, config.run.seed)
    part = max(arena.parts, key=lambda part: part.rows)
    before, now = arena.weights[part.base :][: part.rows], run.tables()[part.table][part.first :: part.stride]
    taken = np.median(np.log(np.abs(now / before))) / np.log(0.99)
    assert abs(taken - round(taken)) < 0.01, "most rows were not looked up"
    assert steps - 1 <= round(taken) <= 1.5 * steps


def check_sizes(folder, config):
    """What the plan says of memory files is what the largest one of a role takes, but for pages that are not full."""
    for role, planned in kept_memory(config, placement_of(config)).items():
        found = [p.stat().st_size for p in (folder / "memory").iterdir() if re.fullmatch(rf"{role}-\d+", p.name)]
        assert not found or max(found) == pytest.approx(planned, abs=20 * mmap.PAGESIZE), role


TWO = ("topology.threads=2",)
BY = defaultdict(lambda: TWO, synchronous=("sync.pace=fixed_rate", "sync.every_iterations=1"))
CENTRAL = [name for name, kind in ALGORITHMS.items() if kind.partner == SYNC_PS]
BY |= dict.fromkeys(CENTRAL, (*TWO, "topology.sync_ps=2"))


def counted(monkeypatch, owner, name, *, after):
    """A list that grows with each call of a function, ``after`` it or before."""
    calls, function = [], getattr(owner, name)

    def counting(*arguments):
        calls.extend([] if after else [name])
        found = function(*arguments)
        calls.extend([name] if after else [])
        return found

    monkeypatch.setattr(owner, name, counting)
    return calls


def lost_by_start(monkeypatch, trainers):
    """What all trainers together tell in each start: lost pushes to embedding PSs and to sync PSs, batches repeated."""
    told, started = [], restart.resumed

    def starting(notes, examples, sent, conversation):
        told.append([each.lost for each in sent])
        started(notes, examples, sent, conversation)

    monkeypatch.setattr(restart, "resumed", starting)
    return lambda: [np.sum(told[k : k + trainers], axis=0).tolist() for k in range(0, len(told), trainers)]


MESSAGES = ("run.shared_memory=false", "sync.algorithm=ma")
EACH_STEP = ("topology.threads=2", "sync.algorithm=async_ps", "sync.pace=fixed_rate", "sync.every_iterations=1")


@pytest.mark.parametrize(
    ("sends", "applies", "copies", "place", "settings"),
    [
        ((wire, "push"), (EmbeddingServer, "_push"), 1, 0, ("topology.embedding_ps=2", *MESSAGES)),
        (
            (ParameterServerExchange, "reference"),
            (GradientCenter, "exchange"),
            2,
            1,
            ("topology.sync_ps=2", *EACH_STEP),
        ),
    ],
    ids=["rows", "dense gradients"],
)
def test_pushes_that_a_kill_has_lost_are_told(
    tmp_path, small_data, monkeypatch, sends, applies, copies, place, settings
):
    """One that a PS has taken and not applied, and those that no PS has taken: as many as were made and not applied.
    Dense gradients go to both sync PSs.
    """
    made, applied = counted(monkeypatch, *sends, after=False), counted(monkeypatch, *applies, after=True)
    told = lost_by_start(monkeypatch, trainers=2)
    kills = [Kill(*applies, 40), Kill(Progress, "record", 15)]
    run = train_with_kills(tmp_path, small_data, kills, "topology.trainers=2", *settings)
    assert run.result["status"] == "complete"
    first, second, third = (lost[place] for lost in told())
    assert (first, second > 0) == (0, True)
    assert second + third == copies * len(made) - len(applied)


def test_a_batch_that_comes_again_is_told_even_if_the_next_start_is_killed(tmp_path, small_data, monkeypatch):
    """Killed under way, and again when all was gathered and nothing was noted."""
    told = lost_by_start(monkeypatch, trainers=1)
    kills = [Kill(Progress, "record", 20, after=True), Kill(restart, "resumed")]
    assert train_with_kills(tmp_path, small_data, kills, *ONE).result["status"] == "complete"
    assert told() == [[0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_a_center_goes_on_whatever_the_first_trainer_says_of_its_start(tmp_path, optimizer):
    """Its shard and what its optimizer remembers, moved by a push; and a start after that counts again."""
    options = RoundOptions(algorithm="async_ps")
    push = np.append(np.arange(3, dtype=np.float32), np.float32(1.0))
    centers, places = [], tmp_path / "memory" / "sync_ps-0"
    for memory in (
        lambda: MemoryFile(places, Origin(RUN, "sync_ps 0", 1)),
        lambda: MemoryFile.found(places, RUN, "sync_ps 0"),
    ):
        make_step = sync_ps.optimizer(DenseOptions(optimizer=optimizer))
        center = AsyncPS.make_center(options, make_step, SERVICE, memory())
        center.handle(0, request_tag(START, 0), np.full(3, 7 * len(centers), np.float32).view(np.uint8))
        if not centers:
            center.exchange((0, 0), push, np.empty(3, np.float32))
        centers.append(center)
    np.testing.assert_array_equal(centers[0].shard, centers[1].shard)
    np.testing.assert_array_equal(centers[0].state(), centers[1].state())
    assert centers[1].shard[2] < 0 == centers[1].shard[0]
    centers[1].handle(0, request_tag(START, 0), np.full(3, 5, np.float32).view(np.uint8))
    assert centers[1].shard.tolist() == [5, 5, 5]
    assert len(set(centers[1].state().tolist())) <= 1  # nothing remembered


def test_centers_of_members_are_complete_together_and_go_on_apart(tmp_path):
    """Whatever their first trainers say of their start: member 0 has three parameters, member 1 two."""
    options, topology = RoundOptions(algorithm="easgd"), Topology(4, sync_ps=1, group=2)
    answers, place = [], tmp_path / "memory" / "sync_ps-0"
    service = SimpleNamespace(
        rank=4, size=5, buffer=lambda size: np.empty(size, np.uint8), reply=lambda *answer: answers.append(answer)
    )

    def handler(memory):
        optimizer, clients = sync_ps.optimizer(DenseOptions(optimizer="sgd")), topology.directory("center")
        return sync.center_handler(options, optimizer, service, topology, clients, memory)

    first = handler(MemoryFile(place, Origin(RUN, "sync_ps 0", 1)))
    first(0, request_tag(START, 0), np.full(3, 7, np.float32).view(np.uint8))
    with pytest.raises(LostMemoryError):
        MemoryFile.found(place, RUN, "sync_ps 0")
    first(1, request_tag(START, 0), np.full(2, 8, np.float32).view(np.uint8))
    first(3, request_tag(EXCHANGE, 0), np.full(2, 4, np.float32).view(np.uint8))  # half of the way, for alpha 0.5
    second = handler(MemoryFile.found(place, RUN, "sync_ps 0"))
    for member, size in ((1, 2), (0, 3)):
        second(member, request_tag(START, 0), np.zeros(size, np.float32).view(np.uint8))
    for trainer in range(4):
        second(trainer, request_tag(FETCH, 0), np.empty(0, np.uint8))
    fetched = [(trainer, reply.view(np.float32).tolist()) for trainer, _, reply in answers[1:]]
    assert fetched == [(0, [7.0] * 3), (1, [6.0] * 2), (2, [7.0] * 3), (3, [6.0] * 2)]
