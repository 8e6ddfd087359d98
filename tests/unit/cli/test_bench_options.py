"""Command line options of benchmarks: what is said once, in ``ssmpi.bench.options``, is what is parsed."""

from pathlib import Path

import pytest

from ssmpi.bench import options
from ssmpi.bench.options import taken
from ssmpi.cli import main, parse_overrides
from ssmpi.cli.arguments import parser

KINDS = {
    "throughput": options.ThroughputOptions,
    "compression": options.CompressionOptions,
    "prepare": options.PrepareOptions,
    "tables": options.TablesOptions,
}


def given(kind, *words):
    return taken(KINDS[kind], parse_overrides(parser(), ["bench", kind, *words]))


@pytest.mark.parametrize("kind", KINDS)
def test_without_options_the_defaults_hold(kind):
    assert given(kind) == KINDS[kind]()


def test_values_have_the_type_of_their_field():
    found = given("throughput", "--batch", "128,2048", "--folder", "out", "--short")
    assert (found.batch, found.folder, found.short) == ((128, 2048), Path("out"), True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tables", "--batch", "1;2"), "--batch takes a comma-separated list of integers, got '1;2'"),
        (("throughput", "--rounds", "0"), "--rounds must be at least 1"),
    ],
)
def test_a_wrong_value_names_the_option(words, said, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["bench", *words])
    assert f"error: {said}" in capsys.readouterr().err


def test_help_says_every_default(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["bench", "throughput", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "batch sizes (default: 128,512,2048)" in said
    assert "length of a window, 3 a visit (default: 0.7)" in said
