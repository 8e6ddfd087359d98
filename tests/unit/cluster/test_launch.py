"""What ``ssmpi launch`` gives its launcher."""

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ssmpi.bench import jobs
from ssmpi.cluster import child_process, hosts, launch, stop_signals
from ssmpi.cluster.restarts import Restarts
from ssmpi.cluster.site import Launcher, Node, Site
from ssmpi.cluster.stop_signals import STOP_SIGNALS, StopSignals
from ssmpi.config import load
from ssmpi.runtime.errors import LOST, STOPPED, PeerError, SettingsError, UserError
from ssmpi.runtime.host.mpi_environment import START_LIMIT, WITHOUT_SCHEDULER
from ssmpi.state import resume, run_folder, run_lock
from ssmpi.state.request import RunRequest
from ssmpi.state.run_lock import LaunchLock

TELL = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["PRTE_MCA_prte_local_tmpdir_base"])
assert folder.is_dir()
pathlib.Path(sys.argv[1]).write_text(str(folder))
"""


@pytest.fixture(autouse=True)
def _handlers():
    """``supervise`` listens to signals for the rest of a process that ends with it; this one does not."""
    before = {name: signal.getsignal(name) for name in STOP_SIGNALS}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def test_a_launchers_session_folder_is_its_own_and_ends_with_it(tmp_path):
    folders = []
    for told in (tmp_path / "one", tmp_path / "other"):
        assert launch.supervise([sys.executable, "-c", TELL, str(told)], os.environ, StopSignals()) == 0
        folders.append(Path(told.read_text()))
    assert folders[0] != folders[1]
    assert not any(folder.exists() for folder in folders)


def test_a_launcher_leaves_the_input_of_a_script_alone():
    """mpirun forwards it to the first rank: what was pasted behind ``ssmpi launch`` was lost."""
    text = (
        "import os, sys; from ssmpi.cluster import launch; from ssmpi.cluster.stop_signals import StopSignals\n"
        "launch.supervise([sys.executable, '-c', 'import sys; sys.stdin.read()'], os.environ, StopSignals())\n"
        "print(input())"
    )
    words = [sys.executable, "-P", "-c", text]
    done = subprocess.run(words, input="next\n", capture_output=True, text=True, check=False)
    assert done.stdout == "next\n", done.stderr


@pytest.mark.skipif(not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), reason="only root chooses process numbers")
def test_mpirun_starts_despite_leftovers_of_one_with_its_number():
    """Bare mpirun with such a number ends with 213: "The PMIx server's listener thread failed to start"."""
    line = jobs.rank_line(1, "-c", "print('started')")
    chooses = 'echo $(($0 - 1)) > /proc/sys/kernel/ns_last_pid; "$@" & test $! = $0 || { wait $!; exit 3; }; wait $!'
    for number in range(30_000, 30_030):  # another program may take a number first
        left = Path(f"/tmp/ompi.{number}")
        if left.exists():  # somebody's
            continue
        left.mkdir()
        for name in ("pmix.{host}.tool", "pmix.{host}.tool.{pid}", "pmix.{host}.tool.prterun-{host}-{pid}@0"):
            (left / name.format(host=os.uname().nodename, pid=number)).touch()
        try:
            code = launch.supervise(
                ["bash", "-c", chooses, str(number), *line], {**os.environ, **launch.environment()}, StopSignals()
            )
        finally:
            shutil.rmtree(left, ignore_errors=True)
        if code != 3:
            break
    assert code == 0


STRAYS = {  # what a shell or a container inherits of another job, by whose it was
    "slurm": {
        "SLURM_JOB_ID": "17", "SLURM_JOBID": "17", "SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS": "4",
    },
    "srun": {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"},
    "pbs": {"PBS_JOBID": "17.server", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/nowhere"},
    "mpich": {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"},
    "openmpi": {
        "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "PMIX_RANK": "2",
        "PMIX_NAMESPACE": "prterun-n1-1@1", "PMIX_SERVER_URI41": "prterun-n1-1@0.0;tcp4://127.0.0.1:1",
    },
}  # fmt: skip
AS_TWO = """
from mpi4py import MPI
from ssmpi.runtime.host import launcher_env
launcher_env.check(MPI.COMM_WORLD.size, "MPI")
assert MPI.COMM_WORLD.size == 2
"""


@pytest.mark.parametrize("whose", STRAYS)
def test_ranks_start_here_whatever_another_job_has_left(monkeypatch, whose):
    """mpirun looked for the hosts of SLURM's and PBS's job."""
    for name in WITHOUT_SCHEDULER:
        monkeypatch.delenv(name, raising=False)
    environ = {**os.environ, **STRAYS[whose], **launch.environment(scheduler="")}
    assert launch.supervise(jobs.rank_line(2, "-c", AS_TWO), environ, StopSignals()) == 0


def test_a_measured_job_ends_with_the_benchmark_that_is_told_to_end(tmp_path):
    """SIGTERM, as from a batch system or ``timeout``: the job and its session folder would else stay."""
    job = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    script = (
        "import sys, pathlib; from ssmpi.bench.jobs import finish\n"
        f"finish([sys.executable, '-c', {job!r}], pathlib.Path({str(tmp_path / 'said')!r}), 60, {{}})"
    )
    bench = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)})
    number = awaited(tmp_path / "pid")
    bench.terminate()
    assert bench.wait(30) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{number}").exists()
    assert not list(tmp_path.glob("ssmpi-*"))


@pytest.mark.parametrize(
    ("body", "seconds", "how"),
    [("os.kill(os.getpid(), 9)", 60.0, "ended with -9"), ("time.sleep(60)", 0.2, "was not done after 0 s")],
)
def test_how_a_measured_job_ended_is_said(tmp_path, body, seconds, how):
    """One that the kernel had killed for its memory was said to have taken too long."""
    with pytest.raises(PeerError, match=how):
        jobs.finish([sys.executable, "-c", f"import os, time; {body}"], tmp_path / "said.txt", seconds, {})


STARTS = {
    "launch": (
        "from ssmpi.cluster import launch; from ssmpi.cluster.stop_signals import StopSignals\n"
        "launch.supervise(line, {}, StopSignals())"
    ),
    "bench": "from ssmpi.bench import jobs; jobs.finish(line, pathlib.Path('said'), 60, {})",
}


@pytest.mark.parametrize("who", STARTS)
def test_what_was_started_does_not_outlive_a_killed_parent(tmp_path, who):
    """Whoever stands between a job and the person who waits for it: ``kill -9`` leaves nobody to pass anything on."""
    job = "import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
    script = f"import pathlib; line = {[sys.executable, '-c', job]!r}; {STARTS[who]}"
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    process = os.pidfd_open(int(awaited(tmp_path / "pid")))
    parent.kill()
    parent.wait()
    assert ended(process)


def ended(process):
    """Whether a process ends within seconds; it is ended if not."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    found = poll.poll(10_000)
    if not found:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    os.close(process)
    return bool(found)


