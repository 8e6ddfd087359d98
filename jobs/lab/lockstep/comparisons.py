"""The comparisons of a lockstep study: shadow with foreground; every algorithm with the two references, or, of sizes,
each with each.

If a comparison covers several arms, differences are averaged within each seed first, so seeds stay independent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jobs.lab.lockstep.design import FOREGROUND, ONE, SHADOW, UNSYNCED, Arm, StudyDesign, Subject
from jobs.lab.lockstep.equivalence import Comparison

Results = Mapping[Arm, Sequence[float]]  # NE on the test split by seed, the same seeds for all
WHOLE, BY_ALGORITHM, BY_CELL, FREQUENT, BY_REFERENCE, BY_SIZE = FAMILIES = (
    "shadow against foreground, over everything",
    "shadow against foreground, by algorithm",
    "shadow against foreground, in every cell",
    "frequent in the shadow against rare in the foreground, over all algorithms",  # as ShadowSync compares
    "against references, over all gaps",
    "trainers x threads on the same rows, over all paces and gaps",
)


def of(design: StudyDesign, results: Results) -> list[Comparison]:
    """All comparisons, family by family."""
    references = _with_references(design, results) if design.options.trainers else ()
    return [
        *(_shadow_and_foreground(design, results) if len(design.options.paces) > 1 else ()),
        *references,
        *_by_size(design, results),
    ]


def _shadow_and_foreground(design: StudyDesign, results: Results) -> list[Comparison]:
    cells = {
        (s, gap): paces(s, gap, results) for s in design.subjects if not s.is_reference for gap in design.options.gaps
    }
    own = [(name, [d for (s, _), d in cells.items() if s.algorithm == name]) for name in design.algorithms]
    return [
        Comparison(family=WHOLE, name="all", differences=_together(list(cells.values()))),
        *(Comparison(family=BY_ALGORITHM, name=name, differences=_together(found)) for name, found in own),
        *(
            Comparison(family=BY_CELL, name=f"{s.algorithm}, {s.size}, gap {gap:g}", differences=tuple(d))
            for (s, gap), d in cells.items()
        ),
        *_frequent_and_rare(design, results),
    ]


def paces(subject: Subject, gap: float, results: Results) -> np.ndarray:
    """NE in the shadow relative to the foreground: ratio minus 1, float64 (seeds,)."""
    shadow, foreground = (np.array(results[Arm(subject, pace, gap)]) for pace in (SHADOW, FOREGROUND))
    return shadow / foreground - 1


def against(arm: Arm, reference: str, results: Results) -> np.ndarray:
    """NE of an arm relative to a reference: ratio minus 1, float64 (seeds,)."""
    return np.array(results[arm]) / np.array(results[Arm(Subject(reference, arm.subject.trainers))]) - 1


def _frequent_and_rare(design: StudyDesign, results: Results) -> Iterator[Comparison]:
    frequent, rare = min(design.options.gaps), max(design.options.gaps)
    for trainers in design.options.trainers if rare > frequent else ():
        subjects = [Subject(name, trainers) for name in design.algorithms]
        found = [
            np.array(results[Arm(s, SHADOW, frequent)]) / np.array(results[Arm(s, FOREGROUND, rare)]) - 1
            for s in subjects
        ]
        name = f"S-{frequent:g} against FR-{rare:g}, {trainers} trainers"
        yield Comparison(family=FREQUENT, name=name, differences=_together(found))


def _with_references(design: StudyDesign, results: Results) -> Iterator[Comparison]:
    for reference in (ONE, UNSYNCED):
        for subject in (subject for subject in design.subjects if not subject.is_reference):
            for pace in design.options.paces:
                arms = [Arm(subject, pace, gap) for gap in design.options.gaps]
                name = f"{pace}-{subject.algorithm}, {subject.size}, against {reference}"
                found = [against(arm, reference, results) for arm in arms]
                yield Comparison(family=BY_REFERENCE, name=name, differences=_together(found))


def _by_size(design: StudyDesign, results: Results) -> Iterator[Comparison]:
    for name in design.algorithms:
        for reference, size in itertools.combinations(design.options.sizes, 2):
            pairs = zip(*(design.arms(Subject(name, *each)) for each in (size, reference)), strict=True)
            found = [np.array(results[own]) / np.array(results[other]) - 1 for own, other in pairs]
            title = f"{name}, {Subject(name, *size).size} against {Subject(name, *reference).size}"
            yield Comparison(family=BY_SIZE, name=title, differences=_together(found))


def _together(differences: Sequence[np.ndarray]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.mean(differences, axis=0))
