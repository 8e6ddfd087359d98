"""``ssmpi doctor``: versions, MPI library and thread level, cores and over-subscription, and a one-second self test."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ssmpi import __version__
from ssmpi.model import processor
from ssmpi.runtime.host import launcher_env, memory_folder
from ssmpi.runtime.host.host_memory import free_memory
from ssmpi.runtime.host.mpi_environment import missing
from ssmpi.runtime.host.versions import package_versions
from ssmpi.runtime.mpi.world import Job, join
from ssmpi.runtime.mpi.world import versions as mpi_versions
from ssmpi.runtime.row_layout import RowLayout
from ssmpi.runtime.words import counted

MEMORY = Path("/dev/shm")  # recovery.memory_folder by default


def examine() -> int:
    """Print the report; 0 if all is well, 1 if something needs attention. Runs alone or under mpirun."""
    job = join()
    cores = len(os.sched_getaffinity(0))
    bound = sorted(os.sched_getaffinity(0))
    here = [b for host, b in job.comm.allgather((socket.gethostname(), bound)) if host == socket.gethostname()]
    problems = by_rank(job.comm.allgather((socket.gethostname(), self_test(job))))
    memory = dict(job.comm.allgather((socket.gethostname(), kept_memory(MEMORY))))
    open_mpi = "Open MPI" in mpi_versions()["mpi_library"]
    remarks = job.comm.allgather(
        (socket.gethostname(), advice(cores, open_mpi=open_mpi) if launcher_env.ranks() else [])
    )
    if job.rank:
        return 0
    print(f"ssmpi {__version__}, python {platform.python_version()}, {platform.platform()}")
    print("  " + ", ".join(f"{name} {version}" for name, version in package_versions().items()))
    print("  " + ", ".join(f"{name} {value}" for name, value in mpi_versions().items()))
    print(f"cores: {os.cpu_count()} on this host, {cores} usable by this rank; {len(here)} of {job.size} ranks here")
    print("\n".join(f"  {line}" for line in thread_plan(here)))
    print("\n".join(f"  {host}: {line}" for host, line in sorted(memory.items())))
    print(f"  {dense_step()}")
    print(f"  {bfloat16_step()}")
    if processor.without_bfloat16():
        print(f"  {processor.SLOW_BFLOAT16}")
    if warning := over_subscribed(here):
        print(f"  {warning}")
    if launcher_env.ranks():
        print("\n".join(group_by_advice(remarks)) or "  environment: as recommended on every rank")
    for problem in problems:
        print(f"  problem: {problem}")
    well = "it works, but see above" if any(lines for _, lines in remarks) else "all is well"
    print(counted(len(problems), "problem") if problems else well)
    return 1 if problems else 0


def kept_memory(folder: Path) -> str:
    """The memory on this host that can outlive killed ranks."""
    try:
        found = memory_folder.file_system(folder)
    except OSError as error:
        return f"no memory outlives a killed rank ({folder}: {error.strerror}): set recovery.memory_folder"
    used, limit = found.size - found.free, free_memory()
    text = f"memory that outlives killed ranks: {folder}, {_gb(found.size)}, {_gb(used)} used; "
    text += f"this process may take {_gb(limit)} of memory, those files included"
    if not found.in_memory:
        text += f". It is {found.kind or 'of an unknown kind'}, not in memory: training there waits for a disk"
    if left := memory_folder.all_in(folder):
        size = sum(_size(path) for each in left for path in each.glob("*"))
        text += f". {len(left)} of your launches have {_gb(size)} there; --clean removes what nobody uses"
    return text


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):  # its run may remove it meanwhile
        return path.stat().st_size
    return 0


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"


def by_rank(found: list[tuple[str, list[str]]]) -> list[str]:
    """The problems of all ranks, each with its rank and host if there are several ranks."""
    several = len(found) > 1
    return [
        f"rank {rank} (host {host}): {problem}" if several else problem
        for rank, (host, problems) in enumerate(found)
        for problem in problems
    ]


def group_by_advice(remarks: list[tuple[str, list[str]]]) -> list[str]:
    """Advice for the ranks, without repetition: each piece names its ranks unless it applies to all."""
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, (_, lines) in enumerate(remarks):
        ranks.setdefault(tuple(lines), []).append(rank)
    found = []
    for said, members in ranks.items():
        hosts = sorted({remarks[rank][0] for rank in members})
        if said and len(ranks) > 1:
            found.append(f"  {len(members)} of {len(remarks)} ranks, on {', '.join(hosts)}:")
        found += said
    return found


def thread_plan(bound: list[list[int]]) -> list[str]:
    """How many threads this host's cores can run, given the cores that each of its ranks may use."""
    cores = len(set().union(*bound))
    places = Counter(tuple(own) for own in bound)
    return [
        *(f"{counted(n, 'rank')} of this host: on cores {', '.join(map(str, own))}" for own, n in places.items()),
        f"thread plan: {counted(cores, 'worker thread')} (trainers x topology.threads), each with 1 thread inside "
        "operators. A shadow thread,",
        "a sync PS and an embedding PS that serves messages need a core each; without one they share, and shadow "
        "threads sleep between rounds",
    ]


