"""The one table of cases, free of the transport; see case.py for what a case is."""

from __future__ import annotations

from itertools import chain

from tests.semantics import (
    autograd,
    functional,
    groups,
    layouts,
    methods,
    movement,
    objects,
    point_to_point,
    reductions,
    sequences,
    works,
)
from tests.semantics.case import Case

SWEEPS: tuple[Case, ...] = tuple(chain(reductions.cases(), movement.cases()))
"""Each collective by dtype, shape, mode and world: many cases of one pattern."""

BEHAVIOURS: tuple[Case, ...] = tuple(
    chain.from_iterable(
        family.cases()
        for family in (layouts, works, point_to_point, objects, groups, functional, autograd, sequences, methods)
    )
)
"""Cases that differ in what their ranks do."""

CASES = SWEEPS + BEHAVIOURS

_ALWAYS = frozenset(case.id for case in (*SWEEPS[::3], *BEHAVIOURS))


def runs_always(case: Case) -> bool:
    """Of the sweeps a third: each collective's is another one, so every setting is among them."""
    return case.id in _ALWAYS


WARNINGS = (
    "ignore:.*deprecated:FutureWarning",
    "ignore:Running .* on global rank:UserWarning",
    "ignore:Sparse invariant checks are implicitly disabled:UserWarning",
)
"""What torch warns of in these cases, as pytest's filters.

Old names; calls on a group one is no member of; and, in torch 2.11 only, sparse tensors, for which checks were asked.
"""
