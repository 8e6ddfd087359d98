"""``python -m jobs.lab study``: runs every cell of a grid as a separate mpirun job, then makes one table.

A study can be killed at any moment and resumed: the marker of a run shows that its cell is finished. A failed cell does
not end the study; it is reported at the end, and retried next time.
"""

from __future__ import annotations

import time
from pathlib import Path

from tqdm import tqdm

from jobs.lab.study import cell as cells
from jobs.lab.study import results
from jobs.lab.study.grid import Cell, Study
from ssmpi.runtime.errors import STOPPED, SettingsError
from ssmpi.runtime.files.log import log, terminal
from ssmpi.tools.report.record import read

Failures = dict[str, str]


def describe(study: Study) -> str:
    """All cells with number and state."""
    lines = [
        f"{cell.number:>4}  {'finished' if cells.finished(cell) else 'to do':8}  {cell.name}" for cell in study.cells
    ]
    return "\n".join([*lines, f"{len(lines)} cells, 0 to {len(lines) - 1}, in {study.folder}"])


def run_one(study: Study, number: int) -> int:
    """Run one cell, for array jobs; its exit code."""
    if not 0 <= number < len(study.cells):
        raise SettingsError(f"--cell {number}: {study.path} has cells 0 to {len(study.cells) - 1}")
    try:
        return cells.run(study, study.cells[number])
    except cells.CellError as error:
        log.error("cell %d, %s: %s", number, study.cells[number].name, error)
        return 1


def run_all(study: Study) -> int:
    """Run the unfinished cells, seed by seed, then make the table: cells that are compared by pairs of seeds see the
    same host, and a study that is stopped has complete pairs. Returns 0, 1 with failed cells, 85 after a request to
    stop.
    """
    seeds = list(dict.fromkeys(cell.config.run.seed for cell in study.cells))
    todo = [cell for cell in study.cells if not cells.finished(cell)]
    todo.sort(key=lambda cell: seeds.index(cell.config.run.seed))
    done = [cell for cell in study.cells if cell not in todo]
    log.info("%s: %d cells, %d of them finished", study.options.title, len(study.cells), len(done))
    for cell in done:
        cells.tidy(study, cell)  # left by a killed study
    failures: Failures = {}
    progress = StudyProgress(len(study.cells), len(todo))
    for cell in todo:
        progress.begin(cell)
        try:
            if cells.run(study, cell) == STOPPED:
                progress.close()
                log.info("stopped as asked; the same command resumes with cell %d", cell.number)
                return STOPPED
            progress.end(said(cell))
        except cells.CellError as error:
            failures[cell.name] = str(error)
            progress.end(f"cell {cell.number}, {cell.name}: FAILED: {error}")
    progress.close()
    return conclude(study, failures)


def conclude(study: Study, failures: Failures | None = None) -> int:
    """Write and print the results of the finished cells; returns 1 if any cell is unfinished."""
    failures = failures or {}
    missing = [cell for cell in study.cells if not cells.finished(cell)]
    if len(missing) == len(study.cells):
        log.error("no cell of %s is finished: no table", study.path)
    else:
        text, files = results.write(study, missing)
        print(text)
        log.info("written: %s", ", ".join(map(str, files)))
    for cell in missing:
        log.error("cell %d, %s: %s", cell.number, cell.name, failures.get(cell.name, "not finished"))
    return 1 if missing else 0


def said(cell: Cell) -> str:
    """One line about a finished cell."""
    record = read(Path(cell.config.run.folder))
    return (
        f"cell {cell.number}, {cell.name}: NE {record.number('ne'):.5f}, {record.number('eps'):,.0f} EPS, "
        f"{record.number('seconds'):.0f} s of training"
    )


class StudyProgress:
    """A bar over all cells on a terminal, a line per cell in a batch log; both with the remaining time."""

    def __init__(self, cells: int, todo: int) -> None:
        self._todo, self._done, self._began = todo, 0, time.monotonic()
        self._bar = tqdm(
            total=cells,
            initial=cells - todo,
            unit="cell",
            dynamic_ncols=True,
            file=terminal(),
            disable=terminal() is None,
        )

    def begin(self, cell: Cell) -> None:
        """Show the cell that starts."""
        self._bar.set_postfix_str(cell.name)

    def end(self, text: str) -> None:
        """One more cell has finished or failed."""
        self._done += 1
        self._bar.update()
        if self._bar.disable:
            left = (time.monotonic() - self._began) / self._done * (self._todo - self._done)
            log.info("%s; %d to do, about %s left", text, self._todo - self._done, tqdm.format_interval(left))
        else:
            self._bar.write(text, file=terminal())

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
