"""Where ranks go whose host is lost: living hosts keep theirs, spare ones come first, and nothing is moved to where it
does not fit.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ssmpi.cluster import hosts as module
from ssmpi.cluster.hosts import Hosts, moved
from ssmpi.cluster.node_layout import lay_out
from ssmpi.cluster.site import Launcher, Node, Site, SitePlacement, Slurm
from ssmpi.runtime.topology import Role, Topology

GB = 1e9
TOPOLOGY = Topology(trainers=3, embedding_ps=2, sync_ps=1)
MEMORY = {Role.TRAINER: 2 * GB, Role.EMBEDDING_PS: 5 * GB, Role.SYNC_PS: 1 * GB}


def site(memory_gb, cores=8, slurm=None, names=("a", "b", "c", "d", "e", "f")):
    launcher = Launcher(hosts=() if slurm else names)
    return Site(Node(cores, memory_gb), SitePlacement(servers="packed"), launcher, slurm)


def where_to(memory_gb, lost, spares=(), **given):
    """Trainers on a, b and c, the PSs on d: 2, 2, 2 and 11 GB."""
    where = site(memory_gb, **given)
    layout = lay_out(TOPOLOGY, where, MEMORY)
    return moved(["a", "b", "c", "d", "d", "d"], lost, spares, layout, where)


def test_a_spare_host_takes_all_ranks_of_a_lost_one():
    assert where_to(12, ["b"], ["e", "f"]) == ["a", "e", "c", "d", "d", "d"]
    assert where_to(12, ["d"], ["e"]) == ["a", "b", "c", "e", "e", "e"]
    assert where_to(12, ["d", "a"], ["e", "f"]) == ["f", "b", "c", "e", "e", "e"]


def test_without_one_each_goes_where_most_memory_is_left():
    assert where_to(12, ["b"]) == ["a", "a", "c", "d", "d", "d"]
    assert where_to(12, ["d"]) == ["a", "b", "c", "a", "b", "c"]  # 5, 5 and 1 GB
    assert where_to(12, ["a", "b"], ["e"]) == ["e", "c", "c", "d", "d", "d"]


def test_what_does_not_fit_ends_the_launch():
    assert where_to(11, ["a", "b", "c"]) is None
    assert where_to(13, ["a", "b", "c"]) is None  # d has room for one of them only
    assert where_to(17, ["a", "b", "c"]) == ["d"] * 6
    assert where_to(12, ["a", "b", "c", "d"]) is None


def test_cores_count_where_a_scheduler_has_given_them():
    """A trainer of one thread takes two cores, a PS one."""
    assert where_to(100, ["a"], cores=3) == ["b", "b", "c", "d", "d", "d"]
    assert where_to(100, ["a"], cores=3, slurm=Slurm()) is None
    assert where_to(100, ["a"], cores=4, slurm=Slurm()) == ["b", "b", "c", "d", "d", "d"]


@given(some.data(), some.integers(12, 40), some.integers(0, 2))
def test_living_hosts_keep_their_ranks_and_no_host_has_more_than_fits(data, memory_gb, spare):
    before, where = ["a", "b", "c", "d", "d", "d"], site(memory_gb)
    lost = data.draw(some.lists(some.sampled_from("abcd"), unique=True, min_size=1))
    layout = lay_out(TOPOLOGY, where, MEMORY)
    after = moved(before, lost, ["e", "f"][:spare], layout, where)
    if after is None:
        assert len(lost) > spare
        return
    assert all(new == old for old, new in zip(before, after, strict=True) if old not in lost)
    assert not set(after) & {"", *lost}
    for host in set(after):
        needs = [MEMORY[TOPOLOGY.role_of(rank)[0]] for rank, on in enumerate(after) if on == host]
        assert sum(needs) <= memory_gb * GB


def test_a_lost_host_that_answers_again_stands_in_for_the_next(monkeypatch, capsys):
    where = site(12, names=("a", "b", "c", "d", "e"))
    monkeypatch.setattr(module, "layout_of", lambda config, where: lay_out(TOPOLOGY, where, MEMORY))
    made = Hosts(None, where)
    assert (made.used, made.every) == (["a", "b", "c", "d"], ["a", "b", "c", "d", "e"])
    assert made.replace(["e"])  # a spare host that does not answer is no loss
    assert made.of_ranks == ["a", "b", "c", "d", "d", "d"]
    assert made.replace(["b"])
    assert made.of_ranks == ["a", "e", "c", "d", "d", "d"]
    assert (made.left, made.every) == (["b"], ["a", "c", "d", "e", "b"])
    assert made.replace(["d"])
    assert made.of_ranks == ["a", "e", "c", "b", "b", "b"]
    assert made.left == ["b", "d"]
    said = capsys.readouterr().err
    assert "b did not answer: trainer 1 goes to e" in said
    assert "d did not answer: embedding_ps 0 to 1, sync_ps 0 go to b" in said
    assert not made.replace(["a", "c", "d", "e"])
    assert "its ranks fit nowhere else" in capsys.readouterr().err


@pytest.mark.parametrize("where", [None, Site(Node(8, 12))])
def test_on_one_host_there_is_nothing_to_move(where):
    made = Hosts(None, where)
    assert (made.of_ranks, made.every) == ([], [])
    assert made.replace([])
