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


class BMUF(MA):  # the same exchange and the same way to leave, another use of the mean
    """Moves towards a global model that follows the mean."""

    Options = Options  # type: ignore[assignment]
    idle = False  # even one trainer alone is filtered

    def __init__(self, options: object, weights: np.ndarray, peers: Peers) -> None:
        super().__init__(options, weights, peers)
        self._own: Options = options.bmuf  # type: ignore[attr-defined]
        self._global = weights.copy()
        self._delta = np.zeros_like(weights)

    def exchange(self, snapshot: np.ndarray, active: bool) -> np.ndarray | None:
        """Filter the mean of the snapshots into the global model."""
        mean = self.mean(snapshot, active)
        if mean is None:
            return None
        self._delta *= self._own.momentum
        self._delta += self._own.eta * (mean - self._global)
        self._global += self._delta
        return self._global + self._own.momentum * self._delta if self._own.nesterov else self._global

    def close(self) -> None:
        """As model averaging, then a last block over all replicas: here, so that ``model`` is the same when asked twice."""
        super().close()
        self.exchange(self.weights, active=True)

    def state(self) -> dict[str, np.ndarray]:
        """The global model and its last step, the same on every trainer."""
        return {"global": self._global, "delta": self._delta}

    def model(self) -> np.ndarray:
        """The global model."""
        return self._global.copy()
