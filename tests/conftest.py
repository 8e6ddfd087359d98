"""The test process itself never enters MPI: it starts ranks and asserts over what they return."""

import gc

import mpi4py

mpi4py.rc.initialize = False  # before anything imports mpi4py.MPI, which would initialise it
mpi4py.rc.finalize = False

import contextlib  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from datasets import make_dataset  # noqa: E402
from faults import Fault  # noqa: E402
from rank_pool import POOL  # noqa: E402
from ranks import PretendedJob, PretendedWorld  # noqa: E402

from ssmpi.runtime.errors import DataError  # noqa: E402
from ssmpi.runtime.files.log import log  # noqa: E402
from ssmpi.runtime.host.memory_folder import check_disk  # noqa: E402
from ssmpi.tools import score  # noqa: E402

hypothesis.settings.register_profile(  # no deadline: kernels compile in their first example
    "ssmpi", max_examples=50, deadline=None, derandomize=True
)
hypothesis.settings.register_profile(  # a seed reproduces it; where CI is set, hypothesis's own default is not random
    "soak", max_examples=500, deadline=None, derandomize=False, database=None, print_blob=True
)
hypothesis.settings.load_profile("ssmpi")  # unless pytest --hypothesis-profile asks for the other

# A suite that runs in the background, or under nohup, inherits ignored signals, which its jobs would ignore too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONGEST = (  # real ranks, then files by how long they take; those that mostly wait and those that compute in turns
    "contract/test_sync.py", "story/test_slurm.py", "unit/state/test_resume.py", "mpi/test_frozen_starts.py",
    "contract/test_partial_recovery.py", "mpi/test_kept_memory.py", "unit/data_prep/test_prepare_criteo.py",
    "mpi/test_failures.py", "contract/test_group_runs.py", "mpi/test_killed_ranks.py", "mpi/test_exactness.py",
    "mpi/test_checkpoints.py", "contract/test_warm_start.py", "mpi/test_two_members.py",
    "unit/data_prep/test_synthetic.py", "mpi/test_stops.py", "mpi/test_gradients.py", "unit/tools/report/test_page.py",
    "mpi/test_run_from_python.py", "unit/state/checkpoint/test_checkpoint_store.py", "story/test_hosts.py",
    "contract/test_dynamic_tables.py", "unit/tools/test_export.py", "unit/cluster/test_launch.py",
    "unit/state/checkpoint/test_saving.py", "unit/state/test_continued.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Those begin first, so that all of xdist's workers end at about the same time."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    assert all(path.is_file() for path in places), "LONGEST names a file that is not there"
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """``--dist loadfile``, but all files whose tests take the real ranks that stay go to one worker, which starts them
    once.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "real ranks" if takes_ranks(config.rootpath / file) else file

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@cache
def takes_ranks(path):
    """Whether tests of a file run bodies on the real ranks that stay."""
    return bool(re.search(r"\b(over_mpi|train_over_ranks)\b", path.read_text(encoding="utf-8")))


def pytest_collection_finish(session):
    """What is imported and collected lasts. A test that collects garbage does not look through it: that takes half a
    second each time.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Real ranks that stayed end."""
    POOL.close()


@pytest.fixture(autouse=True)
def _logging():
    """A command configures logging for its process; this one goes on, and the captured stream is closed by then."""
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


@pytest.fixture
def inject():
    """``inject(owner, name, happens, ...)``: a ``Fault`` until the test ends."""
    with contextlib.ExitStack() as faults:
        yield lambda *what, **how: faults.enter_context(Fault(*what, **how))


@pytest.fixture(scope="session")
def metrics():
    """scikit-learn's. Every worker of pytest imports all files of tests: few need what takes long to import."""
    from sklearn import metrics

    return metrics


@pytest.fixture(scope="session")
def stats():
    """SciPy's statistics, as ``metrics``."""
    from scipy import stats

    return stats


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """6,000 training rows in three shards, 600 to validate, 600 to test."""
    return make_dataset(tmp_path_factory.mktemp("small"), rows=6_000, shard=2_300)


@pytest.fixture
def disk(tmp_path):
    """A folder on a local disk, for rows."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        check_disk(folder)
    except DataError as error:
        pytest.skip(f"no local disk for temporary files: {error}")
    return folder


def pytest_addoption(parser):
    parser.addoption("--write-golden", action="store_true", help="replace the pinned records by what is found now")


@pytest.fixture
def golden(request):
    """``golden(name, text)`` is the pinned record ``tests/golden/name``; a missing one fails."""

    def record(name, text):
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--write-golden"):
            path.write_text(text)
        assert path.is_file(), f"no record {path}: look at what is found, then write it with pytest --write-golden"
        return path.read_text()

    return record


@pytest.fixture
def alone(monkeypatch):
    """Scoring in this process, which never enters MPI; the jobs that this pretends."""

    class Job:
        rank, size = 0, 1

        def agree(self, body):
            return body()

        def gather(self, value):
            return [value]

        def leave(self):
            """Nobody waits."""

    def world(job, topology):
        jobs.append(PretendedJob(topology, np.inf))
        return PretendedWorld(jobs[-1], 0)

    jobs = []
    monkeypatch.setattr(score, "joined", lambda: contextlib.nullcontext(Job()))
    monkeypatch.setattr(score, "World", world)
    return jobs
