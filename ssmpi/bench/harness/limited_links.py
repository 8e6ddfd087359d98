"""Measured jobs on virtual hosts, for ``--virtual-hosts``: all trainers on the first host, each server on a separate
host whose link the kernel limits (Linux's token bucket filter).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ssmpi.bench.harness import virtual_hosts
from ssmpi.bench.harness.jobs import LauncherCommand
from ssmpi.bench.harness.virtual_hosts import NETWORK, HostError, VirtualHosts
from ssmpi.cluster import launch, session_folder
from ssmpi.cluster.site import Launcher
from ssmpi.host.mpi_environment import ON_ONE_HOST, environment

NOT_THERE = (*ON_ONE_HOST, session_folder.VARIABLE)  # variables for the real host only


class LimitedHosts:
    """One host for trainers and one for each of ``servers``, until the block of ``limited_hosts`` ends."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts
        self._trainers, *self._servers = hosts.names

    def start(self, trainers: int, rates: Sequence[float | None]) -> LauncherCommand:
        """The command to start a job whose servers, in rank order, have links of ``rates`` bytes per second; None is no
        limit.
        """
        names = self._servers[: len(rates)]
        for name, rate in zip(names, rates, strict=True):
            self._hosts.slow(name, "" if rate is None else f"{8 * rate:.0f}bit")
        launcher = Launcher(interface=f"{NETWORK}.0/24")
        unset = [word for name in NOT_THERE for word in ("-u", name)]
        return LauncherCommand(
            tuple(self._hosts.on("head", "env", *unset, folder=Path.cwd())),
            tuple(launch.mpirun_options(launcher, [self._trainers] * trainers + names)),
            {**environment(launcher, one_host=False), "PRTE_MCA_plm_ssh_agent": str(self._hosts.remote_shell)},
        )


@contextlib.contextmanager
def limited_hosts(servers: int, *folders: Path) -> Iterator[LimitedHosts]:
    """Create the hosts, which takes about a second; all see ``folders``. HostError if that is impossible here."""
    if why := virtual_hosts.missing():
        raise HostError(f"{why}; without --virtual-hosts links are emulated inside the servers")
    here = Path.cwd()
    if here in (Path("/"), Path("/tmp")):
        raise HostError(f"the hosts need folders of their own in {here}: start this in another one")
    shared = virtual_hosts.shared_folders(here, *folders)
    if spaced := [place for place in shared if " " in place]:  # mpirun splits the command for ssh at them
        raise HostError(f"{spaced[0]}: virtual hosts need folders without spaces in their names; choose another one")
    hosts = VirtualHosts(1 + servers, folders[0].resolve() / "hosts", shared)
    try:
        yield LimitedHosts(hosts)
    finally:
        hosts.close()
