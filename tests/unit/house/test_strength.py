"""What CI leaves out of a grid is left to soak, and nothing else is."""

from strength import one_at_a_time


def test_ci_varies_one_thing_at_a_time_and_soak_all():
    tried = {case.values: bool(case.marks) for case in one_at_a_time("ab", "cd", "xyz")}
    assert len(tried) == 12
    assert {"".join(values) for values, left in tried.items() if not left} == {"acx", "bcx", "adx", "acy", "acz"}
