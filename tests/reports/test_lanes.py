"""The layout of the lanes: columns worked out by hand, waits, missing places, odd calls, lanes that ranks share."""

import threading
from dataclasses import replace

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from ddpsim import Budget
from ddpsim.reports.document import MARKS, Finding, Run, Waiting
from ddpsim.reports.layout.lanes import EventMark, Lanes, MissingCall, WaitBar, lanes_of, shown_lanes
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document, run_of
from tests.reports.made import Story, call, message, missing_rank


def columns(lanes: Lanes, lane: int) -> list[int]:
    """Where the calls of a lane stand, in the order in which they were issued."""
    return [item.column for item in lanes.items if item.lane == lane]


STORIES = {
    "calls that met stand under each other; who came earlier waits": (
        *(4, "a:01 b:23 b:23 b:23 c:0123", "03 03 0123 0123"),
        *([], [(0, 1, 3), (1, 1, 3)]),
    ),
    # A grid of 2 by 2: the lines of ranks 0 and 2, and of 1 and 3, would lie on top of each other. Nobody waits.
    "calls that did not meet stand between none that did": (4, "e:02 o:13 e:02 o:13", "02 13 02 13", [], []),
    "a message stands between no calls that met": (4, "a:02 1>3", "0 1 0 2", [], []),
    "nothing stands between a call and its missing one": (3, "a:0?2 b:1", "0 1 -", [(2, 0, 0)], [(0, 0, None)]),
    "a missing call stands behind what its lane has": (
        *(2, "a:0?1 b:1?0", "0 0"),
        *([(1, 1, 0), (0, 1, 1)], [(0, 0, None), (1, 0, None)]),
    ),
    # The line of group d is where the call of rank 1 would be missing.
    "a missing call stands on no line of others": (
        *(4, "a:0?1 b:1? c:2 d:02", "02 1 02 -"),
        *([(1, 3, 0)], [(1, 1, None)]),
    ),
    "two missing calls of a lane stand apart": (
        *(3, "a:0?2 b:1?2", "0 1 -"),
        *([(2, 0, 0), (2, 1, 1)], [(0, 0, None), (1, 1, None)]),
    ),
    "a receive that waited stands to the right of the message": (2, "a:1 1<0", "0 01", [], []),
    "it waits from where it is to where the message comes": (2, "a:1 1<0 0<1", "03 012", [], [(0, 1, 3)]),
    "a message that was there is left of its receive, too": (2, "a:0 0>1", "01 2", [], []),
}


@rows(("ranks", "text", "shown", "missing", "bars"), STORIES.values(), ids=STORIES)
def test_where_everything_stands(ranks, text, shown, missing, bars):
    run = Story.of(ranks, text).run()
    run = replace(run, waiting=tuple(Waiting(RankOrThread(lane), "for good") for lane, _, end in bars if end is None))
    lanes = lanes_of(run)
    stand = ["".join(map(str, columns(lanes, lane))) or "-" for lane in range(ranks)]
    assert stand == shown.split()
    assert lanes.columns == 1 + max([item.column for item in lanes.items] + [column for _, column, _ in missing])
    assert lanes.missing == tuple(MissingCall(*each) for each in missing)
    assert [(bar.lane, bar.start, bar.end) for bar in lanes.bars] == bars
    arrivals = {(item.lane, item.arrival, item.column) for item in lanes.items}
    assert arrivals >= {bar for bar in bars if bar[2] is not None}


def test_the_next_call_of_a_group_is_further_right_whichever_thread_made_it_and_groups_need_no_order():
    story = Story(1)
    for step in range(2):
        thread_meets(story, call(step), "helper")
    story.meet(call(2), [0])
    lanes = lanes_of(story.run())
    assert [columns(lanes, lane) for lane in (0, 1)] == [[2], [0, 1]]
    story = Story(1)
    thread_meets(story, call(0, group="a"), "helper")
    story.meet(call(0, group="b"), [0])
    assert [columns(lanes_of(story.run()), lane) for lane in (0, 1)] == [[0], [0]]


def thread_meets(story, made, thread):
    """A thread of rank 0 makes a call of its own."""
    issue = story.happen("issue", 0, made, thread=thread)
    match = story.happen("match", 0, made, thread=thread)
    story.slot(made, [issue], "matched", match)


def test_a_wait_that_did_not_end_runs_on_and_the_missing_call_has_a_place():
    run = missing_rank(4, missing=1, steps=2)
    lanes = lanes_of(run)
    assert lanes.missing == (MissingCall(lane=1, column=2, slot=2),)
    waits = [index for index, event in enumerate(run.events) if event.kind is EventKind.WAIT][-3:]
    assert lanes.bars == tuple(WaitBar(lane, 2, None, wait, None) for lane, wait in zip((0, 2, 3), waits, strict=True))
    assert [lane.end for lane in lanes.lanes] == ["waiting", "returned", "waiting", "waiting"]
    assert [lane.is_culprit for lane in lanes.lanes] == [False, True, False, False]


