"""Ordinary programs, unmodified, under torchrun and under `ddpsim run`: both print the same."""

import pytest

from tests.compatibility.cases import CASES
from tests.compatibility.running import on_gloo, simulated
from tests.compatibility.table import Row


@pytest.mark.tier("nightly")  # what they use has tests of its own: scripts on pages, numbers in tests/jobs
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_prints_the_same(case):
    if case.lacks:
        pytest.skip(case.lacks)
    assert Row(case, on_gloo(case), simulated(case)).problem is None
