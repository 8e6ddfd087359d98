"""The recommended environment: set without overruling the user, and what is missing is told with its cost."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from strength import in_soak

from ssmpi.cluster.child_process import remove_abandoned
from ssmpi.cluster.site import Launcher
from ssmpi.model import blas, brgemm, processor, program
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host import mpi_environment as env
from ssmpi.runtime.mpi.world import over_subscription
from ssmpi.runtime.topology import Role
from ssmpi.tools import doctor
from ssmpi.tools.doctor import (
    advice,
    bfloat16_problems,
    bfloat16_step,
    dense_step,
    group_by_advice,
    kept_memory,
    over_subscribed,
    thread_plan,
)

CLONE = Path(__file__).parents[4]


@pytest.fixture
def bare(monkeypatch):
    """An environment without any of the variables."""
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PRTE_", "PMIX_", "OMP_", "SLURM_", "FI_", "UCX_")):
            monkeypatch.delenv(name)
    return monkeypatch


def test_what_the_user_set_wins(bare):
    bare.setenv("OMPI_MCA_pml", "ucx")
    assert "OMPI_MCA_pml" not in env.environment()
    assert env.environment()["OMP_NUM_THREADS"] == "1"


def test_intel_mpi_places_ranks_by_the_list_of_hosts(bare):
    """It filled the cores of the first host, whatever the list said."""
    assert env.environment(Launcher(mpi="mpich"), one_host=False).items() >= env.ON_SEVERAL_HOSTS.items()
    assert not env.environment(Launcher(mpi="mpich")).keys() & env.ON_SEVERAL_HOSTS.keys()


def test_cells_of_mpich_fit_into_its_buffers(bare):
    """MPICH aborts where a cell is larger than a buffer."""
    for name in env.MPICH:
        bare.delenv(name, raising=False)
    assert env.environment().items() >= env.MPICH.items()
    bare.setenv(min(env.MPICH), "16384")
    assert not env.environment().keys() & env.MPICH.keys()


def test_a_home_is_found_where_none_is_set(bare):
    """Open MPI does not start without one."""
    assert "HOME" not in env.environment()
    bare.delenv("HOME")
    assert Path(env.environment()["HOME"]).is_dir()
    bare.setattr(os, "geteuid", lambda: 2**31 - 7)  # as in a container
    assert Path(env.environment()["HOME"]).is_dir()


def test_over_subscription_is_for_one_host_only(bare):
    """On several hosts the mapping ':oversubscribe' fills the first one with all ranks."""
    assert env.ON_ONE_HOST.keys() <= env.environment().keys()
    assert not env.ON_ONE_HOST.keys() & env.environment(Launcher(), one_host=False).keys()


@pytest.mark.parametrize(("mpi", "name"), [("openmpi", "OMPI_MCA_btl_tcp_if_include"), ("mpich", "FI_TCP_IFACE")])
def test_the_interface_is_what_the_mpi_reads(bare, mpi, name):
    assert env.environment(Launcher(mpi=mpi, interface="ib0"), one_host=False)[name] == "ib0"
    assert name not in env.environment(Launcher(mpi=mpi), one_host=False)


def test_shell_scripts_get_all_of_it(bare):
    said = subprocess.run(
        [sys.executable, "-m", "ssmpi.environment", "one-host"], capture_output=True, text=True
    ).stdout
    script = f"{said}\nenv"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.splitlines()
    assert {f"{name}={value}" for name, value in env.environment().items()} <= set(found)


@pytest.mark.parametrize(
    "words",
    [
        ("jobs/evaluate.sbatch", "runs/one"),
        ("jobs/prepare.sbatch", "raw.txt"),
        ("-c", "set -eu; . jobs/common.sh; mpi_environment; echo went on"),
    ],
)
def test_scripts_stop_where_it_cannot_be_had(tmp_path, bare, words):
    """A Python without ssmpi: ranks that each start as many threads as there are cores would be the result."""
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    bare.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    bare.setenv("LAUNCH", "echo started")
    done = subprocess.run(["bash", *words], cwd=CLONE, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
    assert not done.stdout


def test_doctor_says_what_is_missing_and_what_it_costs(bare):
    for name, value in env.environment().items():
        bare.setenv(name, value)
    bare.delenv("OMPI_MCA_mpi_yield_when_idle")
    lines = advice(os.cpu_count(), open_mpi=True)
    assert lines[0] == (
        "  not set: OMPI_MCA_mpi_yield_when_idle=1; without it waiting ranks spin, each on a core that a trainer needs"
    )
    assert not advice(os.cpu_count(), open_mpi=False)


def test_doctor_tells_a_value_that_is_as_bad_as_none(bare):
    for name, value in env.environment().items():
        bare.setenv(name, value)
    bare.setenv("OMP_NUM_THREADS", "8")
    bare.setenv("OMPI_MCA_pml", "ucx")  # the site's choice
    (line, _) = advice(os.cpu_count(), open_mpi=True)
    assert line.startswith("  not set: OMP_NUM_THREADS=1 (it is 8); without it every worker thread")


def test_doctor_says_which_ranks_get_which_advice():
    assert group_by_advice([("h1", []), ("h2", [])]) == []
    assert group_by_advice([("h1", ["a"]), ("h2", ["a"])]) == ["a"]
    assert group_by_advice([("h1", []), ("h2", ["a"]), ("h3", ["a"])]) == ["  2 of 3 ranks, on h2, h3:", "a"]


def test_doctor_finds_the_problems_of_every_rank(bare, capsys):
    """Kernels are made for each host's processor: wrong ones on another host must not be "all is well" here."""
    comm = SimpleNamespace(allgather=lambda own: [own, ("h2", ["wrong sums"]) if own[1] == [] else own])
    bare.setattr(doctor, "join", lambda: SimpleNamespace(comm=comm, rank=0, size=2))
    bare.setattr(doctor, "mpi_versions", lambda: {"mpi_library": "Open MPI"})
    bare.setenv("OMPI_COMM_WORLD_SIZE", "2")  # so that no list but the problems' is empty
    bare.setattr(doctor, "advice", lambda *_, **__: ["  advice"])
    bare.setattr(doctor, "self_test", lambda _: [])
    assert doctor.examine() == 1
    assert "problem: rank 1 (host h2): wrong sums\n1 problem\n" in capsys.readouterr().out


