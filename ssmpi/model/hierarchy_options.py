"""How the members of a group share a replica: the ``[hierarchy]`` section."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ssmpi.model.member_program import check_owners
from ssmpi.model.places import PLANS, Places, places_of
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import NO_TRANSPORT, require

if TYPE_CHECKING:
    from ssmpi.model.network import Network


@dataclass(frozen=True)
class HierarchyOptions:
    """The ``[hierarchy]`` section: which member of a group computes what."""

    REMOVED: ClassVar = {"transport": ("auto", NO_TRANSPORT)}
    tags: tuple[str, ...] = ()
    """Ordered rules for where each operator is computed, such as ``"top.*: 1"``."""
    plan: str = ""
    """Plan that derives the rules from the network instead: ``data`` (used if neither is set) or ``stages``."""
    homes: Literal["all", "first"] = "all"
    """Members that read batches: ``all``, or the ``first`` of each group."""

    def __post_init__(self) -> None:
        require(
            not (self.tags and self.plan),
            f"hierarchy.plan = '{self.plan}' derives the rules that hierarchy.tags gives: set one of them",
        )
        require(
            not self.plan or self.plan in PLANS,
            f"hierarchy.plan must be one of {', '.join(PLANS)}, got '{self.plan}'",
        )

    def check_group(self, group: int) -> None:
        """SettingsError if anything is set that only groups read."""
        for name, value in vars(self).items():
            default = getattr(type(self), name)
            require(
                group > 1 or value == default,
                f"hierarchy.{name} says how the members of a group share a replica: set topology.group too, or set "
                f"hierarchy.{name} = {json.dumps(default)}",
            )

    def places(self, network: Network, group: int) -> Places:
        """Where the operators of the network are computed; SettingsError names rule, operator and remedy."""
        try:
            found = places_of(self.tags or PLANS[self.plan or "data"](network, group), network, group)
            check_owners(network, found)
        except SettingsError as error:
            key = "tags" if self.tags else "plan"
            raise SettingsError(f"hierarchy.{key}: {error}") from None
        return found
