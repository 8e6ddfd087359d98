"""The record of a preparation: the manifest with its provenance, and a summary for a person.

It has no paths, no times and nothing that depends on the number of ranks, so equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np

from data_prep.files import file_checksum
from data_prep.preparation import Preparation
from data_prep.raw.text_stream import whole_digest
from data_prep.shards.gather import WrittenShard
from data_prep.splits import Ranges
from data_prep.vocabulary.scan import PieceRecord
from data_prep.vocabulary.vocabulary_file import STATED_MIN_COUNTS, Vocabulary
from ssmpi.data.features import CRITEO, Features
from ssmpi.data.schema import SPLITS, VOCABULARY_NAME, DatasetManifest, Split
from ssmpi.runtime.words import counted

KEYS = 2**64  # the range of hashes that are keys of a dynamic table, in place of ids


def source_checksums(records: Sequence[PieceRecord], sources: int) -> list[str]:
    """The checksum of each source, from those of its pieces."""
    return [whole_digest([r.digest for r in records if r.source == index]) for index in range(sources)]


def written_schema(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What ``schema.toml`` said, section by section, from the arguments of a preparation; empty for Criteo's rows."""
    schema = {name.removeprefix("schema."): value for name, value in arguments.items() if name.startswith("schema.")}
    if not schema:
        return {}
    rule = schema["label"] or {"column": "", "operator": ""}
    label = f"{rule['column']} {rule['operator']} {rule['value']!r}" if rule["operator"] else rule["column"]
    columns = {
        section: {name: _written_column(column) for name, column in schema.get(key, {}).items()}
        for section, key in (("dense", "dense"), ("categorical", "categorical"), ("list", "lists"))
    }
    table = {name: schema[name] for name in ("separator", "columns", "missing", "quoting") if schema.get(name)}
    of_rows = {"label": label, "time": schema["time"], "group": schema["group"]}
    return {**of_rows, "table": table, **columns, "split": _written_split(schema["split"])}


def _written_column(column: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in column.items() if value or (name == "missing" and value is not None)}
    return settings | {"hash": True} if settings.get("hash") == KEYS else settings


def _written_split(rule: Mapping[str, Any]) -> dict[str, Any]:
    found = {"by": rule["by"]}
    if rule["by"] in ("rows", "random"):
        return found | {"shares": rule["shares"]}
    if rule["by"] == "time":
        ends = [_date(end) for end in rule["until"]] if rule["type"] == "timestamp" else rule["until"]
        return found | dict(zip(("train_until", "validation_until"), ends, strict=False))
    values = {name: [v for v, split in rule["values"].items() if SPLITS[split] == name] for name in SPLITS}
    return found | {"column": rule["column"]} | {name: some for name, some in values.items() if some}


def _date(microseconds: float) -> date:
    moment = datetime.fromtimestamp(microseconds / 1e6, UTC).replace(tzinfo=None)
    return moment if moment.time() != time() else moment.date()


def skipped_rows(records: Sequence[PieceRecord]) -> dict[str, int]:
    """Skipped rows, by reason."""
    reasons = sorted({reason for record in records for reason in record.skipped})
    return {reason: sum(r.skipped.get(reason, [0])[0] for r in records) for reason in reasons}


def data_set_id(job: Preparation, records: Sequence[PieceRecord], vocabulary_checksum: str) -> str:
    """A fingerprint of arguments, sources and vocabulary; on every shard, so that two sets' shards cannot be mixed."""
    body = [job.identity, source_checksums(records, len(job.sources)), vocabulary_checksum]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:32]


def make_manifest(
    job: Preparation,
    records: Sequence[PieceRecord],
    ranges: Ranges,
    vocabulary: Vocabulary,
    written: Sequence[WrittenShard],
) -> DatasetManifest:
    """The manifest of a finished folder."""
    splits = {name: Split(tuple(w.entry for w in written if w.split == name), (rows,)) for name, rows in ranges.items()}
    files = {VOCABULARY_NAME: file_checksum(vocabulary.path)} | {w.entry.file: w.frame for w in written}
    checksums = source_checksums(records, len(job.sources))
    features = _with_lengths(job.format.features, written)
    fields = features.dense + features.sparse
    missing = [sum(r.missing[f] for r in records) for f in range(len(fields))]
    provenance = {
        "transform": job.format.transform,
        "arguments": job.identity,
        "rows": sum(r.rows for r in records),
        "sources": [
            {
                "name": source.name,
                "bytes": source.size,
                "rows": sum(r.rows for r in records if r.source == source.index),
                "checksum": checksums[source.index],
            }
            for source in job.sources
        ],
        "skipped": skipped_rows(records),
        "missing": dict(zip(fields, missing, strict=True)),
        "label_rate": {name: split.positives / split.rows for name, split in splits.items() if job.format.labelled},
        "vocabulary": _about_vocabulary(vocabulary),
        "files": files,
    }
    manifest = DatasetManifest(
        tuple(vocabulary.cardinalities), splits, job.format.labelled, json.loads(json.dumps(provenance)), features
    )
    return replace(manifest, provenance={**manifest.provenance, "manifest_checksum": manifest_checksum(manifest)})


def _with_lengths(features: Features, written: Sequence[WrittenShard]) -> Features:
    """The features with how many ids of each list a training row has on average."""
    training = [shard for shard in written if shard.split == "train"]
    if not (features.lists and training):
        return features
    means = np.sum([shard.listed for shard in training], axis=0) / sum(shard.entry.rows for shard in training)
    lists = {
        name: replace(features.lists[name], mean_length=float(mean))
        for name, mean in zip(features.list_names, means, strict=True)
    }
    return replace(features, lists=lists)


def _about_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    about = {k: v for k, v in vocabulary.about.items() if k not in ("format", "version", "cardinalities", "sizes")}
    sizes = vocabulary.about["sizes"]
    totals = {str(least): sum(row[i] for row in sizes) for i, least in enumerate(STATED_MIN_COUNTS)}
    return {**about, "tokens_with_min_count": totals}


def manifest_checksum(manifest: DatasetManifest) -> str:
    """SHA-256 of the manifest's content without this checksum itself, and without the features of Criteo's rows, which
    older versions did not record.
    """
    body = manifest.record()
    if manifest.features == CRITEO:
        del body["features"]
    provenance = {k: v for k, v in body["provenance"].items() if k != "manifest_checksum"}
    text = json.dumps({**body, "provenance": provenance}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def summary(job: Preparation, records: Sequence[PieceRecord], manifest: DatasetManifest) -> str:
    """A summary of the output for a person."""
    lines = []
    for name, split in manifest.splits.items():
        start, stop = split.row_ranges[0]
        rate = f", label rate {split.positives / split.rows:.4%}" if job.format.labelled else ""
        lines.append(
            f"{name}: {counted(split.rows, 'row')} in {counted(len(split.shards), 'shard')}{rate}, "
            f"source rows [{start:,}, {stop:,})"
        )
    return "\n".join(lines + skipped_lines(job, records) + job.format.remarks(records))


def skipped_lines(job: Preparation, records: Sequence[PieceRecord]) -> list[str]:
    """The same of skipped rows: a line for each reason."""
    lines = []
    for reason, count in skipped_rows(records).items():
        first = next(r for r in records if reason in r.skipped)
        place = job.format.place(job.sources[first.source], first.skipped[reason][1])
        lines.append(f"skipped {counted(count, 'row')}: {reason}; the first is {place}")
    return lines
