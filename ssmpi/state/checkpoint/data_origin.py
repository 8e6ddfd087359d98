"""The data that a model belongs to, saved with the model: a run folder can then be moved and scored without its
training data, and ids of another vocabulary are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmpi.data.features import CRITEO, Features
from ssmpi.data.schema import (
    EXTENDS,
    MANIFEST_NAME,
    VOCABULARY_NAME,
    DatasetManifest,
    check_cardinalities,
    read_manifest,
)
from ssmpi.runtime.errors import DataError, json_problem
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.checkpoint import model_files, store

SHOWN = 3  # features of a kind, in a message
KEY = "data"  # in the state of a model's or checkpoint's manifest


@dataclass(frozen=True)
class DataOrigin:
    """``folder`` is the absolute path that the data had: a hint. ``vocabulary`` is the SHA-256 of its
    ``vocabulary.h5``, None if its manifest does not record it.
    """

    folder: str
    cardinalities: tuple[int, ...]
    vocabulary: str | None
    features: Features = CRITEO

    @classmethod
    def of_data(cls, folder: Path, manifest: DatasetManifest | None = None) -> DataOrigin:
        """The origin of a model that is trained on the data in ``folder``."""
        manifest = manifest or read_manifest(folder)
        return cls(str(folder.resolve()), manifest.cardinalities, vocabulary_checksum(manifest), manifest.features)

    @classmethod
    def of_model(cls, model: Path, setting: str) -> DataOrigin:
        """The origin saved with a model or checkpoint; if an older version saved none, that of the data in ``setting``,
        the run's ``data.folder``.
        """
        saved = store.read_manifest(model).state.get(KEY)
        if saved is None:
            try:
                return cls.of_data(Path(setting))
            except DataError as error:
                raise DataError(f"{model}: an older version saved it, so its data folder is needed. {error}") from error
        try:
            cardinalities, named = tuple(map(int, saved["cardinalities"])), saved.get("features")
            features = Features.recorded(**named) if named else CRITEO
            check_cardinalities(cardinalities, features)
            return cls(str(saved["folder"]), cardinalities, saved["vocabulary"], features)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"state.{KEY}: {json_problem(error)}"
            raise DataError(
                f"{model / store.MANIFEST_NAME}: damaged: {problem}. {model_files.remedy(model)}"
            ) from error

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        state: dict[str, Any] = json.loads(json.dumps(asdict(self) | {"features": self.features.record()}))
        return state

    def find(self, setting: str) -> Path:
        """The data folder: ``setting``, the run's ``data.folder``, if it exists relative to the current folder; else
        its saved path.
        """
        if (Path(setting) / MANIFEST_NAME).is_file():
            return Path(setting)
        if (Path(self.folder) / MANIFEST_NAME).is_file():
            say(f"{setting}: no data folder here; taking {self.folder}")
            return Path(self.folder)
        raise DataError(
            f"no data folder {setting} here, and none at {self.folder} any more, where this model was trained: name one"
            " (evaluate --data, predict --vocabulary)"
        )

    def check(self, folder: Path, manifest: DatasetManifest) -> None:
        """Raise DataError if a data folder has other ids than this model, or other features."""
        self._check_features(folder, manifest)
        self._compare(folder, manifest.cardinalities, vocabulary_checksum(manifest))

    def check_extended(self, folder: Path, manifest: DatasetManifest) -> None:
        """Raise DataError unless the ids of a data folder begin with this model's: its vocabulary is the same one, or
        extends it, and it has the same features.
        """
        self._check_features(folder, manifest)
        if self.vocabulary not in extended_by(manifest):
            own, has = vocabulary_checksum(manifest), manifest.cardinalities
            if (own == self.vocabulary or not (own and self.vocabulary)) and has == self.cardinalities:
                return
            raise DataError(
                f"{folder}: its vocabulary is not that of {self.folder}, on which the model was trained, and does not"
                f" extend it ({sum(has):,} ids in all, the model {sum(self.cardinalities):,}): its ids mean other"
                f" tokens. Prepare it with --extend-vocabulary {self.folder}"
            )

    def _check_features(self, folder: Path, manifest: DatasetManifest) -> None:
        if manifest.features != self.features:
            raise DataError(
                f"{folder}: other features ({described(manifest.features)}) than the data this model was trained on "
                f"({described(self.features)}): name data with the same ones"
            )

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


def described(features: Features) -> str:
    """Features in words, shortened for messages."""
    dense, sparse = features.dense, features.sparse
    keyed = f"; {len(features.keyed)} with keys, {shown(features.keyed)}" if features.keyed else ""
    return f"{len(dense)} dense, {shown(dense)}; {len(sparse)} sparse, {shown(sparse)}{keyed}"


def shown(names: Sequence[str]) -> str:
    """The first few of many names."""
    return ", ".join([*names[:SHOWN], *(["..."] * (len(names) > SHOWN))]) or "none"


def extended_by(manifest: DatasetManifest) -> list[str]:
    """SHA-256 of the vocabularies that the data set's vocabulary extends: their ids mean the same in both."""
    about = manifest.provenance.get("vocabulary")
    found = about.get(EXTENDS) if isinstance(about, Mapping) else None
    return found if isinstance(found, list) else []


def vocabulary_checksum(manifest: DatasetManifest) -> str | None:
    """SHA-256 of the data set's vocabulary file; None for a set that ``ssmpi-prepare`` did not make."""
    files = manifest.provenance.get("files")
    found = files.get(VOCABULARY_NAME) if isinstance(files, Mapping) else None
    return found if isinstance(found, str) else None
