"""Which data a model belongs to. It is saved with the model, so that a run folder can be moved and scored without the
data that it was trained on, and ids of another vocabulary are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmpi.checkpoint import model_files, store
from ssmpi.comm.failure import say
from ssmpi.core.errors import DataError, json_problem
from ssmpi.data.schema import MANIFEST_NAME, VOCABULARY_NAME, Manifest, read_manifest

KEY = "data"  # in the state of a model's or checkpoint's manifest


@dataclass(frozen=True)
class DataOrigin:
    """``folder`` is where the data was, absolute: a hint. ``vocabulary`` is the SHA-256 of its ``vocabulary.h5``, None
    where its manifest does not say.
    """

    folder: str
    cardinalities: tuple[int, ...]
    vocabulary: str | None

    @classmethod
    def of_data(cls, folder: Path, manifest: Manifest | None = None) -> DataOrigin:
        """Of a model that is trained on the data in ``folder``."""
        manifest = manifest or read_manifest(folder)
        return cls(str(folder.resolve()), manifest.cardinalities, vocabulary_checksum(manifest))

    @classmethod
    def of_model(cls, model: Path, setting: str) -> DataOrigin:
        """Of a saved model or checkpoint; of the data in ``setting``, its run's ``data.folder``, where an older version
        saved it without.
        """
        saved = store.read_manifest(model).state.get(KEY)
        if saved is None:
            try:
                return cls.of_data(Path(setting))
            except DataError as error:
                raise DataError(f"{model}: an older version saved it, so its data folder is needed. {error}") from error
        try:
            return cls(str(saved["folder"]), tuple(map(int, saved["cardinalities"])), saved["vocabulary"])
        except (KeyError, TypeError, ValueError) as error:
            problem = f"state.{KEY}: {json_problem(error)}"
            raise DataError(
                f"{model / store.MANIFEST_NAME}: damaged: {problem}. {model_files.remedy(model)}"
            ) from error

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "cardinalities": list(self.cardinalities)}

    def find(self, setting: str) -> Path:
        """The data folder: ``setting``, the run's ``data.folder``, if it is one seen from here; else where it was."""
        if (Path(setting) / MANIFEST_NAME).is_file():
            return Path(setting)
        if (Path(self.folder) / MANIFEST_NAME).is_file():
            say(f"{setting}: no data folder here; taking {self.folder}")
            return Path(self.folder)
        raise DataError(
            f"no data folder {setting} here, and none at {self.folder} any more, where this model was trained: name one"
            " (evaluate --data, predict --vocabulary)"
        )

    def check(self, folder: Path, manifest: Manifest) -> None:
        """Raise DataError if a data folder has other ids than this model."""
        self._compare(folder, manifest.cardinalities, vocabulary_checksum(manifest))

    def check_vocabulary(self, path: Path) -> Path:
        """Raise DataError if a vocabulary file, or that of a data folder, gives other ids than this model's;
        its path.
        """
        from data_prep.files import file_checksum
        from data_prep.vocabulary.vocabulary_file import read_vocabulary

        vocabulary = read_vocabulary(path)
        self._compare(vocabulary.path, tuple(vocabulary.cardinalities), file_checksum(vocabulary.path))
        return vocabulary.path

    def _compare(self, path: Path, cardinalities: tuple[int, ...], vocabulary: str | None) -> None:
        if cardinalities != self.cardinalities:
            what = f"{sum(cardinalities):,} ids in all, the model {sum(self.cardinalities):,}"
        elif vocabulary and self.vocabulary and vocabulary != self.vocabulary:
            what = f"SHA-256 {vocabulary[:12]}..., the model's {self.vocabulary[:12]}..."
        else:
            return
        raise DataError(
            f"{path}: another vocabulary than that of the data this model was trained on ({what}): its ids mean other"
            f" tokens. Use the vocabulary.h5 of that data (it was in {self.folder}), or data prepared with it"
            " (ssmpi-prepare criteo --vocabulary)"
        )


def vocabulary_checksum(manifest: Manifest) -> str | None:
    """SHA-256 of the data set's vocabulary file; None for a set that ``ssmpi-prepare`` did not make."""
    files = manifest.provenance.get("files")
    found = files.get(VOCABULARY_NAME) if isinstance(files, Mapping) else None
    return found if isinstance(found, str) else None
