"""What the tests of single jobs share."""

import contextlib
import shutil
from pathlib import Path

import pytest
from datasets import make_dataset
from ranks import mpirun_path
from training_job import Job


@pytest.fixture(scope="session")
def good_data(tmp_path_factory):
    """2,000 training rows in two shards, 200 to validate, 200 to test."""
    return make_dataset(tmp_path_factory.mktemp("good"), rows=2_000, shard=1_000, cardinalities=(50,) * 26)


@pytest.fixture
def data(tmp_path, good_data):
    """A copy of the data for this test to spoil."""
    return Path(shutil.copytree(good_data, tmp_path / "data"))


@pytest.fixture
def start(tmp_path, data):
    """Start a job: under mpirun with ``ranks`` ranks, by ``ssmpi launch``, or as one process."""
    jobs = contextlib.ExitStack()

    def begin(*overrides, ranks=0, program=("-m", "ssmpi", "train"), environ=None, resume=False):
        launcher = (mpirun_path(), "-n", ranks) if ranks else ()
        job = Job(tmp_path, launcher, *overrides, program=program, environ=environ, resume=resume)
        jobs.callback(job.close)
        return job

    with jobs:
        yield begin
