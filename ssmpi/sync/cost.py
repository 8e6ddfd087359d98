"""What rounds cost: links, processors, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link


@dataclass(frozen=True)
class RoundCost:
    """What a trainer's round over the whole vector costs.

    ``sent`` are payload bytes by class of link, as ``Traffic`` counts them; ``codec_seconds`` what a codec takes of the
    processors at both ends, in sequence. In arrays as long as the vector: ``kept`` by a trainer in memory that outlives
    a kill; ``mirrors`` on a rank of each role, on sync PSs all together.
    """

    sent: Mapping[Link, float] = field(default_factory=dict)
    codec_seconds: float = 0.0
    kept: int = 0
    mirrors: Mapping[Role, int] = field(default_factory=dict)
