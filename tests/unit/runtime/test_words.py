"""Numbers with nouns."""

import pytest

from ssmpi.runtime.words import counted


@pytest.mark.parametrize(("number", "said"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (2000, "2,000 ranks")])
def test_a_noun_agrees_with_its_number(number, said):
    assert counted(number, "rank") == said
