"""Whole runs of groups over threads: stopped, resumed by others, killed."""

import itertools
import mmap

import numpy as np
import pytest
from faults import Kill
from runs import assert_same_model, train_over_threads
from strength import in_soak
from test_partial_recovery import Killed, one_process  # noqa: F401 - a fixture

from ssmpi.config import load
from ssmpi.model.member_program import transform
from ssmpi.state.checkpoint import manager
from ssmpi.state.memory_needs import kept_memory
from ssmpi.state.requirements import placement_of
from ssmpi.tools import inspect, score
from ssmpi.trainer import trainer
from ssmpi.trainer.progress import Progress

ONE = ("embedding.prefetch=false", "data.batch_size=100", "data.passes=2", "evaluate.per_pass=2")
PAIR = ("topology.trainers=2", "topology.group=2", 'hierarchy.homes="first"')
STAGES = 'hierarchy.tags=["bottom.*: 1", "*: home"]'
SMALL_NETWORKS = (
    "model.deepfm.deep=[32]", "model.finalmlp.mlp1=[16,8]", "model.finalmlp.mlp2=[12]", "model.finalnet.block1=[12]",
    "model.finalnet.block2=[12]", "model.gdcn.deep=[16,8]", "model.masknet.blocks=[16,8]", "model.wide_deep.deep=[16]",
)  # fmt: skip
PAIRS = ("topology.trainers=4", "topology.group=2", "data.batch_size=100", "run.log_seconds=0.01")

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def stop_after(monkeypatch):
    """A function that makes a run stop after so many batches."""
    batches, record, state = itertools.count(1), Progress.record, {"at": None, "stopping": False}

    def stop_after(number):
        nonlocal batches
        batches, state["at"], state["stopping"] = itertools.count(1), number, False

    def recording(self, *arguments):
        record(self, *arguments)
        state["stopping"] |= next(batches) == state["at"]

    monkeypatch.setattr(Progress, "record", recording)
    monkeypatch.setattr(trainer, "stop_requested", lambda: state["stopping"])
    return stop_after


def in_pieces(folder, data, stop_after, jobs):
    """A run whose jobs, pairs of settings and the number of batches after which they stop, resume each other."""
    for number, (settings, batches) in enumerate(jobs):
        stop_after(batches)
        run = train_over_threads(folder, data, *ONE, *settings, resume=number > 0)
        assert run.result["status"] == ("stopped" if batches else "complete")
    return run


def assert_same(run, reference):
    assert_same_model(run, reference, state=True)
    assert run.result["evaluations"] == reference.result["evaluations"]
    assert run.result["examples"] == reference.result["examples"]


def test_a_group_stopped_anywhere_goes_on_by_other_plans_to_the_same_bits(tmp_path, small_data, stop_after):
    """Those of a trainer alone: one lane, whose parameters change their owners in between."""
    reference = train_over_threads(tmp_path / "whole", small_data, *ONE)
    stages, data = (*PAIR, STAGES), (*PAIR, "hierarchy.plan=data")
    run = in_pieces(tmp_path / "cut", small_data, stop_after, [(stages, 7), (data, 30), (data, 31), (stages, None)])
    assert_same(run, reference)
    np.testing.assert_array_equal(run.losses(), reference.losses())
    assert "by 2 x 1 thread in groups of 2, 1 embedding PS," in inspect.describe(run.folder, checksums=False)[0]


@pytest.mark.parametrize("name", ["finalmlp", *in_soak("finalnet", "gdcn", "masknet", "wide_deep")])
def test_networks_with_dropout_stopped_anywhere_go_on_in_groups_to_the_same_bits(
    tmp_path, small_data, stop_after, name
):
    """What is dropped depends on the examples alone, not on who trains on them and when."""
    network = (f"model.name={name}", "model.dropout=0.3", *SMALL_NETWORKS)
    reference = train_over_threads(tmp_path / "whole", small_data, *ONE, *network)
    jobs = [
        (network, 7),
        ((*network, *PAIR, 'hierarchy.tags=["[vw][ei]*: 0", "*: 1"]'), 30),
        (network, 31),
        (network, None),
    ]
    run = in_pieces(tmp_path / "cut", small_data, stop_after, jobs)
    assert_same(run, reference)