def test_calls_issued_in_different_orders_stand_apart_and_cross():
    story = Story(2)
    one, other = call(0, group="a"), call(0, group="b")
    issues = [story.happen("issue", rank, each) for rank, each in ((0, one), (0, other), (1, other), (1, one))]
    story.slot(one, (issues[0], issues[3]), "matched")
    story.slot(other, (issues[1], issues[2]), "matched")
    lanes = lanes_of(story.run())
    assert columns(lanes, 0) == [0, 1]
    assert columns(lanes, 1) == [1, 2]


def test_a_rank_that_went_on_before_its_message_came_does_not_wait_for_it():
    story = Story(2)
    early = story.happen("issue", 1, message(0, "recv", 0))
    story.meet(call(0), (1, 0))
    sent = story.happen("issue", 0, message(0, "send", 1))
    match = story.happen("match", 0, message(0, "send", 1))
    story.slot(message(0, "send", 1), (early, sent), "matched", match)
    lanes = lanes_of(story.run())
    assert [columns(lanes, lane) for lane in (0, 1)] == [[1, 2], [0, 1]]


def test_what_is_no_call_stands_between_columns_and_alike_ones_together():
    story = Story(1)
    story.happen("note", 0, text="begins")
    story.meet(call(0), [0])
    story.happen("step", 0, text="1")
    story.happen("store", 0, text="get a")
    story.happen("store", 0, text="get b")
    story.happen("return", 0)
    assert lanes_of(story.run()).marks == (
        EventMark((0,), 0, -0.5),
        EventMark((3,), 0, 0.367),
        EventMark((4, 5), 0, 0.5),
        EventMark((6,), 0, 0.633),
    )


def test_what_comes_after_a_wait_that_shows_stands_behind_it():
    story = Story(2)
    sent = story.happen("issue", 0, message(0, "send", 1))
    note = story.happen("note", 0, text="before it waits")
    wait = story.happen("wait", 0, message(0, "send", 1))
    for step in range(3):
        story.meet(call(step, group="own"), [1])
    received = story.happen("issue", 1, message(0, "recv", 0))
    match = story.happen("match", 1, message(0, "recv", 0))
    done = story.happen("done", 0, message(0, "send", 1))
    end = story.happen("return", 0)
    story.slot(message(0, "send", 1), (sent, received), "matched", match)
    lanes = lanes_of(story.run())
    assert lanes.bars == (WaitBar(0, 0, 3, wait, done),)
    assert lanes.marks == (EventMark((note,), 0, 0.5), EventMark((end,), 0, 3.5))


def test_a_wait_for_something_else_than_a_call():
    story = Story(1)
    story.meet(call(0), [0])
    story.happen("wait", 0, text="the clock")
    story.happen("done", 0)
    assert lanes_of(story.run()).bars == ()
    wait = story.happen("wait", 0, text="a lock")
    assert lanes_of(story.run()).bars == ()  # it was stopped
    stays = Waiting(RankOrThread(0), "a lock")
    assert lanes_of(story.run(waiting=(stays,))).bars == (WaitBar(0, 0.5, None, wait, None),)


def test_a_thread_has_a_lane_under_its_rank():
    story = Story(2)
    story.meet(call(0), (0, 1))
    story.happen("note", 0, text="starts")
    own = call(0, group="own")
    story.slot(own, [story.happen("issue", 0, own, thread="helper")])
    lanes = lanes_of(story.run(waiting=(Waiting(RankOrThread(0, "helper"), "all_reduce #0", None, (1,)),)))
    assert [lane.who for lane in lanes.lanes] == [RankOrThread(0), RankOrThread(0, "helper"), RankOrThread(1)]
    assert [lane.end for lane in lanes.lanes] == ["unknown", "waiting", "unknown"]
    assert columns(lanes, 1) == [1]


def start(name, target):
    thread = threading.Thread(target=target, name=name)
    thread.start()
    return thread


def with_threads(rank):
    def fails():
        raise ValueError("no")

    start("calls", dist.barrier).join()
    start("fails", fails).join()
    start("goes on", lambda: [dist.barrier() for _ in range(1000)]).join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_how_threads_ended():
    lanes = lanes_of(run_of(with_threads, 2, budget=Budget(steps=100))).lanes
    ends = [(lane.who.thread, lane.end, lane.text) for lane in lanes if lane.who.thread]
    assert ends == 2 * [("calls", "returned", ""), ("fails", "raised", "ValueError"), ("goes on", "stopped", "")]


@pytest.mark.parametrize(
    ("mine", "others", "word", "beside"),
    [
        (call(0, "broadcast"), call(0), "broadcast", "all_reduce"),
        (replace(call(0), signature="SUM float32[3]"), call(0), "SUM float32[3]", "SUM float32[2]"),
        (call(0, origin="DDP #0 bucket 1 of step 2"), call(0), "DDP #0 bucket 1 of step 2", "the program itself"),
    ],
)
def test_the_odd_call_says_what_is_different(mine, others, word, beside):
    assert odd_words(mine, others, culprits=(0,)) == [(word, ""), ("", beside), ("", beside)]


