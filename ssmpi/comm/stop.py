"""How far a request to stop has come on this rank. It travels in one way, and each state has one owner:

requested (a signal, on any rank) -> told (trainer 0 passes it on with its answers to reports) -> agreed (a reduction
over the trainers, at rest) -> saved (a checkpoint, then ``result.json``) -> every rank leaves with exit code 85.
"""

from __future__ import annotations

from ssmpi.comm import signals


class Stop:
    """``agreed`` is the same on all trainers between two parts of training, and on every rank once it has left the job.

    Servers do not act on a stop: they leave when every trainer has said goodbye.
    """

    def __init__(self) -> None:
        self._told = False
        self.agreed = False

    @property
    def requested(self) -> bool:
        """Whether this rank got a signal, or was told that a trainer did."""
        return self._told or signals.stop_asked()

    def tell(self) -> None:
        """Another trainer was asked to stop."""
        self._told = True
