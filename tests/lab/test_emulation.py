"""The emulated cluster works, on real ranks. No time is judged here, but that ranks train, and that the link held
back what it should."""

import json

import pytest
import virtual_hosts
from laboratory import lab

NO_KERNEL = virtual_hosts.missing()
KERNEL = pytest.param(
    ("--virtual-hosts",),
    marks=[
        pytest.mark.skipif(bool(NO_KERNEL), reason=f"NO LINKS SHAPED BY THE KERNEL: {NO_KERNEL}"),
        pytest.mark.soak,
    ],
)


@pytest.mark.parametrize("where", [(), KERNEL], ids=["buckets", "kernel"])
def test_a_job_of_each_kind_is_measured_and_predicted(tmp_path, small_data, where):
    arguments = (
        *where,
        "--trainers",
        "2",
        "--only",
        "EASGD-5, 1",
        "--seconds",
        "1",
        "--link-mb",
        "1",
        "--folder",
        tmp_path,
    )
    words = (f"data.folder={small_data}", "data.block_rows=512")
    finished = lab("cluster", *words, *arguments).check()
    report = json.loads((tmp_path / "cluster.json").read_text())
    (row,) = report["rows"]
    assert (row["shape"], row["trainers"]) == ("FR-EASGD-5, 1 sync PS", 2)
    most = 1e6 / (4 * 55_113) * 5 * 32  # a link of 1 MB/s carries so much, and no machine is quick enough for more
    assert row["predicted_eps"] <= most * 1.001 < 2 * 32 / 0.050  # two trainers' steps alone
    # Steps are waits, so a busy machine comes late, but not by twice; a window may begin or end within a round.
    assert 0.5 < row["eps"] / row["predicted_eps"] < 1.5
    assert row["gap"] == pytest.approx(5, abs=1), "iterations from round to round, as counted"
    assert "Emulated on one host" in finished.out
    assert ("virtual host" in finished.out) == bool(where)
    assert (tmp_path / "cluster.txt").read_text() == finished.out


def test_members_of_a_group_train_behind_their_links(tmp_path, small_data):
    """No machine is quick enough for more than the links carry: lanes wait for 0.95 MB in either direction."""
    words = (f"data.folder={small_data}", "data.block_rows=512", "data.batch_size=32")
    arguments = ("--group", "2", "--trainers", "2", "--only", "data", "--seconds", "0.6", "--rank-link-mb", "10")
    finished = lab("cluster", *words, *arguments, "--folder", tmp_path).check()
    (row,) = json.loads((tmp_path / "cluster.json").read_text())["rows"]
    alone = 2 * 32 / (0.05 + 4 * 475_985 / 10e6)  # without what the messages of one lane wait for those of the other
    assert 0.9 * alone < row["predicted_eps"] <= alone
    assert 0 < row["eps"] / row["predicted_eps"] < 1.5
    assert "groups of 2, data, 10 MB/s" in finished.out
