"""A network as JSON, saved with models and checkpoints, which can thus be scored and compared without the code that
built the network. Kinds and settings are those of the operator classes; widths are saved for comparison::

    {"version": 1, "inputs": {"dense": 13, "tables": 26, "dim": 16},
     "operators": [{"kind": "Linear", "name": "bottom.0", "inputs": ["dense"], "outputs": 512, ..., "width": 512}, ...]}

A custom operator, ``net.py:Cube``, needs its code: ``"code": {"net.py": TEXT}`` is saved too, and run when the network
is loaded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ssmpi.model import custom_network, program
from ssmpi.model.network import Inputs, Network, Operator
from ssmpi.model.networks import zoo
from ssmpi.runtime import settings, user_code
from ssmpi.runtime.errors import DataError, SettingsError, json_problem

VERSION = 1
SHIPPED = __package__  # built-in operators are defined in this package
assert program
assert zoo  # imported because they import the operator classes: one that is not imported is unknown


def kinds(parent: type[Operator] = Operator) -> Iterator[type[Operator]]:
    """All built-in operator classes."""
    for kind in parent.__subclasses__():
        if kind.__module__.rpartition(".")[0] == SHIPPED:
            yield kind
        yield from kinds(kind)


def as_json(network: Network) -> dict[str, Any]:
    """A network as JSON."""
    operators = [{**saved(operator), "width": network.widths[operator.name]} for operator in network.operators]
    body = {"version": VERSION, "inputs": dataclasses.asdict(network.inputs), "operators": operators}
    if code := custom_network.texts_of(network.operators):
        body["code"] = code
    found: dict[str, Any] = json.loads(json.dumps(body))
    return found


def from_json(body: Mapping[str, Any]) -> Network:
    """The inverse of ``as_json``; DataError says what is wrong with ``body``."""
    try:
        if body["version"] != VERSION:
            raise DataError(f"its network is saved as version {body['version']}, this program reads {VERSION}")
        inputs = settings.build(Inputs, body["inputs"])
        own = _own_kinds(body.get("code", {}))
        network = Network(tuple(operator_of(each, own) for each in body["operators"]), inputs)
        for each in body["operators"]:
            if (found := network.widths[each["name"]]) != each["width"]:
                raise DataError(f"operator {each['name']!r} is saved {each['width']} wide, and here {found}")
    except SettingsError as error:
        raise DataError(f"its network cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"its network cannot be read: {json_problem(error)}") from error
    return network


def saved(operator: Operator) -> dict[str, Any]:
    """One operator as JSON: its kind and fields."""
    kind = type(operator)
    return {
        "kind": user_code.kind_of(kind) if user_code.is_own(kind) else kind.__name__,
        **dataclasses.asdict(operator),
    }


def _own_kinds(code: Mapping[str, str]) -> dict[str, type[Operator]]:
    """The custom operators in saved code, by kind."""
    found: dict[str, type[Operator]] = {}
    for file, text in code.items():
        path = Path(file)
        module = user_code.run_user_code(
            path, "the file", partial(user_code.module_of, path, text), custom_network.REMEDY
        )
        own = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Operator)]
        found |= {f"{file}:{kind.__qualname__}": kind for kind in own if kind.__module__ == module.__name__}
    return found


def operator_of(body: Mapping[str, Any], own: Mapping[str, type[Operator]] | None = None) -> Operator:
    """The inverse of ``saved``; DataError if that is not possible. ``own`` are the custom kinds."""
    by_name = {**{kind.__name__: kind for kind in kinds()}, **(own or {})}
    name, kind = body["name"], body["kind"]
    if kind not in by_name:
        raise DataError(f"operator {name!r} has kind {kind!r}, which this version of ssmpi does not know")
    values = {key: value for key, value in body.items() if key not in ("kind", "width")}
    try:
        return settings.build(by_name[kind], values)
    except SettingsError as error:
        raise DataError(f"operator {name!r} ({kind}): {error}: another version of ssmpi saved it") from error


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference of two networks in JSON, in words; empty if there is none. DataError if ``before``, the
    saved one, cannot be read.
    """
    before = as_json(from_json(before))  # with the fields that this version adds to operators
    for file in before.get("code", {}).keys() & now.get("code", {}).keys():
        if user_code.meaning(before["code"][file]) != user_code.meaning(now["code"][file]):
            return f"the code of {file}, whose operators it uses, is another one"
    if before["inputs"] != now["inputs"]:
        return f"it is over {_words(now['inputs'])}, not {_words(before['inputs'])}"
    for here, there in zip(now["operators"], before["operators"], strict=False):
        if here != there:
            return f"its operator {here['name']!r} is {_description(here, there)}, not {_description(there, here)}"
    for more, less, words in ((now, before, "has"), (before, now, "lacks")):
        if len(more["operators"]) > len(less["operators"]):
            extra = more["operators"][len(less["operators"])]
            return f"it {words} an operator {extra['name']!r} ({extra['kind']})"
    return ""


def _description(operator: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The fields of an operator that differ from the ``other``, in words."""
    differing = {key: value for key, value in operator.items() if key != "kind" and other.get(key) != value}
    return f"{operator['kind']} ({_words(differing)})" if differing else str(operator["kind"])


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
