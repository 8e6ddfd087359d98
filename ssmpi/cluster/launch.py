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
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ssmpi.cluster import child_process, site
from ssmpi.cluster.child_process import session_folder
from ssmpi.cluster.hosts import Hosts, check_names
from ssmpi.cluster.launcher_output import StderrRelay
from ssmpi.cluster.requeue import LaunchAttempt
from ssmpi.cluster.restarts import Restarts
from ssmpi.cluster.site import Launcher, Site
from ssmpi.cluster.stop_signals import POLL_SECONDS, StopSignals
from ssmpi.config import Config
from ssmpi.runtime.errors import LOST, STOPPED, UserError
from ssmpi.runtime.files.run_files import LAUNCH_LOCK
from ssmpi.runtime.host import schedulers
from ssmpi.runtime.host.mpi_environment import PASSED_ON, PYTHON, WITHOUT_SCHEDULER, environment
from ssmpi.runtime.host.schedulers import Scheduler
from ssmpi.runtime.mpi.failure import say
from ssmpi.runtime.mpi.signals import TIME_USED
from ssmpi.state import requirements
from ssmpi.state.recovery import run_record
from ssmpi.state.recovery.run_record import Left
from ssmpi.state.request import RunRequest
from ssmpi.state.run_lock import LaunchLock

UNHANDLED = (-signal.SIGUSR1, 128 + signal.SIGUSR1)  # exit codes of a signal before its handler was installed
ANSWER_SECONDS = 10.0  # for a host to answer
JOB_LEVEL_VARIABLES = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_NO_KILL",  # a step that lost a node is to end
)  # they describe the job, not its steps


def rank_command(request: RunRequest) -> list[str]:
    """The command of one rank."""
    bar = ["--terminal", os.ttyname(sys.stderr.fileno())] if sys.stderr.isatty() else []
    return [*PYTHON, "-m", "ssmpi", "train", *request.words(), *bar]


def launch(request: RunRequest, site_file: Path | None, dry_run: bool, *, ignore_memory: bool = False) -> int:
    """Run ``ssmpi train`` under a launcher. 0 if the run is complete, 85 if it stopped and saved; see ``requeue``.
    TopologyError if ranks that all run here do not fit in this host's memory, unless ``ignore_memory``.
    """
    config = request.load()
    where = site.load(site_file) if site_file else None
    hosts = Hosts(config, where)
    launcher, scheduler = (where.launcher, where.scheduler) if where else (None, None)
    section = scheduler.section if scheduler else ""
    extra = environment(launcher, one_host=not hosts.of_ranks, scheduler=section)
    line = command(config.topology.size, where, hosts.of_ranks)
    shown = shlex.join([*line, *rank_command(request)])
    settings = [f"{name}={shlex.quote(value)}" for name, value in extra.items()] if dry_run else []
    print("+", *settings, shown, file=sys.stderr, flush=True)
    if dry_run:
        return 0
    if where:
        check_names(where)
    if not (hosts.of_ranks or ignore_memory):
        requirements.check_memory(config)
    foreign = {*JOB_LEVEL_VARIABLES, *(inherited_settings() if scheduler else ())}
    environ = {**{k: v for k, v in os.environ.items() if k not in foreign}, **extra}
    return Launch(request, config, where, hosts, environ).run(site_file)


def inherited_settings() -> list[str]:
    """The settings for ranks without a batch system that a job has from the shell that submitted it."""
    return [name for name, value in WITHOUT_SCHEDULER.items() if os.environ.get(name) == value]


def seconds_left(scheduler: Scheduler) -> float | None:
    """How long this job may still run; None if it has no limit, or, with a warning, if that is not known."""
    try:
        return scheduler.seconds_left()
    except (UserError, ValueError) as error:
        say(f"warning: the time limit of {scheduler.job_name()} is not known: {error}; --max-hours sets it")
        return None


