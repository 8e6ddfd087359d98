"""Ranks to roles is arithmetic: every rank has one role, in a fixed order, and a wrong number of ranks is explained."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.runtime.errors import SettingsError, TopologyError
from ssmpi.runtime.mpi.world import shadow_share
from ssmpi.runtime.topology import CONVERSATIONS, ROLES, Role, Topology

topologies = st.builds(
    Topology, trainers=st.integers(1, 9), threads=st.integers(1, 9), embedding_ps=st.integers(1, 9),
    sync_ps=st.integers(0, 9)
)  # fmt: skip


def in_groups(group, replicas, homes, **settings):
    """A topology of so many replicas."""
    return Topology(trainers=group * replicas, group=group, homes=homes if group > 1 else "all", **settings)


grids = st.builds(
    in_groups, st.integers(1, 4), st.integers(1, 4), st.sampled_from(["all", "first"]), threads=st.integers(1, 3),
    embedding_ps=st.integers(1, 3), sync_ps=st.integers(0, 3)
)  # fmt: skip


@given(topologies)
def test_every_rank_plays_one_role(topology):
    played = [topology.role_of(rank) for rank in range(topology.size)]
    assert played == [(role, index) for role in Role for index in range(topology.counts[role])]
    for role in Role:
        assert [rank for rank, (r, _) in enumerate(played) if r is role] == list(topology.ranks_of(role))


@given(topologies)
def test_a_directory_finds_every_member_of_a_conversation(topology):
    for conversation in set(CONVERSATIONS) - {"group"}:  # in which a trainer without a group is alone
        directory = topology.directory(conversation)
        assert list(directory.members) == [
            topology.role_of(rank)
            for rank in range(topology.size)
            if conversation in topology.role_of(rank)[0].traits.conversations
        ]
        for role in Role:
            named = [directory.names[rank] for rank in directory.ranks_of(role)]
            takes_part = conversation in role.traits.conversations
            assert named == [f"{role} {index}" for index in range(topology.counts[role] * takes_part)]


@given(grids)
def test_every_place_of_the_grid_has_one_trainer(topology):
    places = [topology.place_of(trainer) for trainer in range(topology.trainers)]
    assert places == [(replica, member) for replica in range(topology.replicas) for member in range(topology.group)]


@given(topologies)
def test_without_groups_every_trainer_has_a_replica_and_reads_batches(topology):
    assert topology.replicas == topology.home_trainers == topology.trainers
    assert topology.lanes == topology.threads * topology.trainers


@given(grids)
def test_lanes_are_the_threads_of_homes_in_order(topology):
    homes = [trainer for trainer in range(topology.trainers) if topology.is_home(trainer)]
    assert len(homes) == topology.home_trainers
    assert [topology.place_of(trainer).member for trainer in homes if topology.homes == "first"] in (
        [],
        [0] * topology.replicas,
    )
    assert sum(map(topology.helpers, range(topology.trainers))) == topology.lanes * (topology.group - 1)
    threads = [trainer * topology.threads + thread for trainer in homes for thread in range(topology.threads)]
    assert list(map(topology.lane_of, threads)) == list(range(topology.lanes))


def test_lanes_are_the_same_if_the_same_trainers_read():
    pairs, firsts = Topology(4, 2, group=2), Topology(4, 2, group=2, homes="first")
    assert pairs.same_lanes(Topology(4, 2, embedding_ps=3, sync_ps=1))
    assert firsts.same_lanes(Topology(4, 2, 3, group=2, homes="first"))
    for others in (firsts, Topology(4, 1), Topology(2, 2)):
        assert not pairs.same_lanes(others)
    assert not firsts.same_lanes(Topology(4, 2, group=4, homes="first"))


def test_groups_are_whole():
    with pytest.raises(SettingsError, match=r"trainers = 5 is not a multiple of topology.group = 2.*trainers = 6"):
        Topology(trainers=5, group=2)
    with pytest.raises(SettingsError, match=r"hierarchy.homes = 'first' .* set topology.group"):
        Topology(trainers=2, homes="first")


def test_a_remedy_leaves_groups_whole():
    with pytest.raises(TopologyError, match=r"got 8.*set topology.trainers = 6"):
        Topology(4, embedding_ps=2, group=2).check_size(8)
    with pytest.raises(TopologyError, match=r"got 7.*launch' do that$"):
        Topology(4, embedding_ps=2, group=2).check_size(7)


@given(grids)
def test_conversations_of_one_name_part_the_ranks(topology):
    for name in CONVERSATIONS:
        found = [topology.conversation_of(name, rank) for rank in range(topology.size)]
        assert all(rank in ranks and list(ranks) == sorted(ranks) for rank, ranks in enumerate(found))
        assert sorted(rank for ranks in set(found) for rank in ranks) == list(range(topology.size))
        assert all(topology.directory(name, ranks[-1]) == topology.directory(name, ranks[0]) for ranks in set(found))


@given(grids)
def test_a_member_talks_to_the_same_member_of_every_replica(topology):
    for trainer in range(topology.trainers):
        met = topology.directory("replicas", topology.ranks_of(Role.TRAINER)[trainer]).members
        _, member = topology.place_of(trainer)
        assert [role for role, _ in met] == [Role.TRAINER] * topology.replicas
        assert [topology.place_of(other) for _, other in met] == [(k, member) for k in range(topology.replicas)]


@given(grids)
def test_a_group_is_the_members_of_one_replica(topology):
    for trainer in range(topology.trainers):
        met = topology.directory("group", topology.ranks_of(Role.TRAINER)[trainer]).members
        replica, _ = topology.place_of(trainer)
        assert [role for role, _ in met] == [Role.TRAINER] * topology.group
        assert [topology.place_of(other) for _, other in met] == [(replica, k) for k in range(topology.group)]


@given(grids)
def test_who_takes_no_part_talks_to_nobody(topology):
    for rank in range(topology.size):
        role, index = topology.role_of(rank)
        for name in set(CONVERSATIONS) - set(role.traits.conversations):
            assert topology.conversation_of(name, rank) == (rank,)
            assert topology.directory(name, rank).members == ((role, index),)


def test_a_directory_of_some_members_counts_ranks_anew():
    some = Topology(trainers=2, embedding_ps=2).directory("embedding").subset([1, 3])
    assert some.names == ("trainer 1", "embedding_ps 1")
    assert some.ranks_of(Role.EMBEDDING_PS) == (1,)


def test_every_role_is_described_and_every_server_serves():
    assert list(ROLES) == list(Role)
    for role in Role:
        assert set(role.traits.conversations) <= set(CONVERSATIONS)
        assert not role.traits.serves or role.traits.serves in role.traits.conversations


@given(topologies)
def test_names_tell_ranks_apart(topology):
    names = [topology.name_of(rank) for rank in range(topology.size)]
    assert len(set(names)) == topology.size
    assert names[0] == "trainer 0"


@given(topologies, st.integers(1, 40))
def test_only_the_right_number_of_ranks_will_do(topology, size):
    if size == topology.size:
        topology.check_size(size)
        return
    with pytest.raises(TopologyError, match=rf"needs {topology.size} ranks .*, got {size}: .*-n {topology.size}"):
        topology.check_size(size)


def test_the_remedy_names_a_number_of_trainers_that_fits():
    with pytest.raises(TopologyError, match=r"4 trainer \+ 2 embedding_ps.*got 5.*set topology.trainers = 3"):
        Topology(trainers=4, embedding_ps=2).check_size(5)


def test_tables_inside_the_trainer_are_for_one_trainer():
    assert Topology(embedding_ps=0).size == 1
    with pytest.raises(SettingsError, match=r"set topology\.embedding_ps = 1 or more"):
        Topology(trainers=2, embedding_ps=0)


def test_several_ranks_are_named_in_spans_that_never_cross_roles():
    topology = Topology(3, 1, 4, 1)
    assert topology.names_of(range(8)) == "trainer 0 to 2, embedding_ps 0 to 3, sync_ps 0"
    assert topology.names_of([0, 3, 4, 6]) == "trainer 0, embedding_ps 0 to 1, embedding_ps 3"
    assert topology.names_of([2, 3]) == "trainer 2, embedding_ps 0"


T, E, S = Role.TRAINER, Role.EMBEDDING_PS, Role.SYNC_PS


@pytest.mark.parametrize(
    ("roles", "threads", "cores", "share"),
    [
        ([T], 22, 24, 1.0),  # a core for everybody
        ([T], 24, 24, 0.24),  # 1 % of 24
        ([T], 24, 12, 0.12),
        ([T], 200, 200, 1.0),  # it cannot use more
        ([T, T, E], 1, 2, 0.01),
        ([T, E, S], 2, 2, 0.02),
        ([T, T, E, S], 1, 2, 0.01),  # the trainers move the center themselves
        ([E, S], 1, 1, 0.01),  # nobody's
    ],
)
def test_rounds_on_a_full_host_take_one_percent_of_it(roles, threads, cores, share):
    assert shadow_share(roles, threads, cores) == pytest.approx(share)
