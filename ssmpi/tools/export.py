"""``ssmpi export``: writes a run's model for other programs: as ONNX (``export_onnx``), or as one file of tensors in
the layout of facebookresearch/dlrm::

emb_l.{feature}.weight   (rows, dim)      bot_l.{0,2,...}.weight, .bias      top_l.{0,2,...}.weight, .bias

Further parameters of other networks keep their names (``ssmpi plan`` prints them); first-order weights of tables are
``first_l.{feature}.weight`` (rows, 1).

Rows of a dynamic table follow its keys: ``keys.{feature}`` int64 (n,), ascending. Its tensors have the row of a missing
value, the row that all other keys share, then those of the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ssmpi.config import Config, load
from ssmpi.model.parameters import by_name
from ssmpi.model.replica import Replica
from ssmpi.model.top_k import Threshold, TopK
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import atomic_file, run_files
from ssmpi.runtime.files.run_files import EXPORTS, MODEL, RUN_FILE
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.checkpoint import model_files, saved_network
from ssmpi.state.checkpoint.parent import checksum
from ssmpi.state.checkpoint.saved_tables import TableRows, read_tables
from ssmpi.tools import export_onnx, tensor_files
from ssmpi.tools.tensor_files import MODEL_KEY

REFERENCE = "dlrm"  # the network that facebookresearch/dlrm has
NAMES = {"bottom": "bot_l", "top": "top_l"}  # of the MLPs, in ssmpi and in the reference

Write = Callable[[Config, Path, Path], str]  # a model's folder, the file to write; says what was written


def export(run: Path, kind: str, file: Path | None) -> int:
    """Write the model of ``run`` as ``kind`` to ``file``, which appears once complete. It must fit in memory."""
    folder, target = newest(run), file or run / EXPORTS[kind]
    write, mark = FORMATS[kind]
    atomic_file.check_replaceable(target, mark)
    atomic_file.check(target)
    model_files.check_in_one_process(folder)
    config = saved_network.of_model(load(run / RUN_FILE, to_train=False), folder)
    print(f"{write(config, folder, target)}, from {folder}")
    return 0


def newest(run: Path) -> Path:
    """The model of a run, or its newest checkpoint, with a message that says so."""
    run_files.check(run, RUN_FILE)
    folder = model_files.find(run)
    if folder != run / MODEL:
        say(f"{run}: not finished; exporting {folder.name}")
    return folder


def write_tensors(
    save: Callable[[Mapping[str, np.ndarray], Path, Mapping[str, str]], None],
    config: Config,
    folder: Path,
    target: Path,
) -> str:
    """Write the model in ``folder`` to ``target`` by ``save``; says what was written."""
    check_operators(config, folder)
    with atomic_file.whole(target) as beside:
        arrays = state_dict(config, folder)
        save(arrays, beside, {MODEL_KEY: checksum(folder)})
    if config.model.name != REFERENCE or not config.network.inputs.dense:
        without = "" if config.network.inputs.dense else " without dense features"
        print(
            f"{config.model.name}{without}: facebookresearch/dlrm has no such network: its tensors are named as "
            "'ssmpi plan' prints its operators, with bot_l and top_l for bottom and top; tables emb_l, first-order "
            "weights first_l"
        )
    return f"{len(arrays)} tensors, {target.stat().st_size / 1e6:,.1f} MB in {target}"


def check_operators(config: Config, folder: Path) -> None:
    """DataError if the network drops values, which nobody would know of who reads the parameters."""
    operators = config.network.operators
    found = [item.name for item in operators if isinstance(item, (TopK, Threshold)) and item.share]
    if found:
        raise DataError(
            f"{folder}: its network passes on only the largest values ({', '.join(found)}), which a file of tensors "
            "cannot express: export it with --format onnx, or train it without model.top_k"
        )


def state_dict(config: Config, folder: Path) -> dict[str, np.ndarray]:
    """Parameters float32 by their names in the reference's ``DLRM_Net``, and the keys of dynamic tables."""
    found = dense_tensors(config, folder)
    for table, rows in read_tables(config, folder).items():
        found |= table_tensors(config, table, rows)
    return found


def dense_tensors(config: Config, folder: Path) -> dict[str, np.ndarray]:
    """Those of the dense model."""
    found, replica = {}, Replica.saved(config.network, "fp32", folder / "dense.h5")
    for name, values in sorted(by_name(config.network.layout, replica.vector)):
        mlp, _, rest = name.partition(".")
        found[f"{NAMES.get(mlp, mlp)}.{rest}"] = values
    return found


def table_tensors(config: Config, table: int, rows: TableRows) -> dict[str, np.ndarray]:
    """Those of one table: vectors and first-order weights, as far as it has them, and its keys."""
    vector, values = config.rows.layout.vector, rows.values
    found = {f"emb_l.{table}.weight": values[:, :vector], f"first_l.{table}.weight": values[:, vector:]}
    keys = {} if rows.keys is None else {keys_of(table): rows.keys}
    return {name: values for name, values in found.items() if values.shape[1]} | keys


def keys_of(table: int) -> str:
    """The name of a dynamic table's keys."""
    return f"keys.{table}"


FORMATS: dict[str, tuple[Write, re.Pattern[bytes]]] = {  # and what marks earlier files
    "torch": (partial(write_tensors, tensor_files.write_torch), tensor_files.TORCH),
    "safetensors": (partial(write_tensors, tensor_files.write_safetensors), tensor_files.SAFETENSORS),
    "onnx": (export_onnx.write, export_onnx.BEGIN),
}
