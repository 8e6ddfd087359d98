"""``ssmpi export``: writes a run's model as one file for other programs, in the layout of facebookresearch/dlrm::

emb_l.{feature}.weight   (rows, dim)      bot_l.{0,2,...}.weight, .bias      top_l.{0,2,...}.weight, .bias

Further parameters of other networks keep their names (``ssmpi plan`` prints them); first-order weights of tables are
``first_l.{feature}.weight`` (rows, 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ssmpi.checkpoint import files, model_files, saved_network
from ssmpi.checkpoint.data_origin import DataOrigin
from ssmpi.comm.failure import say
from ssmpi.config import Config, load
from ssmpi.core.errors import DataError, UserError
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.files import atomic_file, run_files
from ssmpi.files.run_files import EXPORTS, MODEL, RUN_FILE
from ssmpi.model.top_k import TopK

REFERENCE = "dlrm"  # the network that facebookresearch/dlrm has
NAMES = {"bottom": "bot_l", "top": "top_l"}  # of the MLPs, in ssmpi and in the reference
EARLIER = re.compile(rb"PK\x03\x04|.{4}\x00{4}\{", re.DOTALL)  # how torch's files begin, and safetensors': size, JSON


def export(run: Path, kind: str, file: Path | None) -> int:
    """Write the model of ``run`` as ``kind`` to ``file``, which appears once complete. It must fit in memory."""
    run_files.check(run, RUN_FILE)
    folder = model_files.find(run)
    if folder != run / MODEL:
        say(f"{run}: not finished; exporting {folder.name}")
    target = file or run / EXPORTS[kind]
    atomic_file.check_replaceable(target, EARLIER)
    with atomic_file.whole(target) as beside:
        model_files.check_in_one_process(folder)
        config = saved_network.of_model(load(run / RUN_FILE), folder)
        _check_operators(config, folder)
        arrays = state_dict(config, folder)
        FORMATS[kind](arrays, beside)
    print(f"{len(arrays)} tensors, {target.stat().st_size / 1e6:,.1f} MB in {target}, from {folder}")
    if config.model.name != REFERENCE:
        print(
            f"{config.model.name}: facebookresearch/dlrm has no such network: its tensors are named as 'ssmpi plan' "
            "prints its operators, with bot_l and top_l for bottom and top; tables emb_l, first-order weights first_l"
        )
    return 0


def _check_operators(config: Config, folder: Path) -> None:
    """DataError if the network has operators that nobody would know of who reads its parameters."""
    found = [operator.name for operator in config.network.operators if isinstance(operator, TopK)]
    if found:
        raise DataError(
            f"{folder}: its network passes on the strongest values only ({', '.join(found)}), which a file of tensors "
            "cannot say: score it with 'ssmpi predict', or train it without model.top_k"
        )


def state_dict(config: Config, folder: Path) -> dict[str, np.ndarray]:
    """Parameters float32 by their names in the reference's ``DLRM_Net``."""
    found = {}
    for name, values in sorted(files.read(folder / "dense.h5").items()):
        mlp, _, rest = name.partition(".")
        found[f"{NAMES.get(mlp, mlp)}.{rest}"] = values
    cardinalities = DataOrigin.of_model(folder, config.data.folder).cardinalities
    arena = Arena(config.rows, place(cardinalities, 1), 0, config.run.seed)
    model_files.load_tables(arena, folder)
    layout = config.rows.layout
    for part in arena.parts:
        rows = arena.weights[part.base : part.base + part.rows]
        if layout.vector:
            found[f"emb_l.{part.table}.weight"] = rows[:, : layout.vector]
        if layout.weight:
            found[f"first_l.{part.table}.weight"] = rows[:, layout.vector :]
    return found


def write_torch(arrays: dict[str, np.ndarray], path: Path) -> None:
    """For ``torch.load(path, weights_only=True)``."""
    import torch

    with path.open("wb") as out:
        try:
            torch.save({name: torch.from_numpy(values.copy()) for name, values in arrays.items()}, out)
        except RuntimeError as error:  # for instance a full disk, which torch does not report
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def write_safetensors(arrays: dict[str, np.ndarray], path: Path) -> None:
    """For ``safetensors.torch.load_file(path)``."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError:
        raise UserError("safetensors is not installed: pip install 'ssmpi[safetensors]'") from None
    try:
        save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, path, {"format": "pt"})
    except SafetensorError as error:
        raise UserError(
            f"{path.parent}: the model cannot be written there ({error}); free some space, or name another folder"
        ) from error


FORMATS: dict[str, Callable[[dict[str, np.ndarray], Path], None]] = {
    "torch": write_torch,
    "safetensors": write_safetensors,
}
