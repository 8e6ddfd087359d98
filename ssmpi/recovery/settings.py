"""What the decision takes of a run file."""

from __future__ import annotations

from typing import Protocol


class RecoverySettings(Protocol):
    """The ``[recovery]`` section (``config.RecoveryOptions``), as far as it decides anything here."""

    @property
    def mode(self) -> str:
        """``auto``, ``full`` or ``partial``."""

    @property
    def target_pls(self) -> float:
        """The PLS that partial recovery may reach on average."""

    @property
    def mtbf_hours(self) -> float:
        """The mean time between two losses of an embedding PS's memory, 0 if it is not known."""

    @property
    def max_lost_fraction(self) -> float:
        """Of the embedding PSs, that may be lost at once."""
