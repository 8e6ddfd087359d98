"""Several virtual hosts on this machine: namespaces, each with its own address, process ids, /tmp and /dev/shm.

All processes are descendants of the head's first process and die with it, so nothing remains when a test is killed. The
bridge between the hosts is in the head's network namespace, so several such clusters can run side by side.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ssmpi.cluster import child_process
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host.mpi_environment import ON_ONE_HOST

PROJECT = Path(__file__).parents[1]
NETWORK = "10.99.0"
HEAD_ADDRESS = f"{NETWORK}.254"
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
UNSHARE = ("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "tc")
NOT_THERE = (*ON_ONE_HOST, child_process.VARIABLE)  # variables for the real host only
REMOTE_SHELL = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
case $host in
{cases}*) echo "no host $host" >&2; exit 255 ;;
esac
exec nsenter --target "$pid" {flags} --wd="$PWD" -- bash -c "$*" </dev/null
"""
PATIENCE = 30  # seconds until a host is up, on a busy machine

OWN = """
hostname {name}
ip link set lo up
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mkdir /run/shared
n=0; for place in {shared}; do mkdir /run/shared/$n && mount --bind "$place" /run/shared/$n; n=$((n + 1)); done
mount -t tmpfs tmp /tmp
n=0; for place in {shared}; do mkdir -p "$place" && mount --bind /run/shared/$n "$place"; n=$((n + 1)); done
mkdir -p /var/spool/slurmd && mount -t tmpfs spool /var/spool/slurmd
"""  # two hosts' process numbers coincide, and so do names made of them: nothing but ``shared`` is shared
HEAD = """
mount --bind {state}/hosts /etc/hosts
ip link add switch address 02:00:00:00:00:fe type bridge && ip addr add {head}/24 dev switch && ip link set switch up
"""  # a bridge without an address takes a host's, and when that host is gone, nobody finds the head for a minute
LIVE = """
set -e
{commands}
echo up > {state}/{name}.up
trap 'exit 0' TERM
while :; do sleep 3600 & wait $! || :; done
"""


class HostError(UserError):
    """A virtual host did not start, or a command on one failed."""


