"""The scoreboard's programs are what they are said to be, and what ddpsim says of them stays as it is."""

import pytest

from benchmarks.scoreboard.case import MARK
from benchmarks.scoreboard.judging import Judged, lines_named
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.simulated import OneRun
from benchmarks.scoreboard.templates import ALL
from benchmarks.scoreboard.tool import Said
from tests.kit.rows import rows

CASES = [case for template in ALL for case in template.cases(0, 0)]

NEEDS_ANOTHER_SCHEDULE = {"first_to_come"}
LOUD = {"called_from_other_lines"}
"""Correct, and called a hazard: ranks that take different branches meet by luck as often as by intent."""


@rows("case", CASES, ids=[case.name for case in CASES])
def test_programs(case):
    compile(case.source, case.name, "exec")
    assert bool(case.lines) == (case.kind is not Kind.CORRECT)
    assert not [line for line in case.source.splitlines() if line[:1] in "+-" and line]


def test_a_draw_depends_on_its_seed_alone():
    (template,) = (each for each in ALL if each.name == "another_count")
    assert list(template.cases(3, 1)) == list(template.cases(3, 1))
    assert len({case.source for number in range(5) for case in template.cases(3, number)}) > 6


def test_lines_are_those_of_the_file():
    assert lines_named('File "/tmp/late_0.py", line 9, in program; late_0.py:12, late_01.py:3', "late_0") == {9, 12}


def test_an_alarm_alone_is_not_enough():
    (wrong, right) = next(each for each in ALL if each.name == "another_count").cases(0, 0)
    line = min(wrong.lines)
    strict = Judged(wrong, Said(True, f"sizes differ at {wrong.name}.py:{line}"))
    assert (strict.found, strict.strict, strict.false_alarm) == (True, True, False)
    assert not Judged(wrong, Said(True, f"sizes differ at {wrong.name}.py:{line + 90}")).right_line
    assert not Judged(wrong, Said(True, f"no luck at {wrong.name}.py:{line}")).right_class
    assert Judged(right, Said(True, "sizes differ")).false_alarm


@pytest.mark.tier("ci")
@pytest.mark.filterwarnings("ignore")
def test_what_one_run_says(tmp_path):
    silent, loud = set(), set()
    for case in CASES:
        file = tmp_path / f"{case.name}.py"
        file.write_text(case.source)
        judged = Judged(case, OneRun().judge(case, file))
        name = case.name.removesuffix("_right").removesuffix("_0")
        if judged.is_wrong and not judged.strict:
            silent.add(name)
        if judged.false_alarm:
            loud.add(name)
    assert silent <= NEEDS_ANOTHER_SCHEDULE
    assert loud == LOUD
    assert MARK not in next(case.source for case in CASES if case.kind is Kind.CORRECT)
