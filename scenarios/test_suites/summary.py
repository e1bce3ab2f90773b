"""What a suite's tests on simulated ranks came to: rows, in the forms that terminals and CI services read.

A row travels from a worker of xdist to its session, and into JUnit files, as properties of the test's report.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ddpsim.simulator.whole_file import write_atomically
from ddpsim.simulator.wording import count_with_noun

_PREFIX = "ddpsim."
NO_TOKEN = "no token"
_MOST_SLOW = 5
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """A test that started ranks."""

    ranks: str
    """The number of ranks."""
    isolation: str
    """What each rank was: a thread or a process."""
    why: str = ""
    """Why ranks were processes; "" if they were threads, or if the user asked for processes."""
    codes: str = ""
    """The codes of the findings with which the test failed."""
    hazards: str = ""
    """The codes of the hazards, with which a test passes."""
    at: str = ""
    """File and line of the first finding."""
    what: str = ""
    """The first finding in a line."""
    schedules: str = ""
    """How many schedules were run, and what came of them."""
    flaky: str = ""
    """The replay token of a schedule under which the test fails, if it passes under another one; `NO_TOKEN` if the
    schedule alone does not decide."""

    def properties(self) -> list[tuple[str, str]]:
        """Return the row as properties of a test's report."""
        return [(f"{_PREFIX}{name}", value) for name, value in asdict(self).items() if value]


@dataclass(frozen=True, slots=True)
class SuiteTest:
    """A test that started ranks, as its session reports it."""

    name: str
    outcome: str
    seconds: float
    row: SuiteRow


def suite_test_of_report(
    name: str, outcome: str, seconds: float, properties: Iterable[tuple[str, Any]]
) -> SuiteTest | None:
    """Return the test of a report; None if it has started no ranks."""
    own = {key.removeprefix(_PREFIX): str(value) for key, value in properties if key.startswith(_PREFIX)}
    known = {each.name for each in fields(SuiteRow)}
    if not own:
        return None
    return SuiteTest(name, outcome, seconds, SuiteRow(**{key: value for key, value in own.items() if key in known}))


def summary_lines(tests: Sequence[SuiteTest], *, is_verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a suite's summary: counts, codes, hazards, flaky tests, the slowest tests, and if it is
    verbose why each test has ranks as processes."""
    processes = [each for each in tests if each.row.isolation == "process"]
    yield f"ddpsim: {count_with_noun(len(tests), 'test')} on simulated ranks, {len(processes)} with ranks as processes"
    for title, codes in (("codes", "codes"), ("hazards", "hazards"), ("why processes", "why")):
        lists = [
            [value] if codes == "why" else value.split(", ") for each in tests if (value := getattr(each.row, codes))
        ]
        counted = Counter(code for each in lists for code in each)
        if counted:
            yield f"  {title}: {', '.join(f'{count} {code}' for code, count in counted.most_common())}"
    for each in processes if is_verbose else ():
        yield f"  processes: {each.name} ({each.row.why or '--ddpsim-isolation'})"
    for each in tests:
        if each.row.flaky:
            yield f"  flaky: {each.name}  {each.row.schedules}  {each.row.flaky}"
    counts = [int(each.row.schedules.split()[0]) for each in tests if each.row.schedules and each.outcome == "passed"]
    if counts:
        extent = " to ".join(map(str, sorted({min(counts), max(counts)})))
        yield f"  {count_with_noun(len(counts), 'test')} passed under {extent} schedules each"
    slow = sorted(tests, key=lambda each: -each.seconds)[:_MOST_SLOW]
    yield f"  slowest: {', '.join(f'{each.seconds:.2f} s {each.name}' for each in slow)}"


def annotations(tests: Iterable[SuiteTest]) -> Iterator[str]:
    """Yield the findings as workflow commands of GitHub: errors, and warnings for hazards.

    See docs.github.com, "Workflow commands for GitHub Actions".
    """
    for each, level, code in _findings(tests):
        file, _, line = each.row.at.rpartition(":")
        title = f"{code} in {each.name}"
        place = f"file={file},line={line}," if file else ""
        yield f"::{level} {place}title={_escaped(title, ',:')}::{_escaped(each.row.what or each.row.schedules)}"


def sarif(tests: Iterable[SuiteTest], version: str) -> str:
    """Return the findings as a SARIF 2.1.0 log, which code scanning services read."""
    found = list(_findings(tests))
    results: list[Mapping[str, Any]] = []
    for each, level, code in found:
        file, _, line = each.row.at.rpartition(":")
        place = {"artifactLocation": {"uri": file}, "region": {"startLine": int(line or 1)}}
        message = {"text": f"{each.name}: {each.row.what or each.row.schedules}"}
        locations = [{"physicalLocation": place}] if file else []
        results.append({"ruleId": code, "level": level, "message": message, "locations": locations})
    rules = [{"id": code} for code in sorted({code for *_, code in found})]
    driver = {"name": "ddpsim", "version": version, "rules": rules}
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1)


def write_sarif(path: Path, tests: Iterable[SuiteTest], version: str) -> str:
    """Write a SARIF file, and return a line that says so, or why not."""
    try:
        write_atomically(path, sarif(tests, version).encode())
    except OSError as error:
        return f"ddpsim: cannot write {path} ({error.strerror})"
    return f"ddpsim: findings in {path}"


def _findings(tests: Iterable[SuiteTest]) -> Iterator[tuple[SuiteTest, str, str]]:
    for each in tests:
        level, codes = ("error", each.row.codes) if each.outcome == "failed" else ("warning", each.row.hazards)
        codes = codes or ("flaky" if each.row.flaky else "")
        yield from ((each, level, code) for code in codes.split(", ")[:1] if code)


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in text)
