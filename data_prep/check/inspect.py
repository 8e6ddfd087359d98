"""``ssmpi-prepare inspect``: describes a prepared folder for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.check.verify import checked_shards
from data_prep.shards.provenance import written_schema
from data_prep.vocabulary.vocabulary_file import read_vocabulary
from ssmpi.data.schema import (
    MISSING_ID,
    RARE_ID,
    VOCABULARY_NAME,
    DatasetManifest,
    read_manifest,
)
from ssmpi.data.shard_columns import Columns
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.words import counted

FOLLOWED_IDS = 1 << 20  # ids are ordered by frequency, so the top ids are far below
TOP = 3


class Totals:
    """Totals over the rows of all shards."""

    def __init__(self, manifest: DatasetManifest) -> None:
        self.manifest, self.rows = manifest, 0
        dense, lists = len(manifest.features.dense), len(manifest.features.lists)
        self.lengths, self.longest, self.empty = (np.zeros(lists, np.int64) for _ in range(3))
        self.low, self.high, self.sums = np.full(dense, np.inf), np.full(dense, -np.inf), np.zeros(dense)
        self.counts = [np.zeros(min(c, FOLLOWED_IDS) + 1, dtype=np.int64) for c in manifest.cardinalities]

    def add(self, columns: Columns) -> None:
        """Add a block of rows."""
        dense, features = columns.dense, self.manifest.features
        self.rows += len(dense)
        self.low = np.minimum(self.low, dense.min(axis=0))
        self.high = np.maximum(self.high, dense.max(axis=0))
        self.sums += dense.sum(axis=0, dtype=np.float64)
        found = dict(zip(features.one_id, columns.ids.T, strict=True))
        if lists := columns.lists:
            of, lengths = lists.features, lists.lengths
            found |= {name: lists.ids[of == f] for f, name in enumerate(features.list_names)}
            self.lengths += lengths.sum(axis=0)
            self.longest = np.maximum(self.longest, lengths.max(axis=0))
            self.empty += (lengths == 0).sum(axis=0)
        for name, counts in zip(features.sparse, self.counts, strict=True):
            if name in features.keyed:
                continue
            followed = np.clip(found[name], 0, len(counts) - 1)
            counts += np.bincount(followed, minlength=len(counts))


def describe_folder(folder: Path) -> str:
    """Read all shards of a prepared folder and describe it. DataError if it is incomplete or damaged."""
    manifest = read_manifest(folder)
    totals = Totals(manifest)
    for columns, finding in checked_shards(folder, manifest):
        if columns is None or finding:
            raise DataError(f"{finding}; 'ssmpi-prepare verify {folder}' names all damaged files")
        if len(columns):
            totals.add(columns)
    lines = [*_splits(folder, manifest), ""]
    if manifest.features.dense:
        lines += [*_dense(manifest, totals), ""]
    lines += [*_sparse(folder, manifest, totals), ""]
    if manifest.features.lists:
        lines += [*_lists(manifest, totals), ""]
    return "\n".join([*lines, *_provenance(manifest)])


def _splits(folder: Path, manifest: DatasetManifest) -> list[str]:
    kind = "labelled" if manifest.labelled else "unlabelled"
    lines = [f"{folder}: {kind}, {counted(sum(s.rows for s in manifest.splits.values()), 'row')}"]
    lines.append(f"  {'split':<12}{'rows':>15}{'shards':>8}{'label rate':>12}  source rows")
    for name, split in manifest.splits.items():
        rate = f"{split.positives / max(split.rows, 1):.4%}" if manifest.labelled else "-"
        ranges = ", ".join(f"[{a:,}, {b:,})" for a, b in split.row_ranges)
        lines.append(f"  {name:<12}{split.rows:>15,}{len(split.shards):>8}{rate:>12}  {ranges}")
    return lines


def _share(count: int, rows: int) -> str:
    return f"{count / max(rows, 1):.2%}"


def _width(names: Sequence[str]) -> int:
    """Of a column of names."""
    return max(8, *(len(name) + 1 for name in names))


def _dense(manifest: DatasetManifest, totals: Totals) -> list[str]:
    width, transform = _width(manifest.features.dense), manifest.provenance.get("transform", "")
    head = f"  {'dense':<{width}}{'missing':>9}{'min':>10}{'mean':>10}{'max':>10}"
    lines = [f"{head}   {transform}"]
    missing = manifest.provenance.get("missing", {})
    rows = manifest.provenance.get("rows", totals.rows)
    for f, name in enumerate(manifest.features.dense):
        mean = totals.sums[f] / max(totals.rows, 1)
        gone = _share(missing[name], rows) if name in missing else "-"
        lines.append(f"  {name:<{width}}{gone:>9}{totals.low[f]:>10.3f}{mean:>10.3f}{totals.high[f]:>10.3f}")
    return lines


def _sparse(folder: Path, manifest: DatasetManifest, totals: Totals) -> list[str]:
    path = folder / VOCABULARY_NAME
    vocabulary = read_vocabulary(path) if path.exists() or "vocabulary" in manifest.provenance else None
    missing = manifest.provenance.get("missing", {})
    rows = manifest.provenance.get("rows", totals.rows)
    reserved = vocabulary is not None and vocabulary.reserved
    readable = {f: vocabulary.readable(f) for f in vocabulary.counted} if vocabulary else {}
    width = _width(manifest.features.sparse)
    what = "tokens: id token share" if any(readable.values()) else "ids: id share"
    lines = [f"  {'sparse':<{width}}{'ids':>12}{'missing':>9}{'rare':>9}   most frequent {what}"]
    for f, name in enumerate(manifest.features.sparse):
        gone = _share(missing[name], rows) if name in missing else "-"
        if name in manifest.features.keyed:
            lines.append(f"  {name:<{width}}{'keys':>12}{gone:>9}{'-':>9}   64-bit hashes of tokens")
            continue
        counts, every = totals.counts[f][:-1], int(totals.counts[f].sum())  # of a list feature: of its ids
        rare = _share(int(counts[RARE_ID]), every) if reserved and len(counts) > RARE_ID else "-"
        tokens = vocabulary.texts(f) if vocabulary and readable.get(f) else None
        first = 2 if reserved else 0
        assert MISSING_ID < RARE_ID < 2
        top = first + np.argsort(-counts[first:], kind="stable")[:TOP]
        words = ["" if tokens is None else f" {tokens(i - first)}" for i in top]
        texts = [f"{i}{word} {_share(int(counts[i]), every)}" for i, word in zip(top, words, strict=True)]
        lines.append(f"  {name:<{width}}{manifest.cardinalities[f]:>12,}{gone:>9}{rare:>9}   {', '.join(texts)}")
    lines.append(f"  {'all':<{width}}{sum(manifest.cardinalities):>12,}")
    if not all(readable.values()):
        lines.append("  Strings are stored as hashes, so their features show only ids.")
    return lines


def _lists(manifest: DatasetManifest, totals: Totals) -> list[str]:
    width = _width(manifest.features.list_names)
    lines = [f"  {'lists':<{width}}{'pooling':>10}{'ids a row':>11}{'longest':>9}{'allowed':>9}{'empty':>9}"]
    for f, name in enumerate(manifest.features.list_names):
        options = manifest.features.lists[name]
        pooling = "weighted" if options.weighted else options.pooling
        mean, empty = totals.lengths[f] / max(totals.rows, 1), _share(int(totals.empty[f]), totals.rows)
        lines.append(
            f"  {name:<{width}}{pooling:>10}{mean:>11.2f}{totals.longest[f]:>9,}{options.longest:>9,}{empty:>9}"
        )
    return lines


def _provenance(manifest: DatasetManifest) -> list[str]:
    about = manifest.provenance
    if not about:
        return []
    lines = ["made from"]
    for source in about.get("sources", []):
        size = f"{source['bytes']:,} bytes, {counted(source['rows'], 'row')}"
        lines.append(f"  {source['name']}: {size}, sha256 {source['checksum'][:16]}")
    lines += [f"  skipped {counted(count, 'row')}: {reason}" for reason, count in about.get("skipped", {}).items()]
    vocabulary = {k: v for k, v in about.get("vocabulary", {}).items() if k not in ("features", "table")}  # as above
    arguments = about.get("arguments", {})
    if arguments.get("fit_on") == "train" and not arguments.get("vocabulary"):
        vocabulary["fitted_rows"] = manifest.split("train").rows  # it records all rows, where rows say their split
    options = {name: value for name, value in arguments.items() if not name.startswith("schema.")}
    lines += ["vocabulary", *_facts(vocabulary), "arguments", *_facts(options)]
    schema = written_schema(arguments)
    return [*lines, "schema", *_facts(schema)] if schema else lines


def _facts(facts: Mapping[str, Any]) -> list[str]:
    """Lines of a name and its value; those of a dictionary below its name. What is empty is left out."""
    lines = []
    for name, value in _filled(facts):
        if isinstance(value, Mapping):
            lines += [f"  {name}", *(f"    {key} {_text(entry)}" for key, entry in _filled(value))]
        else:
            lines.append(f"  {name} {_text(value)}")
    return lines


def _filled(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in facts.items() if value not in (None, "", [], {})]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(entry)}" for name, entry in _filled(value))
    if isinstance(value, list):
        return ("; " if any(isinstance(entry, list) for entry in value) else ", ").join(map(_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, date):
        return str(value)
    return value if isinstance(value, str) and value.isprintable() and value.strip(" ,") else json.dumps(value)