def awaited(path):
    """The first line of a file that another process writes."""
    deadline = time.monotonic() + 60
    while not path.is_file() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text().strip()


def test_a_system_without_room_for_another_process_is_no_broken_mpirun(monkeypatch):
    def refuse(*words, **options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(UserError, match=r"^mpirun: cannot be started: .*ulimit -u"):
        child_process.start(["mpirun"])


@pytest.mark.parametrize("mpirun", ["", "#!/nowhere/interpreter\n"])
def test_a_broken_mpirun_is_named(tmp_path, mpirun):
    (tmp_path / "mpirun").write_text(mpirun)
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(
        UserError, match=r"/mpirun: cannot be started \(.*\): reinstall it, or put a working one before it"
    ):
        launch.supervise([str(tmp_path / "mpirun"), "-n", "2"], os.environ, StopSignals())


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """``stand_in(script)``: what takes mpirun's place; the current folder holds a run file."""
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('data.folder = "data"\nrun.folder = "a run"\n')

    def make(script):
        Path("mpirun").write_text(f"#!/bin/bash\n{script}\n")
        Path("mpirun").chmod(0o755)
        monkeypatch.setattr(launch, "mpirun_path", lambda: str(tmp_path / "mpirun"))

    return make


@pytest.mark.parametrize(
    ("made", "command"),
    [("run.toml", "--resume 'a run' --site site.toml"), ("logs", "run.toml run.seed=2 --site site.toml")],
)
def test_a_stop_says_how_to_resume(stand_in, capfd, made, command):
    stand_in(f"mkdir 'a run'; touch 'a run/{made}'; exit 85")
    Path("site.toml").write_text("node.cores = 4\nnode.memory_gb = 8\n")
    assert launch.launch(RunRequest(Path("run.toml"), ["run.seed=2"]), Path("site.toml"), dry_run=False) == 85
    assert capfd.readouterr().err.endswith(f"to resume it: ssmpi launch {command}\n")


@pytest.mark.parametrize(
    ("reason", "ssh_name", "refused"),
    [
        (socket.EAI_NONAME, "h9", True),
        (socket.EAI_NONAME, None, True),  # no ssh here
        (socket.EAI_NONAME, "10.0.0.9", False),  # an alias
        (socket.EAI_AGAIN, "h9", False),  # no answer from the name server
    ],
)
def test_a_host_that_nobody_knows_is_refused_by_name(monkeypatch, reason, ssh_name, refused):
    def address(host, port):
        if host == "h9":
            raise socket.gaierror(reason, "as the resolver says it")

    monkeypatch.setattr(hosts.socket, "getaddrinfo", address)
    monkeypatch.setattr(hosts, "_ssh_name", lambda host: ssh_name)
    told = pytest.raises(UserError, match=r"^launcher\.hosts: no host is called h9:")
    with told if refused else contextlib.nullcontext():
        hosts.check_names(Site(Node(8, 8.0), launcher=Launcher(hosts=("h1", "h9"))))


def test_the_launchers_banner_is_dropped_where_a_rank_has_spoken(stand_in, capfd):
    rule = "-" * 74
    banner = f"{rule}\nprterun detected that one or more processes exited with non-zero status,\n\n{rule}\n"
    Path("said").write_text(banner)
    stand_in("echo error: the reason >&2; cat said >&2; exit 2")
    assert launch.supervise(["./mpirun"], os.environ, StopSignals()) == 2
    assert capfd.readouterr().err == "error: the reason\n"
    stand_in("echo unheard of >&2; cat said >&2; exit 2")
    assert launch.supervise(["./mpirun"], os.environ, StopSignals()) == 2
    assert capfd.readouterr().err == "unheard of\n" + banner


def launched_and_told(*signals, to_main=True):
    """The exit code of a launch in this process that gets signals, each when the one before was handled, once its
    launcher runs. ``to_main``: whether the main thread is given them.
    """
    take, taken = StopSignals.take, []

    def noting(stops, signum, frame=None):
        take(stops, signum, frame)
        taken.append(signum)

    def tell():
        deadline = time.monotonic() + 30
        while not Path("ready").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        for number, each in enumerate(signals, 1):
            signal.pthread_kill(threading.main_thread().ident if to_main else threading.get_ident(), each)
            while len(taken) < number and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.2)
        Path("told").touch()

    teller = threading.Thread(target=tell)
    StopSignals.take = noting
    teller.start()
    try:
        return launch.launch(RunRequest(Path("run.toml"), []), None, dry_run=False)
    finally:
        teller.join()
        StopSignals.take = take


