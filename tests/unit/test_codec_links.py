"""The section of links of ``ssmpi bench compression``: its predictions, and its table of given figures."""

import math

import pytest

from ssmpi.bench.compression import links
from ssmpi.bench.compression.links import DENSE, NOT_LIMITED, THIS_HOST, LinkOptions
from ssmpi.bench.harness.emulation import Emulation
from ssmpi.config import load
from ssmpi.core.errors import SettingsError
from ssmpi.run.requirements import dense_parameters

BOTH, PUSH = "push threshold:0.99, pull threshold:0.99", "push threshold:0.99, pull dense"


@pytest.fixture
def base(tmp_path, small_data):
    return links.run_file(LinkOptions(folder=tmp_path), (f"data.folder={small_data}",))


def rows_of(options, base):
    """As if every job had just the predicted rate; on this host a codec costs a tenth."""
    found = []
    for share in (NOT_LIMITED, *options.shares, THIS_HOST):
        for coding in options.codings:
            config = load(base, coding.overrides)
            rate = options.rate(share, dense_parameters(config))
            eps = links.predict(options, config, rate) if share != THIS_HOST else 900 + 100 * (coding.push == "dense")
            found.append({
                "share": share, "rate": None if math.isinf(rate) else rate, "push": coding.push, "pull": coding.pull,
                "eps": eps, "bytes": 1234.5, "predicted_eps": None if share == THIS_HOST else eps,
            })  # fmt: skip
    return found


def test_the_wanted_gain_is_where_the_arithmetic_says(base):
    """Of a step s = 1, a dense round x and one of g x: (1 + x) / (1 + g x) = 1.37, but for the codec's own time."""
    options = LinkOptions(shares=tuple(0.01 * k for k in range(1, 200)))
    found = links.reached(rows_of(options, base), "eps")
    for name, g in ((PUSH, 0.508), (BOTH, 0.016)):
        assert found[name] == pytest.approx(0.37 / (1 - 1.37 * g), rel=0.05)
    assert found[DENSE] == math.inf


def test_several_trainers_fill_the_link_with_whole_pulls(base):
    found = links.reached(rows_of(LinkOptions(trainers=8), base), "eps")
    assert found[PUSH] == math.inf
    assert found[BOTH] < 0.5


def test_the_table_says_where_codecs_are_worth_it_and_where_not(base):
    options = LinkOptions()
    text = links.table({"options": links.plain(options), "rows": rows_of(options, base)})
    lines = text.splitlines()
    assert sum(line.startswith("1.37 times") for line in lines) == 2
    for name in (PUSH, BOTH):
        host = next(line for line in lines if "this host" in line and name in line)
        assert host.split()[-2] == "0.90"
    assert "token bucket" in text
    assert "virtual host" in links.table(
        {"options": links.plain(LinkOptions(virtual_hosts=True)), "rows": rows_of(options, base)}
    )


def test_what_limits_a_link():
    """A bucket in the server, or the kernel; nothing where there is no limit."""
    options, kernel = LinkOptions(step_ms=20), LinkOptions(step_ms=20, virtual_hosts=True)
    assert options.rate(2.0, 1_000) == 8_000 / 0.04
    assert links.emulated(options, 1e6) == Emulation(0.02, 1e6)
    assert links.emulated(options, math.inf) == links.emulated(kernel, 1e6) == Emulation(0.02)


@pytest.mark.parametrize("wrong", [{"trainers": 0}, {"shares": ()}, {"shares": (0.0,)}, {"step_ms": 0}, {"seconds": 0}])
def test_options_without_sense_are_refused(wrong):
    with pytest.raises(SettingsError):
        LinkOptions(**wrong)


def test_links_over_which_no_step_fits_into_the_windows_are_refused():
    """The last of all jobs ended with a division by its 0 rounds."""
    with pytest.raises(SettingsError, match=r"slowest link takes 5\.05 s, more than the 3 s of all windows"):
        LinkOptions(shares=(0.5, 100.0))
    LinkOptions(shares=(0.5, 100.0), seconds=2.0)
