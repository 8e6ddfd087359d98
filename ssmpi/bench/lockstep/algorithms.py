"""The algorithms with rounds in lockstep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.bench.lockstep.codec_rounds import MirroredMeanRounds, MirroredRounds, Pushing, PushRounds
from ssmpi.bench.lockstep.rounds import FilteredRounds, LockstepRounds
from ssmpi.core.errors import SettingsError
from ssmpi.sync.options import RoundOptions

KINDS: dict[str, type[LockstepRounds]] = {"none": LockstepRounds, "bmuf": FilteredRounds}
WITH_CODECS: dict[str, type[PushRounds | MirroredRounds | MirroredMeanRounds]] = {
    "ma": MirroredMeanRounds,
    "easgd": MirroredRounds,
    "async_ps": PushRounds,
}
KNOWN = (*KINDS, *WITH_CODECS)


def make(
    options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int, pushing: Pushing | None = None
) -> LockstepRounds:
    """The rounds of ``sync.algorithm``; SettingsError if it has no lockstep version."""
    if options.algorithm in WITH_CODECS:
        return WITH_CODECS[options.algorithm](options, replicas, gap, staleness, pushing or Pushing())
    if options.algorithm not in KINDS:
        raise SettingsError(f"lockstep knows sync.algorithm = {', '.join(KNOWN)}, got {options.algorithm!r}")
    return KINDS[options.algorithm](options, replicas, gap, staleness)
