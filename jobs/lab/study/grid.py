"""A study file: common settings, axes of settings that vary, and the reference cell of the comparisons.

A cell is one point of the grid, resolved to the settings of one run before anything starts.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssmpi.config import Config
from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import SECONDS, flat, nested, positive, require
from ssmpi.tools.report.groups import CASE, RUN, SEED, name_of

Point = dict[str, Any]  # axis to value; the axis "case" to a name, all others are settings


@dataclass(frozen=True)
class StudyOptions:
    """The ``[study]`` section.

    All cells and results are written to ``folder``. ``run_file``, relative to the study file, has the base settings.
    ``site`` is the site file with which every cell is launched; empty: on this host. A cell that takes longer than
    ``limit_minutes`` is ended. The models of finished cells are deleted unless ``keep_models``.
    """

    folder: str
    title: str = "Study"
    run_file: str = ""
    site: str = ""
    limit_minutes: float = 60.0
    keep_models: bool = False

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty")
        positive("limit_minutes", self.limit_minutes, SECONDS / 60)


@dataclass(frozen=True)
class StudyFile:
    """The content of a study file: ``[settings]`` is a run file; ``[grid]`` has lists where a run file has values;
    ``[cases]`` has named sets of settings; ``[reference]`` has the values of the axes for the reference cell.
    """

    study: StudyOptions
    settings: dict = field(default_factory=dict)
    grid: dict = field(default_factory=dict)
    cases: dict = field(default_factory=dict)
    reference: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One run of a study. ``labels`` is its point without the seed, ``reference`` that of its reference cell."""

    number: int
    name: str
    labels: Point
    reference: Point | None
    config: Config


@dataclass(frozen=True)
class Study:
    """A study with its cells, numbered from 0."""

    path: Path
    options: StudyOptions
    cells: list[Cell]

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.options.folder)


def load(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file and resolve all its cells; SettingsError names the file and the cell."""
    file = settings.load(StudyFile, path, overrides, kind="study file")
    try:
        axes = _axes(file)
        if file.study.run_file:
            shared = settings.read(path.parent / file.study.run_file)
            file = dataclasses.replace(file, settings=nested(flat(shared) | flat(file.settings)))
        points = _points(file, axes)
        _check_reference(file, axes)
        cells = [_cell(file, number, point) for number, point in enumerate(points)]
        names = [cell.config.run.folder for cell in cells]
        for cell in cells:
            require(names.count(cell.config.run.folder) == 1, f"two cells are called '{cell.name}': rename a case")
        labels = [cell.labels for cell in cells]
        for cell in cells:
            require(
                cell.reference is None or cell.reference in labels,
                f"[reference]: cell '{cell.name}' is compared with {name_of(cell.reference or {})}, which is no cell",
            )
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return Study(path, file.study, cells)


def _axes(file: StudyFile) -> dict[str, list[Any]]:
    """Axis to values, cases first."""
    axes: dict[str, list[Any]] = {CASE: list(file.cases)} if file.cases else {}
    for name, values in flat(file.grid).items():
        require(isinstance(values, list) and bool(values), f"grid.{name} = {values!r} is not a list of values")
        require(
            all(values.count(value) == 1 for value in values),
            f"grid.{name} = {values!r} has the same value more than once",
        )
        axes[name] = values
    require(bool(axes), "no [grid] and no [cases]: nothing to study")
    for name in axes:
        require(name == CASE or name not in flat(file.settings), f"{name} is in [settings] and in [grid]: take one out")
    return axes


def _points(file: StudyFile, axes: Mapping[str, list[Any]]) -> list[Point]:
    """All points, seeds varying fastest; a case that fixes an axis has one point along it."""
    order = sorted(axes, key=lambda name: name == SEED)
    found: list[Point] = []
    for values in itertools.product(*(axes[name] for name in order)):
        point = _fixed(file, dict(zip(order, values, strict=True)))
        if point not in found:
            found.append(point)
    return found


def _fixed(file: StudyFile, point: Point) -> Point:
    """The point with the values of the axes that its case fixes."""
    case = flat(file.cases.get(point.get(CASE, ""), {}))
    return {name: case.get(name, value) for name, value in point.items()}


def _check_reference(file: StudyFile, axes: Mapping[str, list[Any]]) -> None:
    for name, value in flat(file.reference).items():
        require(name in axes and name != SEED, f"[reference]: {name} is no axis; there are {', '.join(axes)}")
        fixed = [flat(case).get(name) for case in file.cases.values()]
        require(
            value in axes[name] or value in fixed, f"[reference]: {name} = {value!r} is not on its axis {axes[name]}"
        )


def _cell(file: StudyFile, number: int, point: Point) -> Cell:
    labels = {name: value for name, value in point.items() if name != SEED}
    compared = _fixed(file, point | flat(file.reference)) if file.reference else None
    name = name_of({**labels, **({SEED: point[SEED]} if SEED in point else {})})
    folder = Path(file.study.folder) / "cells" / slug(name)
    case = flat(file.cases.get(point.get(CASE, ""), {}))
    along = {axis: value for axis, value in point.items() if axis != CASE}
    values = nested(flat(file.settings) | along | case | {"run.folder": str(folder)})
    try:
        config = settings.build(Config, values)
    except SettingsError as error:
        raise SettingsError(f"cell '{name}': {error}") from None
    reference = {n: v for n, v in compared.items() if n != SEED} if compared else None
    return Cell(number, name, labels or {RUN: file.study.title}, reference, config)


def slug(name: str) -> str:
    """A name as a folder name."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
