"""JSON: exact round trips, the published schema, and one line for whatever is no report."""

import dataclasses
import json
import re
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from ddpsim import reports
from ddpsim.reports.document import VERSION, Difference, Document, ReportError
from ddpsim.reports.forms.json_form import (
    LARGEST_BYTES,
    from_json,
    read_document,
    to_json,
)
from ddpsim.reports.making.exploration_document import document_of_exploration
from ddpsim.reports.making.result_document import document_of
from ddpsim.scenarios.running.exploring import explore_scenario
from tests.jobs.test_cli import result_with
from tests.jobs.test_job_findings import hung, raised, returned
from tests.kit.rows import rows
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document
from tests.reports.schema import document_schema

FAMILIES = (
    MISSING,  # one of each family of findings
    "uneven-inputs",
    CYCLE,
    MISMATCH,
    THREADS,
    "rank-crash",
    "exception-on-one-rank",
    "momentum-loaded-on-rank0",
    "async-result-never-waited-for",
    "results-taken-in-order-of-arrival",
)
PUBLISHED = Path(reports.__file__).parent / "forms/assets/document.schema.json"


@pytest.fixture(scope="module")
def validator():
    Draft202012Validator.check_schema(document_schema())
    return Draft202012Validator(document_schema())


def explored(name):
    return document_of_exploration(explore_scenario(name, keep_going=True), name=name)


def test_the_published_schema_is_that_of_the_document():
    text = msgspec.json.format(json.dumps(document_schema()), indent=2) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == text, "to write it anew: PUBLISHED.write_text(text)"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_is_read_as_it_was_written_and_fits_the_schema(name, validator):
    made = document(name)
    data = to_json(made)
    assert from_json(data) == made
    assert to_json(from_json(data)) == data
    validator.validate(json.loads(data))


@pytest.mark.parametrize("name", ["results-taken-in-order-of-arrival", "uneven-inputs-without-join"])
def test_an_exploration_is_read_as_it_was_written_and_fits_the_schema(name, validator):
    made = explored(name)
    assert from_json(to_json(made)) == made
    validator.validate(json.loads(to_json(made)))


def test_a_run_on_real_processes_is_read_as_it_was_written_and_fits_the_schema(validator):
    made = document_of(result_with(hung(0), raised(1), returned(2)), name="real")
    run = made.runs[0]
    assert [finding.code for finding in run.findings] == ["rank_error", "stuck"]
    assert (run.events, [rank.end for rank in run.ranks]) == ((), ["unknown", "raised", "unknown"])
    assert from_json(to_json(made)) == made
    validator.validate(json.loads(to_json(made)))


def edited(change):
    """The JSON of a document after a change of its plain values."""
    plain = json.loads(to_json(document(MISSING)))
    change(plain)
    return json.dumps(plain).encode()


