"""Training over several hosts with addresses, process numbers and /tmp of their own: slow, cut, frozen and crashed
ones. CI tries the crash, soak the rest too.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import virtual_hosts
from datasets import make_dataset
from ranks import TESTS, WITHOUT_EXTRAS, Running, full_environment, python_path
from runs import Run
from virtual_hosts import NETWORK, PROJECT, VirtualHosts

from ssmpi.runtime.errors import LOST, STOPPED
from ssmpi.runtime.host.mpi_environment import ON_ONE_HOST, WITHOUT_SCHEDULER
from ssmpi.runtime.host.schedulers import SCHEDULERS

LIMIT = 25  # seconds from a fault to the end of the job, of which 10 are waiting.frozen_seconds
START_UP = 90
RUN_FILE = """
[data]
folder = "data"
batch_size = 64
passes = 100000
[topology]
trainers = 2
embedding_ps = 1
[model]
bottom = [32, 16]
top = [32, 1]
[sync]
algorithm = "ma"
[evaluate]
split = "none"
final = "none"
[run]
tensorboard = false
log_seconds = 0.2
[checkpoint]
every_examples = 2000
[waiting]
frozen_seconds = 10.0
"""
SITE = f"""
[node]
cores = 4
memory_gb = 4
[placement]
servers = "packed"
[launcher]
hosts = ["h1", "h2", "h3"]
interface = "{NETWORK}.0/24"
"""

pytestmark = pytest.mark.skipif(bool(why := virtual_hosts.missing()), reason=f"NO TESTS OVER SEVERAL HOSTS: {why}")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that all hosts share."""
    place = tmp_path_factory.mktemp("shared")
    make_dataset(place / "data", rows=2_000, shard=1_000, cardinalities=(50,) * 26)
    (place / "run.toml").write_text(RUN_FILE)
    (place / "hosts.toml").write_text(SITE)
    (place / "without-h2.toml").write_text(SITE.replace('"h2", ', ""))
    (place / "spare.toml").write_text(SITE.replace('"h3"]', '"h3", "h4"]'))
    return place


@pytest.fixture
def hosts(place, tmp_path):
    """Trainers go to h1 and h2, the embedding PS to h3; h4 is there for a test that says so."""
    found = VirtualHosts(4, tmp_path / "hosts", virtual_hosts.shared_folders(place))
    yield found
    found.close()


