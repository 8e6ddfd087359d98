"""The emulated cluster works, on real ranks. No time is judged here, but that ranks train, and that the link held
back what it should."""

import json

from laboratory import lab


def test_a_job_is_measured_and_predicted(tmp_path, small_data):
    arguments = ("--trainers", "2", "--only", "EASGD-5, 1", "--seconds", "1", "--link-mb", "1", "--folder", tmp_path)
    words = (f"data.folder={small_data}", "data.block_rows=512")
    finished = lab("cluster", *words, *arguments).check()
    report = json.loads((tmp_path / "cluster.json").read_text())
    (row,) = report["rows"]
    assert (row["shape"], row["trainers"]) == ("FR-EASGD-5, 1 sync PS", 2)
    most = 1e6 / (4 * 55_113) * 5 * 32  # a link of 1 MB/s carries so much, and no machine is quick enough for more
    assert row["predicted_eps"] <= most * 1.001 < 2 * 32 / 0.050  # two trainers' steps alone
    # Steps are waits, so a busy machine comes late, but not by twice; a window may begin or end within a round.
    assert 0.5 < row["eps"] / row["predicted_eps"] < 1.5
    assert 4 <= row["gap"] < 10, "iterations from round to round, as counted; a slow second cuts off the last round"
    assert "Emulated on one host" in finished.out
    assert (tmp_path / "cluster.txt").read_text() == finished.out
