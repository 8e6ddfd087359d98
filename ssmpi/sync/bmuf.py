"""Blockwise model-update filtering, S-BMUF and FR-BMUF (Chen and Huo, ICASSP 2016; ShadowSync, arXiv 2003.03477)::

    G   = (1/n) sum_i w_i - g                g: the global model, the same on every trainer
    D   = momentum D + eta G
    g   = g + D                              classical; the reference to move towards is g
    w_i = w_i + alpha (reference - snapshot_i)      nesterov: reference = g + momentum D, g itself stays without it

ShadowSync's form has momentum 0, the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssmpi.settings import require
from ssmpi.sync.base import Peers
from ssmpi.sync.ma import MA


@dataclass(frozen=True)
class Options:
    """``[sync.bmuf]``: ``eta`` the block learning rate, ``momentum`` the block momentum."""

    eta: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        require(0 < self.eta <= 2, f"eta must be in (0, 2], got {self.eta}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}")


class Filtered(MA):
    """Moves towards a global model that follows the mean of the replicas, one fragment at a time."""

    idle = False  # even one trainer alone is filtered

    def __init__(self, options: object, weights: np.ndarray, peers: Peers) -> None:
        super().__init__(options, weights, peers)
        self._global = weights.copy()
        self._delta = np.zeros_like(weights)

    def restart(self) -> None:
        """The global model is what all trainers have; without momentum."""
        self._global[:], self._delta[:] = self.weights, 0.0

    def close(self) -> None:
        """As model averaging, then a last block over all replicas: here, so that ``model`` is the same when asked twice."""
        super().close()
        for fragment, part in enumerate(self.fragments):
            self.exchange(self.weights[part], fragment, active=True)

    def state(self) -> dict[str, np.ndarray]:
        """The global model and its last step, the same on every trainer."""
        return {"global": self._global, "delta": self._delta}

    def model(self) -> np.ndarray:
        """The global model."""
        return self._global.copy()


class BMUF(Filtered):  # the same exchange and the same way to leave as model averaging, another use of the mean
    """Filters the mean by a step and block momentum."""

    Options = Options  # type: ignore[assignment]

    def exchange(self, snapshot: np.ndarray, fragment: int, active: bool) -> np.ndarray | None:
        """Filter the mean of the snapshots into the global model."""
        mean = self.average.of(snapshot, active)
        if mean is None:
            return None
        own, part = self.options.bmuf, self.fragments[fragment]
        model, delta = self._global[part], self._delta[part]
        delta *= own.momentum
        delta += own.eta * (mean - model)
        model += delta
        return model + own.momentum * delta if own.nesterov else model
