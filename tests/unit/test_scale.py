"""The cost of a job's ranks is read from what they noted."""

import pytest

from ssmpi.bench import scale
from ssmpi.core.errors import DataError

LOG = """2026-11-21 17:20:03,250 h1 trainer 0 | 8 ranks on 2 hosts
2026-11-21 17:20:05,750 h1 trainer 0 | training starts
2026-11-21 17:20:09,000 h1 trainer 0 | complete: 10 examples
"""


def test_moments_are_read_to_the_millisecond(tmp_path):
    (tmp_path / "a.log").write_text(LOG)
    first, starts, done = (scale.moment(tmp_path / "a.log", words) for words in ("", "training starts", "complete:"))
    assert (starts - first, done - first) == pytest.approx((2.5, 5.75))
    with pytest.raises(DataError, match="no line that begins with 'stopped'"):
        scale.moment(tmp_path / "a.log", "stopped")


@pytest.mark.parametrize("ranks", [4, 5, 8, 32, 64, 100])
def test_all_roles_are_there(ranks):
    shape = scale.topology(ranks)
    assert shape.size == ranks
    assert min(shape.counts.values()) >= 1


def test_nonsense_is_refused():
    with pytest.raises(DataError, match="at least 4"):
        scale.topology(3)
    with pytest.raises(DataError, match="numbers with commas"):
        scale.counts_of("8;16")
