"""Runs from Python, in a notebook for instance::

from ssmpi import Run
done = Run("run.toml", sync={"algorithm": "ma"}).launch()
done.result["status"], done.metrics["train"]["ne"], done.scores("test").probabilities

Everything that computes is the command of the same name in a process of its own, so that this process never enters MPI.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from ssmpi.config import load
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import LaunchError, SettingsError, UserError
from ssmpi.runtime.files import run_files
from ssmpi.runtime.files.run_files import METRICS, RESULT_NAME, RUN_FILE
from ssmpi.runtime.host.mpi_environment import PYTHON
from ssmpi.runtime.settings import flat
from ssmpi.tools.report.record import read_json

REFUSED = 2  # exit code of errors that the user can fix
REMEMBERED = 40  # last lines of a command, of which a message is made


class Scores(NamedTuple):
    """Of the rows of a split, in order: ``labels`` float32 (rows,), NaN in unlabelled data, ``probabilities`` float64
    (rows,) to 8 decimals.
    """

    labels: np.ndarray
    probabilities: np.ndarray


class Run:
    """A run file, with settings over it: sections by keyword, or texts as on the command line (``"data.passes=2"``).
    SettingsError, at once, says what is wrong with them.
    """

    def __init__(self, run_file: str | Path, *overrides: str, **sections: Mapping[str, Any]) -> None:
        self.file = Path(run_file)
        self.overrides = [*overrides, *_as_overrides(sections)]
        self.folder = Path(load(self.file, self.overrides).run.folder)

    def plan(self) -> str:
        """What ``ssmpi plan`` prints: ranks, network, memory and traffic."""
        lines: list[str] = []
        _call(["plan", self.file, *self.overrides], lines.append)
        return "\n".join(lines)

    def launch(
        self, *, overwrite: bool = False, resume: bool = False, site: str | Path | None = None, quiet: bool = False,
        ignore_memory: bool = False,
    ) -> Result:  # fmt: skip
        """Train to the end by ``ssmpi launch``, whose lines are printed unless ``quiet``. An interrupt saves and stops
        the run. UserError, or LaunchError for a run that ended otherwise, with the launcher's message.
        """
        start = ["--resume", self.folder, *self.overrides] if resume else [self.file, *self.overrides]
        options = ["--overwrite"] * overwrite + ["--ignore-memory"] * ignore_memory + (["--site", site] if site else [])
        _call(["launch", *start, *options], (lambda line: None) if quiet else partial(print, flush=True))
        return Result(self.folder)

    @staticmethod
    def open(folder: str | Path) -> Result:
        """A run that was trained before; DataError if there is none."""
        run_files.check(Path(folder), RUN_FILE)
        return Result(Path(folder))


class Result:
    """What a run has left in its ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r})"

    @property
    def result(self) -> dict[str, Any]:
        """``result.json``: status, final scores, bytes, recoveries. DataError while there is none."""
        found: dict[str, Any] = read_json(self.folder / RESULT_NAME)
        return found

    @property
    def metrics(self) -> dict[str, dict[str, np.ndarray]]:
        """``metrics.jsonl``: for each kind of line its fields (``jobs/guide/metrics.md``), each one array (lines,):
        float64, NaN where a line lacks it, or objects where it is not a number.
        """
        lines: dict[str, list[dict[str, Any]]] = {}
        for text in (self.folder / METRICS).read_text(encoding="utf-8").splitlines(keepends=True):
            if text.endswith("\n"):  # a run that goes on may have written half of its last one
                line = parse_json(text)
                lines.setdefault(line.pop("kind"), []).append(line)
        return {kind: _columns(some) for kind, some in lines.items()}

    def scores(self, split: str = "test", data: str | Path | None = None) -> Scores:
        """Score a split of the run's data, or of another prepared folder, by ``ssmpi predict``."""
        from ssmpi.data.reader import SplitReader
        from ssmpi.state.checkpoint import model_files
        from ssmpi.state.checkpoint.data_origin import DataOrigin

        setting = load(self.folder / RUN_FILE, to_train=False).data.folder
        where = Path(data) if data else DataOrigin.of_model(model_files.find(self.folder), setting).find(setting)
        with tempfile.TemporaryDirectory() as beside:
            file = Path(beside) / "scores"
            _call(["predict", self.folder, where, "--split", split, "--output", file])
            probabilities = np.loadtxt(file, ndmin=1)
        reader = SplitReader(where, split, 1 << 20)
        labels = [np.empty(0, np.float32), *(reader.read(block).labels for block in reader.blocks)]
        return Scores(np.concatenate(labels), probabilities)


def _as_overrides(sections: Mapping[str, Any]) -> Iterator[str]:
    """Settings as the command line has them."""
    for name, value in flat(sections).items():
        if "." not in name:
            raise SettingsError(
                f"{name}={value!r}: a section is a mapping of its keys, such as sync={{'algorithm': 'ma'}}"
            )
        plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
        try:
            yield f"{name}={tomli_w.dumps({'value': plain}).removeprefix('value = ').strip()}"
        except TypeError as error:
            raise SettingsError(f"{name} = {value!r}: a run file has no such values: {error}") from None


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    found = {}
    for name in dict.fromkeys(name for line in lines for name in line):
        values = [line.get(name) for line in lines]
        number = all(value is None or isinstance(value, int | float) for value in values)
        found[name] = np.array(values, np.float64 if number else object)
    return found


def _call(words: Sequence[object], show: Callable[[str], object] = lambda line: None) -> None:
    """Run a command, and ``show`` each line that it prints. UserError or LaunchError if it fails; an interrupt is
    passed on to it, and raised again once it has ended.
    """
    last, interrupted = deque[str](maxlen=REMEMBERED), False
    command = [*PYTHON, "-m", "ssmpi", *map(str, words)]
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # in a session of its own, an interrupt of this process's whole group reaches it once: from here
    with subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **pipes) as job:
        assert job.stdout
        while True:
            try:
                if not (line := job.stdout.readline()):
                    break
                last.append(line.rstrip("\n"))
                show(last[-1])
            except KeyboardInterrupt:
                interrupted = True
                job.send_signal(signal.SIGINT)
        code = job.wait()
    if interrupted:
        raise KeyboardInterrupt
    if code:
        error = UserError if code == REFUSED else LaunchError
        raise error(_message(last) or f"'ssmpi {words[0]}' ended with exit code {code}")


def _message(lines: Sequence[str]) -> str:
    """What went wrong, of the last lines: from the first error on, or all."""
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), 0)
    return "\n".join(list(lines)[first:]).removeprefix("error: ").strip()
