"""``ssmpi doctor RUN``: a page about a live or an ended job, from what its ranks have logged (``runtime.host.vitals``),
``metrics.jsonl`` and ``recoveries.json``. The ranks of a live job are asked where their threads are (``rank_log``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from textwrap import shorten

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import log
from ssmpi.runtime.files.run_files import LAUNCH_LOCK, LOCK_NAME, LOGS, METRICS, RESULT_NAME, USAGE
from ssmpi.runtime.host.vitals import COMPUTES, DEALT, PULLS, PUSHES, READS, ROUNDS, WAITS
from ssmpi.runtime.topology import Role, name_of
from ssmpi.runtime.words import counted
from ssmpi.state.run_lock import LockHolder, held_by
from ssmpi.tools.bottleneck import EMBEDDING, REMEDIES
from ssmpi.tools.rank_log import RECENT, STOPPED, RankLog, Stacks, ask
from ssmpi.tools.report.record import Record, read
from ssmpi.tools.report.summary import expected_examples
from ssmpi.trainer.metrics.fields import EPS_BY_TRAINER
from ssmpi.trainer.metrics.trainer_report import MEASURED_SECONDS, slow_trainers

SILENT = 90.0  # seconds without a line, which is due every minute, while others have written some
SHOWN = 24  # ranks, recoveries, stacks on a page
STANDS_OUT, TO_SHOW = 0.2, 0.005  # shares of the workers' time
BUSY = 0.7  # share of its time in which a PS works, if others wait for that
LOSSES = "batches_repeated", "pushes_lost", "center_pushes_lost", "rows_reloaded", "samples_lost", "rows_dealt_again"
PROCESS = {
    "": "its process is gone, or cannot be seen from here",
    "D": "its process waits in the kernel, for a disk or a file system",
    STOPPED: "its process is stopped, and 'kill -CONT' continues it",
}
CORES, INSIDE = "cores", "inside"
TIMES = {  # what workers do, and what relieves it if it stands out
    COMPUTES: ("compute", ""),
    READS: ("read data", "a faster disk for data.folder, or a copy of the data on this host"),
    DEALT: ("wait for trainer 0 to deal rows", "larger data.block_rows; see what trainer 0 does"),
    PULLS: ("wait for embedding rows", ""),
    PUSHES: ("wait to push gradients", ""),
    ROUNDS: (
        "are in rounds",
        "sync.pace = 'shadow', rarer rounds or a codec; see what the other trainers and the sync PSs do",
    ),
    WAITS: ("wait otherwise", "see where threads are"),
    CORES: (
        "wait for a core",
        "fewer threads or ranks on the host, other programs elsewhere; 'ssmpi doctor' shows cores",
    ),
    INSIDE: (
        "wait in a step, for the GIL or other members of their group",
        "more trainers of fewer threads, larger batches; in a group another hierarchy.plan",
    ),
}


@dataclass(frozen=True)
class Job:
    """What is known of the job of a run. ``holder`` is its first rank's process while it is live. ``unanswered`` are
    the ranks that were asked in vain, with their stacks if these could be had; ``notes`` say what is missing.
    """

    record: Record
    holder: LockHolder | None
    ranks: Sequence[RankLog]
    unanswered: Mapping[str, Stacks]
    notes: Sequence[str]

    @classmethod
    def of(cls, run: Path) -> Job:
        """That of a run folder, asked if it is live; DataError if it is none."""
        record, holder = read(run), held_by(run / LOCK_NAME)
        counts = {role: record.settings.get(f"topology.{role.traits.setting}", 0) for role in Role}
        names = [name_of(role, k) for role, n in counts.items() if isinstance(n, int) for k in range(n)]
        if not names:
            raise DataError(f"{run}: which ranks it has is not known: {'; '.join(record.missing)}")
        notes = [each for each in record.missing if record.result or not (RESULT_NAME in each or USAGE in each)]
        unanswered = ask(run, names, notes) if holder else {}
        ranks = [RankLog.read(run, name) for name in names]
        if damaged := sum(rank.damaged for rank in ranks):
            notes.append(f"{counted(damaged, 'damaged line')} of {LOGS}/ left out")
        return cls(record, holder, ranks, unanswered, notes)


def describe(run: Path) -> tuple[str, bool]:
    """The page, and whether it names no problem. DataError if ``run`` is no run folder."""
    job = Job.of(run)
    problems = [*silent(job), *slow(job), *ended(job)]
    lines = [progress(job), *(f"problem: {each}" for each in problems), *(f"note: {each}" for each in job.notes)]
    for title, section in (
        ("ranks", ranks),
        ("what workers spend their time on", speed),
        ("restarts", restarts),
        ("threads at their last sign of life, innermost call first", threads),
    ):
        lines += ["", f"{title}:", *(f"  {line}" for line in section(job))]
    return "\n".join(lines), not problems


def silent(job: Job) -> Iterator[str]:
    """The ranks that have given no sign of life for much longer than the others."""
    newest = max((rank.sign["at"] for rank in job.ranks if rank.lines), default=0.0)
    for rank in job.ranks:
        if newest and not rank.lines:
            yield f"{rank.name} has not begun; its log ends: {rank.last}"
        elif newest and (rank.name in job.unanswered or newest - rank.sign["at"] > SILENT):
            late, stacks = newest - rank.sign["at"], job.unanswered.get(rank.name) or rank.stacks
            why = PROCESS.get(rank.state, "it runs, but does not answer") if job.holder else "the job has ended since"
            last = "; ".join(f"{who} at {' < '.join(calls[:3])}" for who, *calls in stacks[:2])
            yield f"{rank.where} is silent, for {late:,.0f} s longer than others: {why}. It was in {last or '?'}"


def slow(job: Job) -> Iterator[str]:
    """The trainers that do much less than the others; without those of a group that read no batches."""
    record, trainers = job.record, [rank for rank in job.ranks if rank.name.startswith(Role.TRAINER)]
    step = record.settings.get("topology.group", 1) if record.settings.get("hierarchy.homes") == "first" else 1
    last = record.windows[-1]["seconds"] if record.windows else 0.0
    recent = [window for window in record.windows if window["seconds"] > last - RECENT]
    if not recent or last - recent[0]["seconds"] < MEASURED_SECONDS:
        return
    rates = [each for window in recent if isinstance(each := window.get(EPS_BY_TRAINER), list)]
    means = [fmean(of) for of in zip(*(each for each in rates if len(each) == len(trainers)), strict=True)]
    for k, others in slow_trainers(dict(list(enumerate(means))[::step])).items():
        yield f"{trainers[k].where} is slow: {means[k]:,.0f} EPS, the median of the others is {others:,.0f}"


def ended(job: Job) -> Iterator[str]:
    """Why the job has ended, if the run has no result."""
    folder = job.record.folder
    if job.holder or job.record.result or held_by(folder / LAUNCH_LOCK):
        return
    began = min((rank.sign["began"] for rank in job.ranks if rank.lines), default=0.0)
    why = log.last_end(folder, datetime.fromtimestamp(began).astimezone())
    said = reason(why) or f"no rank has logged why, and the log of {job.ranks[0].name} ends: {job.ranks[0].last}"
    yield f"the job has ended without a result: {said}. 'ssmpi launch --resume {folder}' resumes the run"


def progress(job: Job) -> str:
    """The state of the run in a line."""
    record, expected = job.record, expected_examples(job.record)
    state = f"running ({job.holder})" if job.holder else record.status
    if not job.holder and held_by(record.folder / LAUNCH_LOCK):
        state = "between two starts"
    if not record.windows:
        return f"{record.folder}: {state}; it has not trained yet, and {job.ranks[0].name} says: {job.ranks[0].last}"
    last = record.windows[-1]
    share = f" of {expected:,.0f} ({last['examples'] / expected:.1%})" if expected else ""
    age = f", {time.time() - (record.folder / METRICS).stat().st_mtime:,.0f} s ago" if job.holder else ""
    speed = f"; {last['eps']:,.0f} EPS in the last window{age}" if isinstance(last.get("eps"), float) else ""
    return f"{record.folder}: {state}; {last['examples']:,}{share} examples{speed}"


def ranks(job: Job) -> Iterator[str]:
    """A line a rank: host, process, last sign of life, memory, and how its threads spend their time."""
    newest = time.time() if job.holder else max((rank.sign["at"] for rank in job.ranks if rank.lines), default=0.0)
    yield f"{'':16} {'host':10} {'process':>8} {'last sign':>10} {'MB':>8} {'peak MB':>8}"
    for rank in job.ranks[:SHOWN]:
        if not rank.lines:
            yield f"{rank.name:16} has not logged what it does"
            continue
        sign, spends = rank.sign, []
        for kind in ("worker", "helper", "shadow") if rank.name.startswith(Role.TRAINER) else ("main",):
            spent = rank.spent(kind)
            if seconds := spent["seconds"]:
                spends.append(
                    f"{kind}: {spent['cpu'] / seconds:.0%} on a core, {spent['queue'] / seconds:.0%} waiting for one"
                )
        age, memory = max(0.0, newest - sign["at"]), sign["memory"]
        yield (
            f"{rank.name:16} {rank.host:10.10} {sign['pid']:>8} {age:>8,.0f} s {memory / 1e6:>8,.0f} "
            f"{max(sign['peak'], memory) / 1e6:>8,.0f}  {'; '.join(spends)}"
        )
    if more := [rank.sign["memory"] for rank in job.ranks[SHOWN:] if rank.lines]:
        yield f"and {len(job.ranks) - SHOWN} more, the largest with {max(more) / 1e6:,.0f} MB"


def shares_of(ranks: Sequence[RankLog]) -> dict[str, float]:
    """How the workers of all trainers spend their time, as shares; empty if none was seen. Time in steps that is
    neither on a core nor waiting for one is waiting inside the step.
    """
    spent = sum((rank.spent("worker") for rank in ranks), Counter[str]())
    looks = sum(spent[state] for state in TIMES)
    shares = {state: spent[state] / looks for state in TIMES if spent[state]}
    if spent["cpu"]:
        steps, seconds = shares.get(COMPUTES, 0.0), spent["seconds"]
        shares[CORES] = min(spent["queue"] / seconds, steps)
        shares[INSIDE] = max(0.0, steps - (spent["cpu"] + spent["queue"]) / seconds)
        shares[COMPUTES] = steps - shares[CORES] - shares[INSIDE]
    return shares


def speed(job: Job) -> Iterator[str]:
    """What the workers wait for, and what would relieve it."""
    shares = shares_of(job.ranks)
    for state, share in sorted(shares.items(), key=lambda item: -item[1]):
        if share >= TO_SHOW:
            yield f"{share:4.0%} {TIMES[state][0]}"
    if any(silent(job)):
        yield "look at the silent rank first: the others may wait for it"
        return
    rows = shares.pop(PULLS, 0.0) + shares.pop(PUSHES, 0.0)
    limits = [TIMES[state] for state, share in shares.items() if state != COMPUTES and share >= STANDS_OUT]
    yield from (f"the workers {what}. To relieve: {relief}" for what, relief in limits)
    if rows >= STANDS_OUT:
        yield f"the workers wait for embedding PSs{servers(job)}"
    elif not limits:
        steps = "the steps themselves bound the speed. To go faster: more trainers or threads, on more cores"
        yield f"nothing stands out: {steps}" if shares else "not known: no worker was seen at work"


def servers(job: Job) -> str:
    """Whether the embedding PSs or the links to them hold workers up."""
    busy = {}
    for rank in job.ranks:
        if rank.name.startswith(Role.EMBEDDING_PS) and (seconds := rank.spent("main")["seconds"]):
            busy[rank.name] = (rank.spent("main")["cpu"] + rank.spent("main")["queue"]) / seconds
    name, most = max(busy.items(), key=lambda item: item[1], default=("embedding_ps 0", 0.0))
    if most >= BUSY:
        return f", and {name} is busy {most:.0%} of the time. To relieve: {REMEDIES[EMBEDDING]}"
    last = job.record.windows[-1] if job.record.windows else {}
    sent = sum(last.get(f"bytes_embedding_{way}", 0.0) for way in ("pull", "push")) / 1e6
    return (
        f", but {name}, the busiest, is busy {most:.0%} of the time: the links or their latency bound the speed "
        f"({sent:,.1f} MB in the last window). To relieve: larger batches, or embedding PSs on the hosts of trainers"
    )


def restarts(job: Job) -> Iterator[str]:
    """Two lines for each recovery: when, how and why; what was lost."""
    if not job.record.recoveries:
        yield "none"
    for each in job.record.recoveries[-SHOWN:]:
        seconds = each.get("seconds", {})
        took = f", training after {seconds.get('ranks', 0.0) + seconds.get('restore', 0.0):.1f} s"
        how = f"resumed ({each.get('how')}){took}" if "restore" in seconds else "did not come to training"
        yield f"{each.get('at')}: {how}; why: {reason(str(each.get('why'))) or 'not logged'}"
        counts = [f"{name.replace('_', ' ')}: {each[name]:,}" for name in LOSSES if each.get(name)]
        yield f"    {'; '.join([each.get('lost') or 'no memory is lost', *counts])}"


def reason(text: str) -> str:
    """The first sentence of why a job ended."""
    return shorten(text.removeprefix("error: ").partition("; all ranks end")[0], 240)


def threads(job: Job) -> Iterator[str]:
    """The innermost calls of all threads, the same ones once."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for rank in job.ranks:
        for who, *calls in job.unanswered.get(rank.name) or rank.stacks:
            alike.setdefault(tuple(calls), []).append(f"{rank.name} {who}")
    for place, names in list(alike.items())[:SHOWN]:
        yield f"{'; '.join(names[:4])}{f' and {len(names) - 4} more' * (len(names) > 4)}"
        yield f"    {' < '.join(place)}"
