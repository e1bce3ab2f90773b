"""docs/processes.md has the whole zoo in its table, with what is expected today, and its numbers are the table's."""

import re
from collections import Counter

from ddpsim.scenarios import registry
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
TABLE = re.search(r"^name +expected\n((?:.+\n)+)```$", TEXT, re.MULTILINE)[1]
ROWS = [re.fullmatch(r"(\S+) +([=!-]) ([^;]+)(?:; (?:found )?(.+))?", line).groups() for line in TABLE.splitlines()]


def test_every_scenario_has_its_row():
    bugs = {name: scenario for name, scenario in registry.items() if not scenario.repairs}
    expected = {name: bug.expected.text(bug.world_size) for name, bug in bugs.items()}
    assert {name: text for name, _, text, _ in ROWS} == {
        name: text.partition(", ")[2] or text for name, text in expected.items()
    }
    assert [name for name, *_ in ROWS] == sorted(expected)
    assert f"{len(ROWS)} scenarios in 10 minutes" in TEXT


def test_the_numbers_are_those_of_the_table():
    run = [(text, found or "") for _, sign, text, found in ROWS if sign != "-"]
    counts = Counter((re.match(r"\w+", text)[0], found.split(",")[0]) for text, found in run)
    hung, died, silent = (counts["mismatch", each] for each in ("hung", "died", "pass"))
    deadlocks, divergences = (
        sum(n for (kind, _), n in counts.items() if kind == each) for each in ("deadlock", "divergence")
    )
    told = " ".join(TEXT.split())
    assert f"All {deadlocks} deadlocks fail on real gloo**: {counts['deadlock', 'hung']} hang" in told
    # One passes as expected: it depends on who is faster.
    assert f"Of the {hung + died + silent} mismatches, {hung} hang, {died} kill a process" in told
    assert f"**{silent - 1} pass silently**" in told
    assert f"Of the {divergences} divergences, {counts['divergence', '']} are found" in told
    assert f"**{counts['divergence', 'pass']} pass silently**" in told
    assert f"Errors that a rank raises itself are the same {counts['rank_error', '']};" in told
