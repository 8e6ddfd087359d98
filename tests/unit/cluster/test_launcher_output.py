"""What a launcher says about the end of its ranks is left out only where ssmpi has said it, and nothing else
ever is.
"""

import fcntl
import os
import resource
import time

import pytest

from ssmpi.cluster import launcher_output
from ssmpi.cluster.launcher_output import BannerFilter, StderrRelay

RULE = "-" * 74
EXITED = f"""{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-h1-30115@1,0]
   Exit code:    2
{RULE}
"""
ABORTED = f"""{RULE}
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[6984,1],1]
  Errorcode: 86

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{RULE}
\0{RULE}
prterun has exited due to process rank 1 with PID 0 on node h1 calling
"abort". This may have caused other processes to be terminated.
{RULE}
"""
REMARK = "[h1:3045] PMIX ERROR: PMIX_ERR_UNREACH in file client/pmix_client.c at line 1023\n"
EPOLL = "[warn] Epoll MOD(4) on fd 21 failed. Old events were 6; close change was 0 (none): Bad file descriptor\n"
MORE = "1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
SRUN = "srun: error: h1: tasks 0-2: Exited with exit code 2\n"
LOST = (
    f"{RULE}\nPRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-h1-7@0,0] on node"
    f" h1\n{RULE}\n"
)
ERROR = "error: trainer 0 (rank 0, host h1): no such data folder\n"
LOG = "08:03:28 h1 trainer 0 | training starts\n"
STOPPED = "08:03:29 h1 trainer 0 | stopped: 12 examples\n"


def passed(text):
    """What is written of a launcher's output, taken as a whole."""
    written = []
    found = BannerFilter(written.append)
    for line in text.splitlines(keepends=True):
        found.take(line.encode())
    found.release()
    return b"".join(written).decode()


@pytest.mark.parametrize("banner", [EXITED, ABORTED, SRUN, EPOLL, MORE, EXITED + ABORTED])
@pytest.mark.parametrize("word", [ERROR, STOPPED, "ssmpi train: error: unrecognized arguments\n"])
def test_a_banner_is_left_out_where_ssmpi_has_spoken_before_or_after_it(banner, word):
    assert passed(LOG + word + banner) == LOG + word
    assert passed(LOG + banner + word) == LOG + word


@pytest.mark.parametrize("banner", [EXITED, ABORTED, SRUN, EXITED + ABORTED])
def test_a_banner_stays_whole_where_ssmpi_has_said_nothing(banner):
    assert passed(LOG + banner) == LOG + banner.replace("\0", "")  # with which grep takes a log for a binary file
    assert passed(banner[: len(banner) // 2]) == banner[: len(banner) // 2]


@pytest.mark.parametrize("text", [LOST, f"{RULE}\n", f"{RULE}\n{RULE}\nTotals\n{RULE}\n", "Traceback\n  error: no\n\n"])
def test_what_is_no_banner_stays_beside_an_error(text):
    assert passed(ERROR + text) == ERROR + text
    assert passed(text + ERROR) == text + ERROR


def test_a_rank_is_heard_in_the_midst_of_a_banner():
    first, *rest = EXITED.splitlines(keepends=True)
    assert passed(first + rest[0] + LOG + ERROR + "".join(rest[1:])) == LOG + ERROR


@pytest.mark.parametrize("place", range(len(EXITED.splitlines()) + 1))
def test_a_launchers_remark_inside_a_banner_belongs_to_it(place):
    lines = EXITED.splitlines(keepends=True)
    both = "".join([*lines[:place], REMARK, *lines[place:]])
    assert passed(LOG + ERROR + both) == LOG + ERROR
    assert passed(LOG + both + ERROR) == LOG + ERROR
    assert sorted(passed(both).splitlines()) == sorted(both.splitlines())


def test_words_are_passed_on_at_once_and_a_banner_after_a_while(monkeypatch):
    monkeypatch.setattr(launcher_output, "HELD_SECONDS", 0.05)
    source, sink = os.pipe()
    written = []

    def until(text):
        deadline = time.monotonic() + 60
        while b"".join(written) != text:
            assert time.monotonic() < deadline, written
            time.sleep(0.001)

    with open(source, "rb", buffering=0) as reader:  # noqa: PTH123 - no path
        words = StderrRelay(reader, written.append)
        os.write(sink, LOG.encode())
        until(LOG.encode())
        os.write(sink, b"no end of a line")
        until(LOG.encode() + b"no end of a line")
        os.write(sink, b"\n" + EXITED.encode())
        until(f"{LOG}no end of a line\n{EXITED}".encode())
        os.write(sink, ERROR.encode() + ABORTED.encode())
        os.close(sink)
        words.end()
        assert b"".join(written).decode() == f"{LOG}no end of a line\n{EXITED}{ERROR}"


def test_any_number_of_open_files_will_do():
    """Above 1023 too, where ``select`` gives up."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1025), limits[1]))
    try:
        source, sink = os.pipe()
        with open(fcntl.fcntl(source, fcntl.F_DUPFD, 1024), "rb", buffering=0) as reader:  # noqa: PTH123 - no path
            os.close(source)
            written = []
            words = StderrRelay(reader, written.append)
            os.write(sink, LOG.encode())
            os.close(sink)
            words.end()
            assert b"".join(written).decode() == LOG
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_nobody_to_hear_stops_nothing(monkeypatch):
    source, sink = os.pipe()
    os.close(source)
    with open(sink, "w") as deaf:  # noqa: PTH123 - no path
        monkeypatch.setattr("sys.stderr", deaf)
        launcher_output.write_stderr(b"")
        launcher_output.write_stderr(LOG.encode())
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sink)  # what is left in the buffer goes somewhere


def test_no_nul_of_the_launcher_is_passed_on():
    assert passed(LOG + "\0\n" + ERROR) == LOG + ERROR
    assert passed("\0\n\0some words\n") == "some words\n"
