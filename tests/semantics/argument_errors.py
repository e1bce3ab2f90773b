"""Calls with wrong arguments, and the error that each one ends in on real gloo.

The types and texts were taken from gloo's own mouth, and test_on_gloo.py holds them to that. A call that takes down
the process, or waits for ever, has no place here; neither have arguments that are wrong only beside another rank's.
"""

from __future__ import annotations

from itertools import chain

from tests.semantics import errors_of_ranks, errors_of_shapes, errors_of_values
from tests.semantics.error_case import ErrorCase

FAMILIES = (errors_of_values, errors_of_shapes, errors_of_ranks)

ERROR_CASES: tuple[ErrorCase, ...] = tuple(chain.from_iterable(family.cases() for family in FAMILIES))
