"""What is known of the tests: what came of each on real gloo, and where a simulation may differ, with the reason.

`gloo.json` is made by `python -m tests.conformance --gloo`. `exceptions.toml` is made anew by `--write`, and its
reasons by people: an empty one fails a test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import tomlkit

from tests.conformance.outcome import Outcome, Status

FOLDER = Path(__file__).parent
GLOO = FOLDER / "gloo.json"
EXCEPTIONS = FOLDER / "exceptions.toml"

Outcomes = Mapping[str, Outcome]
"""Of the tests of one suite, by name."""


class Direction(str, Enum):
    """How a simulation differs from gloo about a test."""

    FAILS_HERE = "fails here"
    PASSES_HERE = "passes here"


@dataclass(frozen=True, slots=True)
class Exceptional:
    """A test about which they differ, in one way to simulate."""

    suite: str
    way: str
    test: str
    direction: Direction


def differences(suite: str, way: str, gloo: Outcomes, here: Outcomes) -> set[Exceptional]:
    """The tests that pass in one place only. A test that did not run here fails here."""
    passed_there = {test for test, outcome in gloo.items() if outcome.status is Status.PASSED}
    passed_here = {test for test, outcome in here.items() if outcome.status is Status.PASSED}
    return {Exceptional(suite, way, test, Direction.FAILS_HERE) for test in passed_there - passed_here} | {
        Exceptional(suite, way, test, Direction.PASSES_HERE) for test in passed_here - passed_there
    }


def changes(
    known: Iterable[Exceptional], found: Iterable[Exceptional], ran: Iterable[tuple[str, str]]
) -> tuple[list[Exceptional], list[Exceptional]]:
    """What was found and the table does not have, and what it has of the suites and ways that ran and was not found."""
    again, is_found = set(ran), set(found)
    expected = {each for each in known if (each.suite, each.way) in again}
    return sorted(is_found - expected, key=str), sorted(expected - is_found, key=str)


def load_gloo(path: Path = GLOO) -> dict[str, dict[str, Outcome]]:
    """The outcomes on gloo of each suite. Tests that gloo skips are left out."""
    suites = json.loads(path.read_text())
    return {suite: {test: _outcome(text) for test, text in tests.items()} for suite, tests in suites.items()}


def save_gloo(suites: Mapping[str, Outcomes], path: Path = GLOO) -> None:
    """Write what `load_gloo` reads."""
    told = {
        suite: {test: _text(each) for test, each in sorted(tests.items()) if each.status is not Status.SKIPPED}
        for suite, tests in suites.items()
    }
    path.write_text(json.dumps(told, indent=1) + "\n")


def load_exceptions(path: Path = EXCEPTIONS) -> dict[Exceptional, str]:
    """The reason of each exception."""
    reasons: dict[Exceptional, str] = {}
    for table in tomlkit.parse(path.read_text()).unwrap().get("exceptions", []):
        for way in table["ways"]:
            for test in table["tests"]:
                exceptional = Exceptional(table["suite"], way, test, Direction(table["direction"]))
                assert exceptional not in reasons, f"{exceptional} is there twice"
                reasons[exceptional] = table["reason"]
    return reasons


def save_exceptions(reasons: Mapping[Exceptional, str], path: Path = EXCEPTIONS) -> None:
    """Write what `load_exceptions` reads: a table for the tests of a suite that share ways, direction and reason."""
    ways_of: dict[tuple[str, str, str, str], list[str]] = {}
    for each, reason in reasons.items():
        ways_of.setdefault((each.suite, each.direction.value, reason, each.test), []).append(each.way)
    tables: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (suite, direction, reason, test), ways in sorted(ways_of.items()):
        tables.setdefault((suite, direction, reason, tuple(sorted(ways))), []).append(test)
    document = tomlkit.document()
    document.add(tomlkit.comment("Made by `python -m tests.conformance --write`; the reasons are written by hand."))
    array = tomlkit.aot()
    for (suite, direction, reason, shared), tests in tables.items():
        table = tomlkit.table()
        table.update({"suite": suite, "ways": list(shared), "direction": direction, "reason": reason})
        table.add("tests", tomlkit.array().multiline(True))
        for test in tests:
            table["tests"].append(test)
        array.append(table)
    document.add("exceptions", array)
    path.write_text(tomlkit.dumps(document))


def made_anew(
    known: Mapping[Exceptional, str], found: Iterable[Exceptional], ran: Iterable[tuple[str, str]]
) -> dict[Exceptional, str]:
    """The table after the suites and ways that ran: what was found there, with the reasons that are known."""
    again = set(ran)
    kept = {each: reason for each, reason in known.items() if (each.suite, each.way) not in again}
    return kept | {each: known.get(each, "") for each in found}


def _outcome(text: str) -> Outcome:
    status, _, why = text.partition(": ")
    return Outcome(Status(status), why)


def _text(outcome: Outcome) -> str:
    return f"{outcome.status.value}: {outcome.why}" if outcome.why else outcome.status.value
