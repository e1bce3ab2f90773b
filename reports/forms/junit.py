"""Renders JUnit XML for CI systems: a test case for each run, or for a whole exploration."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from ddpsim.reports.document import Document, Exploration, Run
from ddpsim.simulator.verdict import Verdict

State = Literal["passed", "failed", "unknown", "not run"]
"""The state of a test case. A run with the expected outcome has passed, also if its verdict is fail."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 (section 2.2) forbids in every document, even escaped."""
_TAGS = {"failed": "failure", "unknown": "error", "not run": "skipped"}


@dataclass(frozen=True, slots=True)
class JunitCase:
    """A test case: what a CI system shows of one run."""

    name: str
    suite: str
    """The dotted name of the test suite, such as "ddpsim.torch"."""
    state: State
    seconds: float = 0.0
    kind: str = ""
    """The code of the run's finding."""
    message: str = ""
    """One line on why the test case did not pass."""
    text: str = ""
    """The whole text of the run."""
    replay: str = ""


def test_case_state(verdict: Verdict, is_expected: bool | None) -> State:
    """Return the state of a run's test case."""
    if is_expected or (is_expected is None and verdict is Verdict.PASS):
        return "passed"
    return "unknown" if verdict is Verdict.UNKNOWN else "failed"


def to_junit(document: Document) -> bytes:
    """Render the document as JUnit XML."""
    return junit_of(junit_cases(document), name=document.title)


def junit_cases(document: Document, suite: str = "ddpsim") -> list[JunitCase]:
    """Return a test case for each run; an exploration has one case, since its runs are only examples."""
    explored = document.exploration
    if explored is None:
        return [_test_case(run, run.name, run, run.seconds or 0.0, suite, run.text) for run in document.runs]
    failing = None if explored.failing is None else document.runs[explored.failing]
    counts = "\n".join(f"{outcome.count:>7}  {outcome.text}" for outcome in explored.outcomes)
    text = "\n\n".join(filter(None, [explored.extent, counts, failing.text if failing else ""]))
    return [_test_case(explored, explored.program, failing, explored.seconds, suite, text)]


def _test_case(
    judged: Run | Exploration, name: str, run: Run | None, seconds: float, suite: str, text: str
) -> JunitCase:
    leading = run.leading if run else None
    summary = judged.extent if isinstance(judged, Exploration) else leading.summary if leading else judged.verdict.value
    return JunitCase(
        name=name,
        suite=suite,
        state=test_case_state(judged.verdict, judged.is_expected),
        seconds=seconds,
        kind=leading.code if leading else judged.verdict.value,
        message=judged.conclusion or summary,
        text=text,
        replay=run.replay if run else "",
    )


def junit_of(cases: Sequence[JunitCase], *, name: str) -> bytes:
    """Render these test cases as one test suite in XML."""
    states = [case.state for case in cases]
    suite = ElementTree.Element(
        "testsuite",
        name=_replace_forbidden(name),
        tests=str(len(cases)),
        failures=str(states.count("failed")),
        errors=str(states.count("unknown")),
        skipped=str(states.count("not run")),
        time=f"{sum(case.seconds for case in cases):.3f}",
    )
    for case in cases:
        _add_case(suite, case)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return b"%s\n" % ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _add_case(suite: ElementTree.Element, case: JunitCase) -> None:
    element = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_replace_forbidden(case.suite),
        name=_replace_forbidden(case.name),
        time=f"{case.seconds:.3f}",
    )
    if tag := _TAGS.get(case.state):
        why = ElementTree.SubElement(
            element, tag, type=_replace_forbidden(case.kind), message=_replace_forbidden(case.message)
        )
        why.text = _replace_forbidden(case.text)
    lines = [f"replay  {case.replay}"] if case.replay else []
    if case.state == "passed":
        lines = [case.message, "", case.text]
    if lines:
        ElementTree.SubElement(element, "system-out").text = _replace_forbidden("\n".join(lines))


def _replace_forbidden(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
