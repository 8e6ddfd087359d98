"""The batch file of a run: what it requests of the batch system, what the site sets up, one command."""

from __future__ import annotations

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


OPTIONS = {"slurm": slurm_options}  # by the section of a batch system