BROKEN = {
    "no version": lambda d: d.pop("version"),
    "no runs": lambda d: d.pop("runs"),
    "a verdict that there is not": lambda d: d["runs"][0].update(verdict="maybe"),
    "a kind of event that there is not": lambda d: d["runs"][0]["events"][0].__setitem__(0, "think"),
    "an event too long": lambda d: d["runs"][0]["events"][0].append(""),
    "a rank that is no number": lambda d: d["runs"][0]["events"][0].__setitem__(1, "0"),
    "an end that there is not": lambda d: d["runs"][0]["ranks"][0].update(end="lost"),
    "a state that there is not": lambda d: d["runs"][0]["slots"][0].update(state="half"),
    "an environment of numbers": lambda d: d.update(environment={"torch": 2}),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_what_the_schema_refuses_is_not_read_either(change, validator):
    data = edited(change)
    with pytest.raises(ValidationError):
        validator.validate(json.loads(data))
    with pytest.raises(
        ReportError, match=r"^r\.json is not a ddpsim report \(.*\), expected a result\.json that --rep"
    ):
        from_json(data, name="r.json")


def test_the_schema_wants_whole_events(validator):
    with pytest.raises(ValidationError, match="is too short"):
        validator.validate(json.loads(edited(lambda d: d["runs"][0]["events"][0].pop())))


def put(*path, value):
    """A change that puts a value into a run."""

    def change(plain):
        place = plain["runs"][0]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


REFERENCES = {
    "calls[0] names site 2 of 2": put("calls", 0, "site", value=2),
    "events[1] names call 10 of 10": put("events", 1, 4, value=10),
    "events[1] names call -1 of 10": put("events", 1, 4, value=-1),
    "events[1] names rank 4 of 4": put("events", 1, 1, value=4),
    "slots[9] names event 122 of 122": put("slots", 9, "issues", 2, value=122),
    "slots[0] names event -5 of 122": put("slots", 0, "match", value=-5),
    "slots[9] names rank 4 of 4": put("slots", 9, "missing", value=[4]),
    "slots[0] names event 1, which issues no call": put("slots", 0, "issues", 0, value=1),
    "slots[9] names event 109, which issues no call": lambda d: (d["runs"][0]["events"][109].__setitem__(4, None),),
    "slots[3] is mismatched, but no finding is about it": put("slots", 3, "state", value="mismatched"),
    "waiting[0] names rank 7 of 4": put("waiting", 0, "who", value=[7, ""]),
    "waiting[1] names rank -1 of 4": put("waiting", 1, "waits_for", value=[[-1, ""]]),
    "waiting[2] names slot 10 of 10": put("waiting", 2, "slots", value=[10]),
    "waiting[2] names site 2 of 2": put("waiting", 2, "site", value=2),
    "findings[0] names rank 4 of 4": put("findings", 0, "ranks", value=[4]),
    "findings[0] names rank 5 of 4": put("findings", 0, "cycle", value=[5]),
    "findings[0] names site 9 of 2": put("findings", 0, "sites", value=[9]),
    "findings[0] names slot 10 of 10": put("findings", 0, "slots", value=[10]),
    "ranks[3] names site 2 of 2": put("ranks", 3, "site", value=2),
    "ranks are 4, expected one for each of 1000000000000 in order": put("world_size", value=10**12),
    "ranks are 4, expected one for each of 4 in order": put("ranks", 0, "rank", value=1),
}


@rows(("problem", "change"), REFERENCES.items(), ids=REFERENCES)
def test_a_reference_that_leads_nowhere_is_told(problem, change):
    with pytest.raises(ReportError, match=rf"^the file is not a ddpsim report \(runs\[0\]\.{re.escape(problem)}\), "):
        from_json(edited(change))


@rows(
    ("change", "problem"),
    [
        ({"failing": 2}, "exploration names run 2 of 2"),
        ({"passing": -1}, "exploration names run -1 of 2"),
        ({"passing": None}, "exploration.difference compares runs that do not exist"),
        ({"difference": Difference(10_000, None, "")}, "exploration.difference names event 10000 of "),
    ],
)
def test_a_reference_of_an_exploration_that_leads_nowhere_is_told(change, problem):
    made = explored("results-taken-in-order-of-arrival")
    assert made.exploration.difference is not None
    broken = dataclasses.replace(made, exploration=dataclasses.replace(made.exploration, **change))
    with pytest.raises(ReportError, match=re.escape(f"({problem}")):
        from_json(to_json(broken))


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (json.loads(to_json(Document("nothing", ()))), "it has no run"),
        (json.loads(edited(put("world_size", value=0))), "runs[0].world_size is 0, expected at least 1"),
    ],
)
def test_a_report_of_nothing_is_told(plain, problem):
    with pytest.raises(ReportError, match=rf"^the file is not a ddpsim report \({re.escape(problem)}\), expected"):
        from_json(json.dumps(plain).encode())


NO_JSON = {
    "empty": b"",
    "cut short": to_json(Document("a run", ()))[:-9],
    "another kind": b"%PDF-1.7",
    "bytes that are no text": b'{"version":1,"title":"\xff","runs":[]}',
}


SOMETHING_ELSE = [b"null", b"[1]", b"{}", b'{"a":' * 100_000, b'{"version":"1"}', b'{"version":1e400}']


@rows(
    ("data", "told"),
    [
        *((data, r"valid JSON \(.*\), expected .*: write it again") for data in NO_JSON.values()),
        *((data, r"a ddpsim report \(.*\), expected .*: check the path") for data in SOMETHING_ELSE),
    ],
    ids=[*NO_JSON, *range(len(SOMETHING_ELSE))],
)
def test_what_is_not_json_or_json_of_something_else_is_told(data, told):
    with pytest.raises(ReportError, match=rf"^the file is not {told}$"):
        from_json(data)


def test_another_version_is_told_whatever_else_the_file_has():
    for version in (VERSION + 1, 0, -1):
        with pytest.raises(
            ReportError, match=rf"^r\.json has version {version}, this ddpsim reads {VERSION}: write it"
        ):
            from_json(b'{"version":%d,"runs":"other"}' % version, name="r.json")


def test_a_huge_file_is_refused_before_it_is_looked_at(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)  # takes no room on the disk
    with pytest.raises(ReportError, match=r"huge\.json has more than 256 MiB, the limit of a report"):
        read_document(path)
