"""Blockwise model-update filtering, S-BMUF and FR-BMUF (Chen and Huo, ICASSP 2016; ShadowSync, arXiv 2003.03477)::

    G   = (1/n) sum_i w_i - r      r: the last reference of all trainers
    D   = momentum D + eta G
    g   = g + D                    g: the global model, the same on every trainer; it is the model
    r   = g                        classical block momentum;  nesterov: r = g + momentum D, ahead of g
    w_i = w_i + alpha (r - snapshot_i)

In the paper alpha is 1: every replica starts its block from r. The total gain of one update is then eta / (1 -
momentum), in either form; in general it is 1 / (1 - alpha + alpha (1 - momentum) / eta), which with eta = 1 is
1 / (1 - alpha momentum): at the default alpha of 0.5 a momentum of 0.9 gains 1.8, not 10. ShadowSync's form has
momentum 0, the default. DiLoCo (arXiv 2311.08105), whose outer optimizer is SGD with Nesterov momentum, is ``nesterov``
with alpha = 1 at a fixed rate, eta = 0.7 and momentum = 0.9; its model is r.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.files.log import log
from ssmpi.runtime.settings import require
from ssmpi.sync.base import Exchange, RoundCost
from ssmpi.sync.host_team import Replicas, move, take_mean
from ssmpi.sync.ma import MA
from ssmpi.sync.options import RoundOptions

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology


@dataclass(frozen=True)
class BMUFOptions:
    """The ``[sync.bmuf]`` section, for ``sync.algorithm = "bmuf"``."""

    eta: float = 1.0
    """Block learning rate."""
    momentum: float = 0.0
    """Block momentum."""
    nesterov: bool = False
    """Nesterov's form of the block momentum."""

    def __post_init__(self) -> None:
        require(0 < self.eta <= 2, f"eta must be in (0, 2], got {self.eta}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}")


class BlockFiltered(MA):
    """Moves replicas towards a global model that follows their mean."""

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self.idle = False  # even one trainer alone is filtered
        self._global = exchange.array("global", self.weights)
        self._delta = exchange.array("delta", np.zeros_like(self.weights))

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """As the base class; and it keeps the global model and its last move."""
        return replace(super().cost(options, topology, parameters), kept=2)

    def restart(self) -> None:
        """From the trainers' equal weights, without momentum."""
        self._global[:], self._delta[:] = self.weights, 0.0

    def last_rounds(self) -> None:
        """A last block over all replicas. It runs here, so that ``model`` is idempotent. The replicas move with it as
        in any other block: otherwise the next segment would undo its step.
        """
        self.exchange.round_of_all(self.merge_target)

    def common(self) -> list[np.ndarray]:
        """Also the global model and its last step."""
        return list(self.state().values())

    def state(self) -> dict[str, np.ndarray]:
        """The global model and its last step, the same on every trainer."""
        return {"global": self._global, "delta": self._delta}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Copy them."""
        for name, values in self.state().items():
            values[:] = saved[name]

    def model(self) -> np.ndarray:
        """The global model."""
        return self._global.copy()


@njit(cache=True, nogil=True)
def filter_mean(
    mean: np.ndarray,
    model: np.ndarray,
    delta: np.ndarray,
    reference: np.ndarray,
    coefficients: tuple[float, float, float],
) -> None:
    """Filter a mean into ``model``, ``delta`` and ``reference``, all float32 (n,). ``coefficients`` are eta, momentum,
    and the momentum by which the reference is ahead of the model. The cost is memory traffic, so each form touches only
    what it needs: ``delta`` only with momentum, ``reference`` only if it is ahead of (and not the same array as)
    ``model``.
    """
    eta, momentum, ahead = np.float32(coefficients[0]), np.float32(coefficients[1]), np.float32(coefficients[2])
    if ahead:
        for i in range(mean.shape[0]):
            delta[i] = momentum * delta[i] + eta * (mean[i] - reference[i])
            model[i] += delta[i]
            reference[i] = model[i] + ahead * delta[i]
    elif momentum:
        for i in range(mean.shape[0]):
            delta[i] = momentum * delta[i] + eta * (mean[i] - model[i])
            model[i] += delta[i]
    else:
        for i in range(mean.shape[0]):
            model[i] += eta * (mean[i] - model[i])


@njit(cache=True, nogil=True)
def move_filtered(
    replicas: tuple[np.ndarray, np.ndarray, np.ndarray],
    size: int,
    kept: tuple[np.ndarray, np.ndarray, np.ndarray],
    coefficients: tuple[float, float, float],
    alpha: float,
) -> None:
    """As ``host_team.average`` with its ``replicas`` (addresses, counts, blocks), but towards the reference that
    ``filter_mean`` makes of their mean and of what is ``kept``: model, delta and reference.
    """
    addresses, counts, blocks = replicas
    model, delta, reference = kept
    for start in range(0, size, blocks.shape[1]):
        stop = min(start + blocks.shape[1], size)
        take_mean(addresses, counts, start, stop - start, blocks)
        mean = blocks[-1, : stop - start]
        filter_mean(mean, model[start:stop], delta[start:stop], reference[start:stop], coefficients)
        move(addresses, start, blocks, reference[start:stop], alpha)


class BMUF(BlockFiltered):  # the same exchange and the same way to leave as model averaging, another use of the mean
    """Filters the mean by a step and block momentum. The reference has its own array only if it is ahead of the global
    model; the last step stays 0 without momentum.
    """

    Options: ClassVar[type] = BMUFOptions
    in_teams = True

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self._own = own = options.own(BMUFOptions)
        self._reference = exchange.array("reference", self.weights) if own.nesterov else self._global
        self._filtered = self._global, self._delta, self._reference
        self._coefficients = own.eta, own.momentum, own.momentum if own.nesterov else 0.0
        nothing = np.empty(0, np.float32)
        filter_mean(nothing, nothing, nothing, nothing, self._coefficients)  # compiles now, not in the first round
        exchange.set_fused_update(self._move_filtered)

    def merge_target(self, reduced: np.ndarray) -> np.ndarray:
        """Filter the mean of the snapshots into the global model."""
        filter_mean(reduced, *self._filtered, self._coefficients)
        return self._reference

    def restart(self) -> None:
        """As the base class; the reference restarts there too."""
        super().restart()
        self._reference[:] = self.weights

    def state(self) -> dict[str, np.ndarray]:
        """Also the last reference of all trainers."""
        return {**super().state(), "reference": self._reference}

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """A replica that was constructed with the model starts from the saved reference."""
        if "reference" not in saved:
            log.warning(
                "the checkpoint has no array 'reference': ssmpi 0.1.0 wrote it. It is made from the global model and"
                " its last step; replicas that have not come there lose or repeat a part of that step, once"
            )
            saved = {**saved, "reference": self._ahead(saved["global"], saved["delta"])}
        super().resume(saved)
        self.weights[:] = self._reference

    def _move_filtered(self, replicas: Replicas, active: np.ndarray, size: int) -> None:
        """``merge_target`` and the merge, in one pass."""
        move_filtered(
            (replicas.addresses, active, replicas.blocks),
            size,
            self._filtered,
            self._coefficients,
            self.options.alpha,
        )

    def _ahead(self, model: np.ndarray, delta: np.ndarray) -> np.ndarray:
        """The reference for a global model that has just taken the step ``delta``."""
        own = self._own
        return model + np.float32(own.momentum) * delta if own.nesterov else model
