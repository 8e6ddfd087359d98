"""``ssmpi plan --predict``: a forecast in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ssmpi.config import Config
from ssmpi.runtime.settings import require
from ssmpi.runtime.words import counted
from ssmpi.sync import ALL_TRAINERS, SYNC_PS
from ssmpi.tools.forecast import EMBEDDING, SYNC, Forecast, LinkSpeeds, forecast

BACK_TO_BACK = 2.0  # trainers that saturate a link in both directions: each waits for its answer


def describe(config: Config, step: float, links: LinkSpeeds, counts: Sequence[int]) -> str:
    """The arithmetic, the first bottleneck, and a line for each number of trainers."""
    require(bool(counts) and min(counts) >= 1, f"--trainers must list positive numbers, got {list(counts)}")
    found = forecast(config, step, links)
    lines = ["prediction, from the given step and links (no queues, no latency):", *arithmetic(found)]
    lines += ["", *first_full(found), "", "  trainers          EPS   of linear   gap (thread)   limited by"]
    for count in counts:
        out = found.of(count)
        gap = "-" if out.gap is None else f"{out.gap:,.3g}"
        lines.append(f"  {count:8,} {out.eps:12,.0f} {out.eps / out.linear:10.0%} {gap:>14}   {out.full}")
    return "\n".join(lines)


def arithmetic(found: Forecast) -> list[str]:
    """Where the figures come from."""
    threads = counted(found.compute.threads, "thread")
    lines = [f"  dense step: batch {found.compute.batch} x {threads} / {found.compute.step * 1e3:g} ms"]
    if found.rounds.period and found.rounds.partner:
        pause = f" + a round of {_ms(found.round_seconds(2 * found.members))} every {found.rounds.period:g} iterations"
        lines[0] = f"{lines[0]}{pause}" + (" (at 2 trainers)" if found.rounds.partner == ALL_TRAINERS else "")
    if found.group:
        lines += found.group.describe(found.compute.step, found.compute.threads, found.links.trainer)
    least = found.members * (2 if found.rounds.partner else 1)
    lines[-1] += f" = {found.trainer_eps(least):,.0f} EPS a trainer"
    there, back = found.rounds.there_and_back
    if found.rounds != found.rounds.dense:
        faster = ""
        if math.isfinite(found.round_link):
            two = 2 * found.members
            gain = found.dense.round_seconds(two) / found.round_seconds(two)
            faster = f": a round is {gain:,.1f} times as fast where the link is its limit"
        lines.append(f"  codec: {_mb(there)} there and {_mb(back)} back, of {_mb(found.rounds.bytes)} each{faster}")
    if found.rounds.partner == SYNC_PS:
        size = max(there, back)
        lines.append(
            f"  sync PS link: {_mb(size)} a round, PS and direction / {_mb(found.links.sync_ps)}/s "
            f"= {_ms(size / found.links.sync_ps)}: {found.round_capacity:,.1f} rounds/s"
            + (f" = {found.link_capacity[SYNC]:,.0f} EPS" if found.rounds.period else ", of all trainers together")
        )
    elif found.rounds.partner:
        lines.append(
            f"  trainers' links: {_mb(max(there, back))} / {_mb(found.links.trainer)}/s, there and back or around"
        )
    if found.iteration_bytes:
        lines.append(
            f"  embedding PS link: {_mb(found.iteration_bytes)} an iteration into the busiest PS "
            f"/ {_mb(found.links.embedding_ps)}/s = {found.link_capacity[EMBEDDING]:,.0f} EPS"
        )
    return lines


def first_full(found: Forecast) -> list[str]:
    """The number of trainers that saturates each kind of server link, and whether that limits examples per second."""
    one = found.trainer_eps(found.members * (1 if found.rounds.partner != ALL_TRAINERS else 2))
    room = {name: most / one for name, most in found.link_capacity.items() if math.isfinite(most)}
    beside = math.isfinite(found.round_capacity) and not found.rounds.period
    full = {SYNC: BACK_TO_BACK, **room} if beside else room
    if not full:
        return ["  first to be full: none of the links; EPS grows with the trainers"]
    first = min(full, key=lambda name: full[name])
    each = ", ".join(f"{name} at {trainers:,.1f} trainers" for name, trainers in full.items())
    lines = [f"  first to be full: {first} ({each})"]
    if beside:
        eps = [f"{name} limits EPS from {trainers:,.1f} trainers on" for name, trainers in room.items()]
        grows = ", ".join(eps) or "EPS grows with the trainers"
        lines.append(f"  rounds in the background: a full {SYNC} costs gap, not EPS; {grows}")
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms"


def _mb(size: float) -> str:
    return "any" if math.isinf(size) else f"{size / 1e6:,.3g} MB"
