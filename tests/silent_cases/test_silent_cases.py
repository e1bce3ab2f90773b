"""What torch's own tools pass silently or report only by a time-out is found, with the right ranks and lines."""

import linecache

import pytest

from ddpsim import Verdict, replay, simulate
from tests.silent_cases import programs
from tests.silent_cases.programs import SILENT_CASES

CASES = pytest.mark.parametrize("case", SILENT_CASES, ids=lambda case: case.name)


def source_line(site):
    assert site.file == "programs.py"
    return linecache.getline(programs.__file__, site.line)


@CASES
@pytest.mark.parametrize("world_size", [3, 8, 33])
def test_the_bug_is_found_with_its_ranks_and_lines(case, world_size):
    result = simulate(case.wrong, world_size)
    (finding,) = result.findings
    assert finding.code == case.code
    assert finding.ranks == case.culprits(world_size)
    assert case.line in source_line(finding.sites[0])
    assert result.verdict is Verdict.FAIL
    assert str(finding).splitlines()[-1].startswith("  replay  ")


@CASES
def test_it_is_found_under_other_interleavings_too(case):
    for seed in range(5):
        result = simulate(case.wrong, 4, policy="random", seed=seed)
        (finding,) = result.findings
        assert (finding.code, finding.ranks) == (case.code, case.culprits(4))
        again = replay(case.wrong, 4, str(result.schedule))
        assert again.trace.digest() == result.trace.digest()
        assert str(again) == str(result)


@CASES
def test_the_repaired_twin_is_clean(case):
    for policy in ("round_robin", "random"):
        result = simulate(case.right, 4, policy=policy)
        assert result.findings == ()


def test_every_side_of_a_mismatch_is_shown():
    text = str(simulate(programs.reduction, 4))
    lines = text.splitlines()
    assert lines[0].startswith("MISMATCH  mismatch.reduction  at step ")
    assert [line.split("float32")[0] for line in lines[1:5]] == [
        "  rank 0  all_reduce #0  SUM ",
        "  rank 1  all_reduce #0  SUM ",
        "  rank 2  all_reduce #0  MAX ",
        "  rank 3  all_reduce #0  SUM ",
    ]
    assert all("programs.py:" in line for line in lines[1:5])


def test_the_cycle_of_two_groups_is_drawn():
    text = str(simulate(programs.group_order, 4))
    assert "  cycle   0 -> 2 -> 0" in text
    assert 'the ranks call groups "1" and "2" in different orders' in text
