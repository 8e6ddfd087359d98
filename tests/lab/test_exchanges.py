"""What codecs cost in whole exchanges, and the selection of activations."""

import json

from jobs.lab import exchanges
from ssmpi.bench.options import CompressionOptions


def test_what_exchanges_cost_is_printed(tmp_path, capsys):
    """A line each, with what their payloads say."""
    codecs, out = ("dense", "threshold:0.99"), tmp_path / "costs.json"
    exchanges.measure(CompressionOptions(codecs=codecs, entries=20_000, rounds=3, output=out))
    written, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert tuple(written["codecs"]) == codecs
    assert "whole exchanges, 20,000 entries, medians of 3 turns" in printed
    assert [(each["kept"], each["bytes"], each["bytes_bf16"]) for each in written["activations"]] == [
        (64, 64 * 9, 64 * 5), (26, 26 * 9, 26 * 5), (13, 13 * 9, 13 * 5), (6, 6 * 9, 6 * 5),
    ]  # fmt: skip
    assert "times less" in printed.partition("the strongest of 256 activations")[2]
    for cost in written["codecs"].values():
        assert all(cost[f"{what}_ns"] > 0 for what in ("push", "send", "receive", "easgd"))
