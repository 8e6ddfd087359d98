"""The progress of a step: a bar with rate and remaining time on a terminal, a plain line about once a minute in a log.

Only rank 0 prints, about its own share of the work; the others' shares have the same size.
"""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from tqdm import tqdm

from data_prep.ranks import Ranks

SECONDS_BETWEEN_LINES = 60.0


def say(ranks: Ranks, text: str) -> None:
    """Print one line on rank 0."""
    if ranks.rank == 0:
        print(text, flush=True)


class ProgressBar:
    """Progress of one step over ``total`` bytes or rows of this rank's share."""

    def __init__(self, ranks: Ranks, title: str, total: int, unit: str) -> None:
        self._ranks, self._title, self._total, self._unit = ranks, title, total, unit
        self._done = self._rows = 0
        self._began = self._spoke = time.monotonic()
        share = f"{title}, rank 0 of {ranks.size}" if ranks.size > 1 else title
        terminal = ranks.rank == 0 and sys.stderr.isatty()
        width = shutil.get_terminal_size().columns
        style = {"unit": unit, "unit_scale": True, "leave": False, "ncols": width}
        self._bar = tqdm(total=total, desc=share, **style) if terminal else None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.close()

    def advance(self, amount: int, rows: int) -> None:
        """``amount`` more units and ``rows`` more rows are done. Raises CalledOff if another rank has failed."""
        self._ranks.check()
        self._done += amount
        self._rows += rows
        now = time.monotonic()
        rate = self._rows / max(now - self._began, 1e-9)
        if self._bar:
            self._bar.update(amount)
            self._bar.set_postfix_str(f"{rate / 1e6:.2f} M rows/s per rank", refresh=False)
        elif self._ranks.rank == 0 and now - self._spoke >= SECONDS_BETWEEN_LINES:
            self._spoke = now
            left = (now - self._began) * max(self._total - self._done, 0) / max(self._done, 1)
            print(
                f"{self._title}: {100 * self._done / max(self._total, 1):.0f} % of rank 0's share, "
                f"{rate / 1e6:.2f} M rows/s per rank, about {left / 60:.1f} min left",
                flush=True,
            )