def test_doctor_says_that_a_rank_is_bound(bare):
    for name, value in env.environment().items():
        bare.setenv(name, value)
    bare.setattr(os, "cpu_count", lambda: 36)
    (line,) = advice(1, open_mpi=True)
    assert "bound to 1 of 36 cores" in line
    assert "srun --cpu-bind=none" in line


UNBOUND = """
import os
from ssmpi import cli
cores = os.sched_getaffinity(0)
try:
    cli.main(["doctor", "--clean", "nowhere"])
except SystemExit:
    import torch
print(cores == os.sched_getaffinity(0))
"""


@pytest.mark.parametrize(
    "setting", ["OMP_PROC_BIND=close", *in_soak("OMP_PLACES=cores", "GOMP_CPU_AFFINITY=0", "KMP_AFFINITY=")]
)
def test_variables_that_bind_threads_are_removed_and_named(bare, setting):
    """Worker threads inherited the one core of the main thread, and trained at half the speed."""
    bare.setenv(*setting.split("="))
    done = subprocess.run([sys.executable, "-c", UNBOUND], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
    assert (f"warning: {setting} is ignored" in done.stderr) == (not setting.endswith("="))


def test_shared_memory_is_for_several_ranks_and_for_who_asks_for_it(bare):
    name = "OMPI_MCA_btl"

    def given():
        with env.leaving_nothing():
            return os.environ.get(name)

    assert given() == "self"
    assert "OMPI_MCA_btl" not in os.environ
    bare.setenv("OMPI_MCA_btl", env.environment()["OMPI_MCA_btl"])  # as scripts do
    assert given() == "self"
    assert os.environ[name] == "self,vader,tcp"
    bare.setenv("PMIX_RANK", "0")
    assert given() == "self,vader,tcp"
    bare.delenv("PMIX_RANK")
    bare.setenv("OMPI_MCA_btl", "ofi,self")
    assert given() == "ofi,self"


def test_doctor_finds_this_machine_well_and_leaves_nothing_behind(tmp_path):
    """Its own sums must be right: a wrong expectation once made it find fault with every machine."""
    environ = {**os.environ, "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}  # /dev/shm is everybody's
    environ["TMPDIR"] = str(tmp_path)
    environ.pop("HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "ssmpi", "doctor"], capture_output=True, text=True, timeout=120, env=environ
    )
    assert not list(tmp_path.iterdir())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
    assert "thread plan: " in done.stdout
    assert "problem" not in done.stdout


def test_doctor_says_how_the_dense_step_is_computed(bare):
    """Without torch's BLAS the slower operators are taken, which gives the same results: nobody would notice."""
    assert dense_step().startswith("dense step: compiled")
    bare.setattr(blas, "sgemm", lambda: None)
    assert "by torch's operators" in dense_step()
    assert str(blas.LIBRARY) in dense_step()


def test_doctor_counts_ranks_by_their_cores():
    lines = thread_plan([[0, 1], [0, 1], [2]])
    assert lines[0] == "2 ranks of this host: on cores 0, 1"
    assert lines[1] == "1 rank of this host: on cores 2"
    assert lines[2].startswith("thread plan: 3 worker threads")


def test_doctor_counts_the_cores_of_all_ranks_of_a_host():
    """mpirun binds each of two ranks to a core of its own."""
    assert not over_subscribed([[0], [1]])
    assert over_subscribed([[0, 1], [0, 1], [1]]).startswith("over-subscribed: 3 ranks on 2 cores.")


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ([{0, 1}, {2}], ""),
        ([{0}, {1, 2}], "2 worker threads of a trainer are bound to 1 of host h's cores"),
        ([{0}, {0}], "2 worker threads of 2 ranks share 1 core of host h"),
    ],
)
def test_a_trainer_with_fewer_cores_than_threads_is_warned_of(bound, words):
    found = over_subscription("h", list(zip((Role.TRAINER, Role.EMBEDDING_PS), bound, strict=True)), threads=2)
    assert words in found
    assert bool(found) == bool(words)