SAVES = """
mkdir -p 'a run'; touch 'a run/run.toml'
trap '' USR1
touch ready
for _ in {1..100}; do test -f told && break; sleep 0.05; done
echo '{"status": "stopped"}' > 'a run/result.json'
exit 85
"""


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP),  # SLURM, at a limit and when a terminal goes with it
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT),
        (signal.SIGINT, signal.SIGINT),  # one Ctrl-C, from the terminal and from the parent
    ],
)
def test_a_stop_that_comes_as_several_signals_waits_for_the_checkpoint(stand_in, capfd, signals):
    stand_in(SAVES)
    assert launched_and_told(*signals) == STOPPED
    said = capfd.readouterr().err
    assert said.count("stopping (") == 1
    assert "second signal" not in said
    assert said.endswith("to resume it: ssmpi launch --resume 'a run'\n")


@pytest.mark.parametrize("ends", ["", "trap 'exit 138' USR1; "])
def test_a_stop_before_anybody_listens_is_a_stop(stand_in, capfd, ends):
    """The launcher itself ends by SIGUSR1, or tells that a rank did."""
    stand_in(f"{ends}touch ready; for _ in {{1..600}}; do sleep 0.1; done")
    assert launched_and_told(signal.SIGINT) == STOPPED
    said = capfd.readouterr().err
    assert "error: " not in said
    assert said.endswith("to resume it: ssmpi launch run.toml\n")


def test_a_stop_that_another_thread_is_given_is_heard_at_once(stand_in, capfd):
    """As the kernel does where a process was suspended when the signal came."""
    stand_in("trap 'exit 138' USR1; touch ready; for _ in {1..50}; do sleep 0.1; done; exit 7")
    assert launched_and_told(signal.SIGTERM, to_main=False) == STOPPED


