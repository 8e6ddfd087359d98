"""A lock dies with its holder and says who that is; where there are no locks it says so."""

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from faults import broken_disk, io_error

from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.run_files import LOCK_NAME, OWN_CODE, RUN_FILE, VERSIONS
from ssmpi.state import run_folder, run_lock

HOLD = """
import sys, time
from pathlib import Path
from ssmpi.state import run_lock
held = run_lock.acquire(Path(sys.argv[1]), lambda holder: 0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def in_no_job(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 0.05)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the run folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / LOCK_NAME)],
        stdout=subprocess.PIPE,
        env={**os.environ, "SLURM_JOB_ID": "17"},
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()


def test_who_holds_a_run_is_named_and_when_it_is_killed_the_lock_is_free(tmp_path, holder):
    with pytest.raises(SettingsError) as refused:
        run_lock.lock(tmp_path)
    held_by = f"process {holder.pid} of SLURM job 17 on host {socket.gethostname()}, since "
    assert held_by in str(refused.value)
    assert "end it ('scancel 17')" in str(refused.value)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with run_lock.lock(tmp_path), pytest.raises(SettingsError, match=f"kill {os.getpid()}"):
        run_lock.lock(tmp_path)
    run_lock.lock(tmp_path).close()


def test_a_lock_outlives_its_holder_in_a_child_that_inherited_it(tmp_path):
    with run_lock.acquire(tmp_path / "lock", lambda _: 0) as lock:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fileno(),))
    with pytest.raises(run_lock.LockHeldError):
        run_lock.acquire(tmp_path / "lock", lambda _: 0)
    child.kill()
    child.wait()
    run_lock.acquire(tmp_path / "lock", lambda _: 0).close()


def test_a_holder_on_another_host_may_be_a_lost_one_and_is_waited_for(tmp_path, holder, monkeypatch, caplog):
    monkeypatch.setattr(run_lock, "LEASE_SECONDS", 0.2)
    lock = tmp_path / LOCK_NAME
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "far"}))
    with caplog.at_level(logging.WARNING, "ssmpi"), pytest.raises(SettingsError, match="on host far"):
        run_lock.lock(tmp_path)
    assert "waiting up to 0 s" in caplog.text


@pytest.mark.parametrize("text", ["", "[1]", '{"no": "holder"}'])
def test_what_is_in_the_file_does_not_matter(tmp_path, holder, text):
    (tmp_path / LOCK_NAME).write_text(text)
    with pytest.raises(SettingsError, match=r"another job is using this run \(another process\)"):
        run_lock.lock(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_and_used(tmp_path, inject, caplog, number):
    inject(fcntl, "flock", io_error(number))
    with caplog.at_level(logging.WARNING, "ssmpi"), run_lock.lock(tmp_path):
        assert "no locks on this file system" in caplog.text


def test_a_disk_that_fails_is_not_one_without_locks(tmp_path, inject):
    inject(fcntl, "flock", broken_disk)
    with pytest.raises(OSError, match="Input/output error"):
        run_lock.lock(tmp_path)


def test_overwriting_keeps_the_lock_and_nothing_else(tmp_path, holder, monkeypatch):
    for name in (RUN_FILE, VERSIONS):
        (tmp_path / name).touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer-0.log").touch()
    monkeypatch.setattr(settings, "dump", lambda _: "new")
    config = SimpleNamespace(flat=lambda: dict.fromkeys(OWN_CODE, "built_in"))
    run_folder.make(tmp_path, config, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, RUN_FILE, VERSIONS]
    with pytest.raises(SettingsError, match=f"process {holder.pid}"):
        run_lock.lock(tmp_path)