def limit(max_hours: float | None, left: float | None, *, warns: bool) -> float | None:
    """Seconds in which a launch is to end: the least of ``--max-hours`` and what is ``left`` of the job. A batch system
    that ``warns`` later than that decides by itself if only its own limit is known.
    """
    limits = [3600 * max_hours] if max_hours else []
    if left is not None and (limits or not warns):
        limits.append(left)
    return min(limits, default=None)


class Launch:
    """One launch of a run: its starts, until one of them is the last."""

    def __init__(
        self, request: RunRequest, config: Config, where: Site | None, hosts: Hosts, environ: Mapping[str, str]
    ) -> None:
        self._request, self._config, self._where, self._hosts, self._environ = request, config, where, hosts, environ
        self._run = config.run.path
        self._lock = LaunchLock(self._run) if config.recovery.mode != "off" else None
        storage = config.embedding.storage
        self._restarts = Restarts(self._run, config.recovery, left=left_by(request, config), storage=storage)
        batch, scheduler = (where.batch, where.scheduler) if where else (None, schedulers.current())
        known = scheduler and (scheduler.section == "slurm" or (self._run / scheduler.batch_file).is_file())
        self._requeue = scheduler if known and batch and batch.requeue else None  # else there is nothing to submit
        left = seconds_left(scheduler) if scheduler else None
        self._began = time.monotonic()
        self._stops = StopSignals(None if left is None else self._began + left)
        self._seconds = limit(request.max_hours, left, warns=bool(scheduler and scheduler.warns))

    def run(self, site_file: Path | None) -> int:
        """The exit code of the launch."""
        stops, hosts = self._stops, self._hosts
        stops.listen(None if self._seconds is None else TIME_USED * self._seconds)
        code, attempt, silent = self._start()
        while (lost := attempt.lost(code)) and not stops.received and self._restarts.note_loss(killed=killed(code)):
            if self._lock and not self._lock.take() and self._restarts.begun:
                say(f"error: {self._run}: another launch has taken the run over, or {LAUNCH_LOCK} cannot be written")
                break
            stops.pause(self._restarts.pause())
            if stops.received or not hosts.replace(silent()) or stops.received:  # finding out takes a while
                break
            self._restarts.begin()
            code, attempt, silent = self._start()
        ask = hosts.of_ranks and self._where and not self._where.slurm  # which knows its hosts itself
        silent = silent if ask else list
        self._clean(code, attempt, silent() if lost and not attempt.begun else [])
        if self._lock:
            self._lock.release()
        if unheard := lost and bool(stops.received) and not stops.begun:
            say("stopping: the job is not restarted")
        if stops.ended or unheard or (stops.received and code in UNHANDLED):
            code = STOPPED  # the launcher's own code only says how it was terminated
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        code = attempt.conclude(code, cancelled=stops.cancelled, silent=silent)
        if code == STOPPED and (stops.cancelled or not self._requeue):
            say(f"to resume it: {self._request.resume_command(self._run, site_file)}")
        return code

    def _start(self) -> tuple[int, LaunchAttempt, Callable[[], list[str]]]:
        """One start: the launcher's exit code, and what finds the hosts that do not answer afterwards."""
        hosts, restarts = self._hosts, self._restarts
        attempt = LaunchAttempt(
            self._run, requeue=self._requeue, resumed=self._request.run is not None, begun=restarts.begun
        )
        request = dataclasses.replace(self._request, supervised=restarts.supervised, max_hours=self._hours_left())
        words = rank_command(request)
        own = restarts.variables(self._environ, here=not hosts.of_ranks)
        line = command(self._config.topology.size, self._where, hosts.of_ranks)
        code = supervise([*line, *words], {**self._environ, **own}, self._stops, self._lock)
        asked = {host: restarts.tidy(used=host in hosts.used) for host in hosts.every}
        return code, attempt, cache(partial(unable, self._where, asked, self._environ))

    def _hours_left(self) -> float | None:
        """``--max-hours`` of a start: the ranks use the same share of it as the launch does of its own."""
        used = (time.monotonic() - self._began) / TIME_USED
        return None if self._seconds is None else max(self._seconds - used, 1e-3) / 3600

    def _clean(self, code: int, attempt: LaunchAttempt, unreached: Sequence[str]) -> None:
        """Remove what killed ranks left behind, but no memory that is ahead of what is saved; none was on hosts that
        were ``unreached``.
        """
        hosts, restarts = self._hosts, self._restarts
        if not attempt.saved(code) and restarts.keep(hosts.used, partial(self._failing, hosts.used)):
            self._failing(hosts.left, restarts.tidy(used=False))
            return
        orderly = code in (0, STOPPED)  # then the ranks have removed their memory
        places = {*hosts.left, *(() if orderly else hosts.used)}
        restarts.clean(partial(self._failing, sorted(places.difference(unreached))))

    def _failing(self, hosts: Sequence[str], words: Sequence[str]) -> list[str]:
        return failing_hosts(self._where, hosts, self._environ, words)


