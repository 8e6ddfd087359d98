"""What ``ssmpi plan --predict`` says of a codec beforehand: over which links it is worth its time, and over which not.

It saves bytes and takes time of the processors, so over fast links, and in the memory of one host, it costs more than
it saves. Over a full link of many trainers it gains only what the fuller direction has less of: with whole pulls
nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ssmpi.sync import SYNC_PS
from ssmpi.tools.forecast import Forecast, Rounds

WANTED = 1.37  # times the rate of dense rounds, as published of DCT in production (Gupta et al., KDD 2021)
PAYS = 1.005  # times: what is worth anything
RATES = np.geomspace(1e3, 1e12, 1801)  # bytes a second


def sentence(found: Forecast, trainers: int) -> list[str]:
    """One line for so many trainers; none where there is no codec."""
    rounds, others = found.rounds, trainers - 1 if found.rounds.partner != SYNC_PS else trainers
    if not rounds.codec_seconds or not others:
        return []
    saved = others / trainers * (2 * rounds.bytes - sum(rounds.there_and_back)) / 1e6
    gains = np.array([gain(found, rate, trainers) for rate in RATES])
    pays = RATES[gains >= PAYS]
    limit = f"not worth it over links of more than {_mb(pays[-1])}" if pays.size else "not worth it over any link"
    return [
        f"  codec: {1e3 * rounds.codec_seconds:,.3g} ms a round of the processors for {saved:,.3g} MB less, {limit}; "
        f"at {trainers:,} trainer{'s' * (trainers > 1)} {_reach(found, gains)}; here, {_here(found, trainers)}"
    ]


def gain(found: Forecast, rate: float, trainers: int) -> float:
    """How many times the rate of dense rounds a run with the codec has over links of ``rate`` bytes a second: examples
    per second, or in the background rounds.
    """
    links = replace(found.links, sync_ps=rate, trainer=rate)
    coded = replace(found, links=links).of(trainers)
    dense = replace(found, links=links, rounds=dense_rounds(found)).of(trainers)
    if found.rounds.period:
        return coded.eps / dense.eps
    return (dense.gap or 0.0) / (coded.gap or math.inf)


def dense_rounds(found: Forecast) -> Rounds:
    """The same rounds without the codec."""
    return replace(found.rounds, pushed=None, pulled=None, codec_seconds=0.0)


def _reach(found: Forecast, gains: np.ndarray) -> str:
    """Where the wanted gain is reached, or that it is not."""
    what, there = f"dense {'EPS' if found.rounds.period else 'rounds'}", RATES[gains >= WANTED]
    if not there.size:
        best = int(np.argmax(gains))
        most = f"{gains[best]:.2f} times {what} at most"
        return most if gains[best] < PAYS else f"{most}, over {_mb(RATES[best])}"
    low, high = float(there[0]), float(there[-1])
    where = f"from {_mb(low)} to {_mb(high)}" if low > RATES[0] else f"below {_mb(high)}"
    dense = 2 * found.rounds.bytes / high / (found.compute.step * max(1.0, found.rounds.period))
    ratio = f" (where a dense round's link time is {dense:.2g} of the steps between two)" if found.rounds.period else ""
    return f"{WANTED} times {what} {where}{ratio}"


def _here(found: Forecast, trainers: int) -> str:
    rate = found.links.sync_ps if found.rounds.partner == SYNC_PS else found.links.trainer
    if math.isinf(rate):
        return "where links carry any, not worth it"
    times = gain(found, rate, trainers)
    return f"over {_mb(rate)}, {times:.2f} times" + ("" if times >= PAYS else ": not worth it")


def _mb(rate: float) -> str:
    return f"{rate / 1e6:,.{0 if rate >= 1e8 else 1}f} MB/s"
