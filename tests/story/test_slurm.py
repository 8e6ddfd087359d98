"""Real batch files in a real SLURM of four virtual hosts: each job ends, or goes on, as
jobs/guide/cluster.md promises. CI tries what a run has to survive, soak the rest too.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
import virtual_hosts
from datasets import make_dataset
from runs import Run
from slurm_cluster import FINAL, SlurmCluster

from ssmpi.data.schema import read_manifest
from ssmpi.state.checkpoint import store

JOBS = Path(__file__).parents[2] / "jobs"
RUN_FILE = """
[data]
folder = "data"
batch_size = 64
[topology]
trainers = 2
embedding_ps = 1
[model]
bottom = [32, 16]
top = [32, 1]
[sync]
algorithm = "ma"
[run]
tensorboard = false
log_seconds = 0.2
"""
SITE = """
[node]
cores = 4
memory_gb = 4
[placement]
servers = "packed"
[launcher]
{launcher}
[slurm]
time = "0:10:00"
"""
LAUNCHERS = {"srun": 'command = "srun"\nsrun_mpi = "pmix"', "mpirun": 'command = "mpirun"'}
ENDLESS = ("data.passes=100000", "evaluate.split=none", "evaluate.final=none")
SERVER = "embedding_ps 0"
URGENT = ("--partition=urgent", "--nodes=2", "--nodelist=h[1-2]", "--exclusive", "--output=/dev/null", "--wrap=true")

pytestmark = pytest.mark.skipif(
    bool(why := virtual_hosts.missing() or slurm_cluster.missing()), reason=f"NO SLURM TESTS: {why}"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that all hosts share, with data, a run file and a site file for each launcher."""
    place = tmp_path_factory.mktemp("shared")
    make_dataset(place / "data", rows=2_000, shard=1_000, cardinalities=(50,) * 26)
    (place / "run.toml").write_text(RUN_FILE)
    for name, launcher in LAUNCHERS.items():
        site = SITE.format(launcher=launcher)
        (place / f"{name}.toml").write_text(site)
        (place / f"{name}-h1-h2.toml").write_text(site + 'options = ["--nodelist=h[1-2]"]\n')
        (place / f"{name}-spare.toml").write_text(site.replace("[launcher]", "spare_hosts = 1\n[launcher]"))
    return place


@pytest.fixture(scope="module")
def cluster(place, tmp_path_factory):
    """Four hosts under SLURM."""
    state = tmp_path_factory.mktemp("slurm")
    cluster = SlurmCluster(4, state, virtual_hosts.shared_folders(place))
    yield cluster
    cluster.close()


@pytest.fixture
def slurm(cluster):
    """The cluster without a job, also after a test that failed."""
    yield cluster
    cluster.head("scancel", "--state=PENDING")
    cluster.head("scancel", "--state=RUNNING")
    cluster.until(lambda: not cluster.head("squeue", "--noheader"), "all jobs have ended")


def submit(slurm, place, name, launcher, *overrides):
    """``ssmpi submit`` on the head."""
    words = ("submit", "run.toml", f"run.folder={name}", *overrides, "--site", f"{launcher}.toml")
    return slurm.submit(sys.executable, "-m", "ssmpi", *words, folder=place)


