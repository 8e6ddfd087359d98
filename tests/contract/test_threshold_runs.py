"""Whole runs over threads that train and score by thresholds: what has been measured outlives stops and kills."""

import numpy as np
import pytest
from faults import Kill
from runs import train_over_threads
from test_group_runs import ONE, PAIR, STAGES, assert_same, in_pieces, stop_after  # noqa: F401 - a fixture
from test_warm_start import ONE as ONE_THREAD
from test_warm_start import one_process, train_with_kills  # noqa: F401 - a fixture

from ssmpi.trainer.progress import Progress

BY_THRESHOLDS = ("model.top_k=['bottom.0: 0.75 laplace', 'top.0: 0.5 laplace']",)

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def sizes(run):
    """What each operator's threshold follows from: batches, share of values that are not 0, mean size."""
    return {name: values for name, values in run.dense().items() if name.endswith(".sizes")}


@pytest.mark.parametrize(
    "jobs",
    [
        [(*PAIR, STAGES), (*PAIR, "hierarchy.plan=data")],
        pytest.param([(), ()], marks=pytest.mark.soak),
        pytest.param([(*PAIR, STAGES), (*PAIR, STAGES)], marks=pytest.mark.soak),
    ],
    ids=["by other members", "alone", "in a group"],
)
def test_a_stopped_run_goes_on_with_its_thresholds_to_the_same_bits(tmp_path, small_data, stop_after, jobs):  # noqa: F811
    """Whichever members measured: of a group, those that compute an operator."""
    first, second = ((*BY_THRESHOLDS, *job) for job in jobs)
    reference = train_over_threads(tmp_path / "whole", small_data, *ONE, *BY_THRESHOLDS)
    assert len(sizes(reference)) == 2
    run = in_pieces(tmp_path / "cut", small_data, stop_after, [(first, 7), (second, 30), (BY_THRESHOLDS, None)])
    assert_same(run, reference)
    np.testing.assert_array_equal(run.losses(), reference.losses()[-len(run.losses()) :])


@pytest.mark.usefixtures("one_process")
def test_a_killed_run_goes_on_with_its_thresholds(tmp_path, small_data):
    through = train_over_threads(tmp_path / "through", small_data, *ONE_THREAD, *BY_THRESHOLDS)
    kills = [Kill(Progress, "record", number) for number in (30, 25)]
    killed = train_with_kills(tmp_path / "killed", small_data, kills, *ONE_THREAD, *BY_THRESHOLDS)
    for name, (batches, *means) in sizes(through).items():
        found, *others = sizes(killed)[name]
        assert found == batches + len(kills)  # each kill came between a batch's step and its count: it was repeated
        np.testing.assert_allclose(others, means, rtol=0.02)
