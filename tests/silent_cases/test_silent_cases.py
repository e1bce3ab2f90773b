"""What torch's own tools pass silently or report only by a time-out is found, with the right ranks and lines."""

import linecache

import pytest

from ddpsim import Verdict, simulate
from tests.silent_cases import programs
from tests.silent_cases.programs import SILENT_CASES


def source_line(site):
    assert site.file == "programs.py"
    return linecache.getline(programs.__file__, site.line)


@pytest.mark.parametrize("case", SILENT_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("world_size", [3, 8, 33])
def test_the_bug_is_found_with_its_ranks_and_lines(case, world_size):
    result = simulate(case.wrong, world_size)
    (finding,) = result.findings
    assert finding.code == case.code
    assert finding.ranks == case.culprits(world_size)
    assert case.line in source_line(finding.sites[0])
    assert result.verdict is Verdict.FAIL
    assert str(finding).splitlines()[-1].startswith("  replay  ")


def test_every_side_of_a_mismatch_is_shown():
    text = str(simulate(programs.reduction, 4))
    lines = text.splitlines()
    assert lines[0].startswith("MISMATCH  mismatch.reduction  at step ")
    first = next(number for number, line in enumerate(lines) if line.startswith("  rank"))
    assert {line[:9] for line in lines[1:first]} == {"  where  "}
    assert [line.split("float32")[0] for line in lines[first : first + 4]] == [
        "  rank 0  all_reduce #0  SUM ",
        "  rank 1  all_reduce #0  SUM ",
        "  rank 2  all_reduce #0  MAX ",
        "  rank 3  all_reduce #0  SUM ",
    ]
    assert all("programs.py:" in line for line in lines[1 : first + 4])


def test_the_cycle_of_two_groups_is_drawn():
    text = str(simulate(programs.group_order, 4))
    assert "  cycle   0 -> 2 -> 0" in text
    assert 'the ranks call groups "1" and "2" in different orders' in text
