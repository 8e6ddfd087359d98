"""Predicts for ``ssmpi plan --predict`` over which links a codec pays. It saves bytes and costs processor time, so over
fast links, and in shared memory, it costs more than it saves. Over a saturated link of many trainers it gains only what
it saves in the fuller direction: with dense pulls nothing.
"""

from __future__ import annotations

import math

import numpy as np

from ssmpi.tools.link_model import Forecast

WANTED = 1.37  # times the rate of dense rounds, as published of DCT in production (Gupta et al., KDD 2021)
PAYS = 1.005  # times: the least gain that counts
RATES = np.geomspace(1e3, 1e12, 1801)  # bytes a second


def sentence(found: Forecast, trainers: int) -> list[str]:
    """The line for ``trainers`` trainers; empty without a codec."""
    rounds = found.rounds
    if not (rounds.codec_seconds and found.round_bytes(trainers)):
        return []
    saved = (found.dense.round_bytes(trainers) - found.round_bytes(trainers)) / 1e6
    gains = np.array([gain(found, rate, trainers) for rate in RATES])
    pays = RATES[gains >= PAYS]
    count = f"{trainers:,} trainer{'s' * (trainers > 1)}"
    limit = f"not worth it over links of more than {_mb(pays[-1])}" if pays.size else "not worth it over any link"
    return [
        f"  codec: {1e3 * rounds.codec_seconds:,.3g} ms a round of the processors for {saved:,.3g} MB less, {limit}; "
        f"at {count} {_reach(found, gains, trainers)}; here, {_here(found, trainers)}"
    ]


def gain(found: Forecast, rate: float, trainers: int) -> float:
    """The rate of a run with the codec relative to dense rounds, over links of ``rate`` bytes a second: of examples, or
    of rounds if these run in the background.
    """
    coded, dense = (each.over(rate).of(trainers) for each in (found, found.dense))
    if found.rounds.period:
        return coded.eps / dense.eps
    return (dense.gap or 0.0) / (coded.gap or math.inf)


def _reach(found: Forecast, gains: np.ndarray, trainers: int) -> str:
    """For which links the wanted gain is reached, if any."""
    what, there = f"dense {'EPS' if found.rounds.period else 'rounds'}", RATES[gains >= WANTED]
    if not there.size:
        best = int(np.argmax(gains))
        most = f"{gains[best]:.2f} times {what} at most"
        return most if gains[best] < PAYS else f"{most}, over {_mb(RATES[best])}"
    low, high = float(there[0]), float(there[-1])
    where = f"from {_mb(low)} to {_mb(high)}" if low > RATES[0] else f"below {_mb(high)}"
    dense = found.dense.over(high).round_seconds(trainers) / (found.compute.step * max(1.0, found.rounds.period))
    ratio = f" (where a dense round's link time is {dense:.2g} of the steps between two)" if found.rounds.period else ""
    return f"{WANTED} times {what} {where}{ratio}"


def _here(found: Forecast, trainers: int) -> str:
    if math.isinf(found.round_link):
        return "where links carry any, not worth it"
    times = gain(found, found.round_link, trainers)
    return f"over {_mb(found.round_link)}, {times:.2f} times" + ("" if times >= PAYS else ": not worth it")


def _mb(rate: float) -> str:
    return f"{rate / 1e6:,.{0 if rate >= 1e8 else 1}f} MB/s"
