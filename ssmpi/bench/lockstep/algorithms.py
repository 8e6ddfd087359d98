"""Which algorithms have rounds in lockstep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.bench.lockstep.push_rounds import Pushing, PushRounds
from ssmpi.bench.lockstep.rounds import ElasticRounds, MeanRounds, Rounds
from ssmpi.core.errors import SettingsError
from ssmpi.sync.options import RoundOptions

PUSHES = "async_ps"
KINDS: dict[str, type[Rounds]] = {"none": Rounds, "ma": MeanRounds, "easgd": ElasticRounds}


def make(
    options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing | None = None
) -> Rounds:
    """The rounds of ``sync.algorithm``; SettingsError for one that has none here."""
    if options.algorithm == PUSHES:
        return PushRounds(options, replicas, gap, staleness, pushing or Pushing())
    if options.algorithm not in KINDS:
        raise SettingsError(f"lockstep knows sync.algorithm = {', '.join([*KINDS, PUSHES])}, got {options.algorithm!r}")
    return KINDS[options.algorithm](options, replicas, gap, staleness)