def test_where_nobody_is_named_every_call_is_odd():
    mine, others = call(0, "broadcast"), call(0)
    assert odd_words(mine, others, culprits=()) == [("broadcast", ""), ("all_reduce", ""), ("all_reduce", "")]


def odd_words(mine, others, culprits):
    """What is said of the calls of three ranks, the first of which made another one."""
    finding = Finding("mismatch.operation", Verdict.FAIL, culprits, "", "", slots=(0,))
    lanes = lanes_of(Story(3).differ(mine, others, others).run(findings=(finding,)))
    return [(item.odd, item.beside) for item in lanes.items]


@given(st.lists(st.tuples(st.permutations(range(4)), st.integers(2, 4), st.booleans()), max_size=12))
def test_columns_hold_their_promises(steps):
    story = Story(4)
    for number, (ranks, count, is_message) in enumerate(steps):
        if is_message:
            first = "recv" if count == 2 else "send"
            story.send(message(number, "send", ranks[1]), message(number, "recv", ranks[0]), first=first)
        else:
            story.meet(call(number, group=str(sorted(ranks[:count]))), ranks[:count])
    run = story.run()
    lanes = lanes_of(run)
    place = {item.event: item for item in lanes.items}
    for lane in range(4):
        assert columns(lanes, lane) == sorted(set(columns(lanes, lane)))
    for slot in run.slots:
        met = [place[issue] for issue in slot.issues]
        if run.calls[met[0].call].is_point_to_point:
            sent, receipt = sorted(met, key=lambda item: run.calls[item.call].operation, reverse=True)
            assert receipt.column > sent.column
        else:
            assert len({item.column for item in met}) == 1
            assert max(item.arrival for item in met) == met[0].column
            among = range(min(item.lane for item in met), max(item.lane for item in met) + 1)
            between = [item for item in lanes.items if item.column == met[0].column and item.lane in among]
            assert [item.event for item in between] == sorted(slot.issues)
    assert lanes.columns == max((item.column for item in lanes.items), default=-1) + 1


@rows("name", [MISSING, CYCLE, MISMATCH, THREADS, "join-baseline", "groups-in-a-ring"])
def test_real_runs_lose_nothing(name):
    run = document(name).runs[0]
    lanes = lanes_of(run)
    issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
    assert [item.event for item in lanes.items] == issues
    marked = sorted(event for mark in lanes.marks for event in mark.events)
    assert marked == [index for index, event in enumerate(run.events) if event.kind in MARKS]
    assert len(lanes.missing) == sum(len(slot.missing) for slot in run.slots if slot.state == "open")
    assert sum(bar.end is None for bar in lanes.bars) == len(run.waiting)


def test_a_run_without_a_trace_has_lanes_without_items():
    lanes = lanes_of(Run("processes", 3, Verdict.PASS, (), ""))
    assert len(lanes.lanes) == 3
    assert (lanes.items, lanes.columns) == ((), 0)


def test_ranks_that_did_the_same_share_a_lane_if_there_are_more_than_7():
    run = missing_rank(7, 5)
    assert shown_lanes(run) == lanes_of(run)
    assert [lane.ranks for lane in shown_lanes(missing_rank(8, 5)).lanes] == [(0, 1, 2, 3, 4, 6, 7), (5,)]
    lanes = shown_lanes(missing_rank(1024, 21, 3))
    assert [lane.ranks for lane in lanes.lanes] == [tuple(rank for rank in range(1024) if rank != 21), (21,)]
    assert [columns(lanes, lane) for lane in (0, 1)] == [[0, 1, 2, 3], [0, 1, 2]]
    assert lanes.missing == (MissingCall(1, 3, 3),)
    assert len(lanes.bars) == 1
    assert lanes.left_out == 0


def test_a_rank_that_did_something_else_shares_no_lane():
    story = Story(70)
    story.meet(call(0), range(70))
    story.happen("step", 50, text="1")
    assert [lane.ranks for lane in shown_lanes(story.run()).lanes] == [(*range(50), *range(51, 70)), (50,)]


def test_of_too_many_lanes_those_that_tell_something_stay():
    story = Story(100)
    for rank in range(100):
        story.hang(call(0, group=f"of {rank}"), [rank], [99] if rank == 98 else [])
    finding = Finding("deadlock.missing_rank", Verdict.FAIL, (97,), "", "")
    lanes = shown_lanes(story.run(findings=(finding,)), largest=10)
    assert [lane.who.rank for lane in lanes.lanes] == [*range(8), 97, 99]
    assert lanes.left_out == 90
    assert len(lanes.items) == 10
