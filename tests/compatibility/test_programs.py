"""Ordinary programs, unmodified, under torchrun and under `ddpsim run`: both print the same."""

import pytest

from tests.compatibility.cases import CASES, Case
from tests.compatibility.running import on_gloo, simulated
from tests.compatibility.table import Row
from tests.tiers import sweep

IN_CI = {"train.py --workers 0", "signals.py", "executor.py", "zero_optimizer.py", "-m project.train --epochs 2"}
"""Sampler and clipping, the system's signals, threads, object collectives of torch's own, and a package."""

KNOWN = {
    "spawn.py": "mp.spawn does not make ranks yet",
    "start_processes.py": "mp.start_processes does not make ranks yet",
    "tutorial_processes.py": "mp.Process does not make ranks yet",
}
"""What does not pass, and why."""


def marked(case: Case):
    marks = [pytest.mark.xfail(reason=KNOWN[case.command], strict=True)] if case.command in KNOWN else []
    return pytest.param(case, marks=marks, id=case.command)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("case", sweep(map(marked, CASES), lambda param: param.values[0].command in IN_CI))
def test_a_program_prints_the_same(case):
    assert Row(case, on_gloo(case), simulated(case)).problem is None
