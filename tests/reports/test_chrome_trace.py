"""The Chrome trace: a span a call, from its issue to the end of its wait, with flows between the calls that met."""

import json
from collections import Counter

import pytest

from ddpsim.reports.document import Document, Rank, Run, Site
from ddpsim.reports.forms.chrome_trace import to_chrome_trace
from ddpsim.reports.layout.spans import spans_of
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict
from tests.reports.examples import CYCLE, HOSTILE, MISMATCH, MISSING, THREADS, document, hostile
from tests.reports.made import Story, call


def entries(name, phase=None):
    """The trace events of a scenario, those of a phase."""
    found = json.loads(to_chrome_trace(document(name)))["traceEvents"]
    return [each for each in found if phase in (None, each["ph"])]


def tracks(name):
    """What each thread is called, by process and thread."""
    named = [each for each in entries(name, "M") if each["name"] == "thread_name"]
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in named}


def test_ranks_are_processes_and_groups_are_threads():
    named = {each["pid"]: each["args"]["name"] for each in entries(MISSING, "M") if each["name"] == "process_name"}
    assert named == {1000: "rank 0", 1001: "rank 1", 1002: "rank 2", 1003: "rank 3"}
    assert Counter(tracks(MISSING).values()) == {"program": 4, 'group "default"': 4}
    # Each rank is in two of the four groups of two, and made them in the world.
    assert {name for (process, _), name in tracks("groups-in-a-ring").items() if process == 1000} == {
        'group "1"',
        'group "4"',
    }


def test_numbers_of_threads_are_unique_and_none_is_a_process():
    threads = [thread for _, thread in tracks(MISSING)]
    assert len(set(threads)) == len(threads) == 8
    assert min(threads) > 1003


def test_a_call_lasts_from_its_issue_to_the_end_of_its_wait():
    run = document(MISSING).runs[0]
    spans = entries(MISSING, "X")
    assert len(spans) == 39  # ten of each rank but the last of rank 1
    by_start = {each["ts"]: each for each in spans}
    for index, event in enumerate(run.events):
        if event.kind is EventKind.ISSUE:
            span = by_start[index]
            assert span["pid"] == event.rank + 1000
            call = run.calls[event.call]
            assert span["name"] == f"{call.operation} #{call.sequence}"
            ends = [
                at
                for at, other in enumerate(run.events)
                if (other.rank, other.call, other.kind) == (event.rank, event.call, EventKind.DONE)
            ]
            matched = run.slots[call.sequence].match
            assert span["ts"] + span["dur"] == (ends or [len(run.events) if matched is None else matched])[0]


def test_what_never_ended_lasts_until_the_end():
    last = len(document(MISSING).runs[0].events)
    forever = [each for each in entries(MISSING, "X") if each["ts"] + each["dur"] == last]
    assert [(each["pid"], each["name"], each["args"]["state"]) for each in forever] == [
        (1003, "all_reduce #9", "open"),
        (1000, "all_reduce #9", "open"),
        (1002, "all_reduce #9", "open"),
    ]
    assert all(each["cname"] == "terrible" for each in forever)
    assert not [each for each in entries("uneven-inputs", "X") if "cname" in each]


def test_a_call_says_what_it_is():
    call = next(each for each in entries(MISSING, "X") if each["name"] == "all_reduce #9")
    assert call["cat"] == "call"
    assert {key: call["args"][key] for key in ("signature", "origin", "parameters", "virtual_seconds")} == {
        "signature": "SUM float32[11]",
        "origin": "DDP #0 bucket 0 of step 5",
        "parameters": "bias, weight",
        "virtual_seconds": 0.0,
    }
    assert call["args"]["site"].endswith("uneven_inputs_without_join.py:27")
    assert "called from" not in call["args"]


def test_a_call_in_a_library_says_who_called_it():
    story = Story(1)
    story.meet(call(0, site=0, caller=1), (0,))
    run = story.run(sites=(Site("metrics.py", 3, "update"), Site("train.py", 9, "main")))
    trace = json.loads(to_chrome_trace(Document("library", (run,))))
    (span,) = (each for each in trace["traceEvents"] if each["ph"] == "X")
    assert (span["args"]["site"], span["args"]["called from"]) == ("metrics.py:3", "train.py:9")


