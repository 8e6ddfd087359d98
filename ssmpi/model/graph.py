"""A network as JSON, which is saved with models and checkpoints: they are scored, and compared, without the code that
has made it. Kinds and settings are those of the operators' classes; widths are there to be compared::

    {"version": 1, "inputs": {"dense": 13, "tables": 26, "dim": 16},
     "operators": [{"kind": "Linear", "name": "bottom.0", "inputs": ["dense"], "outputs": 512, ..., "width": 512}, ...]}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ssmpi.core import settings
from ssmpi.core.errors import DataError, SettingsError, json_problem
from ssmpi.model import program, zoo
from ssmpi.model.network import Inputs, Network, Operator

VERSION = 1
SHIPPED = __package__  # the modules of these operators are in it
assert program
assert zoo  # both imported for the operators that they import: a class that nobody has imported is unknown


def kinds(parent: type[Operator] = Operator) -> Iterator[type[Operator]]:
    """All operators of this program."""
    for kind in parent.__subclasses__():
        if kind.__module__.rpartition(".")[0] == SHIPPED:
            yield kind
        yield from kinds(kind)


def as_json(network: Network) -> dict[str, Any]:
    """``network`` as JSON has it."""
    operators = [{**saved(operator), "width": network.widths[operator.name]} for operator in network.operators]
    body = {"version": VERSION, "inputs": dataclasses.asdict(network.inputs), "operators": operators}
    found: dict[str, Any] = json.loads(json.dumps(body))
    return found


def from_json(body: Mapping[str, Any]) -> Network:
    """What ``as_json`` was given; DataError says what is wrong with ``body``."""
    try:
        if body["version"] != VERSION:
            raise DataError(f"its network is saved as version {body['version']}, this program reads {VERSION}")
        inputs = settings.build(Inputs, body["inputs"])
        network = Network(tuple(operator_of(each) for each in body["operators"]), inputs)
        for each in body["operators"]:
            if (found := network.widths[each["name"]]) != each["width"]:
                raise DataError(f"operator {each['name']!r} is saved {each['width']} wide, and here {found}")
    except SettingsError as error:
        raise DataError(f"its network cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"its network cannot be read: {json_problem(error)}") from error
    return network


def saved(operator: Operator) -> dict[str, Any]:
    """One operator: its kind, and what it was made of."""
    return {"kind": type(operator).__name__, **dataclasses.asdict(operator)}


def operator_of(body: Mapping[str, Any]) -> Operator:
    """What ``saved`` was given; DataError."""
    by_name = {kind.__name__: kind for kind in kinds()}
    name, kind = body["name"], body["kind"]
    if kind not in by_name:
        raise DataError(f"operator {name!r} is of the kind {kind!r}, which this version of ssmpi does not have")
    values = {key: value for key, value in body.items() if key not in ("kind", "width")}
    try:
        return settings.build(by_name[kind], values)
    except SettingsError as error:
        raise DataError(f"operator {name!r} ({kind}): {error}: another version of ssmpi has saved it") from error


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing in which two networks, as JSON has them, differ, in words; empty where nothing does."""
    if before["inputs"] != now["inputs"]:
        return f"it is over {_words(now['inputs'])}, not {_words(before['inputs'])}"
    for here, there in zip(now["operators"], before["operators"], strict=False):
        if here != there:
            return f"its operator {here['name']!r} is {_told(here, there)}, not {_told(there, here)}"
    for more, less, words in ((now, before, "has"), (before, now, "lacks")):
        if len(more["operators"]) > len(less["operators"]):
            extra = more["operators"][len(less["operators"])]
            return f"it {words} an operator {extra['name']!r} ({extra['kind']})"
    return ""


def _told(operator: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """An operator in words, as far as it is not as the ``other``."""
    differing = {key: value for key, value in operator.items() if key != "kind" and other.get(key) != value}
    return f"{operator['kind']} ({_words(differing)})" if differing else str(operator["kind"])


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