def test_groups_resume_what_a_trainer_alone_has_saved_and_the_other_way_round(tmp_path, small_data, stop_after):
    reference = train_over_threads(tmp_path / "whole", small_data, *ONE)
    three = ("topology.trainers=3", "topology.group=3", 'hierarchy.homes="first"')
    run = in_pieces(tmp_path / "cut", small_data, stop_after, [((), 7), ((*PAIR, STAGES), 30), (three, 31), ((), None)])
    assert_same(run, reference)


def test_room_on_disk_is_made_for_every_members_file(tmp_path, small_data, monkeypatch, stop_after):
    """As much whichever member owns more; a job that stops saves a checkpoint."""
    asked = []
    monkeypatch.setattr(manager, "make_room", lambda store, needed, path: asked.append(needed))
    for number in (0, 1):
        rules = f'hierarchy.tags=["bottom.*: {number}", "*: {1 - number}"]'
        in_pieces(tmp_path / f"{number}", small_data, stop_after, [((*PAIR, rules), 7)])
    assert len(asked) >= 2
    assert len(set(asked)) == 1


@pytest.mark.usefixtures("alone")
def test_the_model_of_a_group_is_scored_without_it(tmp_path, small_data, capsys):
    """By one process, or by as many as the run had, each of which then has the whole model."""
    run = train_over_threads(tmp_path, small_data, *ONE, *PAIR, STAGES)
    assert [score.open_run(run.folder, ranks).config.topology.group for ranks in (1, 3)] == [1, 1]
    capsys.readouterr()
    assert score.evaluate(run.folder, "test", None) == 0
    assert f"ne {run.quality('test')['ne']:.4f}" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    ("group", "rules"),
    [
        (2, "hierarchy.plan=data"),
        (3, 'hierarchy.tags=["top.0: 1 bf16", "top.*: 2", "*: home"]'),
        *in_soak((2, STAGES)),
    ],
)
def test_all_that_a_group_moves_is_what_its_edges_say(tmp_path, small_data, group, rules):
    """Bytes and entries, to the last one."""
    by_messages(tmp_path, small_data, group, rules)


def by_messages(folder, data, group, *settings):
    """The run of one lane that exchanges all by messages, in two passes of two parts; they are as the plan says."""
    members = (f"topology.trainers={group}", f"topology.group={group}", 'hierarchy.homes="first"')
    run = train_over_threads(folder, data, *ONE, *members, *settings, "run.shared_memory=false")
    config, result = load(run.folder / "run.toml"), run.result
    part = transform(config.network, config.places, 0, 0)
    assert result["bytes"]["group"] == part.moved(12_000, int(result["iterations"]), 4)
    assert result["entries"]["group"] == 12_000 * sum((e.kept or e.width) * (1 + e.gradient) for e in part.edges)
    return run, part


def test_the_strongest_values_train_a_group_as_one_process(tmp_path, small_data):
    """To the bit, in groups of two and three; two edges carry 8 of 32 values."""
    top_k = 'model.top_k=["bottom.0: 0.75", "top.0: 0.75"]'
    reference = train_over_threads(tmp_path / "whole", small_data, *ONE, top_k)
    for group, place in ((2, "home"), (3, "2")):
        rules = f'hierarchy.tags=["bottom.0*: 1", "bottom.2: {place}", "top.0*: 1", "*: home"]'
        run, part = by_messages(tmp_path / place, small_data, group, rules, top_k)
        assert [edge.kept for edge in part.edges if edge.kept] == [8, 8]
        assert_same(run, reference)
        np.testing.assert_array_equal(run.losses(), reference.losses())


