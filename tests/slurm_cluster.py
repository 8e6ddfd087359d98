"""A throw-away SLURM on virtual hosts: Debian's slurmctld, one slurmd a host."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

from ranks import WITHOUT_EXTRAS, python_path
from virtual_hosts import HEAD_ADDRESS, NETWORK, PATIENCE, PROJECT, VirtualHosts

PACKAGES = "slurm-wlm libpmix2"
DAEMONS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol")
PMIX_FOLDER = "/usr/lib/x86_64-linux-gnu/pmix2/lib"
CONF = """
ClusterName=virtual
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=8
CredType=cred/none
StateSaveLocation={state}/slurm
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={state}/jobs.log
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=h[1-{count}] NodeAddr={network}.[1-{count}] CPUs={cores} RealMemory=4000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=1:00:00 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=1:00:00 State=UP PriorityTier=2
"""  # cred_expire: a requeued job starts after 8 s, not 120; SlurmdTimeout: a lost host is seen in about 20 s
NAME_PMIX = f"""
set -e
cp -a {PMIX_FOLDER} /run/pmix && ln -sf libpmix.so.2 /run/pmix/libpmix.so && mount --bind /run/pmix {PMIX_FOLDER}
"""  # Debian's plug-in wants the name that only the -dev package has

FINAL = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def missing():
    """Why there can be no SLURM here, or an empty text."""
    absent = [daemon for daemon in DAEMONS if not shutil.which(daemon)]
    return f"SLURM needs {', '.join(absent)} (apt-get install --no-install-recommends {PACKAGES})" if absent else ""


class SlurmCluster(VirtualHosts):
    """Virtual hosts under SLURM; jobs are submitted from the head."""

    def __init__(self, count, state, shared, cores=4):
        super().__init__(count, state, shared)
        places = {"head": HEAD_ADDRESS, "network": NETWORK, "state": self.state, "count": count, "cores": cores}
        (self.state / "slurm.conf").write_text(CONF.format(**places))
        (self.state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # without it slurmd wants /sys/fs/cgroup
        (self.state / "mpi.conf").write_text("PMIxCliTmpDirBase=/var/spool/slurmd\n")  # not shared between hosts
        (self.state / "slurm").mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ours = {
            "SLURM_CONF": str(self.state / "slurm.conf"),
            "PATH": path,
            "PYTHONPATH": python_path(*WITHOUT_EXTRAS, PROJECT),
        }
        self.environ = {**os.environ, **ours}
        self.head("slurmctld")
        for name in self.names:
            self.run(name, "slurmd", environ=self.environ)
        self.until(lambda: self.states() == {"idle"}, "all hosts are idle", PATIENCE)

    def head(self, *command, timeout=60):
        """Run a command on the head; its standard output."""
        return self.run("head", *command, timeout=timeout, environ=self.environ)

    def boot(self, name):
        """Start a host with its slurmd."""
        super().boot(name)
        self.run(name, "bash", "-c", NAME_PMIX)
        if hasattr(self, "environ"):
            self.run(name, "slurmd", environ=self.environ)

    def states(self):
        """The states that hosts are in."""
        return set(self.head("sinfo", "-h", "-N", "-o", "%T").split())

    def submit(self, *words, folder):
        """Submit a job from a folder with ``sbatch`` or 'ssmpi submit'; its number."""
        said = self.run("head", *words, environ=self.environ, folder=folder)
        return re.search(r"Submitted batch job (\d+)", said)[1]

    def job(self, number):
        """What SLURM knows of a job: JobState, ExitCode, Restarts, NodeList, ..."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.head("scontrol", "show", "job", number)))

    def final_states(self, number):
        """The states that a job, or all of an array, ended in; empty while any has not."""
        states = set(re.findall(r"JobState=(\S+)", self.head("scontrol", "show", "job", number)))
        return states if states <= FINAL else set()

    def until(self, happened, what, within=90):
        """Wait until ``happened()``; its value."""
        deadline = time.monotonic() + within
        while not (found := happened()):
            assert time.monotonic() < deadline, f"{what}: not after {within} s\n{self.head('squeue')}"
            time.sleep(0.5)  # asking SLURM takes two processes
        return found
