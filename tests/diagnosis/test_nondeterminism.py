"""What is told of two runs of one schedule that differ: the first step at which they do, from both."""

from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RankOrThread
from ddpsim.simulator.diagnosis.nondeterminism import (
    OfferedChoice,
    RecordedRun,
    differing_choice_finding,
    find_nondeterminism,
)
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.trace import Trace

SITE = Site("/somewhere/train.py", 7, "train")


def issue(rank, step, operation="all_reduce", line=7):
    call = Call(rank, "default", 0, Signature(operation), SITE._replace(line=line))
    return Event(EventKind.ISSUE, rank, step, 0.0, call)


def offer(rank, step, options=(0, 1), kind=ChoiceKind.RANK):
    return OfferedChoice(ChoicePoint(kind, step, rank), options)


def run(*happenings):
    events = tuple(each for each in happenings if isinstance(each, Event))
    return RecordedRun(tuple(each for each in happenings if isinstance(each, OfferedChoice)), Trace(events))


def told(first, second):
    return find_nondeterminism(first, second).body.splitlines()[:3]


def test_equal_runs_do_not_differ():
    assert find_nondeterminism(run(offer(0, 1), issue(0, 1)), run(offer(0, 1), issue(0, 1))) is None


def test_threads_are_told_by_rank_and_name():
    numbered = (RankOrThread(0), RankOrThread(1), RankOrThread(1, "saver"))
    first, second = (
        OfferedChoice(ChoicePoint(ChoiceKind.RANK, 2, 2, numbered), options) for options in ((2, 0), (0, 2))
    )
    assert first != second
    found = differing_choice_finding(first, second)
    assert found.ranks == (1,)
    assert found.body.splitlines()[1:3] == [
        '  first   rank 1, thread "saver" has a choice at step 2, which of rank 1, thread "saver"; rank 0 runs next',
        '  again   rank 1, thread "saver" has a choice at step 2, which of rank 0; rank 1, thread "saver" runs next',
    ]


def test_an_event_of_a_thread_that_differs():
    first = Event(EventKind.STORE, 1, 3, 0.0, None, "set a", "saver")
    assert told(run(first), run(first._replace(text="set b")))[1:] == [
        '  first   rank 1, thread "saver"  store  set a',
        '  again   rank 1, thread "saver"  store  set b',
    ]


def test_one_run_that_goes_on():
    assert told(run(issue(0, 1)), run(issue(0, 1), issue(1, 2)))[1:] == [
        "  first   it had ended",
        '  again   rank 1  issue  all_reduce #0  group "default"  train.py:7',
    ]


def test_at_the_same_step_the_event_tells_more():
    first, second = run(offer(0, 2), issue(0, 2)), run(offer(0, 2, (0, 2)), issue(1, 2))
    assert find_nondeterminism(first, second).ranks == (0, 1)
    assert "issue" in told(first, second)[1]


def test_a_choice_of_sources():
    finding = differing_choice_finding(offer(2, 5, (0, 3), ChoiceKind.SOURCE), None)
    assert "rank 2 has a choice at step 5, which of ranks 0, 3 it receives from" in finding.body
    assert finding.ranks == (2,)