def over_subscribed(bound: list[list[int]]) -> str:
    """A warning if a host has more ranks than cores, given the cores that each rank may use; else empty."""
    cores = len(set().union(*bound))
    if len(bound) <= cores:
        return ""
    shared = counted(cores, "core")
    return f"over-subscribed: {len(bound)} ranks on {shared}. They share; expect EPS of {shared}, no more"


def dense_step() -> str:
    """How this host computes the float32 step of a network."""
    from ssmpi.model import blas, brgemm  # here, because they need numba

    if blas.sgemm():
        products = "kernels of oneDNN" if brgemm.kernels("fp32") else "BLAS"
        return f"dense step: compiled, with matrix products by the {products} in torch's library"
    return (
        f"dense step: by torch's operators, because {blas.LIBRARY} has no sgemm_; a compiled one is 10 to 15 % faster "
        "at batch 128 and holds the GIL less. torch from PyPI has it"
    )


def bfloat16_step() -> str:
    """How this host computes the bfloat16 step."""
    from ssmpi.model import blas, brgemm  # as above

    if blas.sgemm() and brgemm.kernels("bf16"):
        return "bfloat16 step: compiled, with the kernels that oneDNN in torch's library makes for this processor"
    if limits := [name for name in brgemm.LIMITS if name in os.environ]:
        return f"bfloat16 step: by torch's operators, because {limits[0]} is set; unset it for the compiled one"
    if not processor.has_bfloat16() or platform.machine() != "x86_64":
        return "bfloat16 step: by torch's operators: the compiled one needs an x86 processor with bfloat16 instructions"
    return (
        f"bfloat16 step: by torch's operators, because {blas.LIBRARY} does not export oneDNN's kernel; a compiled one "
        "is 10 to 20 % faster and holds the GIL less. torch 2.8 and later from PyPI have it"
    )


def bfloat16_problems() -> list[str]:
    """Problems of the compiled bfloat16 step, compared with the float32 one: its kernels are generated for this
    processor.
    """
    from ssmpi.model import blas, brgemm
    from ssmpi.model.network import Inputs
    from ssmpi.model.networks.zoo import network_of
    from ssmpi.model.options import ModelOptions
    from ssmpi.model.replica import Replica

    if not (blas.sgemm() and brgemm.kernels("bf16")):
        return []
    network, generator = network_of(ModelOptions(), Inputs(13, 26, 16)), np.random.default_rng(0)
    dense, rows, labels = (generator.random(shape, np.float32) for shape in ((64, 13), (64, 26, 16), (64,)))
    steps = []
    for precision in ("fp32", "bf16"):
        model = Replica(network, precision, seed=0).thread_model()
        steps.append([values.copy() for values in (*model.forward_backward(dense, rows, labels), model.gradients)])
    off = max(np.linalg.norm(half - whole) / np.linalg.norm(whole) for whole, half in zip(*steps, strict=True))
    return [] if off < 0.2 else [f"the compiled bfloat16 step gives wrong results: off by {off:.2g} of their length"]


def advice(cores: int, *, open_mpi: bool) -> list[str]:
    """What this rank's environment lacks, and what that costs."""
    lines = [
        f"  not set: {setting}; without it {cost}" for setting, cost in missing(os.environ, open_mpi=open_mpi).items()
    ]
    if lines:
        lines.append("  'ssmpi launch' and the scripts in jobs/ set them all")
    if cores < (os.cpu_count() or 1):
        lines.append(
            f"  this rank is bound to {cores} of {os.cpu_count()} cores: all its threads share them. Fine for one "
            "thread a rank, else mpirun --bind-to none or srun --cpu-bind=none"
        )
    return lines


def self_test(job: Job) -> list[str]:
    """About a second: compile and run the kernels, sum a vector over all ranks, time a matrix product."""
    from ssmpi.embedding.placement import place
    from ssmpi.embedding.table import Arena, EmbeddingOptions, RowOptions

    problems = []
    vector = np.full(1 << 16, job.rank + 1, np.float32)
    job.comm.Allreduce(vector.copy(), vector)
    if vector[0] != job.size * (job.size + 1) / 2:
        problems.append(f"a sum over {job.size} ranks came out as {vector[0]}")
    options = EmbeddingOptions()
    arena = Arena(RowOptions(options, RowLayout(options.dim)), place([1000], 1), 0, seed=1)
    before = arena.weights[7].copy()
    arena.update(np.array([7], np.int32), np.ones((1, options.dim), np.float32), 1.0)
    step = options.rate / (np.sqrt(options.initial_state + 1.0) + options.epsilon)
    if not np.allclose(arena.weights[7], before - step, atol=1e-6):
        problems.append("the compiled row-wise Adagrad gives wrong results")
    problems += bfloat16_problems()
    matrix = np.ones((512, 512), np.float32)
    began, products = time.monotonic(), 0
    while time.monotonic() - began < 0.5:
        matrix @ matrix
        products += 1
    speed = products * 2 * 512**3 / (time.monotonic() - began) / 1e9
    if job.rank == 0:
        ranks = counted(job.size, "rank")
        print(f"self test: {speed:.0f} GFLOP/s in 512 x 512 float32 products on rank 0, sum over {ranks} ok")
    return problems
