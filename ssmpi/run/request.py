"""Which run a command is about: of a run file, of a run folder, or both. Loads without MPI, for the launcher."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ssmpi.config import Config, load
from ssmpi.core.errors import SettingsError
from ssmpi.core.run_files import BATCH_FILE, RUN_FILE


@dataclass(frozen=True)
class Request:
    """What the command line asks for: a run file with overrides, or a run folder to go on with, or both."""

    run_file: Path | None
    overrides: Sequence[str]
    overwrite: bool = False
    run: Path | None = None
    checkpoint: str | None = None

    def load(self) -> Config:
        """The settings; without a run file those that the run was started with."""
        if not self.run:
            assert self.run_file
            return load(self.run_file, self.overrides)
        saved = self.run / RUN_FILE
        if not self.run_file and not saved.is_file():
            raise SettingsError(
                f"{saved}: no such file, so no run to go on with; name a run file too, to start one there"
            )
        return load(self.run_file or saved, (*self.overrides, f"run.folder={json.dumps(str(self.run))}"))

    def overridden(self) -> set[str]:
        """Names of the settings that the command line gives."""
        return {override.partition("=")[0].strip() for override in self.overrides}

    def to_resume(self, folder: Path, site_file: Path | None) -> str:
        """The command that resumes this request's run, which stopped in ``folder``."""
        if "SLURM_JOB_ID" in os.environ and (folder / BATCH_FILE).is_file():
            return shlex.join(["sbatch", str(folder / BATCH_FILE)])
        words = ["--resume", str(folder)] if (folder / RUN_FILE).is_file() else self.words()
        return shlex.join(["ssmpi", "launch", *words, *(["--site", str(site_file)] if site_file else [])])

    def words(self) -> list[str]:
        """The same request as words for ``ssmpi train``."""
        options = {"--resume": self.run, "--checkpoint": self.checkpoint}
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        file = [str(self.run_file)] if self.run_file else []
        return [*file, *given, *(["--overwrite"] if self.overwrite else []), *self.overrides]