@pytest.mark.parametrize(
    ("name", "arrows"),
    [
        (MISSING, 9 * 3),  # nine slots with four calls each
        ("results-taken-in-order-of-arrival", 3),  # three messages
        ("groups-in-a-ring", 4),  # of four groups of two, made by both; no all_reduce met
        (CYCLE, 0),
        (MISMATCH, 0),
    ],
)
def test_what_met_is_joined_by_arrows_in_the_order_of_arrival(name, arrows):
    flows = [each for each in entries(name) if each["ph"] in "stf"]
    by_slot = {}
    for each in flows:
        by_slot.setdefault(each["id"], []).append(each)
    assert sum(len(each) - 1 for each in by_slot.values()) == arrows
    spans = {(each["pid"], each["tid"], each["ts"]): each for each in entries(name, "X")}
    for steps in by_slot.values():
        assert [each["ph"] for each in steps] == ["s", *"t" * (len(steps) - 2), "f"]
        assert [each["ts"] for each in steps] == sorted(each["ts"] for each in steps)
        for each in steps:  # each within the call it belongs to
            assert (each["pid"], each["tid"], each["ts"] - 0.5) in spans


@pytest.mark.parametrize(
    "name", [MISSING, THREADS, "uneven-inputs", "groups-in-a-ring", "async-result-never-waited-for"]
)
def test_spans_of_a_thread_do_not_overlap(name):
    last = {}
    for span in sorted(entries(name, "X"), key=lambda each: each["ts"]):
        thread = span["pid"], span["tid"]
        assert span["dur"] > 0
        assert span["ts"] >= last.get(thread, 0)
        last[thread] = span["ts"] + span["dur"]


def test_calls_in_flight_together_have_threads_of_their_own():
    # Under join, DDP asks how many take part, and who is left, and issues its first bucket before it hears of either.
    assert {'group "default"', 'group "default" (2)', 'group "default" (3)'} <= set(tracks("uneven-inputs").values())
    assert 'group "default" (2)' not in tracks(MISSING).values()


def test_what_is_no_call_is_an_instant_of_its_kind():
    kinds = Counter(event.kind.value for event in document(MISSING).runs[0].events)
    found = Counter(each["cat"] for each in entries(MISSING, "i"))
    assert found == {"step": kinds["step"], "return": 1}
    assert kinds["step"] == 16  # four of each rank: the fifth was not reached
    assert {tracks(MISSING)[each["pid"], each["tid"]] for each in entries(MISSING, "i")} == {"program"}


def test_a_wait_for_something_else_is_a_span_of_the_program():
    waits = [each for each in entries(THREADS, "X") if each["cat"] == "wait"]
    assert [(each["pid"], each["name"]) for each in waits] == [
        (process, "waits for the end of thread 'reporter'") for process in (1001, 1002, 1003)
    ]
    assert 'group "default", thread "reporter"' in tracks(THREADS).values()


def test_several_runs_have_processes_and_arrows_of_their_own():
    made = Document("both", (document(MISSING).runs[0], document("uneven-inputs").runs[0]))
    found = json.loads(to_chrome_trace(made))["traceEvents"]
    named = {each["pid"]: each["args"]["name"] for each in found if each["name"] == "process_name"}
    assert len(named) == 8
    assert named[2000] == "uneven-inputs: rank 0"
    started = [each["id"] for each in found if each["ph"] == "s"]
    assert len(set(started)) == len(started) == 9 + 23


@pytest.mark.parametrize(("world_size", "first"), [(1, 1000), (999, 1000), (1000, 10_000), (1024, 10_000)])
def test_the_last_digits_of_a_process_are_its_rank(world_size, first):
    ranks = tuple(Rank(rank, "returned") for rank in range(world_size))
    run = Run("n", world_size, Verdict.PASS, (), "", ranks=ranks)
    found = json.loads(to_chrome_trace(Document("t", (run, run))))["traceEvents"]
    pids = [each["pid"] for each in found if each["name"] == "process_name"]
    assert pids == [number * first + rank for number in (1, 2) for rank in range(world_size)]


def test_it_says_what_its_clock_is():
    other = json.loads(to_chrome_trace(document(MISSING)))["otherData"]
    assert other["clock"].startswith("logical: the index of each event counts as one microsecond")
    assert other["title"] == MISSING
    assert other["ddpsim"] == document(MISSING).environment["ddpsim"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_text(text):
    whole = text.replace("\udcff", "?")
    found = json.loads(to_chrome_trace(hostile(text)))
    assert found["otherData"]["title"] == whole
    (call,) = [each for each in found["traceEvents"] if each["ph"] == "X"]
    assert call["name"] == f"{whole} #0"
    assert call["args"]["parameters"] == f"{whole}, {whole}"


def test_every_call_has_one_span():
    for name in (MISSING, CYCLE, MISMATCH, THREADS, "uneven-inputs", "results-taken-in-order-of-arrival"):
        run = document(name).runs[0]
        issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
        assert [span.start for span in spans_of(run) if span.call is not None] == issues