def missing() -> str:
    """Why virtual hosts are impossible here; empty if they are possible."""
    if os.geteuid() != 0:
        return "virtual hosts need root"
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    if absent:
        return f"virtual hosts need {', '.join(absent)} (apt-get install iproute2 util-linux)"
    tried = subprocess.run([*UNSHARE, "ip", "link", "add", "switch", "type", "bridge"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def shared_folders(*folders: Path) -> list[str]:
    """The folders that all hosts must see: these, the project and the Python environment."""
    places = {PROJECT, Path(sys.prefix), Path(sys.base_prefix), *map(Path, folders)}
    return sorted(str(place.resolve()) for place in places)


class VirtualHosts:
    """``count`` hosts h1, h2, ... and a head; all see the ``shared`` folders and ``state``, and have a /tmp of their
    own.
    """

    def __init__(self, count: int, state: Path, shared: list[str]) -> None:
        self.names = [f"h{i + 1}" for i in range(count)]
        self.state, self._shared = Path(state), " ".join(sorted({*shared, str(state)}))
        self.state.mkdir(parents=True, exist_ok=True)
        self.remote_shell = self.state / "rsh"
        self._pids: dict[str, int] = {}  # of each host's first process, in this namespace
        self._numbers_on_head: dict[str, int] = {}
        lines = ["127.0.0.1 localhost", f"{HEAD_ADDRESS} head", *(f"{self.address(h)} {h}" for h in self.names)]
        (self.state / "hosts").write_text("\n".join(lines) + "\n")
        own = OWN.format(name="head", shared=self._shared)
        commands = own + HEAD.format(head=HEAD_ADDRESS, state=self.state)
        self._head = self._start("head", ("setpriv", "--pdeathsig", "KILL"), commands)
        for name in self.names:
            self.boot(name)

    def address(self, name: str) -> str:
        """The host's address in the common network."""
        return f"{NETWORK}.{int(name[1:])}"

    def boot(self, name: str) -> None:
        """Start a host, the first time or after a crash. Its hardware address stays, as a real one's does: the
        hosts that know it would not find another for half a minute.
        """
        self._start(name, self._enter("head"), OWN.format(name=name, shared=self._shared))
        n, pid = name[1:], self._pids[name]
        its_end = ("name", "eth0", "address", f"02:00:00:00:00:{int(n):02x}", "netns", str(pid))
        self.head_network("ip", "link", "add", f"v{n}", "type", "veth", "peer", *its_end)
        self.head_network("ip", "link", "set", f"v{n}", "master", "switch", "up")
        self.run(name, "ip", "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self.run(name, "ip", "link", "set", "eth0", "up")

    def crash(self, name: str) -> None:
        """Power off: all processes on the host are killed at once, and its link is gone."""
        os.kill(self._pids.pop(name), 9)

    def cut(self, name: str) -> None:
        """Unplug the host's link."""
        self.head_network("ip", "link", "set", f"v{name[1:]}", "down")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        self.head_network("ip", "link", "set", f"v{name[1:]}", "up")

    def slow(self, name: str, rate: str) -> None:
        """Limit both directions of a host's link, for example to 100mbit; an empty ``rate`` removes the limit."""
        shape = ("root", *(("tbf", "rate", rate, "burst", "64kb", "latency", "5ms") if rate else ("pfifo",)))
        self.head_network("tc", "qdisc", "replace", "dev", f"v{name[1:]}", *shape)
        self.run(name, "tc", "qdisc", "replace", "dev", "eth0", *shape)

    def on(self, name: str, *command: object, folder: Path | None = None) -> list[str]:
        """The command line that runs a command on a host or on the head, in a shared folder."""
        return [*self._enter(name, folder), "--", *map(str, command)]

    def run(
        self, name: str, *command: object, folder: Path | None = None, timeout: float = 60,
        environ: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        """Run a command on a host or on the head to its end; its standard output."""
        words = self.on(name, *command, folder=folder)
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environ)
        if done.returncode:
            raise HostError(f"{' '.join(map(str, command))} on {name}: {done.stdout}{done.stderr}")
        return done.stdout

    def processes(self, name: str, words: str) -> list[str]:
        """The ids of the processes on a host whose command lines contain ``words``."""
        lines = self.run(name, "ps", "-ww", "-eo", "pid,args").splitlines()
        return [line.split()[0] for line in lines if words in line]

    def head_network(self, *command: str) -> None:
        """Run a command in the head's network namespace, but in this process's PID namespace."""
        subprocess.run(["nsenter", "--target", str(self._pids["head"]), "--net", *command], check=True)

    def close(self) -> None:
        """End every process of every host."""
        self._head.kill()
        self._head.wait()

    def _enter(self, name: str, folder: Path | None = None) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._pids[name]), *NAMESPACES, f"--wd={folder or PROJECT}")

    def _write_remote_shell(self) -> None:
        """A stand-in for ssh: ``rsh [-options] HOST WORDS``, to be used on the head."""
        cases = "".join(f"{name}) pid={pid} ;;\n" for name, pid in self._numbers_on_head.items())
        self.remote_shell.write_text(REMOTE_SHELL.format(cases=cases, flags=" ".join(NAMESPACES)))
        self.remote_shell.chmod(0o755)

    def _start(self, name: str, prefix: tuple[str, ...], commands: str) -> subprocess.Popen[bytes]:
        up = self.state / f"{name}.up"
        up.unlink(missing_ok=True)
        script = LIVE.format(commands=commands, state=self.state, name=name)
        with (self.state / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*prefix, *UNSHARE, "bash", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + PATIENCE
        while not up.is_file() or not up.read_text():
            if process.poll() is not None:
                raise HostError(f"{name} ended: {(self.state / f'{name}.log').read_text()}")
            if time.monotonic() > deadline:
                raise HostError(f"{name} is not up after {PATIENCE} s")
            time.sleep(0.01)
        self._pids[name], self._numbers_on_head[name] = self._first_process(process.pid, name)
        self._write_remote_shell()
        return process

    def _first_process(self, pid: int, name: str) -> tuple[int, int]:
        """The descendant of ``pid`` that is process 1 on its own host: its id here, and on the head."""
        below = [pid]
        for parent in below:
            with contextlib.suppress(OSError):
                below += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
            with contextlib.suppress(OSError):
                numbers = Path(f"/proc/{parent}/status").read_text().split("NSpid:")[1].split("\n")[0].split()
                if numbers[-1] == "1" and len(numbers) == (2 if name == "head" else 3):
                    return parent, int(numbers[1])
        raise HostError(f"{name} has no first process")
