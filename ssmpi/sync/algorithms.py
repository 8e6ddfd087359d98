"""The algorithms by name, and those in files of the user's own."""

from __future__ import annotations

import dataclasses
from types import NoneType

from ssmpi.runtime import user_code
from ssmpi.runtime.settings import require
from ssmpi.runtime.user_code import GUIDE
from ssmpi.sync.async_ps import AsyncPS
from ssmpi.sync.base import Synchronizer
from ssmpi.sync.bmuf import BMUF
from ssmpi.sync.easgd import EASGD
from ssmpi.sync.gossip import Gossip
from ssmpi.sync.ma import MA
from ssmpi.sync.none import NoSync
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.slowmo import SlowMo
from ssmpi.sync.synchronous import Synchronous

ALGORITHMS: dict[str, type[Synchronizer]] = {
    "none": NoSync,
    "easgd": EASGD,
    "ma": MA,
    "bmuf": BMUF,
    "slowmo": SlowMo,
    "gossip": Gossip,
    "async_ps": AsyncPS,
    "synchronous": Synchronous,
}


def algorithm_of(options: RoundOptions) -> type[Synchronizer]:
    """The class that ``sync.algorithm`` names, in a file of the user's own too; SettingsError if that has none."""
    if not user_code.names_file(options.algorithm):
        return ALGORITHMS[options.algorithm]
    path, name = user_code.parts(options.algorithm)
    what = "an algorithm: derive it from one, such as MA"
    return user_code.subclass(path, name, options.source("algorithm"), "sync.algorithm", Synchronizer, what)


def check_custom(options: RoundOptions) -> None:
    """Raise SettingsError unless ``[sync.custom]`` are settings of the user's own algorithm."""
    kind = algorithm_of(options)
    section: type = getattr(kind, "Options", NoneType)
    if not user_code.is_own(section):
        require(
            not options.custom,
            f"sync.custom has settings, but sync.algorithm = '{options.algorithm}' has no Options of its own: remove "
            f"them, or give it a dataclass Options; {GUIDE}",
        )
        return
    path = user_code.path_of(kind)
    made = f"{path}: Options of '{kind.__name__}'"
    require(dataclasses.is_dataclass(section), f"{made} is not a dataclass: put @dataclass(frozen=True) before it")
    user_code.run_user_code(path, f"'{section.__name__}'", lambda: options.own(section), GUIDE)
