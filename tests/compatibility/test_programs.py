"""Ordinary programs, unmodified, under torchrun and under `ddpsim run`: both print the same."""

import pytest

from tests.compatibility.cases import CASES, NOT_YET, Case
from tests.compatibility.running import on_gloo, simulated
from tests.compatibility.table import Row
from tests.tiers import sweep

IN_CI = {"train.py --workers 0", "signals.py", "executor.py", "zero_optimizer.py", "-m project.train --epochs 2"}
"""Sampler and clipping, the system's signals, threads, object collectives of torch's own, and a package."""


def marked(case: Case):
    marks = [pytest.mark.xfail(reason=NOT_YET[case.command], strict=True)] if case.command in NOT_YET else []
    return pytest.param(case, marks=marks, id=case.command)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", sweep(map(marked, CASES), lambda param: param.values[0].command in IN_CI))
def test_a_program_prints_the_same(case):
    assert Row(case, on_gloo(case), simulated(case)).problem is None