def test_doctor_says_what_memory_outlives_a_killed_rank(tmp_path):
    """As the system's own df says it."""
    folder = memory_folder.of_launch(str(tmp_path), "left")
    folder.mkdir()
    (folder / "trainer-0").write_bytes(b"x" * 60_000_000)
    asked = ["df", "-B1", "--output=fstype,size", tmp_path]
    kind, size = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[-2:]
    found, said = memory_folder.file_system(tmp_path), kept_memory(tmp_path)
    assert (found.kind, found.size) == (kind, int(size))
    assert f"{int(size) / 1e9:,.1f} GB, " in said
    assert "1 of your launches have 0.1 GB there" in said
    assert ("not in memory" in said) == (kind not in ("tmpfs", "ramfs"))
    assert memory_folder.file_system(Path("/dev/shm")).in_memory
    assert "No such file" in kept_memory(tmp_path / "nowhere")


def test_doctor_says_how_the_bfloat16_step_is_computed(bare, tmp_path):
    bare.setattr(processor, "has_bfloat16", lambda: True)
    bare.setattr(platform, "machine", lambda: "x86_64")
    for name in brgemm.LIMITS:
        bare.delenv(name, raising=False)
    assert bfloat16_step().startswith("bfloat16 step: compiled")
    bare.setenv(brgemm.LIMITS[1], "AVX2")
    assert bfloat16_step() == (
        f"bfloat16 step: by torch's operators, because {brgemm.LIMITS[1]} is set; unset it for the compiled one"
    )
    bare.delenv(brgemm.LIMITS[1])
    bare.setattr(blas, "LIBRARY", tmp_path / "none")
    assert "does not export oneDNN's kernel" in bfloat16_step()
    bare.setattr(processor, "has_bfloat16", lambda: False)
    assert "needs an x86 processor" in bfloat16_step()


@pytest.mark.skipif(not brgemm.kernels("bf16"), reason="this processor has no bfloat16 instructions of x86")
def test_doctor_sees_a_bfloat16_step_that_is_wrong(monkeypatch):
    assert bfloat16_problems() == []
    monkeypatch.setattr(program, "copies_of", lambda half, outputs, inputs: 0)  # every layer has the last one's weights
    assert "wrong results" in bfloat16_problems()[0]


def test_a_killed_process_leaves_its_session_folder_to_a_launcher(tmp_path, bare):
    bare.setenv("TMPDIR", str(tmp_path))
    bare.setattr(tempfile, "tempdir", None)
    holds = "import time; from ssmpi.runtime.host import mpi_environment as env\n"
    holds += "with env.leaving_nothing(): print(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (left,) = tmp_path.iterdir()
        remove_abandoned(tmp_path)
        assert left.exists()
        process.kill()
        process.wait()
    remove_abandoned(tmp_path)
    assert not left.exists()
