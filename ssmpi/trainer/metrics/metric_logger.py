"""What the first trainer writes and prints while the job runs: ``metrics.jsonl``, TensorBoard events, a progress bar on
a terminal or one plain line a minute in a batch log.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ssmpi.runtime.files.log import above, log, terminal
from ssmpi.runtime.files.run_files import METRICS
from ssmpi.runtime.mpi.failure import cause
from ssmpi.runtime.quality import SUMS, Quality
from ssmpi.runtime.topology import Topology
from ssmpi.trainer.metrics.fields import EPS_BY_TRAINER, STEPS_BY_TRAINER, bar, describe
from ssmpi.trainer.metrics.log_files import EventWriter, JsonlFile
from ssmpi.trainer.metrics.trainer_report import PaceWatch, TrafficLog, TrainerReport, slow_trainers

PLAIN_LINE_SECONDS = 60.0
POINTS = 20  # windows that a run has at least, however short it is
COUNTS = ("iterations", "rounds", "round_seconds", "staleness")

NOTHING: Mapping[str, float] = MappingProxyType({})
State = tuple[dict[str, float], dict[str, np.ndarray]]


class MetricLogger:
    """Gathers every trainer's reports into windows. ``rows`` is how many examples the whole run has.

    The job that this one continues had logged the ``numbers``, and each of its trainers had ``scored`` rows.
    """

    def __init__(
        self, folder: Path, topology: Topology, rows: int, every_seconds: float,
        numbers: Mapping[str, float] = NOTHING, scored: Sequence[Quality] = (),
    ) -> None:  # fmt: skip
        self._topology, self._rows, self._every = topology, rows, every_seconds
        known = int(numbers.get("bytes", 0))
        self._lines = JsonlFile(folder / METRICS, known)  # lines after the checkpoint will be repeated
        self.writer: EventWriter | None = None
        self.rate_factor: Callable[[], float] | None = None  # of the learning rates, if they change
        self._window, self._total = Quality(), Quality()
        self._scored = [*scored, *(Quality() for _ in range(topology.trainers - len(scored)))]
        for each in scored:
            self._total.merge(each)
        self._at_start = numbers.get("examples", 0)  # trained on by earlier jobs
        self._twice = self._total.sums[0] - self._at_start  # scored twice because of a kill
        self._bar = bar(rows, self._examples)
        self._counts = {name: np.zeros(topology.trainers) for name in COUNTS}
        self._divergence = np.full(topology.trainers, np.nan)
        self._window_counts = {name: counts.copy() for name, counts in self._counts.items()}
        self._began = self._window_began = self._line_said = time.monotonic()
        self._earlier = {name: numbers.get(name, 0.0) for name in ("seconds", "iterations", "rounds")}
        self._saving = {name: numbers.get(name, 0.0) for name in ("checkpoints", "O_save")}
        self.traffic = TrafficLog(topology.trainers, numbers)
        self._started, self._paused = False, 0.0
        self._rest_since: float | None = None
        self._window_examples = np.array([quality.sums[0] for quality in self._scored])
        self._pace = PaceWatch(trainer for trainer in range(topology.trainers) if topology.is_home(trainer))
        self._hosts: Sequence[str] = ()
        self._warned = False

    def gathered(self, trainer: int, report: TrainerReport) -> None:
        """Take one trainer's report."""
        before, self._scored[trainer] = self._scored[trainer], Quality(report.histogram, report.sums)
        growth = Quality(report.histogram - before.histogram, report.sums - before.sums)
        self._window.merge(growth)
        self._total.merge(growth)
        for name, counts in self._counts.items():
            counts[trainer] = getattr(report, name)
        self._divergence[trainer] = report.divergence
        self.traffic.gathered(trainer, report.traffic)
        self._bar.update(int(growth.sums[0]))
        now = time.monotonic()
        if done := self._pace.report(trainer, report.examples, now, finished=bool(report.finished)):
            self._warn_of_slow(done)
        if now - self._window_began >= self._every or self._window.sums[0] * POINTS >= self._rows:
            self.window()

    def window(self) -> None:
        """Write a line for the time since the last window, if anything happened."""
        examples = int(self._window.sums[0])
        if not examples:
            return
        now = self._rest_since or time.monotonic()
        seconds = max(now - self._window_began, 1e-9)
        line = {"kind": "train", **self._where(), "eps": examples / seconds, **self._window.compute()}
        line |= self._by_trainer(seconds)
        if self.rate_factor:
            line["rate_factor"] = self.rate_factor()
        line |= self.sync(self._window_counts) | self.traffic.window()
        self._write(line)
        self._show(line)
        self._warn(line["ne"], line["auc"])
        self._window = Quality()
        self._window_counts = {name: counts.copy() for name, counts in self._counts.items()}
        self._window_examples = np.array([quality.sums[0] for quality in self._scored])
        self._window_began = now

    def _by_trainer(self, seconds: float) -> dict[str, list[float]]:
        """Examples and iterations a second of each trainer in this window."""
        examples = np.array([quality.sums[0] for quality in self._scored]) - self._window_examples
        steps = self._counts["iterations"] - self._window_counts["iterations"]
        return {
            EPS_BY_TRAINER: (examples / seconds).round(2).tolist(),
            STEPS_BY_TRAINER: (steps / seconds).round(3).tolist(),
        }

    def evaluated(self, split: str, metrics: dict[str, float], seconds: float) -> None:
        """Write one evaluation. The time it took does not count as training time."""
        self.pause(seconds)
        self._write({"kind": "evaluation", "split": split, "weights": "model", **self._where(), **metrics})
        self.say(f"{split} (model): {describe(metrics)}")

    def saved(self, line: dict[str, Any]) -> None:
        """Write what saving a checkpoint cost, or that it failed."""
        self._saving["checkpoints"] += "error" not in line
        self._saving["O_save"] += line["O_save"]
        self._write({"kind": "checkpoint", **self._where(), **line})

    def recovered(self, record: dict[str, Any]) -> None:
        """Write how the run resumed after a kill: a record of ``recoveries.json``."""
        seconds = {f"seconds_{name}": value for name, value in record["seconds"].items()}
        self._write({"kind": "recovery", **record, **self._where(), **seconds})

    def swept(self, feature: str, counts: Mapping[str, int]) -> None:
        """Write what a feature's dynamic table holds at a pause."""
        self._write({"kind": "keys", **self._where(), "feature": feature, **counts})

    def rows_saved(self, line: dict[str, Any]) -> None:
        """Write the result of an embedding PS's row save."""
        self._write({"kind": "row_save", **self._where(), **line})

    def pause(self, seconds: float) -> None:
        """Training stood still for this long, which does not count as training time."""
        self._paused += seconds

    def part_begins(self) -> None:
        """All trainers train from now on."""
        now = time.monotonic()
        if self._rest_since is not None:
            self._window_began += now - self._rest_since
        self._rest_since = None
        self._pace.begin(now)

    def part_ends(self) -> None:
        """All trainers have paused: the window goes on when they train again."""
        self._rest_since = time.monotonic()
        self._pace.rest(self._rest_since)

    @property
    def seconds(self) -> float:
        """Seconds of training, those of earlier jobs included, without pauses."""
        before = self._earlier["seconds"]
        return before + time.monotonic() - self._began - self._paused if self._started else before

    def state(self) -> State:
        """The state that a resumed metric logger needs: numbers for JSON, and arrays."""
        self.window()
        return self.numbers(), {"histogram": self._total.histogram, "sums": self._total.sums}

    def numbers(self) -> dict[str, float]:
        """The numbers of ``state``."""
        totals = self.totals()
        kept = {name: totals[name] for name in ("examples", *self._earlier, *self._saving)}
        return kept | self.traffic.totals() | {"bytes": self._lines.size}

    def sync(self, since: dict[str, np.ndarray] | None = None) -> dict[str, float]:
        """Synchronization in figures, averages over all trainers; nothing if there was no round.

        The sync gap is iterations between two rounds, of a replica and of one of its lanes; ``round_seconds`` what a
        round takes; ``staleness`` the iterations of a replica meanwhile; ``divergence`` the distance of a replica from
        the reference of its round (mean, center or partner's mean), relative to that one's length, when last measured.
        """
        iterations, rounds, seconds, stale = (
            float((self._counts[name] - (since[name] if since else 0.0)).sum()) for name in COUNTS
        )
        if not rounds:
            return {}
        gap = iterations / rounds * self._topology.group  # every member of a replica counts its rounds
        found = {
            "sync_gap_trainer": gap,
            "sync_gap_thread": gap / self._topology.replica_lanes,
            "round_seconds": seconds / rounds,
            "staleness": stale / rounds,
        }
        seen = self._divergence[~np.isnan(self._divergence)]
        return {**found, "divergence": float(seen.mean())} if len(seen) else found

    def totals(self) -> dict[str, float]:
        """The whole run in numbers: examples, seconds of training, EPS, sync gap, progressive quality. ``job_examples``
        are those of this job alone, as the CPU times in ``usage`` are.
        """
        seconds = max(self.seconds, 1e-9)
        examples = float(self._examples)
        return {
            "examples": examples,
            "job_examples": examples - self._at_start,
            "seconds": seconds,
            "eps": examples / seconds,
            "iterations": self._earlier["iterations"] + float(self._counts["iterations"].sum()),
            "rounds": self._earlier["rounds"] + float(self._counts["rounds"].sum()),
            **self.sync(),
            **self._saving,
            **{f"progressive_{name}": value for name, value in self._total.compute().items()},
        }

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        if self._bar.disable:
            log.info(text)
        else:
            above(lambda line: self._bar.write(line, file=terminal()), text)

    def start_clock(self, hosts: Sequence[str] = ()) -> None:
        """Training starts now; the time before was set-up. ``hosts`` are those of the ranks, trainers first."""
        self._hosts = hosts
        log.info("training starts")
        self._started, self._paused = True, 0.0
        self._began = self._window_began = self._line_said = time.monotonic()

    def close(self) -> None:
        """Write the last window and close the files."""
        self.window()
        self._bar.close()
        if writer := self.writer:
            self._lines.behind.do(writer.close)
        self._lines.close()

    def _where(self) -> dict[str, Any]:
        return {
            "examples": self._examples,
            "seconds": round(self.seconds, 3),
        }

    @property
    def _examples(self) -> int:
        """Examples trained on: a batch repeated after a kill counts once."""
        return int(self._total.sums[SUMS.index("examples")] - self._twice)

    def _write(self, line: dict[str, Any]) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        self._lines.write(json.dumps(plain))
        if writer := self.writer:
            self._lines.behind.do(partial(self._add_events, writer, plain))

    def _add_events(self, writer: EventWriter, line: dict[str, Any]) -> None:
        prefix = line.get("split", "train")
        if self.writer is not writer:  # it has failed since
            return
        try:
            for name, value in line.items():
                if isinstance(value, float) and name != "seconds":
                    writer.add_scalar(f"{prefix}/{name}", value, line["examples"])
        except OSError as error:
            self.writer = None
            log.error(f"error: TensorBoard's events end here, metrics.jsonl continues: {cause(error)}")

    def _show(self, line: dict[str, Any]) -> None:
        gap = f" gap {line['sync_gap_thread']:.1f}" if "sync_gap_thread" in line else ""
        self._bar.set_postfix_str(f"loss {line['log_loss']:.4f} NE {line['ne']:.4f}{gap}")
        now = time.monotonic()
        if self._bar.disable and now - self._line_said >= PLAIN_LINE_SECONDS:
            self._line_said = now
            done = line["examples"] / max(self._rows, 1)
            left = self.seconds * (1 / max(done, 1e-9) - 1)
            log.info(
                f"{line['examples']:,} of {self._rows:,} examples ({done:.1%}), {line['eps']:,.0f} EPS, loss "
                f"{line['log_loss']:.4f}, NE {line['ne']:.4f}{gap}, about {left / 60:.0f} min left"
            )

    def _warn_of_slow(self, done: Mapping[int, float]) -> None:
        """Name the trainers that are slow, given the examples of each in the last minute of training."""
        for trainer, others in slow_trainers(done).items():
            host = f" on host {self._hosts[trainer]}" if self._hosts else ""
            log.warning(
                f"trainer {trainer}{host} is slow: {done[trainer]:,.0f} examples in a minute of training, and the "
                f"median of the others is {others:,.0f}. Look there for other programs, too few cores, a throttled "
                "processor or a slow disk"
            )

    def _warn(self, ne: float, auc: float) -> None:
        """Once, when training does not seem to learn."""
        late = self._total.sums[0] > min(200_000, self._rows / 2)
        if late and not self._warned and (ne >= 1.0 or abs(auc - 0.5) < 0.005):
            self._warned = True
            log.warning(
                f"NE is {ne:.4f} and AUC {auc:.4f} after {int(self._total.sums[0]):,} examples: no better than a "
                "constant. Is the learning rate too high (dense.rate, embedding.rate), or are the labels shuffled?"
            )