DIES = """
mkdir -p 'a run'; touch 'a run/run.toml' 'a run/versions.json'
for word in "$@"; do [[ $word =~ ^([0-9a-f]+):([0-9]+):[0-9.]+:1$ ]] && found=("${BASH_REMATCH[@]}"); done
echo "{\\"launch\\": \\"${found[1]}\\", \\"start\\": ${found[2]}, \\"recoveries\\": []}" > 'a run/recoveries.json'
echo "${found[2]}" >> starts
kill -9 $$
"""


@pytest.mark.parametrize(("code", "restarts"), [(137, 2), (LOST, 2), (213, 0), (255, 0)])
def test_a_rank_killed_before_there_is_a_run_is_started_again(stand_in, capfd, monkeypatch, code, restarts):
    """It ended with "launch it again". A launcher that cannot start ranks is not told to try again."""
    stand_in(f"echo >> starts; exit {code}")
    monkeypatch.setattr(StopSignals, "pause", lambda stops, seconds: None)
    assert launch.launch(RunRequest(Path("run.toml"), []), None, False) == LOST
    assert Path("starts").read_text().count("\n") == 1 + restarts


REQUEUED = "node = {cores = 4, memory_gb = 4}\nslurm = {time = '1:00:00', requeue = true}\n"


@pytest.mark.parametrize("code", [LOST, STOPPED])
@pytest.mark.parametrize("made", [True, False], ids=["submitted", "no run folder"])
def test_jobs_that_do_not_begin_are_requeued_once(stand_in, capfd, monkeypatch, code, made):
    """Each ended with 86 after SSMPI_START_SECONDS, and SLURM requeued it for ever."""
    stand_in(f"exit {code}")
    (tools := Path("tools").resolve()).mkdir()
    (tools / "scontrol").write_text(f"#!/bin/sh\necho requeued >> {tools}/told\n")
    (tools / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(hosts, "job_hosts", lambda scheduler: [])  # all ranks are to run here
    Path("site.toml").write_text(REQUEUED)
    if made:
        run_folder.make(Path("a run"), load(Path("run.toml")), overwrite=False)
    for restarts in range(3):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        request = RunRequest(Path("run.toml"), ["recovery.mode=off"], run=Path("a run"))
        assert launch.launch(request, Path("site.toml"), False) == code
        said = capfd.readouterr().err
        assert ("job 17 is not requeued: " in said) == (restarts > 0)
    assert f"'export {START_LIMIT}=1200'" in said
    assert (tools / "told").read_text().split() == ["requeued"]
    if made:  # one that begins is counted by its ranks
        record = '{"launch": "", "recoveries": [], "attempts": [0]}'
        stand_in(f"echo '{record}' > 'a run/recoveries.json'; exit 86")
        for requeues in (2, 3):
            launch.launch(RunRequest(None, ["recovery.mode=off"], run=Path("a run")), Path("site.toml"), False)
            assert (tools / "told").read_text().split() == ["requeued"] * requeues
            stand_in(f"exit {code}")


def test_a_stop_between_two_starts_ends_the_launch(stand_in, capfd, monkeypatch):
    """It was noted, and forgotten by the next start."""
    stand_in(DIES)
    waited = Restarts.pause

    def pause(restarts):
        if waited(restarts):
            Path("ready").touch()
            return 60.0
        return 0.0

    monkeypatch.setattr(Restarts, "pause", pause)
    assert launched_and_told(signal.SIGTERM) == STOPPED
    assert Path("starts").read_text().split() == ["1", "2"]
    said = capfd.readouterr().err
    assert "stopping: the job is not restarted" in said
    assert said.endswith("to resume it: ssmpi launch --resume 'a run'\n")


@pytest.mark.timeout(method="thread")  # the other method takes the same timer
def test_the_time_of_a_launch_spans_its_starts_and_the_pauses_between_them(stand_in, capfd, monkeypatch):
    """Each start is told what is left; a launch whose time is over starts nothing more."""
    stand_in(f'echo "$@" >> words; {DIES}')
    monkeypatch.setattr(Restarts, "pause", lambda restarts: 60.0)
    monkeypatch.setattr(StopSignals, "pause", lambda stops, seconds: paused(stops))
    clock = launch.time.monotonic

    def paused(stops):
        monkeypatch.setattr(launch.time, "monotonic", lambda: clock() + 3600)
        if Path("starts").read_text().count("\n") == 2:
            stops.take(signal.SIGALRM)

    assert launch.launch(RunRequest(Path("run.toml"), [], max_hours=3.0), None, dry_run=False) == STOPPED
    hours = [float(found) for found in re.findall(r"--max-hours (\S+)", Path("words").read_text())]
    assert hours == pytest.approx([3.0, 3.0 - 1 / 0.99], abs=0.02)
    assert "stopping: the job is not restarted" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("max_hours", "left", "warns", "seconds"),
    [(None, None, False, None), (2.0, None, False, 7200.0), (None, 3600.0, False, 3600.0), (None, 3600.0, True, None),
     (2.0, 3600.0, False, 3600.0), (2.0, 3600.0, True, 3600.0), (0.5, 3600.0, True, 1800.0)],
)  # fmt: skip
def test_the_sooner_of_two_limits_ends_a_launch(max_hours, left, warns, seconds):
    """Asked for more hours than the job has, it must not be killed by the batch system."""
    assert launch.limit(max_hours, left, warns=warns) == seconds


