"""``ssmpi doctor RUN`` on a live job of real ranks."""

import signal
import socket

from ranks import ssmpi
from training_job import ALL_ROLES, STOPPING

from ssmpi.runtime.errors import STOPPED


def test_it_finds_the_rank_that_is_stopped(start):
    job = start(*ALL_ROLES, ranks=4).until_it_trains()
    logs = job.run / "logs"
    job.until(lambda: all("vitals: " in path.read_text() for path in logs.glob("*.log")))
    well = ssmpi("doctor", job.run).check()
    assert "running (process" in well.out
    assert "trainer 1 main" in well.out
    assert "not logged what it does" not in well.out
    job.send(signal.SIGSTOP, rank=2)
    sick = ssmpi("doctor", job.run)
    job.send(signal.SIGCONT, rank=2)
    assert sick.code == 1, sick
    assert f"problem: embedding_ps 0 (host {socket.gethostname()}, process {job.ranks()[2]}) is silent" in sick.out
    assert "its process is stopped, and 'kill -CONT' continues it" in sick.out
    assert "serve (service.py:" in sick.out
    assert sick.out.count("problem:") == 1
    assert not (logs / "request").exists()
    job.send(signal.SIGINT, rank=0)
    assert job.end(STOPPING)[0] == STOPPED
