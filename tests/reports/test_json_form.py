"""JSON: exact round trips, the published schema, and one line for whatever is no report."""

import dataclasses
import functools
import json
import operator
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from ddpsim import reports
from ddpsim.reports.document import VERSION, Difference, Document
from ddpsim.reports.errors import ReportError
from ddpsim.reports.forms.json_form import LARGEST_BYTES, from_json, read, schema, schema_text, to_json
from ddpsim.reports.making.exploration import document_of_exploration
from ddpsim.reports.making.result import document_of
from ddpsim.scenarios.running.exploring import explore_scenario
from tests.processes.test_cli import result_with
from tests.processes.test_findings import hung, raised, returned
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document

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
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def explored(name):
    return document_of_exploration(explore_scenario(name, keep_going=True), name=name)


def test_the_published_schema_is_that_of_the_document():
    # To write it anew: python -c "from ddpsim.reports.forms import json_form as f; print(f.schema_text(), end='')"
    assert PUBLISHED.read_text(encoding="utf-8") == schema_text()


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


GONE = object()


def edited(*path, value):
    """The JSON of a document that has this value at a path of its plain values; GONE takes out what is there."""
    plain = json.loads(to_json(document(MISSING)))
    *outer, last = path
    inner = functools.reduce(operator.getitem, outer, plain)
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(plain).encode()


RUN = ("runs", 0)
BROKEN = {
    "no version": (("version",), GONE),
    "no runs": (("runs",), GONE),
    "a verdict that there is not": ((*RUN, "verdict"), "maybe"),
    "a kind of event that there is not": ((*RUN, "events", 0, 0), "think"),
    "an event too long": ((*RUN, "events", 0), ["step", 0, 0, 0.0, None, "", "", ""]),
    "a rank that is no number": ((*RUN, "events", 0, 1), "0"),
    "an end that there is not": ((*RUN, "ranks", 0, "end"), "lost"),
    "a state that there is not": ((*RUN, "slots", 0, "state"), "half"),
    "an environment of numbers": (("environment",), {"torch": 2}),
}


@pytest.mark.parametrize(("path", "value"), BROKEN.values(), ids=BROKEN)
def test_what_the_schema_refuses_is_not_read_either(path, value, validator):
    data = edited(*path, value=value)
    with pytest.raises(ValidationError):
        validator.validate(json.loads(data))
    with pytest.raises(
        ReportError, match=r"^r\.json is no report of ddpsim \(.*\), expected a result\.json that --rep"
    ):
        from_json(data, name="r.json")


def test_the_schema_wants_whole_events(validator):
    with pytest.raises(ValidationError, match="is too short"):
        validator.validate(json.loads(edited(*RUN, "events", 0, -1, value=GONE)))


REFERENCES = {
    "calls[0] names site 2 of 2": ("calls", 0, "site", 2),
    "events[1] names call 10 of 10": ("events", 1, 4, 10),
    "events[1] names call -1 of 10": ("events", 1, 4, -1),
    "events[1] names rank 4 of 4": ("events", 1, 1, 4),
    "slots[9] names event 122 of 122": ("slots", 9, "issues", 2, 122),
    "slots[0] names event -5 of 122": ("slots", 0, "match", -5),
    "slots[9] names rank 4 of 4": ("slots", 9, "missing", [4]),
    "slots[0] names event 1, which issues no call": ("slots", 0, "issues", 0, 1),
    "slots[9] names event 109, which issues no call": ("events", 109, 4, None),
    "slots[3] is mismatched, which no finding tells": ("slots", 3, "state", "mismatched"),
    "waiting[0] names rank 7 of 4": ("waiting", 0, "who", [7, ""]),
    "waiting[1] names rank -1 of 4": ("waiting", 1, "waits_for", [[-1, ""]]),
    "waiting[2] names slot 10 of 10": ("waiting", 2, "slots", [10]),
    "waiting[2] names site 2 of 2": ("waiting", 2, "site", 2),
    "findings[0] names rank 4 of 4": ("findings", 0, "ranks", [4]),
    "findings[0] names rank 5 of 4": ("findings", 0, "cycle", [5]),
    "findings[0] names site 9 of 2": ("findings", 0, "sites", [9]),
    "findings[0] names slot 10 of 10": ("findings", 0, "slots", [10]),
    "ranks[3] names site 2 of 2": ("ranks", 3, "site", 2),
    "ranks are 4, expected one for each of 1000000000000 in order": ("world_size", 10**12),
    "ranks are 4, expected one for each of 4 in order": ("ranks", 0, "rank", 1),
    "world_size is 0, expected at least 1": ("world_size", 0),
}


@pytest.mark.parametrize(("problem", "change"), REFERENCES.items(), ids=REFERENCES)
def test_a_reference_that_leads_nowhere_is_told(problem, change):
    *path, value = change
    with pytest.raises(ReportError, match=rf"^the file is no report of ddpsim \(runs\[0\]\.{re.escape(problem)}\), "):
        from_json(edited(*RUN, *path, value=value))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"failing": 2}, "exploration names run 2 of 2"),
        ({"passing": -1}, "exploration names run -1 of 2"),
        ({"passing": None}, "exploration.difference compares runs that are not there"),
        ({"difference": Difference(10_000, None, "")}, "exploration.difference names event 10000 of "),
    ],
)
def test_a_reference_of_an_exploration_that_leads_nowhere_is_told(change, problem):
    made = explored("results-taken-in-order-of-arrival")
    assert made.exploration.difference is not None
    broken = dataclasses.replace(made, exploration=dataclasses.replace(made.exploration, **change))
    with pytest.raises(ReportError, match=re.escape(f"({problem}")):
        from_json(to_json(broken))


def test_a_report_of_nothing_is_told():
    with pytest.raises(ReportError, match=r"^the file is no report of ddpsim \(it has no run\), expected"):
        from_json(to_json(Document("nothing", ())))


NO_JSON = {
    "empty": b"",
    "cut short": to_json(Document("a run", ()))[:-9],
    "another kind": b"%PDF-1.7",
    "bytes that are no text": b'{"version":1,"title":"\xff","runs":[]}',
}


@pytest.mark.parametrize("data", NO_JSON.values(), ids=NO_JSON)
def test_what_is_not_whole_json_is_told(data):
    with pytest.raises(ReportError, match=r"^the file is not whole JSON \(.*\), expected .*: write it again$"):
        from_json(data)


@pytest.mark.parametrize("data", [b"null", b"[1]", b"{}", b'{"a":' * 100_000, b'{"version":"1"}', b'{"version":1e400}'])
def test_json_that_is_something_else_is_told(data):
    with pytest.raises(ReportError, match=r"^the file is no report of ddpsim \(.*\), expected .*: check the path$"):
        from_json(data)


def test_another_version_is_told_whatever_else_the_file_has():
    for version in (VERSION + 1, 0, -1):
        with pytest.raises(
            ReportError, match=rf"^r\.json has version {version}, this ddpsim reads {VERSION}: write it"
        ):
            from_json(b'{"version":%d,"runs":"other"}' % version, name="r.json")


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(ReportError, match=r"nowhere\.json cannot be read \(No such file or directory\), expected"):
        read(tmp_path / "nowhere.json")
    with pytest.raises(ReportError, match=r"cannot be read \(Is a directory\), expected"):
        read(tmp_path)


def test_a_huge_file_is_refused_before_it_is_looked_at(tmp_path):
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)  # takes no room on the disk
    with pytest.raises(ReportError, match=r"huge\.json has more than 256 MiB, which no reader could show"):
        read(path)
