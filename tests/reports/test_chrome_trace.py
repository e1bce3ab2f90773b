"""The Chrome trace: a span a call, from its issue to the end of its wait, with flows between the calls that met."""

import json
from collections import Counter

from ddpsim.reports.document import Document, Rank, Run, Site
from ddpsim.reports.forms.chrome_trace import to_chrome_trace
from ddpsim.scenarios import registry
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document
from tests.reports.made import Story, call

RING, ANY_SOURCE, JOIN = "groups-in-a-ring", "results-taken-in-order-of-arrival", "uneven-inputs"


def entries_of(made, phases):
    """The trace events of a document, those of some phases."""
    return [each for each in json.loads(to_chrome_trace(made))["traceEvents"] if each["ph"] in phases]


def entries(name, phases):
    """Those of a scenario."""
    return entries_of(document(name), phases)


def named(made, what):
    """What each process or thread is called."""
    found = [each for each in entries_of(made, "M") if each["name"] == f"{what}_name"]
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in found}


def tracks(name):
    """What each thread is called, by process and thread."""
    return named(document(name), "thread")


def test_ranks_are_processes_and_groups_are_threads():
    assert named(document(MISSING), "process") == {(1000 + rank, 0): f"rank {rank}" for rank in range(4)}
    found = tracks(MISSING)
    assert Counter(found.values()) == {"program": 4, 'group "default"': 4}
    threads = {thread for _, thread in found}
    assert len(threads) == 8
    assert min(threads) > 1003  # none is a process
    # Each rank is in two of the four groups of two, and made them in the world.
    assert {name for (process, _), name in tracks(RING).items() if process == 1000} == {'group "1"', 'group "4"'}


@rows(
    ("name", "arrows"),
    [
        (MISSING, 9 * 3),  # nine slots with four calls each
        (ANY_SOURCE, 3),  # three messages
        (RING, 4),  # of four groups of two, made by both; no all_reduce met
        (CYCLE, 0),
        (MISMATCH, 0),
        (THREADS, 0),
        (JOIN, None),
        ("async-result-never-waited-for", None),
    ],
)
def test_a_call_lasts_from_its_issue_to_the_end_of_its_wait_and_is_joined_to_those_it_met(name, arrows):
    run = document(name).runs[0]
    spans = {each["ts"]: each for each in entries(name, "X") if each["cat"] == "call"}
    issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
    assert sorted(spans) == issues
    for index in issues:
        event, span = run.events[index], spans[index]
        made = run.calls[event.call]
        assert (span["pid"], span["name"]) == (event.rank + 1000, f"{made.operation} #{made.sequence}")
        own = [at for at, each in enumerate(run.events) if (each.rank, each.call) == (event.rank, event.call)]
        waits, done = ([at for at in own if run.events[at].kind is kind] for kind in (EventKind.WAIT, EventKind.DONE))
        matched = run.slots[run.matched_calls_by_issue[index]].match
        ends = done or ([] if waits or matched is None else [matched])
        assert span["ts"] + span["dur"] == (ends or [len(run.events)])[-1]
        assert ("cname" in span) == (not ends)  # what never ended has the colour of trouble
    by_slot = {}
    for each in entries(name, "stf"):
        by_slot.setdefault(each["id"], []).append(each)
    assert arrows in (None, sum(len(each) - 1 for each in by_slot.values()))
    for steps in by_slot.values():
        assert [each["ph"] for each in steps] == ["s", *"t" * (len(steps) - 2), "f"]
        assert [each["ts"] for each in steps] == sorted(each["ts"] for each in steps)
        for each in steps:  # each within the call it belongs to
            span = spans[each["ts"] - 0.5]
            assert (span["pid"], span["tid"]) == (each["pid"], each["tid"])
    free_from = {}
    for span in sorted(entries(name, "X"), key=lambda each: each["ts"]):  # those of a thread do not overlap
        thread = span["pid"], span["tid"]
        assert span["ts"] >= free_from.get(thread, 0)
        assert span["dur"] > 0
        free_from[thread] = span["ts"] + span["dur"]


def test_a_call_says_what_it_is_and_who_called_it_in_a_library_and_the_trace_what_its_clock_is():
    other = json.loads(to_chrome_trace(document(MISSING)))["otherData"]
    assert other["clock"].startswith("logical: the index of each event counts as one microsecond")
    assert (other["title"], other["ddpsim"]) == (MISSING, document(MISSING).environment["ddpsim"])
    spans = [each for each in entries(MISSING, "X") if each["name"] == "all_reduce #9"]
    assert [(each["pid"], each["args"]["state"]) for each in spans] == [(rank, "open") for rank in (1003, 1000, 1002)]
    told = spans[0]["args"]
    assert spans[0]["cat"] == "call"
    assert told.pop("site").endswith(f"uneven_batches.py:{registry[MISSING].expected.lines[0]}")
    assert told.pop("step") > 0
    assert told == {
        "signature": "SUM float32[11]",
        "origin": "DDP #0 bucket 0 of step 5",
        "parameters": "bias, weight",
        "state": "open",
        "virtual_seconds": 0.0,
    }
    story = Story(1)
    story.meet(call(0, site=0, caller=1), (0,))
    run = story.run(sites=(Site("metrics.py", 3, "update"), Site("train.py", 9, "main")))
    (span,) = entries_of(Document("library", (run,)), "X")
    assert (span["args"]["site"], span["args"]["called from"]) == ("metrics.py:3", "train.py:9")


def test_calls_in_flight_together_have_threads_of_their_own():
    # Under join, DDP asks how many take part, and who is left, and issues its first bucket before it hears of either.
    assert {'group "default"', 'group "default" (2)', 'group "default" (3)'} <= set(tracks(JOIN).values())


def test_what_is_no_call_is_an_instant_of_its_kind():
    found = entries(MISSING, "i")
    assert Counter(each["cat"] for each in found) == {"step": 16, "return": 1}  # four of each: a fifth was not reached
    assert {tracks(MISSING)[each["pid"], each["tid"]] for each in found} == {"program"}


def test_a_wait_for_something_else_is_a_span_of_the_program():
    waits = [each for each in entries(THREADS, "X") if each["cat"] == "wait"]
    assert [(each["pid"], each["name"]) for each in waits] == [
        (process, "waits for the end of thread 'reporter'") for process in (1001, 1002, 1003)
    ]
    assert 'group "default", thread "reporter"' in tracks(THREADS).values()


def test_several_runs_have_processes_and_arrows_of_their_own():
    made = Document("both", (document(MISSING).runs[0], document(JOIN).runs[0]))
    processes = named(made, "process")
    assert (len(processes), processes[2000, 0]) == (8, "uneven-inputs: rank 0")
    started = [each["id"] for each in entries_of(made, "s")]
    assert len(set(started)) == len(started) == 9 + 23


@rows(("world_size", "first"), [(1, 1000), (999, 1000), (1000, 10_000), (1024, 10_000)])
def test_the_last_digits_of_a_process_are_its_rank(world_size, first):
    ranks = tuple(Rank(rank, "returned") for rank in range(world_size))
    run = Run("n", world_size, Verdict.PASS, (), "", ranks=ranks)
    processes = [process for process, _ in named(Document("t", (run, run)), "process")]
    assert processes == [number * first + rank for number in (1, 2) for rank in range(world_size)]