class Launched:
    """``ssmpi launch`` on the head."""

    def __init__(self, hosts, place, name, *overrides, site="hosts.toml"):
        self.folder, self.hosts = place / name, hosts
        words = ("launch", "run.toml", "--resume", name, *overrides, "--site", site)
        path = python_path(*WITHOUT_EXTRAS, PROJECT)
        environ = full_environment({"PRTE_MCA_plm_ssh_agent": str(hosts.remote_shell), "PYTHONPATH": path})
        environ.pop("PRTE_MCA_rmaps_default_mapping_policy", None)
        self.job = Running(hosts.on("head", sys.executable, "-m", "ssmpi", *words, folder=place), environ)

    def lines(self):
        """Lines of metrics so far."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.is_file() else 0

    def until_it_trains(self, more=1):
        """Wait for more lines of metrics."""
        wanted, deadline = self.lines() + more, time.monotonic() + START_UP
        while self.lines() < wanted:
            assert self.job.process.poll() is None, self.job.read_so_far()
            assert time.monotonic() < deadline, self.job.read_so_far()
            time.sleep(0.05)
        return self

    def until_it_has_saved(self):
        """Wait for a checkpoint."""
        deadline = time.monotonic() + START_UP
        while not (found := set(self.folder.glob("checkpoints/*/manifest.json"))):
            assert self.job.process.poll() is None, self.job.read_so_far()
            assert time.monotonic() < deadline, self.job.read_so_far()
            time.sleep(0.05)
        return found

    def until_it_goes_on(self, times):
        """Wait until it has been started again and trains; the same launch."""
        said, deadline = "", time.monotonic() + START_UP
        while f"start {times + 1} of this job" not in said:
            said = self.job.read_so_far()
            assert self.job.process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        return self.until_it_trains()

    def stop(self):
        """Ask it to save and leave."""
        (number,) = self.hosts.processes("head", f"ssmpi launch run.toml --resume {self.folder.name} ")
        self.hosts.run("head", "kill", "-USR1", number)

    def end(self):
        finished = self.job.wait(LIMIT)
        return finished.code, finished.out + finished.err

    def stopped(self):
        """What it has said, asked to save and leave."""
        self.stop()
        code, output = self.end()
        assert code == STOPPED, output
        return output


@pytest.fixture
def launch(hosts, place, request):
    """Start a run in a folder named after the test."""
    started = []

    def begin(*overrides, **site):
        started.append(Launched(hosts, place, request.node.name, *overrides, **site))
        return started[-1]

    yield begin
    for launched in started:
        launched.job.close()


@pytest.mark.soak
def test_a_slow_link_and_one_cut_for_four_seconds_only_take_time(hosts, launch):
    hosts.slow("h3", "50mbit")
    run = launch().until_it_trains()
    hosts.cut("h2")
    time.sleep(4)
    hosts.heal("h2")
    run.until_it_trains(more=3)
    output = run.stopped()
    assert "error:" not in output
    assert Run(run.folder).result["status"] == "stopped"
    assert re.search(
        r"\d\d:\d\d:\d\d h1 trainer 0 \| 3 ranks on 3 hosts: h1: trainer 0; h2: trainer 1; h3: emb", output
    )
    for host, name in (("h1", "trainer-0"), ("h2", "trainer-1"), ("h3", "embedding_ps-0")):
        assert f" {host} {name.replace('-', ' ')} | " in (run.folder / "logs" / f"{name}.log").read_text()


@pytest.mark.soak
def test_a_frozen_rank_on_another_host_is_named(hosts, launch):
    run = launch("recovery.mode=off").until_it_trains()
    (number,) = hosts.processes("h3", "ssmpi train")
    hosts.run("h3", "kill", "-STOP", number)
    code, output = run.end()
    assert "error: embedding_ps 0 (rank 2, host h3) has given no sign of life for 10 s" in output
    assert code == LOST, output


def test_a_crashed_host_ends_the_job_and_the_run_goes_on_without_it(hosts, launch):
    run = launch("recovery.mode=off")
    run.until_it_has_saved()
    hosts.crash("h2")
    code, output = run.end()
    assert code == LOST, output
    assert "the run did not finish" in output
    # on a loaded machine another host may need more than the ten seconds that each has to answer
    assert re.search(r"error: no answer from (h1, )?h2(, h3)?: repair it or remove it from launcher\.hosts", output)
    again = launch("topology.trainers=1", site="without-h2.toml").until_it_trains()
    again.stop()
    code, output = again.end()
    assert code == STOPPED, output
    assert "resuming from" in output
    assert "2 ranks on 2 hosts: h1: trainer 0; h3: embedding_ps 0" in output


@pytest.mark.soak
def test_a_lost_host_is_replaced_by_a_spare_then_by_the_others(hosts, launch):
    """In one launch, by partial recovery; of the memory of ranks nothing is left on any host in the end."""
    options = ("checkpoint.every_examples=1000", "recovery.mode=partial", "recovery.max_lost_fraction=1")
    run = launch(*options, site="spare.toml").until_it_trains(more=3)
    hosts.crash("h2")
    run.until_it_goes_on(1)
    hosts.crash("h3")
    run.until_it_goes_on(2)
    output = run.stopped()
    assert re.search(r"h2 did not answer: trainer 1 goes to h4", output)
    assert re.search(r"h3 did not answer: embedding_ps 0 goes to h[14]", output)
    assert "h1: trainer 0; h4: trainer 1; h3: embedding_ps 0" in output
    result = Run(run.folder).result
    assert (result["status"], result["restarts"]) == ("stopped", 2)
    trainer, server = result["recoveries"]
    assert (trainer["how"], trainer["samples_lost"]) == (server["how"], trainer["rows_reloaded"]) == ("partial", 0)
    assert 0 < result["pls"] == pytest.approx(server["samples_lost"] / result["expected_examples"])
    assert re.search(r"error: /dev/shm/ssmpi-\d+-\w+ may be left on h2, h3, which did not answer", output)
    for host in ("h1", "h4"):
        assert hosts.run(host, "sh", "-c", "ls -R /dev/shm") == "/dev/shm:\n"
        assert not hosts.processes(host, "ssmpi train")


@pytest.mark.soak
def test_losing_the_first_trainers_host_is_full_recovery(hosts, launch):
    """The launcher is on another host; all examples since that checkpoint are trained on again, and none is lost."""
    run = launch("checkpoint.every_examples=1000", "recovery.mode=partial", site="spare.toml")
    newest = run.until_it_has_saved()
    hosts.crash("h1")
    run.until_it_goes_on(1)
    output = run.stopped()
    assert "h1 did not answer: trainer 0 goes to h4" in output
    assert re.search(r"the memory of trainer 0 is lost .*, and the first trainer's is needed to resume: all", output)
    result = Run(run.folder).result
    (recovery,) = result["recoveries"]
    assert (result["status"], result["restarts"], result["pls"]) == ("stopped", 1, 0)
    assert recovery["how"] >= min(path.parent.name for path in newest)
    assert f"all ranks go back to {recovery['how']} (full recovery)" in output
    places = [json.loads(line)["examples"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert places == sorted(places)  # what came after the checkpoint came again, in its place
    for host in ("h2", "h3", "h4"):
        assert hosts.run(host, "sh", "-c", "ls -R /dev/shm") == "/dev/shm:\n"


@pytest.mark.soak
def test_a_host_that_comes_back_is_found_at_once(hosts):
    """By those that knew it before the crash: SLURM's credentials for h2 expired while h1 sought it for 35 s."""
    serve = "import socket; socket.create_server(('', 9000)).accept()"
    connect = "import socket, sys; socket.create_connection((sys.argv[1], 9000), timeout=15)"

    def reached(within=START_UP):
        server = subprocess.Popen(hosts.on("h2", sys.executable, "-c", serve))
        listening = ("sh", "-c", "until ss -tln | grep -q :9000; do sleep 0.1; done")
        hosts.run("h2", *listening, timeout=within)
        hosts.run("h1", sys.executable, "-c", connect, hosts.address("h2"))
        server.wait(within)

    reached()
    hosts.crash("h2")
    hosts.boot("h2")
    reached()


