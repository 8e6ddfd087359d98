"""Session folders of launchers that were killed are removed by the next one; those of living ones never."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ssmpi.cluster import child_process as module
from ssmpi.cluster.child_process import session_folder
from ssmpi.runtime.host.mpi_environment import SESSION_OWNER, SESSIONS

HOLDS = """
import subprocess, sys, time
from ssmpi.cluster.child_process import session_folder
with session_folder() as session:
    mpirun = subprocess.Popen(["sleep", "60"], pass_fds=(session.lock,))
    print(session.path, mpirun.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder for temporary files, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def test_what_a_killed_launcher_left_goes_once_its_mpirun_has_ended(base):
    launcher = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    left, mpirun = launcher.stdout.readline().split()
    left = Path(left)
    (left / "pmix.sock").touch()
    try:
        with session_folder():
            assert left.is_dir()  # its launcher lives
        launcher.kill()
        launcher.wait()
        with session_folder():
            assert left.is_dir()  # its mpirun lives
    finally:
        launcher.kill()
        launcher.wait()
        launcher.stdout.close()
        process = os.pidfd_open(int(mpirun))
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        assert ended.poll(10_000)
        os.close(process)
    with session_folder() as ours:
        assert [path for path in base.glob(f"{SESSIONS}*") if path != left] == [ours.path]
    assert not left.exists()


def test_what_may_be_somebody_elses_stays(base, monkeypatch):
    """A folder that is not locked yet, one of another host, one that only has such a name."""
    names = [base / f"{SESSIONS}{name}" for name in ("new", "elsewhere", "link", "file")]
    new, elsewhere, link, file = names
    new.mkdir()
    elsewhere.mkdir()
    (elsewhere / SESSION_OWNER).write_text("another-host")
    link.symlink_to(base)
    (base / SESSION_OWNER).write_text(os.uname().nodename)
    file.touch()
    with session_folder() as ours:
        assert ours.path.is_dir()
    assert not ours.path.exists()
    assert all(os.path.lexists(path) for path in names)


def test_another_users_stays(base, monkeypatch):
    left = base / f"{SESSIONS}left"
    left.mkdir()
    (left / SESSION_OWNER).write_text(os.uname().nodename)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    module.remove_abandoned(base)
    assert left.is_dir()
    monkeypatch.undo()
    module.remove_abandoned(base)
    assert not left.exists()
