"""The groups in ``ssmpi plan``: what each member computes and owns, the traffic between members, and its cost beside
the other plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ssmpi.config import Config
from ssmpi.model.edges import Edge
from ssmpi.model.member_program import bytes_of_step, transform
from ssmpi.model.network import Network, floats_in
from ssmpi.model.places import PLANS, Places, places_of
from ssmpi.model.top_k import TopK
from ssmpi.runtime.errors import SettingsError
from ssmpi.tools.units import in_units


def describe(config: Config) -> str:
    """The members of one group."""
    topology, network, places = config.topology, config.network, config.places
    homes = range(topology.group) if topology.homes == "all" else range(1)
    chosen = config.hierarchy
    how = f"hierarchy.tags = {list(chosen.tags)}" if chosen.tags else f"hierarchy.plan = '{chosen.plan or 'data'}'"
    reading = "each of which reads batches" if len(homes) > 1 else "of which the first reads batches"
    return "\n".join(
        [
            f"group: {topology.group} trainers hold one replica, {reading}; {how}",
            *_members(network, places, homes),
            *_edges(network, places, homes),
            _costs(network, places, homes, config.data.batch_size),
        ]
    )


def _members(network: Network, places: Places, homes: Sequence[int]) -> Iterator[str]:
    """Operators by place, then products and parameters by member."""
    by_place: dict[str, list[str]] = {}
    for name, place in places.of.items():
        by_place.setdefault(f"{place}", []).append(name + " (bf16)" * (name in places.rounded))
    for where, names in by_place.items():
        yield f"  {where}: {', '.join(names)}"
    products = products_of(network, places, homes)
    for member, own in enumerate(products):
        owned = floats_in(transform(network, places, member, homes[0]).owned.layout)
        share = own / max(1.0, sum(products))
        yield f"  member {member} computes {own:,.0f} products an example ({share:.0%}), owns {owned:,} parameters"


def products_of(network: Network, places: Places, homes: Sequence[int]) -> list[float]:
    """Products an example by member, on average over the homes."""
    found = [0.0] * places.group
    for home in homes:
        for name, form in network.forms.items():
            found[places.of[name].member(home)] += form.products / len(homes)
    return found


def _edges(network: Network, places: Places, homes: Sequence[int]) -> Iterator[str]:
    strongest = {operator.name for operator in network.operators if isinstance(operator, TopK)}
    for home in homes:
        part = transform(network, places, home, home)
        sent = ", ".join(map(_edge, part.edges)) or "none"
        lent = 8 * sum(map(floats_in, part.lent.values()))
        yield f"  edges of home {home}: {sent}"
        whole = [edge.value for edge in part.edges if edge.value in strongest and not edge.kept]
        if whole:
            yield f"    {', '.join(dict.fromkeys(whole))}: whole, for kept values and their places are longer"
        if lent:
            yield f"    gradients and new values of parameters that others own: {in_units(lent)} a step"


def _edge(edge: Edge) -> str:
    kind = " bf16" if edge.bf16 else ""
    numbers = f"{edge.kept} of {edge.width}" if edge.kept else f"{edge.width}"
    return f"{edge.value} ({numbers}{kind}) {edge.source} {'<->' if edge.gradient else '->'} {edge.reader}"


def _costs(network: Network, places: Places, homes: Sequence[int], examples: int) -> str:
    """Bytes a step of every plan."""
    found = [f"{in_units(bytes_of_step(network, places, examples, homes))}"]
    for name, plan in PLANS.items():
        try:
            other = places_of(plan(network, places.group), network, places.group)
        except SettingsError:
            continue
        found.append(f"{in_units(bytes_of_step(network, other, examples, homes))} by the plan '{name}'")
    return f"  a step of a lane at batch {examples} moves, there and back: {', '.join(found)}"
