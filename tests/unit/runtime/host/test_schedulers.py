"""What each batch system tells its jobs, by stand-ins for its commands and files."""

import os
import time

import pytest

from ssmpi.cluster import launch
from ssmpi.cluster.hosts import job_hosts
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host.schedulers import SCHEDULERS, current

BY_SECTION = {scheduler.section: scheduler for scheduler in SCHEDULERS}
HOSTS = {"slurm": "scontrol", "flux": "flux"}  # commands; the others write a file
FILES = {"pbs": "PBS_NODEFILE", "lsf": "LSB_DJOB_HOSTFILE"}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """``job(section, *words)`` is in a job of that batch system, whose command prints the words."""
    for scheduler in SCHEDULERS:
        monkeypatch.delenv(scheduler.job, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def begin(section, tool, text):
        scheduler = BY_SECTION[section]
        monkeypatch.setenv(scheduler.job, "17")
        if tool in FILES.values():
            monkeypatch.setenv(tool, str(tmp_path / "nodes"))
            (tmp_path / "nodes").write_text(text)
        else:
            (tmp_path / tool).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat << EOF\n{text}\nEOF\n')
            (tmp_path / tool).chmod(0o755)
        return scheduler

    return begin


@pytest.mark.parametrize("section", BY_SECTION)
def test_hosts_are_named_once_each_in_their_order(job, section):
    tool = HOSTS.get(section) or FILES[section]
    scheduler = job(section, tool, "n2\nn2\nn10\nn10\n" if section in FILES else "n2 n10")
    assert job_hosts(scheduler) == ["n2", "n10"]
    assert current() is scheduler


@pytest.mark.parametrize("section", BY_SECTION)
def test_a_job_whose_hosts_are_not_named_is_refused(job, section, tmp_path, monkeypatch):
    scheduler = BY_SECTION[section]
    with pytest.raises(
        UserError, match=rf"this site has \[{section}\], but this is not a {scheduler.name} job: submit"
    ):
        job_hosts(scheduler)
    job(section, HOSTS.get(section) or FILES[section], "")
    with pytest.raises(UserError, match=f"not known: {scheduler.name} names none: submit it again"):
        job_hosts(scheduler)
    if section in FILES:
        (tmp_path / "nodes").unlink()
        with pytest.raises(UserError, match=f"not known: the file that {FILES[section]} names cannot be read: .*nodes"):
            job_hosts(scheduler)
        monkeypatch.delenv(FILES[section])
        with pytest.raises(UserError, match=f"not known: {FILES[section]} is not set: launch in the job's own shell"):
            job_hosts(scheduler)
    else:
        (tmp_path / HOSTS[section]).write_text("#!/bin/sh\necho no broker >&2\nexit 3\n")
        with pytest.raises(UserError, match=r"not known: '.*' failed \(exit code 3\): no broker"):
            job_hosts(scheduler)


QSTAT = "Job Id: 17.pbs\n    Resource_List.walltime = 01:00:30\n    resources_used.walltime = 0\n    stime = BEGAN"


@pytest.mark.parametrize(
    ("section", "tool", "said", "seconds"),
    [
        ("pbs", "qstat", QSTAT, 3030),
        ("pbs", "qstat", "Job Id: 17.pbs\n    job_state = R", None),  # without a limit
        ("lsf", "bjobs", "23:59 L", 86340),
        ("lsf", "bjobs", "0:10 E", None),  # an estimate ends no job
        ("lsf", "bjobs", "-", None),
        ("flux", "flux", "5400", 5400),
        ("flux", "flux", "4294967295", None),
    ],
)
def test_the_time_that_is_left_is_asked_for(job, tmp_path, section, tool, said, seconds):
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(time.time() - 600))
    left = launch.seconds_left(job(section, tool, said.replace("BEGAN", began)))
    assert left == (seconds and pytest.approx(seconds, abs=60))
    assert (tmp_path / "asked").read_text().count("\n") == 1


@pytest.mark.parametrize(("section", "tool", "said"), [("pbs", "qstat", None), ("flux", "flux", "no job")])
def test_a_time_that_is_not_told_is_a_warning(job, section, tool, said, tmp_path, capsys):
    scheduler = job(section, tool, said or "")
    if said is None:
        (tmp_path / tool).write_text("#!/bin/sh\necho cannot connect >&2\nexit 15\n")
    assert launch.seconds_left(scheduler) is None
    assert capsys.readouterr().err.startswith("warning: the time limit of ")


def test_slurms_time_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
    assert BY_SECTION["slurm"].seconds_left() == pytest.approx(100, abs=10)
