"""Starts the ranks of a run on one host, on several, or inside a SLURM job: prints the launcher's command, turns
signals into a clean stop, and takes the exit code from the run's result marker.

Launchers kill their ranks soon after Ctrl-C or SIGTERM, and mpirun exits with 0 after it has lost a host. So ssmpi
sends the ranks SIGUSR1 instead: they finish their step, save and exit. A run is finished when ``result.json`` says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ssmpi.cluster import child_process, site
from ssmpi.cluster.launcher_output import StderrRelay
from ssmpi.cluster.node_layout import layout_of
from ssmpi.cluster.requeue import LaunchAttempt
from ssmpi.cluster.restarts import Restarts
from ssmpi.cluster.session_folder import SessionFolder, session_folder
from ssmpi.cluster.site import Launcher, Site
from ssmpi.cluster.stop_signals import StopSignals
from ssmpi.config import Config
from ssmpi.core.errors import STOPPED, UserError
from ssmpi.core.mpi_environment import PASSED_ON, PYTHON, environment
from ssmpi.run.request import RunRequest

UNHEARD = (-signal.SIGUSR1, 128 + signal.SIGUSR1)  # of a launcher, or its rank, stopped before it listened to signals
POLL_SECONDS = 0.1
ANSWER_SECONDS = 10.0  # for a host to answer
JOB_LEVEL_VARIABLES = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
)  # they describe the job, not its steps


def rank_command(request: RunRequest) -> list[str]:
    """The command of one rank."""
    bar = ["--terminal", os.ttyname(sys.stderr.fileno())] if sys.stderr.isatty() else []
    return [*PYTHON, "-m", "ssmpi", "train", *request.words(), *bar]


def launch(request: RunRequest, site_file: Path | None, dry_run: bool) -> int:
    """Run ``ssmpi train`` under a launcher. 0 if the run is complete, 85 if it stopped and saved; see ``requeue``."""
    config = request.load()
    where = site.load(site_file) if site_file else None
    hosts = rank_hosts(config, where) if where else []
    line = command(config.topology.size, where, hosts)
    extra = environment(where.launcher if where else None, one_host=not hosts)
    shown = " ".join(
        [
            *(f"{name}={shlex.quote(value)}" for name, value in extra.items()),
            shlex.join([*line, *rank_command(request)]),
        ]
    )
    print(f"+ {shown}", file=sys.stderr, flush=True)
    if dry_run:
        return 0
    requeue = bool(where and where.slurm and where.slurm.requeue)
    environ = {**{k: v for k, v in os.environ.items() if k not in JOB_LEVEL_VARIABLES}, **extra}
    restarts, others = Restarts(Path(config.run.folder), config.recovery), sorted(set(hosts))
    while True:
        attempt = LaunchAttempt(Path(config.run.folder), requeue=requeue, resumed=request.run is not None)
        words = rank_command(dataclasses.replace(request, supervised=restarts.supervised))
        own = {} if hosts else restarts.variables(environ)
        code, stops = supervise([*line, *words], {**environ, **own})
        silent = cache(partial(failing_hosts, where, others, environ))
        if not attempt.lost(code) or stops.received or not restarts.possible or silent():
            break
        if stops.received:  # while the hosts took their time to answer
            break
        restarts.begin()
    orderly = code in (0, STOPPED)  # then the ranks have removed their memory
    restarts.clean(partial(failing_hosts, where, [] if orderly else others, environ))
    cancelled = stops.cancelled
    if stops.ended or (stops.received and code in UNHEARD):
        code = STOPPED  # the launcher's own code only tells how it was ended
    code = attempt.conclude(code, cancelled=cancelled, silent=silent if where and where.launcher.hosts else list)
    if code == STOPPED and (cancelled or not requeue):
        print(
            f"to resume it: {request.resume_command(Path(config.run.folder), site_file)}", file=sys.stderr, flush=True
        )
    return code


def rank_hosts(config: Config, where: Site) -> list[str]:
    """The host of each rank; empty if all ranks run on the launcher's host."""
    if where.slurm:
        nodes = slurm_nodes()
    elif where.launcher.hosts:
        nodes = list(where.launcher.hosts)
    else:
        return []
    return layout_of(config, where).hosts(nodes)


