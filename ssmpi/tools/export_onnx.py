"""``ssmpi export --format onnx``: two files, the dense network, and beside it the tables as safetensors::

model.onnx                dense (batch, features) and rows (batch, tables, width) to logit and probability (batch,)
model.tables.safetensors  {feature}: its rows (ids, width): the vector, then the first-order weight, as far as there are
                          {feature}.keys, of a dynamic table: the keys int64 (n,), ascending, of its rows from 2 on

The metadata of ``model.onnx`` names the dense features and the tables in the order of its inputs, as JSON.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ssmpi.config import Config
from ssmpi.model.parameters import by_name
from ssmpi.model.replica import Replica
from ssmpi.model.top_k_kernels import threshold
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.run_files import ONNX_TABLES
from ssmpi.runtime.words import counted
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.checkpoint.parent import checksum
from ssmpi.state.checkpoint.saved_tables import read_tables
from ssmpi.tools import tensor_files
from ssmpi.tools.tensor_files import MODEL_KEY

BEGIN = re.compile(rb"\x08[\x01-\x7f]\x12\x05ssmpi")  # of a file: the version, the producer


def write(config: Config, folder: Path, target: Path) -> str:
    """Write the model in ``folder`` to ``target`` and its tables beside it; says what was written."""
    try:
        from ssmpi.tools import onnx_graph
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise UserError("onnx is not installed: pip install 'ssmpi[onnx]'") from None
    beside = target.with_name(target.name.removesuffix(".onnx") + ONNX_TABLES)
    atomic_file.check_replaceable(beside, tensor_files.SAFETENSORS)
    replica, names = (
        Replica.saved(config.network, "fp32", folder / "dense.h5"),
        DataOrigin.of_model(folder, config.data.folder).features,
    )
    network, estimates = config.network, replica.estimates
    thresholds = {name: threshold(own) for name, own in zip(estimates.names, estimates.values, strict=True)}
    about = {"dense": json.dumps(names.dense), "tables": json.dumps(names.sparse)}
    if names.lists:
        about["lists"] = json.dumps({name: names.lists[name].pooling for name in names.list_names})
    try:
        model = onnx_graph.model_of(network, dict(by_name(network.layout, replica.vector)), thresholds, about)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None
    tables = {names.sparse[table]: rows for table, rows in read_tables(config, folder).items()}
    arrays = {name: rows.values for name, rows in tables.items()}
    arrays |= {f"{name}.keys": rows.keys for name, rows in tables.items() if rows.keys is not None}
    with atomic_file.whole(beside) as one, atomic_file.whole(target) as other:
        tensor_files.write_safetensors(arrays, one, {MODEL_KEY: checksum(folder)})
        other.write_bytes(model.SerializeToString())
    sizes = [f"{path.stat().st_size / 1e6:,.1f} MB in {path}" for path in (target, beside)]
    precision = f"; in float32, the model was trained with {config.model.precision}"
    note = precision * (config.model.precision != "fp32")
    return f"network, {sizes[0]}; {counted(len(tables), 'table')}, {sizes[1]}{note}"
