"""Custom operators, computed by torch: what their classes define besides ``form``, and checks of their output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch

from ssmpi.model.network import Operator
from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError

REMEDY = (
    "'by_torch(self, parameters, *inputs)' is given its parameters by the names that form gives them, without the "
    "operator's name, and each input as a tensor (batch, width)"
)


@runtime_checkable
class ByTorch(Protocol):
    """An operator, as torch computes it."""

    def by_torch(self, parameters: Mapping[str, torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Its output (batch, width) for ``inputs``, each (batch, its width), by operators that autograd knows;
        ``parameters`` by the names that ``form`` gives them, without the operator's.
        """


def output(operator: Operator, parameters: Mapping[str, torch.Tensor], inputs: list[torch.Tensor]) -> torch.Tensor:
    """The output of a custom operator; SettingsError says what is wrong with it, and where."""
    kind, path = type(operator), user_code.path_of(type(operator))
    what = f"operator {operator.name!r} ({kind.__name__})"
    if not isinstance(operator, ByTorch):
        raise SettingsError(
            f"{path}: {what} has no method 'by_torch', which computes its output (batch, width) with torch; {REMEDY}"
        )
    begin = f"{operator.name}."
    own = {name.removeprefix(begin): value for name, value in parameters.items() if name.startswith(begin)}
    found: object = user_code.run_user_code(path, what, lambda: operator.by_torch(own, *inputs), REMEDY)
    wanted = len(inputs[0]), operator.form(*(value.shape[1] for value in inputs)).width
    if not isinstance(found, torch.Tensor) or found.shape != wanted:
        given = f"a tensor {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"{found!r:.60}"
        raise SettingsError(f"{path}: {what}: by_torch returned {given}, its form says {wanted}: fix one of them")
    if found.dtype != inputs[0].dtype:
        kinds = f"a tensor of {found.dtype}, its inputs are {inputs[0].dtype}"
        raise SettingsError(f"{path}: {what}: by_torch returned {kinds}: fix it")
    return found