def test_between_two_starts_a_launch_holds_its_run(stand_in, capfd, monkeypatch):
    """Another one took it over, and with --overwrite erased its checkpoints; so did a job without a launcher."""
    stand_in(DIES)
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 0.0)
    refused = []

    def pause(restarts):
        run = Path("a run").resolve()
        for take in (lambda: LaunchLock(run), lambda: resume.hold(run, held, None)):
            with contextlib.ExitStack() as held, pytest.raises(SettingsError, match="another job is using this run"):
                take()
            refused.append(1)
        return 0.0

    monkeypatch.setattr(Restarts, "pause", pause)
    Path("run.toml").write_text(Path("run.toml").read_text() + "recovery.max_restarts = 1\n")
    assert launch.launch(RunRequest(Path("run.toml"), []), None, dry_run=False) == LOST
    assert refused == [1, 1]
    LaunchLock(Path("a run")).release()


def test_a_second_signal_that_is_meant_ends_a_launch_and_says_so(stand_in, capfd, monkeypatch):
    monkeypatch.setattr(stop_signals, "SAME_SECONDS", 0.1)
    stand_in("mkdir 'a run'; touch 'a run/run.toml'; trap '' USR1; touch ready; exec sleep 60")
    assert launched_and_told(signal.SIGINT, signal.SIGINT) == STOPPED
    assert capfd.readouterr().err.splitlines()[1:] == [
        "stopping (SIGINT): the ranks finish their step and save",
        "second signal (SIGINT): ending without waiting for the checkpoint",
        "to resume it: ssmpi launch --resume 'a run'",
    ]


def test_hosts_that_fail_or_hang_are_silent(tmp_path, monkeypatch):
    stand_in = tmp_path / "mpirun"
    stand_in.write_text(
        f"#!/bin/bash\ncase $4 in up) exit 0 ;; refuses) exit 255 ;; hangs) echo $$ > {tmp_path}/number; sleep 60 ;;"
        " esac\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(launch, "mpirun_path", lambda: str(stand_in))
    monkeypatch.setattr(launch, "ANSWER_SECONDS", 1.0)
    where = Site(Node(cores=4, memory_gb=4), launcher=Launcher(hosts=("up", "refuses", "hangs")))
    assert launch.failing_hosts(where, where.launcher.hosts, os.environ) == ["refuses", "hangs"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)


@pytest.mark.parametrize(
    ("does", "resumed", "code", "errors"),
    [
        ("exit 0", True, 0, 0),  # the ranks found it finished
        ("exit 0", False, LOST, 1),
        ("exit 127", True, LOST, 1),
        ("kill -9 $$", True, LOST, 2),  # after two restarts
        ("echo 'error: holds an earlier run' >&2; exit 2", False, 2, 1),
    ],
)
def test_a_run_that_was_finished_before_makes_no_success(tmp_path, monkeypatch, capfd, does, resumed, code, errors):
    stand_in, run_file, run = tmp_path / "mpirun", tmp_path / "given.toml", tmp_path / "run"
    stand_in.write_text(f"#!/bin/sh\n{does}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(launch, "mpirun_path", lambda: str(stand_in))
    monkeypatch.setattr(StopSignals, "pause", lambda *_: None)
    run.mkdir()
    (run / "result.json").write_text('{"status": "complete"}')
    run_file.write_text(f'data.folder = "d"\nrun.folder = "{run}"\n')
    asked = RunRequest(run_file, (), overwrite=not resumed, run=run if resumed else None)
    assert launch.launch(asked, None, dry_run=False) == code
    assert capfd.readouterr().err.count("error: ") == errors
