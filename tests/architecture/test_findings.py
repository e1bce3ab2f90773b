"""The codes in simulator/verdict.py are the only list of findings: whatever a code needs elsewhere is asked for here.

That its section in docs/findings.md is whole and its example comes to it, tests/docs/test_findings.py says.
"""

import inspect
from pathlib import Path

import pytest

from ddpsim import Code
from ddpsim.scenarios import registry
from ddpsim.simulator.diagnosis import hazards
from ddpsim.simulator.diagnosis.hazards import NoticedKind

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
    Code.HAZARD_DROPPED_RESULT,
}
"""The zoo has bugs that were reported of programs: none of these was, but the last (pytorch/helion#1555)."""


@pytest.mark.parametrize("code", Code, ids=str)
def test_a_code_has_all_that_it_needs(code):
    makers = [path for path, text in SOURCES.items() if f"Code.{code.name}" in text and path.name != "verdict.py"]
    assert makers, f"no file of {' or '.join(MAKING)} makes {code}: word it in simulator/diagnosis/"
    assert f"\n## `{code}`\n" in PAGE, f"docs/findings.md has no section for {code}"
    if code not in SHOWN_ON_THE_PAGE_ONLY:
        shown = [name for name, scenario in registry.items() if scenario.expected.code == code]
        assert shown, f"no scenario of scenarios/zoo/ comes to {code}"


def test_each_kind_of_fact_is_noticed_and_worded():
    worded = ROOT / "simulator" / "diagnosis" / "hazards.py"
    noticing = "\n".join(text for path, text in SOURCES.items() if path != worded)
    for kind in NoticedKind:
        assert f"NoticedKind.{kind.name}" in noticing, f"nothing in simulator/ notices {kind}"
        elsewhere = (
            NoticedKind.REPLICA,
            NoticedKind.OUTSIDE,
            NoticedKind.PATH,
            NoticedKind.FILE,
            NoticedKind.GRADIENTS,
        )  # other files word these
        if kind not in elsewhere:
            assert f"NoticedKind.{kind.name}" in SOURCES[worded], f"no function of {worded.name} words {kind}"


def test_functions_that_find_hazards_are_called():
    functions = {each for each in vars(hazards).values() if inspect.isfunction(each)}
    finding = {each for each in functions if "WatchedRun" in each.__annotations__.values()} - {hazards.find_hazards}
    lost = finding - set(hazards.HAZARDS)
    assert not lost, f"HAZARDS of simulator/diagnosis/hazards.py lacks {', '.join(each.__name__ for each in lost)}"
