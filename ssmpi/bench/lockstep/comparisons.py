"""The comparisons of a lockstep study: shadow with foreground, and every algorithm with the two references.

If a comparison covers several arms, differences are averaged within each seed first, so seeds stay independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ssmpi.bench.lockstep.design import FOREGROUND, ONE, PACES, SHADOW, UNSYNCED, Arm, StudyDesign, Subject
from ssmpi.bench.lockstep.equivalence import Comparison

Results = Mapping[Arm, Sequence[float]]  # NE on the test split by seed, the same seeds for all
WHOLE, BY_ALGORITHM, BY_CELL, FREQUENT, BY_REFERENCE = FAMILIES = (
    "shadow against foreground, over everything",
    "shadow against foreground, by algorithm",
    "shadow against foreground, in every cell",
    "frequent in the shadow against rare in the foreground, over all algorithms",  # as ShadowSync compares
    "against references, over all gaps",
)


def of(design: StudyDesign, results: Results) -> list[Comparison]:
    """All comparisons, family by family."""
    cells = {
        (s, gap): paces(s, gap, results) for s in design.subjects if not s.is_reference for gap in design.options.gaps
    }
    own = [(name, [d for (s, _), d in cells.items() if s.algorithm == name]) for name in design.algorithms]
    return [
        Comparison(family=WHOLE, name="all", differences=_together(list(cells.values()))),
        *(Comparison(family=BY_ALGORITHM, name=name, differences=_together(found)) for name, found in own),
        *(
            Comparison(family=BY_CELL, name=f"{s.algorithm}, {s.trainers} trainers, gap {gap:g}", differences=tuple(d))
            for (s, gap), d in cells.items()
        ),
        *_frequent_and_rare(design, results),
        *_with_references(design, results),
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
            for pace in PACES:
                arms = [Arm(subject, pace, gap) for gap in design.options.gaps]
                name = f"{pace}-{subject.algorithm}, {subject.trainers} trainers, against {reference}"
                found = [against(arm, reference, results) for arm in arms]
                yield Comparison(family=BY_REFERENCE, name=name, differences=_together(found))


def _together(differences: Sequence[np.ndarray]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.mean(differences, axis=0))
