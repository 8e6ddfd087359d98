"""Small prepared data sets with something to learn in them: clicks come from a logistic model over ids and counts."""

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import numpy as np

from ssmpi.data.features import CRITEO, Features, ListOptions
from ssmpi.data.schema import DatasetManifest, ShardEntry, Split, read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns, Lists, read_columns

CARDINALITIES = tuple(int(c) for c in np.geomspace(4, 5_000, 26))
FEW = Features(("age", "price", "hour"), ("user", "item", "shop", "colour", "page"))
FEW_CARDINALITIES = (400, 300, 20, 9, 50)
WITH_LISTS = Features(
    ("age", "price"),
    ("user", "genres", "item", "tags", "words"),
    {
        "genres": ListOptions("mean", longest=4, mean_length=2.0),
        "tags": ListOptions("sum", longest=6, mean_length=3.0),
        "words": ListOptions("sum", weighted=True, longest=8, mean_length=4.0),
    },
)
LIST_CARDINALITIES = (300, 12, 200, 90, 400)


def make_dataset(folder, rows, seed=0, shard=6_000, cardinalities=CARDINALITIES, labelled=True, features=CRITEO):
    """``rows`` rows to train on and a tenth of that in ``validation`` and in ``test``. Returns the folder."""
    folder, generator = Path(folder), np.random.default_rng(seed)
    effects = [generator.normal(size=c) * 0.5 for c in cardinalities]
    splits = {}
    for split, total in (("train", rows), ("validation", rows // 10), ("test", rows // 10)):
        entries = []
        for number, start in enumerate(range(0, total, shard)):
            ids, dense, label = draw(generator, effects, min(shard, total - start), len(features.dense))
            entries.append(write(folder, split, number, ids, dense, label, labelled))
        splits[split] = Split(tuple(entries))
    write_manifest(folder, DatasetManifest(tuple(cardinalities), splits, labelled, features=features))
    return folder


def name_group(folder, feature):
    """Let a data set have groups, the ids of a feature, as ``ssmpi-prepare table`` records it. Returns the folder."""
    body = json.loads((folder / "manifest.json").read_text())
    body["provenance"] = {"arguments": {"schema.group": feature}}
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


def make_halves(folder, rows, run_of, seed=0):
    """Rows of two kinds, ``run_of`` of each in turn: one count decides the label in either kind, and the
    other's is 0.
    """
    folder, generator = Path(folder), np.random.default_rng(seed)
    effects = [generator.normal(size=c) * 0.3 for c in CARDINALITIES]
    splits = {}
    for split, total in (("train", rows), ("test", rows // 10)):
        ids, dense, _ = draw(generator, effects, total)
        kind = np.arange(total) // run_of % 2
        deciding = dense[np.arange(total), kind].copy()
        dense[np.arange(total), 1 - kind] = 0.0
        logit = -4.2 + sum(effect[ids[:, f]] for f, effect in enumerate(effects)) + 3.0 * deciding
        label = (generator.random(total) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
        splits[split] = Split((write(folder, split, 0, ids, dense, label),))
    write_manifest(folder, DatasetManifest(CARDINALITIES, splits, True))
    return folder


def make_lists_dataset(folder, rows, seed=0, shard=700, features=WITH_LISTS, cardinalities=LIST_CARDINALITIES):
    """As ``make_dataset``, with lists of 0 to ``longest`` ids, some of them more than once. Returns the folder."""
    folder, generator = Path(folder), np.random.default_rng(seed)
    effects = {n: generator.normal(size=c) * 0.5 for n, c in zip(features.sparse, cardinalities, strict=True)}
    splits = {}
    for split, total in (("train", rows), ("validation", rows // 10), ("test", rows // 10)):
        entries = []
        for number, start in enumerate(range(0, total, shard)):
            columns = draw_lists(generator, effects, features, min(shard, total - start))
            name = f"{split}/shard-{number:05}.h5"
            size, checksum = write_shard(folder / name, columns, {"split": split})
            positives = int(columns.label.sum())
            entries.append(ShardEntry(name, len(columns), positives, size, checksum, len(columns.lists.ids)))
        splits[split] = Split(tuple(entries))
    write_manifest(folder, DatasetManifest(tuple(cardinalities), splits, True, features=features))
    return folder


def draw_lists(generator, effects, features, rows):
    """Columns; clicks depend on the pooled effects."""
    ids = np.array([generator.integers(len(effects[n]), size=rows) for n in features.one_id]).reshape(-1, rows).T
    dense = np.log1p(generator.exponential(5.0, (rows, len(features.dense)))).astype(np.float32)
    logit = (
        -0.5
        + 0.3 * dense[:, :1].sum(axis=1)
        + sum(effects[n][ids[:, f].astype(int)] for f, n in enumerate(features.one_id))
    )
    names = features.list_names
    lengths = np.stack([generator.integers(features.lists[n].longest + 1, size=rows) for n in names], axis=1)
    ends = lengths.cumsum().reshape(lengths.shape)
    of = np.repeat(np.tile(np.arange(len(names)), rows), lengths.reshape(-1))
    limits = np.array([len(effects[n]) for n in names])
    listed = (generator.pareto(1.0, len(of)) * 4).astype(np.int64) % limits[of]
    weights = np.where([features.lists[names[f]].weighted for f in of], generator.random(len(of)), 1).astype(np.float32)
    each = weights * np.array([effects[names[f]][i] for f, i in zip(of, listed, strict=True)])
    logit += np.bincount(np.repeat(np.arange(rows), lengths.sum(axis=1)), each, rows)
    label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
    lists = Lists(listed.astype(np.int32), ends.astype(np.int64), weights if features.weighted else None)
    return Columns(ids.astype(np.int32), dense, label, lists)


def make_keyed(folder, data, keyed):
    """The rows of ``data`` with the ids of the ``keyed`` features as 64-bit keys. Returns the folder."""
    manifest = read_manifest(data)
    features = dataclasses.replace(manifest.features, keyed=keyed)
    plain, keys = [manifest.features.sparse.index(name) for name in features.one_id], list(features.key_columns)
    splits = {}
    for split in manifest.splits:
        entries = []
        for entry in manifest.split(split).shards:
            with h5py.File(data / entry.file) as shard:
                found = read_columns(shard, 0, entry.rows)
            columns = Columns(found.ids[:, plain], found.dense, found.label, keys=found.ids[:, keys].astype(np.int64))
            size, checksum = write_shard(folder / entry.file, columns, {"split": split})
            entries.append(dataclasses.replace(entry, bytes=size, checksum=checksum))
        splits[split] = Split(tuple(entries))
    sizes = [0 if name in keyed else n for name, n in zip(features.sparse, manifest.cardinalities, strict=True)]
    write_manifest(folder, DatasetManifest(tuple(sizes), splits, features=features))
    return folder


def only(folder, data, shards):
    """A data set of some of the training shards of another one."""
    shutil.copytree(data, folder)
    manifest = read_manifest(data)
    train = Split(manifest.split("train").shards[shards])
    write_manifest(folder, dataclasses.replace(manifest, splits={**manifest.splits, "train": train}))
    return folder


def write(folder, split, number, ids, dense, label, labelled=True):
    """Write one shard; its entry in the manifest."""
    name = f"{split}/shard-{number:05}.h5"
    size, checksum = write_shard(folder / name, Columns(ids, dense, label if labelled else None), {"split": split})
    return ShardEntry(name, len(ids), int(label.sum()), size, checksum)


def draw(generator, effects, rows, dense_features=13):
    """ids int32 (rows, effects) with a long tail, dense float32 (rows, dense_features), label uint8 (rows,)."""
    tails = generator.pareto(1.0, (rows, len(effects))) * 2
    ids = np.minimum(tails, [len(e) - 1 for e in effects]).astype(np.int32)
    dense = np.log1p(generator.exponential(5.0, (rows, dense_features))).astype(np.float32)
    logit = -1.2 + 0.5 * sum(effect[ids[:, f]] for f, effect in enumerate(effects)) + 0.3 * dense[:, :1].sum(axis=1)
    label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
    return ids, dense, label


def flip_a_value(shard):
    """Flip one bit of one count, so that only a checksum over the shard's contents can tell."""
    with h5py.File(shard) as file:
        offset = file["dense"].id.get_offset()
    content = bytearray(shard.read_bytes())
    content[offset] ^= 1
    shard.write_bytes(content)


def write_counts(data, sizes, **more):
    """A vocabulary of Criteo's features, whose tokens occur three times, twice and then once each, in as many rows as
    all have.
    """
    with h5py.File(data / "vocabulary.h5", "w") as file:
        file.attrs["about"] = json.dumps({"fitted_rows": sum(sizes), **more})
        for n, size in enumerate(sizes):
            file[f"C{n + 1}/count"] = [3, 2, *[1] * (size - 4)]