def slurm_nodes() -> list[str]:
    """Names of this SLURM job's nodes."""
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise UserError(
            "this site has [slurm], but this is not a SLURM job: submit it with 'ssmpi submit', "
            "or launch without --site"
        )
    shown = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    return subprocess.run(shown, check=True, capture_output=True, text=True).stdout.split()


def command(ranks: int, where: Site | None, hosts: Sequence[str]) -> list[str]:
    """The launcher's command line for ``ranks`` ranks; ``hosts`` names the host of each."""
    launcher = where.launcher if where else None
    if launcher is None or launcher.command == "mpirun":
        return [mpirun_path(), "-n", str(ranks), *(mpirun_options(launcher, hosts) if launcher else ())]
    placed = ["--distribution=arbitrary", f"--nodelist={','.join(hosts)}"]
    # --kill-on-bad-exit would replace the exit code that all ranks agree on by that of the ranks it kills
    options = [f"--mpi={launcher.srun_mpi}", f"--ntasks={ranks}", *placed, "--cpu-bind=none", "--kill-on-bad-exit=0"]
    return ["srun", *options, *launcher.arguments]


def mpirun_options(launcher: Launcher, hosts: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """mpirun's options: one host per rank, in rank order, and the variables to pass to other hosts."""
    names = ",".join(hosts)
    if launcher.mpi == "mpich":
        interface = ["-iface", launcher.interface] if launcher.interface else []
        return [*(["-hosts", names] if hosts else []), *interface, *launcher.arguments]
    travelling = [word for name in PASSED_ON if name in environ or name == "OMP_NUM_THREADS" for word in ("-x", name)]
    return [*(["--host", names, "--map-by", "seq", *travelling] if hosts else []), *launcher.arguments]


def mpirun_path() -> str:
    """The mpirun beside this interpreter, or else on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise UserError("no mpirun found: install an MPI, or pip install 'ssmpi[mpi]'")
    return found


def supervise(line: Sequence[str], environ: Mapping[str, str]) -> tuple[int, StopSignals]:
    """Run the launcher, and stop its ranks at a signal. Returns its exit code and the signals that came."""
    with session_folder() as session:
        return _supervise(line, environ, session)


def failing_hosts(
    where: Site | None, hosts: Sequence[str], environ: Mapping[str, str], words: Sequence[str] = ("true",)
) -> list[str]:
    """Hosts on which the launcher cannot run a command now; a launcher does not always name the host it has lost."""
    with contextlib.ExitStack() as sessions:
        asked = {}
        for host in hosts:
            line, session = [*command(1, where, [host]), *words], sessions.enter_context(session_folder())
            asked[host] = child_process.start(
                line,
                {**environ, **session.variables},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(session.lock,),
            )
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and any(job.poll() is None for job in asked.values()):
            time.sleep(0.05)
        for job in asked.values():
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    return [host for host, job in asked.items() if job.wait() != 0]


def _supervise(line: Sequence[str], environ: Mapping[str, str], session: SessionFolder) -> tuple[int, StopSignals]:
    limit = environ.get("SLURM_JOB_END_TIME", "")
    stops = StopSignals(float(limit) if limit.isdecimal() else None)
    stops.listen()
    variables = {**environ, **session.variables}
    job = child_process.start(line, variables, stderr=subprocess.PIPE, pass_fds=(session.lock,))
    assert job.stderr
    words = StderrRelay(job.stderr)

    def stopping() -> None:
        words.banners.error_shown = True  # ranks that stop exit with a code: no error

    stops.follow(job, stopping)
    while (code := job.poll()) is None:  # not wait(): another thread may be given the signal, this one handles it
        time.sleep(POLL_SECONDS)
    words.end()
    return code, stops