class Submitted:
    """A run that was submitted: its job in SLURM and what it leaves in its folder."""

    def __init__(self, slurm, place, site, name, *overrides):
        self.slurm, self.folder = slurm, place / f"{name}-{site}"
        words = ("submit", "run.toml", f"run.folder={self.folder.name}", *overrides, "--site", f"{site}.toml")
        self.number = slurm.submit(sys.executable, "-m", "ssmpi", *words, folder=place)

    @property
    def log(self):
        """All that the job said."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("job-*.log")))

    @property
    def state(self):
        return self.slurm.job(self.number)["JobState"]

    def until(self, happened, what, within=120):
        """Wait until ``happened()``, unless the job ends before."""

        def look():
            state, found = self.state, happened()
            assert found or state not in FINAL, f"{state} before {what}\n{self.log}"
            return found

        return self.slurm.until(look, what, within)

    def saved(self):
        """Checkpoints that are committed."""
        return set(self.folder.glob("checkpoints/*/manifest.json"))

    def until_it_has_saved(self):
        """Wait for a checkpoint that is not there yet."""
        before = self.saved()
        self.until(lambda: self.saved() - before, f"{self.folder.name} saves")

    def until_it_has_gone_on(self, times):
        """Wait until SLURM has started it again, it resumes from its checkpoint, or from memory where SLURM's daemons
        ended before it had saved, and has made another checkpoint.
        """
        self.until(
            lambda: len(re.findall(r"resuming from|resumes from its memory", self.log)) >= times,
            f"{self.folder.name} goes on for the {times}. time",
        )
        self.until_it_has_saved()
        assert int(self.slurm.job(self.number)["Restarts"]) >= times


@pytest.mark.soak
def test_a_submitted_run_completes(slurm, place):
    """By srun --mpi=pmix and by mpirun; trainers on two hosts, the embedding PS on the third."""
    names = {"srun": "short", "mpirun": "short one"}  # a folder with a space in its name too
    jobs = [Submitted(slurm, place, launcher, name) for launcher, name in names.items()]
    for job in jobs:
        job.until(lambda job=job: job.state in FINAL, "the end")
        assert job.state == "COMPLETED", job.log
        assert Run(job.folder).result["status"] == "complete"
        assert Run(job.folder).result["examples"] == 2_000


def test_a_run_survives_limit_preemption_and_lost_host(slurm, place):
    """A trainer on h1 and its embedding PS on h2, started by srun in one job and by mpirun in another beside it."""
    often = ("checkpoint.every_examples=2000", "waiting.frozen_seconds=10", "topology.trainers=1")
    jobs = [Submitted(slurm, place, f"{launcher}-h1-h2", "endless", *ENDLESS, *often) for launcher in LAUNCHERS]
    for job in jobs:
        job.until_it_has_saved()
        slurm.head("scancel", "--batch", "--signal=USR1", job.number)  # as SLURM does ahead of the time limit
    for job in jobs:
        job.until_it_has_gone_on(1)
        assert f"stopped and saved: requeueing job {job.number}" in job.log
    slurm.submit("sbatch", *URGENT, folder=place)
    for job in jobs:
        job.until_it_has_gone_on(2)

    slurm.crash("h2")
    for job in jobs:
        job.until(lambda job=job: job.state != "RUNNING", "the loss of a host is noticed", 40)
    slurm.head("scontrol", "update", "nodename=h2", "state=down", "reason=crashed")  # SLURM itself waits for a minute
    for job in jobs:
        job.until(lambda job=job: job.state == "PENDING", "h1 has let go of it", 40)
    time.sleep(1.1)  # SLURM counts in seconds: a job started again in the one it ended in is refused on h1, and FAILED
    slurm.boot("h2")
    for job in jobs:
        job.until_it_has_gone_on(3)
        assert not (job.folder / "result.json").exists()

    for job in jobs:
        slurm.head("scancel", job.number)
    for job in jobs:
        slurm.until(lambda job=job: job.state == "CANCELLED", "the job is cancelled", 40)
    slurm.until(lambda: not any(slurm.processes(h, "ssmpi train") for h in slurm.names), "no process is left", 90)


def lost_by_hand(log, checkpoints):
    """Samples that the rows of a lost embedding PS miss: those trained when it went on, by the job's log, less those of
    the checkpoint that the rows came from, by its manifest. The log may lack its commit: the host was lost then.
    """
    said = r"going on after ([\d,]+) examples: .* \(embedding_ps 0 from (\S+)\), which miss ([\d,]+) samples"
    ((now, source, missed),) = re.findall(said, log)
    now, missed = (int(number.replace(",", "")) for number in (now, missed))
    assert missed == now - store.read_manifest(checkpoints / source).state["examples"]
    return missed


@pytest.mark.soak
@pytest.mark.parametrize(
    ("launcher", "lost", "who"), [("srun", "h2", "trainer 1"), ("mpirun", "h2", "trainer 1"), ("srun", "h3", SERVER)]
)
def test_a_lost_host_is_replaced_in_the_same_allocation(slurm, place, launcher, lost, who):
    """Trainers on h1 and h2, their embedding PS on h3; h4 is the spare host. Nothing is left in memory."""
    often = ("checkpoint.every_examples=2000", "checkpoint.keep=1000", "waiting.frozen_seconds=10")
    partial = ("recovery.mode=partial", "recovery.max_lost_fraction=1")
    job = Submitted(slurm, place, f"{launcher}-spare", f"lost-{lost}", *ENDLESS, *often, *partial)
    job.until_it_has_saved()
    job.until(lambda: "committed at" in job.log, "it says so")
    try:
        slurm.crash(lost)
        job.until(lambda: "start 2 of this job" in job.log, "it goes on", 150)
        job.until_it_has_saved()
        assert f"{lost} did not answer: {who} goes to h4" in job.log
        assert "(partial recovery)" in job.log
        assert (job.state, slurm.job(job.number)["Restarts"]) == ("RUNNING", "0")
        slurm.head("scancel", "--batch", "--signal=TERM", job.number)  # it saves, and is not requeued
        slurm.until(lambda: job.state in FINAL, "the job ends", 60)
    finally:
        slurm.boot(lost)
    result = Run(job.folder).result
    (recovery,) = result["recoveries"]
    assert (result["status"], recovery["how"]) == ("stopped", "partial")
    missed = lost_by_hand(job.log, job.folder / "checkpoints") if who == SERVER else 0
    assert (recovery["samples_lost"], missed > 0) == (missed, who == SERVER)
    assert result["pls"] == pytest.approx(missed / result["expected_examples"])  # N = 1
    print(f"{launcher}, {lost}: {recovery}; PLS {result['pls']}")
    for host in {"h1", "h2", "h3", "h4"} - {lost}:
        slurm.until(lambda host=host: not slurm.processes(host, "ssmpi"), "no process is left", 60)
        assert slurm.run(host, "sh", "-c", "ls -R /dev/shm") == "/dev/shm:\n"
    slurm.until(lambda: slurm.states() == {"idle"}, "all hosts are idle")


@pytest.mark.soak
@pytest.mark.timeout(900)  # SLURM's daemons are slow to start jobs on a busy machine
def test_the_other_batch_files_do_what_they_say(slurm, place):
    """Train, prepare in parallel, evaluate, and a study of two variants; all as they lie in jobs/, on smaller nodes."""
    slurm.run("head", "ssmpi-prepare", "synthesize", "raw", "--rows", "3000", folder=place, environ=slurm.environ)
    (place / "variants.txt").write_text("run.seed=3\nrun.seed=4 topology.threads=2\n")
    small = ("--time=0:05:00", "--mem-per-cpu=100M")
    spread = ("--time=0:05:00", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=1", "--export=ALL,SITE=srun.toml")
    tasks = {
        "train": (*spread, JOBS / "train.sbatch", "run.toml", "--resume", "trained"),
        "prepare": (*small, "--ntasks=3", "--nodes=3", JOBS / "prepare.sbatch", "raw/train.txt", "-o", "prepared"),
        "evaluate": (*small, "--cpus-per-task=1", JOBS / "evaluate.sbatch", "short-srun", "--split", "validation"),
        "study": ("--array=1-2", *spread, JOBS / "study.sbatch", "run.toml", "variants.txt", "study"),
    }  # fmt: skip
    numbers = {name: slurm.submit("sbatch", *words, folder=place) for name, words in tasks.items()}
    for name, number in numbers.items():
        states = slurm.until(lambda number=number: slurm.final_states(number), f"{name} ends", 300)
        said = "".join(path.read_text() for path in sorted(place.glob(f"{name}-{number}*.log")))
        assert states == {"COMPLETED"}, said
        if name == "evaluate":
            assert re.search(r"^validation: NE [\d.]+, .* 200 rows$", said, re.MULTILINE)
    assert read_manifest(place / "prepared").splits["train"].rows > 2_000
    folders = (place / "trained", place / "study" / "1", place / "study" / "2")
    assert {Run(folder).result["status"] for folder in folders} == {"complete"}
    assert "threads = 2" in (place / "study" / "2" / "run.toml").read_text()


@pytest.mark.parametrize("program", ["train", "prepare"])
def test_srun_that_does_not_fit_the_mpi_is_refused(slurm, place, program):
    words = {
        "train": (sys.executable, "-m", "ssmpi", "train", "run.toml", "run.folder=alone"),
        "prepare": (sys.executable, "-m", "data_prep", "criteo", "raw.txt", "-o", "nowhere"),
    }[program]
    done = subprocess.run(
        slurm.on("head", "srun", "--mpi=none", "-N", "3", "-n", "3", *words, folder=place),
        env={**slurm.environ, "PYTHONPATH": str(JOBS.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert 1 <= len(said) <= 3, done.stderr  # each is a job of its own to MPI, and cannot know that another one speaks
    assert all("srun started 3 ranks but MPI sees 1" in line and "use srun --mpi=pmix" in line for line in said)
    assert not (place / "alone").exists()
    assert not (place / "nowhere").exists()


STRAYS = {  # what a shell or a container inherits of another job
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMI_SIZE": "4",
    "PMI_RANK": "3",
}


def test_srun_is_believed_rather_than_variables_of_another_job(slurm, place):
    words = (sys.executable, "-m", "ssmpi", "train", "run.toml", "run.folder=strays", "data.passes=1")
    done = subprocess.run(
        slurm.on("h1", "srun", "--mpi=pmix", "--cpu-bind=none", "-N", "3", "-n", "3", *words, folder=place),
        env={**slurm.environ, "PYTHONPATH": str(JOBS.parent), **STRAYS},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert Run(place / "strays").result["status"] == "complete"
