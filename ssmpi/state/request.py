"""The run that a command is about: a run file, a run folder, or both. Imports no MPI: the launcher needs it too."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssmpi.config import Config, load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.run_files import RUN_FILE
from ssmpi.runtime.host import schedulers
from ssmpi.state.recovery.start import Supervised


@dataclass(frozen=True)
class RunRequest:
    """What the command line asks for: a run file with overrides, or a run folder to resume, or both; ``supervised`` by
    a launch that restarts the job after a kill; to stop before ``max_hours`` are over.
    """

    run_file: Path | None
    overrides: Sequence[str]
    overwrite: bool = False
    run: Path | None = None
    checkpoint: str | None = None
    supervised: Supervised | None = None
    max_hours: float | None = None

    def load(self) -> Config:
        """Load the settings; without a run file, those that the run was started with."""
        if not self.run:
            assert self.run_file
            return load(self.run_file, self.overrides)
        if self.run.is_file():
            raise SettingsError(f"{self.run}: a file; --resume takes a run folder")
        if "run.folder" in self.overridden():
            raise SettingsError(f"--resume {self.run} is the run's folder: leave run.folder=... out")
        saved = self.run / RUN_FILE
        if not self.run_file and not saved.is_file():
            raise SettingsError(
                f"{saved}: no such file, so there is no run to resume; name a run file too, to start one there"
            )
        overrides = (*self.overrides, f"run.folder={json.dumps(str(self.run))}")
        return load(self.run_file or saved, overrides, resumed=saved if saved.is_file() else None)

    def overridden(self) -> set[str]:
        """Names of the settings given on the command line."""
        return {override.partition("=")[0].strip() for override in self.overrides}

    def resume_command(self, folder: Path, site_file: Path | None) -> str:
        """The command that resumes this run, which stopped in ``folder``."""
        if (scheduler := schedulers.current()) and (folder / scheduler.batch_file).is_file():
            return scheduler.submission(folder)
        words = ["--resume", str(folder)] if (folder / RUN_FILE).is_file() else self.words()
        return shlex.join(["ssmpi", "launch", *words, *(["--site", str(site_file)] if site_file else [])])

    def words(self) -> list[str]:
        """The same request as arguments of ``ssmpi train``."""
        supervised = self.supervised.word if self.supervised else None
        options: dict[str, object] = {"--resume": self.run, "--checkpoint": self.checkpoint, "--supervised": supervised}
        options["--max-hours"] = self.max_hours
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        file = [str(self.run_file)] if self.run_file else []
        return [*file, *given, *(["--overwrite"] if self.overwrite else []), *self.overrides]
