"""The laboratory's command line: its options are those of ``jobs.lab.options``, and it refuses as ``ssmpi`` does."""

import dataclasses
from pathlib import Path

import pytest

from jobs.lab import options
from jobs.lab.__main__ import parser
from ssmpi.bench.options import taken
from ssmpi.cli import main, parse_overrides

KINDS = {
    "cluster": (options.ClusterOptions, ()),
    "recovery": (options.EmulationOptions, ()),
    "recipes": (options.RecipesOptions, ()),
    "scale": (options.ScaleOptions, ()),
    "lockstep": (options.LockstepOptions, ("run.toml",)),
    "equivalence": (options.EquivalenceOptions, ("study.toml",)),
}


def given(kind, *words):
    made, needed = KINDS[kind]
    return taken(made, parse_overrides(parser(), [kind, *needed, *words]))


@pytest.mark.parametrize("kind", KINDS)
def test_without_options_the_defaults_hold(kind):
    made = KINDS[kind][0]()
    assert dataclasses.replace(given(kind), **({"case": ()} if kind == "lockstep" else {})) == made


def test_values_have_the_type_of_their_field():
    assert given("recovery", "--trials", "t.jsonl", "--seeds", "3").trials == Path("t.jsonl")
    assert given("lockstep", "--case", "gap=2", "--case", "a.b=1 gap=3").case == ["gap=2", "a.b=1 gap=3"]
    assert given("lockstep", "--vary", "").vary == ()
    assert given("equivalence", "--minutes", "1.5").minutes == 1.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cluster", "--trainers", "1;2"), "--trainers takes a comma-separated list of integers, got '1;2'"),
        (("study", "nosuch"), "nosuch: no such study file"),
        (("study", "s.toml", "--tabel"), "unrecognized arguments: --tabel; did you mean '--table'?"),
        (("recipes", "--data", "rows"), "--data lists some of movielens, quickstart, rare, got rows"),
        (("lockstep",), "the following arguments are required: run_file"),
    ],
)
def test_what_is_typed_wrong_is_told(words, said, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words, parser())
    assert f"error: {said}" in capsys.readouterr().err
