"""The batch file of a run: what it requests of the batch system, what the site sets up, one command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ssmpi.cluster.node_layout import NodeLayout
from ssmpi.cluster.site import Site
from ssmpi.config import Config
from ssmpi.runtime.files.run_files import BATCH_LOG, SITE_FILE


def batch_file(config: Config, where: Site, layout: NodeLayout) -> str:
    """A batch file that people can read and edit."""
    folder = config.run.path
    launch = ["ssmpi", "launch", "--resume", str(folder), "--site", str(folder / SITE_FILE)]
    scheduler = where.scheduler
    options = OPTIONS[scheduler.section](folder, where, layout) if scheduler else []
    lines = [
        "#!/usr/bin/env bash",
        *(f"{scheduler.prefix} {option}" for option in options if scheduler),
        "set -euo pipefail",
        "",
        *([*OPENINGS[scheduler.section](folder), ""] if scheduler and scheduler.section in OPENINGS else []),
        *([*where.setup, ""] if where.setup else []),
        "# Starts the run, or resumes it from its last checkpoint. SIGUSR1 to this process makes it save and exit.",
        f"exec {shlex.join(launch)}",
    ]
    return "\n".join(lines) + "\n"


def slurm_options(folder: Path, where: Site, layout: NodeLayout) -> list[str]:
    """What the job requests of SLURM: cores of whole tasks on each node. The launcher decides which rank runs where."""
    slurm = where.slurm
    assert slurm
    return [
        shlex.quote(f"--job-name={folder.name}"),
        shlex.quote(f"--output={folder / BATCH_LOG.format('%j')}"),
        "--open-mode=append",
        f"--time={slurm.time}",
        *([f"--partition={slurm.partition}"] if slurm.partition else []),
        *([f"--account={slurm.account}"] if slurm.account else []),
        f"--nodes={layout.count + where.placement.spare_hosts}",
        *(["--no-kill"] if where.placement.spare_hosts else []),
        f"--ntasks-per-node={layout.tasks_per_node}",
        f"--cpus-per-task={layout.cores_per_task}",
        *(["--exclusive", "--mem=0"] if slurm.exclusive else [f"--mem={layout.memory_gib(where)}G"]),
        f"--signal=B:USR1@{slurm.signal_seconds}",
        "--requeue" if slurm.requeue else "--no-requeue",
        *slurm.options,
    ]


def pbs_options(folder: Path, where: Site, layout: NodeLayout) -> list[str]:
    """What the job requests of PBS, as ``slurm_options``."""
    pbs, tasks = where.pbs, layout.tasks_per_node
    assert pbs
    chunk = f"ncpus={tasks * layout.cores_per_task}:mpiprocs={tasks}:mem={layout.memory_gib(where)}gb"
    return [
        f"-N {re.sub(r'[^A-Za-z0-9_.-]', '_', folder.name)[:PBS_NAME]}",
        "-j oe",
        f"-o {shlex.quote(str(folder / BATCH_LOG.format('pbs')))}",
        f"-l walltime={pbs.time}",
        *([f"-q {pbs.queue}"] if pbs.queue else []),
        *([f"-A {pbs.account}"] if pbs.account else []),
        f"-l select={layout.count + where.placement.spare_hosts}:{chunk}",
        f"-l place=scatter{':excl' * pbs.exclusive}",
        f"-r {'y' if pbs.requeue else 'n'}",
        *pbs.options,
    ]


def pbs_opening(folder: Path) -> list[str]:
    """PBS starts a job at home, and shows what it prints only when it has ended."""
    return ['cd "$PBS_O_WORKDIR"', f"exec >> {shlex.quote(str(folder))}/{BATCH_LOG.format('${PBS_JOBID%%.*}')} 2>&1"]


def lsf_options(folder: Path, where: Site, layout: NodeLayout) -> list[str]:
    """What the job requests of LSF, as ``slurm_options``: a slot is a core."""
    lsf, slots = where.lsf, layout.tasks_per_node * layout.cores_per_task
    assert lsf
    return [
        f"-J {shlex.quote(folder.name)}",
        f"-o {shlex.quote(str(folder / BATCH_LOG.format('%J')))}",
        f"-W {lsf.time}",
        *([f"-q {lsf.queue}"] if lsf.queue else []),
        *([f"-P {lsf.account}"] if lsf.account else []),
        f"-n {(layout.count + where.placement.spare_hosts) * slots}",
        f'-R "span[ptile={slots}]"',
        *(["-x"] if lsf.exclusive else [f'-R "rusage[mem={layout.memory_gib(where)}GB/host]"']),
        "-r" if lsf.requeue else "-rn",
        *lsf.options,
    ]


def flux_options(folder: Path, where: Site, layout: NodeLayout) -> list[str]:
    """What the job requests of Flux, as ``slurm_options``; it does not count memory."""
    flux, nodes = where.flux, layout.count + where.placement.spare_hosts
    assert flux
    return [
        shlex.quote(f"--job-name={folder.name}"),
        shlex.quote(f"--output={folder / BATCH_LOG.format('{{id.dec}}')}"),
        f"--time-limit={flux.time}",
        *([f"--queue={flux.queue}"] if flux.queue else []),
        *([f"--bank={flux.account}"] if flux.account else []),
        f"--nodes={nodes}",
        f"--nslots={nodes * layout.tasks_per_node}",
        f"--cores-per-slot={layout.cores_per_task}",
        *(["--exclusive"] if flux.exclusive else []),
        *flux.options,
    ]


PBS_NAME = 15  # characters of a job's name
OPTIONS = {  # by the section of a batch system
    "slurm": slurm_options,
    "pbs": pbs_options,
    "lsf": lsf_options,
    "flux": flux_options,
}
OPENINGS = {"pbs": pbs_opening}
