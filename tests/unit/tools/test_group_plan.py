"""What ``ssmpi plan`` says of a group."""

import pytest
from ranks import ssmpi

from ssmpi.cli import main
from ssmpi.config import load
from ssmpi.tools import plan

GROUP = ("topology.trainers=4", "topology.group=2", "sync.algorithm=none", "data.batch_size=1000")


def described(tmp_path, data, *overrides):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{data}"')
    return plan.describe(load(path, (*GROUP, *overrides)))


def test_stages_of_kaggles_dlrm(tmp_path, small_data):
    """475,985 parameters, a third of the products in the bottom MLP; bytes are those of the issue's arithmetic."""
    text = described(tmp_path, small_data, 'hierarchy.plan="stages"', "embedding.dim=16")
    for line in (
        "group: 2 trainers hold one replica, each of which reads batches; hierarchy.plan = 'stages'",
        "  member 0: bottom.0, bottom.2, bottom.4, bottom.6",
        "  home: pairs",
        "  member 1: top.0, top.2, top.4",
        "  member 0 computes 157,944 products an example (33%), owns 155,984 parameters",
        "  member 1 computes 322,040 products an example (67%), owns 320,001 parameters",
        "  edges of home 0: pairs (367) 0 <-> 1, top.4 (1) 1 <-> 0",
        "  edges of home 1: dense (13) 1 -> 0, bottom.6 (16) 0 <-> 1",
        "  a step of a lane at batch 1000 moves, there and back: 1.56 MB, 1.9 MB by the plan 'data', 1.56 MB by the "
        "plan 'stages'",
    ):
        assert line in text.splitlines()


def test_tags_of_a_first_home(tmp_path, small_data):
    """Parameters of the operators at home are lent by their owners; what is rounded is marked."""
    tags = 'hierarchy.tags=["top.0: 1 bf16", "*: home"]'
    text = described(tmp_path, small_data, tags, 'hierarchy.homes="first"', "embedding.dim=16")
    for line in (
        "group: 2 trainers hold one replica, of which the first reads batches; "
        "hierarchy.tags = ['top.0: 1 bf16', '*: home']",
        "  member 1: top.0 (bf16)",
        "  edges of home 0: pairs (367) 0 <-> 1, top.0 (512 bf16) 1 <-> 0",
    ):
        assert line in text.splitlines()
    assert "edges of home 1" not in text
    assert "    gradients and new values of parameters that others own: " in text


def test_edges_behind_a_top_k(tmp_path, small_data):
    """65 and 52 bytes an example, with bf16 39 and 26; whole where the places would make it longer."""
    rules = 'hierarchy.tags=["bottom.0*: 1 bf16", "bottom.2*: 1", "bottom.*: home", "top.0*: 1", "*: home"]'
    top_k = 'model.top_k=["bottom.0: 0.95", "bottom.2: 0.95", "top.0: 0.01"]'
    text = described(tmp_path, small_data, rules, top_k, 'hierarchy.homes="first"', "embedding.dim=16")
    edges = "dense (13) 0 -> 1, bottom.2.top_k (13 of 256) 1 <-> 0, pairs (367) 0 <-> 1, top.0.top_k (512) 1 <-> 0"
    assert f"  edges of home 0: {edges}" in text.splitlines()
    assert "    top.0.top_k: whole, for kept values and their places are longer" in text.splitlines()


def test_a_run_without_groups_has_none(tmp_path, small_data):
    assert "group" not in described(tmp_path, small_data, "topology.group=1")


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        (["top.*: 5", "*: home"], "'top.*: 5': operator 'top.0': topology.group = 2 has members 0 to 1: name one"),
        (["top.*: columns", "*: home"], "rule 'top.*: columns': 'columns' is not a place: write one of home, a mem"),
        (["top.*: there", "*: home"], "rule 'top.*: there': 'there' is not a place: write one of home, a member's"),
        (["tip.*: 1", "*: home"], "rule 'tip.*: 1' matches no operator; did you mean"),
    ],
)
def test_rules_that_cannot_be_are_bad_usage(tmp_path, small_data, capsys, tags, words):
    """The rule, the operator and the remedy are named."""
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"')
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(path), *GROUP, f"hierarchy.tags={tags}"])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_launch_refuses_them_before_it_starts_anything(tmp_path, small_data):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\n[run]\nfolder = "{tmp_path / "run"}"')
    done = ssmpi("launch", path, *GROUP, "hierarchy.tags=['*: 5']")
    assert done.code == 2
    assert "hierarchy.tags: rule '*: 5': operator 'bottom.0': topology.group = 2 has members 0 to 1" in done.err
    assert not (tmp_path / "run").exists()
