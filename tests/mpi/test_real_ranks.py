"""Whole runs by real ranks: they give the bits of threads, which stand for them in other tests."""

import pytest
from datasets import make_lists_dataset
from runs import assert_same_bits, train_over_ranks, train_over_threads
from test_gradients import ADAGRAD, DECAY, SYNCHRONOUS, check_one_process
from test_two_members import GROUP, ONE_LANE, assert_same, moved_by, ways

ALONE = ("embedding.prefetch=false", "data.passes=2")
POOLED = ("topology.embedding_ps=1", "run.shared_memory=false", "embedding.pooling=server")
TOP_K = 'model.top_k=["bottom.0: 0.75"]'
SPARSE = (*ONE_LANE, TOP_K, 'hierarchy.tags=["bottom.0*: 1", "*: home"]', "run.shared_memory=false")


@pytest.mark.parametrize("servers", [2, *(pytest.param(n, marks=pytest.mark.soak) for n in (0, 3))])
def test_real_ranks_give_the_bits_of_threads(tmp_path, small_data, servers):
    run = train_over_ranks(tmp_path / "ranks", small_data, *ALONE, f"topology.embedding_ps={servers}")
    assert_same_bits(run, train_over_threads(tmp_path / "alone", small_data, *ALONE, "topology.embedding_ps=0"))


def test_lists_pooled_by_a_real_embedding_ps_give_the_bits_of_one_trainer(tmp_path):
    """Which ``tests/contract/test_lists.py`` compares with plain PyTorch."""
    data = make_lists_dataset(tmp_path / "data", 900)
    run = train_over_ranks(tmp_path / "ranks", data, *ALONE, "data.batch_size=32", *POOLED)
    assert run.result["bytes"]["embedding_pull"] > 0
    settings = (*ALONE, "data.batch_size=32", "topology.embedding_ps=0")
    assert_same_bits(run, train_over_threads(tmp_path / "alone", data, *settings))


def test_synchronous_steps_are_those_of_one_process(tmp_path, small_data):
    ranks = ("topology.trainers=3", "topology.embedding_ps=1", "data.passes=1")
    run = train_over_ranks(tmp_path, small_data, *SYNCHRONOUS, *ADAGRAD, DECAY, *ranks)
    check_one_process(run)
    assert run.result["examples"] == 6_000
    assert run.result["sync_gap_trainer"] <= 1.0  # whoever is out of data takes the others' steps, too


@pytest.mark.parametrize("way", [ways("data", "true"), pytest.param(ways("stages", "false"), marks=pytest.mark.soak)])
def test_one_lane_of_two_members_is_one_trainer_to_the_bit(tmp_path, small_data, way):
    alone = train_over_threads(tmp_path / "alone", small_data)
    run = train_over_ranks(tmp_path / "group", small_data, *ONE_LANE, *way)
    assert_same(run, alone)
    assert run.result["bytes"]["group"] == moved_by(run)


def test_sparse_edges_are_one_trainer_to_the_bit(tmp_path, small_data):
    """With a quarter of the entries of dense ones."""
    alone = train_over_threads(tmp_path / "alone", small_data, TOP_K)
    run = train_over_ranks(tmp_path / "group", small_data, *SPARSE)
    assert_same(run, alone)
    assert run.result["entries"]["group"] == 6_000 * (13 + 8 + 8)


def test_two_lanes_of_each_member_train_every_row(tmp_path, small_data):
    """By messages; by memory they are in the job that is asked to stop (``test_two_members``)."""
    lanes = (*GROUP, "topology.threads=2", *ways("stages", "false"), "evaluate.per_pass=2")
    assert train_over_ranks(tmp_path, small_data, *lanes).result["examples"] == 6_000
