"""The codes in simulator/verdict.py are the only list of findings: whatever a code needs elsewhere is asked for here.

That its section in docs/findings.md is whole and its example comes to it, tests/docs/test_findings.py says.
"""

import ast
import re
from pathlib import Path

import pytest

from ddpsim import Code
from ddpsim.scenarios import registry

ROOT = Path(__file__).resolve().parents[2]
MAKING = ("simulator", "scenarios/training")
SOURCES = {path: path.read_text(encoding="utf-8") for part in MAKING for path in sorted((ROOT / part).rglob("*.py"))}
PAGE = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
SHOWN_ON_THE_PAGE_ONLY = {
    *(Code.STUCK, Code.NONDETERMINISM, Code.BUDGET, Code.UNCHECKED, Code.MISMATCH_VALUE, Code.DEADLOCK_DEAD_RANK),
    *(
        Code.DEADLOCK_THREADS,
        Code.HAZARD_THREAD_ERROR,
        Code.HAZARD_CALL_SITE,
        Code.HAZARD_SHARED_PROCESS,
        Code.HAZARD_TENSOR_ORDER,
    ),
}
"""The zoo has bugs that were reported of programs: none of these was."""


@pytest.mark.parametrize("code", Code, ids=str)
def test_a_code_has_all_that_it_needs(code):
    makers = [path for path, text in SOURCES.items() if f"Code.{code.name}" in text and path.name != "verdict.py"]
    assert makers, f"no file of {' or '.join(MAKING)} makes {code}: word it in simulator/diagnosis/"
    assert f"\n## `{code}`\n" in PAGE, f"docs/findings.md has no section for {code}"
    if code not in SHOWN_ON_THE_PAGE_ONLY:
        shown = [name for name, scenario in registry.items() if scenario.expected.code == code]
        assert shown, f"no scenario of scenarios/zoo/ comes to {code}"


def test_hazards_that_are_worded_are_watched_for():
    worded = (ROOT / "simulator" / "diagnosis" / "hazards.py").read_text(encoding="utf-8")
    functions = [node.name for node in ast.parse(worded).body if isinstance(node, ast.FunctionDef)]
    watching = (ROOT / "simulator" / "hazards" / "call_hazards.py").read_text(encoding="utf-8")
    lost = [each for each in functions if each[0] != "_" and not re.search(rf"\bhazards\.{each}\b", watching)]
    assert not lost, f"simulator/hazards/call_hazards.py:findings lacks {', '.join(lost)}"