def killed(code: int) -> bool:
    """Whether the launcher's exit code means that a rank or the launcher was killed, or that a rank missed another one.
    Other codes mean that it cannot start ranks.
    """
    return code == LOST or code < 0 or 128 < code <= 128 + signal.SIGRTMAX


def left_by(request: RunRequest, config: Config) -> Left | None:
    """The launch that this one continues, if the run's last one did not save it."""
    if not request.run or request.checkpoint or config.recovery.mode == "off":
        return None
    return run_record.left(request.run)


def command(ranks: int, where: Site | None, hosts: Sequence[str]) -> list[str]:
    """The launcher's command line for ``ranks`` ranks; ``hosts`` names the host of each."""
    launcher = where.launcher if where else None
    if launcher is None or launcher.command == "mpirun":
        return [mpirun_path(), "-n", str(ranks), *(mpirun_options(launcher, hosts) if launcher else ())]
    placed = ["--distribution=arbitrary", f"--nodelist={','.join(hosts)}"]
    # --kill-on-bad-exit would replace the exit code that all ranks agree on by that of the ranks it kills
    size = [f"--ntasks={ranks}", f"--nodes={len(set(hosts))}"]  # the job may have more nodes, for spares
    options = [f"--mpi={launcher.srun_mpi}", *size, *placed, "--cpu-bind=none", "--kill-on-bad-exit=0"]
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


def supervise(
    line: Sequence[str], environ: Mapping[str, str], stops: StopSignals, lock: LaunchLock | None = None
) -> int:
    """Run the launcher, and stop its ranks at a signal. Returns its exit code. ``lock`` is taken as soon as there is a
    run.
    """
    with session_folder() as session:
        job = child_process.start(
            line,
            {**environ, **session.variables},
            stdin=subprocess.DEVNULL,  # mpirun would read what a script, or whoever pastes, has for the next command
            stderr=subprocess.PIPE,
            pass_fds=(session.lock,),
        )
        assert job.stderr
        words = StderrRelay(job.stderr)

        def stopping() -> None:
            words.banners.error_shown = True  # ranks that stop exit with a code: no error

        stops.follow(job, stopping)
        while (code := job.poll()) is None:  # not wait(): another thread may get the signal, this one handles it
            time.sleep(POLL_SECONDS)
            stops.repeat()
            if lock:
                lock.take()
        stops.leave()
        words.end()
        return code


def failing_hosts(
    where: Site | None, hosts: Sequence[str], environ: Mapping[str, str], words: Sequence[str] = ("true",)
) -> list[str]:
    """Hosts on which the launcher cannot run a command now; launchers do not always name a lost host."""
    return unable(where, dict.fromkeys(hosts, words), environ)


def unable(where: Site | None, words: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> list[str]:
    """As ``failing_hosts``, with a command for each host."""
    with contextlib.ExitStack() as sessions:
        asked = {}
        for host, own in words.items():
            line = [*command(1, where, [host]), *own]
            session = sessions.enter_context(session_folder())
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
