"""docs/exploring.md says the numbers that one gets; its blocks run in test_blocks.py."""

import re

from ddpsim import explore
from tests.docs.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "exploring.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_how_many_executions_a_search_without_classes_takes():
    program = {}
    exec(next(block.text for block in blocks_of(PAGE) if block.language == "python"), program)
    classes, schedules = re.search(r"has (\d+) classes of .*? in (\d+) executions", TEXT, re.DOTALL).groups()
    covered = explore(program["collect"], 4, keep_going=True)
    assert (covered.executions, covered.complete) == (int(classes), True)
    searched = explore(program["collect"], 4, policy="dfs", preemptions=0, keep_going=True)
    assert searched.executions == int(schedules)
    assert set(searched.outcomes) == set(covered.outcomes)