@pytest.mark.soak
def test_hosts_end_with_whoever_started_them(tmp_path):
    """Also when that is killed: no process, namespace or network is left behind by a test that was."""
    script = (
        "import sys, time; from virtual_hosts import VirtualHosts, shared_folders\n"
        "h = VirtualHosts(2, sys.argv[1], shared_folders()); print(*h._pids.values(), flush=True); time.sleep(60)"
    )
    environ = full_environment()
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, cwd=TESTS, stdout=subprocess.PIPE
    )
    pids = starter.stdout.readline().split()
    assert len(pids) == 3
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{int(pid)}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


BATCH_SITE = SITE.replace('hosts = ["h1", "h2", "h3"]\n', "")
PBS_SAYS = "    Resource_List.walltime = 00:00:20\n    stime = $(date '+%a %b %d %T %Y')"
BATCH_SYSTEMS = {  # the command that submits, the one that tells the time that is left, and what it says
    "pbs": ("qsub", "qstat", PBS_SAYS),
    "lsf": ("bsub", "bjobs", "0:01 L"),
    "flux": ("flux", "flux", "$(test $1 = hostlist && echo h1 h2 h3 || echo 20)"),
}
REQUEUES = {"pbs": "qsub pbs/job.pbs", "lsf": "brequeue 17", "flux": "flux --parent batch flux/job.flux"}


@pytest.mark.parametrize("section", ["pbs", *(pytest.param(name, marks=pytest.mark.soak) for name in ("lsf", "flux"))])
def test_a_job_of_another_batch_system_saves_before_its_time_is_over(hosts, place, section):
    """As submitted: its ranks go where that says, and it goes back to the queue."""
    scheduler = next(known for known in SCHEDULERS if known.section == section)
    submits, tells, said = BATCH_SYSTEMS[section]
    tools, nodes = place / f"{section}-tools", place / f"{section}-nodes"
    tools.mkdir()
    for tool in (submits, "brequeue", tells):
        (tools / tool).write_text(f'#!/bin/bash\necho "{tool} $@" >> {tools}/asked\ncat << EOF\n{said}\nEOF\n')
        (tools / tool).chmod(0o755)
    nodes.write_text("h1\nh1\nh2\nh2\nh3\nh3\n")
    (place / f"{section}.toml").write_text(f"{BATCH_SITE}\n[{section}]\n")
    environ = batch_environment(hosts, tools)
    words = ("submit", "run.toml", f"run.folder={section}", "--site", f"{section}.toml")
    hosts.run("head", sys.executable, "-m", "ssmpi", *words, folder=place, environ=environ)
    own = {"PBS_NODEFILE": nodes, "LSB_DJOB_HOSTFILE": nodes, "PBS_O_WORKDIR": place, "PBS_ENVIRONMENT": "PBS_BATCH"}
    environ |= {scheduler.job: "17", **{name: str(path) for name, path in own.items()}}
    job = Running(hosts.on("head", "bash", f"{section}/{scheduler.batch_file}", folder=place), environ)
    try:
        ended = job.wait(START_UP + 60)
    finally:
        job.close()
    output = ended.out + ended.err + "".join(path.read_text() for path in (place / section).glob("job-*.log"))
    assert ended.code == STOPPED, output
    assert "3 ranks on 3 hosts: h1: trainer 0; h2: trainer 1; h3: embedding_ps 0" in output
    assert "stopped in time for --max-hours" in output
    assert Run(place / section).result["status"] == "stopped"
    assert (tools / "asked").read_text().splitlines()[-1] == REQUEUES[section]


def batch_environment(hosts, tools):
    """The environment on the head, with the settings for one host that a shell may have had; the tools come first."""
    environ = full_environment({"PRTE_MCA_plm_ssh_agent": str(hosts.remote_shell)})
    environ |= {"PYTHONPATH": python_path(*WITHOUT_EXTRAS, PROJECT), "PATH": f"{tools}:{os.environ['PATH']}"}
    return {name: value for name, value in environ.items() if name not in ON_ONE_HOST} | WITHOUT_SCHEDULER
