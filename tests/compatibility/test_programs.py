"""Ordinary programs, unmodified, under torchrun and under `ddpsim run`: both print the same."""

import pytest

from tests.compatibility.cases import CASES
from tests.compatibility.running import on_gloo, simulated
from tests.compatibility.table import Row
from tests.tiers import sweep

IN_CI = {"-m project.train --epochs 2"}
"""It has most: a package, a sampler, checkpoints. What the others use has tests of its own."""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", sweep(CASES, lambda case: case.command in IN_CI), ids=str)
def test_a_program_prints_the_same(case):
    if case.lacks:
        pytest.skip(case.lacks)
    assert Row(case, on_gloo(case), simulated(case)).problem is None