CENTER = ("topology.sync_ps=2",)
BY = {"ma": (), "bmuf": (), "gossip": (), "easgd": CENTER, "async_ps": CENTER}


@pytest.mark.parametrize("algorithm", ["easgd", "async_ps"])
def test_at_a_fixed_rate_every_lane_has_rounds_of_its_own_on_each_member(tmp_path, small_data, algorithm):
    """One after four of its iterations, wherever its parameters are; and one at the end of the part."""
    fixed = ("sync.pace=fixed_rate", "sync.every_iterations=4", "topology.sync_ps=1", f"sync.algorithm={algorithm}")
    run = train_over_threads(tmp_path, small_data, *PAIRS, *fixed, "data.handout=static")
    assert run.result["examples"] == 6_000
    assert run.result["sync_gap_thread"] == pytest.approx(60 / 4 / (15 // 4 + 1), rel=0.2)
    assert run.result["sync_gap_trainer"] == 2 * run.result["sync_gap_thread"]


def killed_pairs(folder, data, algorithm, *settings):
    """Two groups of two, of which a trainer was killed in the midst of a part."""
    given = (*PAIRS, *settings, *BY[algorithm], f"sync.algorithm={algorithm}", "evaluate.split=none")
    return Killed(folder, data, *given).start(Kill(Progress, "record", 20))


def how(killed):
    return [each["how"] for each in killed.recoveries]


@pytest.mark.parametrize("algorithm", ["bmuf", "easgd", "async_ps", *in_soak("ma", "gossip")])
def test_killed_members_go_on_from_their_memory(tmp_path, small_data, algorithm):
    killed = killed_pairs(tmp_path, small_data, algorithm)
    killed.start(Kill(Progress, "record", 10, after=True)).start()
    result = killed.run.result
    assert (result["status"], result["examples"], how(killed)) == ("complete", 6_000, ["memory"] * 2)
    assert result["iterations"] == pytest.approx(60, abs=8)  # each of four lanes repeats at most one batch a kill


@pytest.mark.parametrize(
    ("algorithm", "homes"),
    [("async_ps", "all"), ("bmuf", "first"), *in_soak(("bmuf", "all"), ("async_ps", "first"))],
)
def test_the_plan_knows_the_memory_that_members_keep(tmp_path, small_data, algorithm, homes):
    """Of the largest one of each role, but for pages that are not full: what it owns, copies, an account by lane."""
    wide = ("model.bottom=[512,8]", "model.top=[256,1]", "topology.threads=2", f"hierarchy.homes={homes}")
    killed = killed_pairs(tmp_path, small_data, algorithm, *wide, 'hierarchy.tags=["bottom.0: 1", "*: home"]')
    for role, planned in kept_memory(killed.config, placement_of(killed.config)).items():
        ranks = range(killed.config.topology.counts[role])
        found = [killed.path(f"{role}-{index}").stat().st_size for index in ranks]
        assert not found or max(found) == pytest.approx(planned, abs=20 * mmap.PAGESIZE), role


@pytest.mark.parametrize(
    ("algorithm", "lost", "expected"),
    [
        ("ma", ("trainer-1",), "partial"),
        *in_soak(("bmuf", ("trainer-3",), "partial"), ("ma", ("trainer-1", "trainer-3"), "beginning")),
        ("easgd", ("trainer-1", "trainer-3"), "partial"),
        ("easgd", ("trainer-1", "trainer-3", "sync_ps-0"), "beginning"),
    ],
)
def test_a_lost_member_is_rebuilt_from_another_group_or_the_center(tmp_path, small_data, algorithm, lost, expected):
    killed = killed_pairs(tmp_path, small_data, algorithm).lose(*lost)
    killed.start()
    result = killed.run.result
    assert (result["status"], result["examples"], how(killed)) == ("complete", 6_000, [expected])
