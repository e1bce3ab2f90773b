"""A report as text: the lanes in a narrow form, on wide and narrow terminals, coloured only where one looks at them."""

import dataclasses
import io
import re

import pytest
import torch
import torch.distributed as dist
from rich.cells import cell_len
from rich.console import Console
from torch.nn.parallel import DistributedDataParallel

from ddpsim.reports.document import Document, Rank, Waiting
from ddpsim.reports.forms.narrow_lanes import draw_lanes_as_text
from ddpsim.reports.forms.text import text_of, to_text
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document, run_of
from tests.reports.made import Story, call, exploration, parted


def lanes(name, width=120):
    """The lines of a scenario's lanes."""
    return draw_lanes_as_text(document(name).runs[0], width).plain.splitlines()


def test_the_place_of_the_missing_call_is_marked_and_nothing_where_none_is_missing():
    # At construction shapes are compared and parameters sent in two broadcasts of one bucket each; then there is an
    # all_reduce for each of 5 batches, after the first of which buckets are rebuilt by two broadcasts. Rank 1 has 4.
    assert lanes(MISSING) == [
        "lanes  matched calls are in one column",
        'rank 0  ABBRBBRRRR=  waits in all_reduce #9  SUM float32[11]  group "default"',
        "rank 1  ABBRBBRRR?   returned",
        'rank 2  ABBRBBRRRR=  waits in all_reduce #9  SUM float32[11]  group "default"',
        'rank 3  ABBRBBRRRR=  waits in all_reduce #9  SUM float32[11]  group "default"',
        "  A all_gather   B broadcast   R all_reduce   = waits forever   ? never came",
    ]
    lines = lanes("uneven-inputs-without-join-repaired")
    assert not re.search("[?!=]", "".join(lines))
    assert [line.split("  ")[-1] for line in lines[1:5]] == ["returned"] * 4
    assert "small: made by join() on a joined rank" in lines[-1]


def test_the_odd_call_is_marked_and_what_differs():
    assert lanes(MISMATCH) == [
        "lanes  matched calls are in one column",
        'rank 0  A=  waits in all_reduce #0  MAX float32[1]  group "default"',
        'rank 1  !=  waits in broadcast #0  float32[1] root 0  group "default"; differs: broadcast',
        'rank 2  A=  waits in all_reduce #0  MAX float32[1]  group "default"',
        "rank 3  A   stopped",
        "  A all_reduce   = waits forever   ! differs",
    ]


def test_messages_are_arrows_and_each_waits_for_the_next():
    waits = "waits in send #0  float32[1]  to rank"
    *rows, legend = lanes(CYCLE)[1:]
    assert rows == [f'rank {rank}  >?=  {waits} {(rank + 1) % 4}  group "default"' for rank in range(4)]
    assert legend == "  > send   = waits forever   ? never came"


def test_a_thread_has_a_lane_below_its_rank():
    assert [line.split("  ")[0] for line in lanes(THREADS)[1:9]] == [
        text for rank in range(4) for text in (f"rank {rank}", f'rank {rank} "reporter"')
    ]


def test_groups_have_characters_of_their_own():
    found = lanes("groups-in-a-ring")
    legend = " ".join(found[5:])
    letters = re.findall(r'([A-Z]) all_reduce "(\d)"', legend)
    assert sorted(group for _, group in letters) == ["1", "2", "3", "4"]
    assert len({letter for letter, _ in letters}) == 4


def barriers(world_size, calls, *, absent=()):
    """Ranks that meet in so many barriers, the last of which some do not come to."""
    story, last = Story(world_size), calls - bool(absent)
    for number in range(last):
        story.meet(call(number, "barrier"), range(world_size))
    here = [rank for rank in range(world_size) if absent and rank not in absent]
    slots = (story.hang(call(last, "barrier"), here, absent),) if absent else ()
    return story.run(
        verdict=Verdict.FAIL if absent else Verdict.PASS,
        ranks=tuple(Rank(rank, "waiting" if rank in here else "returned") for rank in range(world_size)),
        waiting=tuple(Waiting(RankOrThread(rank), "barrier", slots=slots) for rank in here),
    )


def test_of_more_than_16_ranks_those_alike_share_a_row():
    assert [line.split("  ")[0] for line in draw_lanes_as_text(barriers(16, 2), 80).plain.splitlines()[1:-1]] == [
        f"rank {rank}" for rank in range(16)
    ]
    assert draw_lanes_as_text(barriers(1024, 3, absent=(7, 9)), 80).plain.splitlines() == [
        "lanes  matched calls are in one column",
        "ranks 0-6, 8, 10-1023  BBB=  waits in barrier",
        "ranks 7, 9             BB?   returned",
        "  B barrier   = waits forever   ? never came",
    ]


def test_rows_that_differ_too_much_are_counted_and_the_telling_stay():
    run = barriers(60, 2, absent=(59,))
    ends = tuple(dataclasses.replace(rank, end="raised", text=f"E{rank.rank}") for rank in run.ranks)
    lines = draw_lanes_as_text(dataclasses.replace(run, ranks=ends, waiting=()), 80).plain.splitlines()
    assert [line.split("  ")[0] for line in lines[1:41]] == [f"rank {rank}" for rank in (*range(39), 59)]
    assert lines[41] == "  20 more lanes are in result.json"


@rows("width", [1, 20, 40, 80, 120])
@rows("name", [MISSING, MISMATCH, CYCLE, THREADS, "groups-in-a-ring"])
def test_no_line_of_the_lanes_is_wider_than_the_terminal(name, width):
    assert all(cell_len(line) <= width for line in lanes(name, width))


def test_the_last_columns_are_shown_as_many_as_fit():
    lines = draw_lanes_as_text(barriers(2, 90, absent=(1,)), 60).plain.splitlines()
    # 60 columns less the label of 6, two gaps of 2 and the 16 of "waits in barrier": 34 of 90 calls and the wait.
    assert lines[0] == "lanes  matched calls are in one column, the last 34 of 91 c\N{HORIZONTAL ELLIPSIS}"
    assert lines[1] == f"rank 0  {'B' * 33}=  waits in barrier"
    assert lines[2] == f"rank 1  {'B' * 32}?   returned"


def test_a_run_without_calls_has_no_lanes():
    run = document(MISSING).runs[0]
    bare = dataclasses.replace(run, calls=(), events=(), slots=(), waiting=())
    assert draw_lanes_as_text(bare, 80) is None
    assert "lanes" not in to_text(Document("", (bare,))).decode()


def printed(made, *, terminal, environ=None):
    file = io.StringIO()
    colours = "truecolor" if terminal else "auto"
    console = Console(file=file, force_terminal=terminal, color_system=colours, width=80, _environ=environ or {})
    console.print(text_of(made, 80), soft_wrap=True)
    return file.getvalue()


def test_colours_are_for_terminals_and_nobody_gets_them_who_does_not_want_them():
    made = document(MISSING)
    plain = f"{text_of(made, 80).plain}\n"
    assert "\x1b[1;31m?\x1b[0m" in printed(made, terminal=True)  # the missing call, bold and red
    assert "\x1b[1;31mDEADLOCK\x1b[0m" in printed(made, terminal=True)
    assert printed(made, terminal=False) == plain
    assert not re.search(r"\x1b\[[\d;]*3\d", printed(made, terminal=True, environ={"NO_COLOR": "1"}))
    assert "\x1b" not in plain


def test_the_order_of_a_report():
    made = document(MISSING)
    run = dataclasses.replace(made.runs[0], seconds=0.0123, conclusion="as expected: fail")
    text = to_text(Document("t", (run,))).decode()
    head, diagnosis, drawn, conclusion = text.split("\n\n")
    assert head == f"{MISSING}  world size 4  policy round_robin  12 ms"
    assert diagnosis == run.text
    assert drawn.startswith("lanes  ")
    assert conclusion == "as expected: fail\n"


def test_the_choice_that_differs_is_told_with_the_last_before_it_and_marked_in_the_lanes():
    lines = text_of(parted(), 100).plain.splitlines()
    start = lines.index("what differs  choice 17 at step 17, after 16 equal choices")
    assert lines[start + 1 : start + 10] == [
        "  before   ...",
        *(f"  before   {number}  rank 2 runs" for number in (13, 14, 15, 16)),
        "  failing  17  rank 1 goes on",
        "  then     rank 1 returns",
        "  passing  17  rank 0 runs",
        "  then     rank 0 issues all_reduce",
    ]
    marks = [
        (lines[index - 1], line) for index, line in enumerate(lines) if line.endswith("runs diverge here, choice 17")
    ]
    # In the run that failed the event is the return of rank 1, after two calls; in the other, its third call.
    (above, passed), (_, failed) = marks
    assert above.startswith("rank 3  ")
    assert passed == "          ^ rank 0: runs diverge here, choice 17"
    assert failed == "         ^ rank 1: runs diverge here, choice 17"
    assert [line for line in text_of(parted(2), 100).plain.splitlines() if line.startswith("  before ")] == [
        "  before   1 to 10  the default each time",
        "  before   11       rank 2 runs",
        "  before   12       rank 2 runs",
    ]


@pytest.mark.parametrize(
    ("isolation", "unequal_step", "column"),
    [
        ("thread", 0, 11),
        ("thread", 2, 15),
        ("thread", None, None),
        pytest.param("process", 2, 15, marks=pytest.mark.tier("ci")),
    ],
)
def test_where_replicas_were_found_to_differ_is_marked_in_the_lanes(isolation, unequal_step, column):
    """At the optimizer step of the last rank, after which the parameters were compared: the lanes begin at column 8
    with three calls of the constructor; the second step begins with two broadcasts that rebuild the buckets."""

    def train(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.param_groups[0]["lr"] = 0.25 if (rank, step) == (1, unequal_step) else 0.5
            optimizer.step()

    run = run_of(train, 2, check="replicas", isolation=isolation)
    if unequal_step is None:
        assert run.findings == ()
        return
    assert [each.code for each in run.findings] == ["divergence.parameters"]
    event = run.events[run.findings[0].event]
    steps = [each for each in run.events if each.kind is EventKind.STEP and each.text == str(unequal_step + 1)]
    assert event == steps[-1]
    assert [
        line for line in to_text(Document("t", (run,))).decode().splitlines() if line.endswith("replicas differ")
    ] == [f"{' ' * column}^ rank {event.rank}: replicas differ"]


def test_what_is_marked_left_of_the_columns_that_are_shown_is_pointed_to():
    made = exploration(steps=200)
    lines = text_of(dataclasses.replace(made, exploration=_parted_at_once(made.exploration)), 60).plain.splitlines()
    assert sum(line.endswith("  < rank 0: runs diverge here") for line in lines) == 2


def _parted_at_once(explored):
    return dataclasses.replace(explored, difference=dataclasses.replace(explored.difference, failing=0, passing=0))


def test_an_exploration_says_how_often_there_was_what_and_shows_its_runs():
    made = exploration()
    concluded = dataclasses.replace(made.exploration, conclusion="as expected")
    lines = to_text(dataclasses.replace(made, exploration=concluded)).decode().splitlines()
    assert lines[:8] == [
        *("FAIL  story", "  1,234 executions, all there are"),
        *("     1200  pass", "       34  fail  deadlock.missing_rank rank 1"),
        *("", "what differs", "  failing  rank 1 returns", "  passing  rank 0 issues all_reduce"),
    ]
    assert [line for line in lines if line.startswith("--- ")] == ["--- story  world size 4"] * 2
    assert lines[-1] == "as expected"


def disagree(rank):
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank > 1 else dist.ReduceOp.SUM)


def test_in_a_tie_each_side_has_a_number_and_brief_lanes_say_no_more_than_how_they_ended():
    assert draw_lanes_as_text(run_of(disagree, 4), 100, is_brief=True).plain.splitlines() == [
        "lanes  matched calls are in one column",
        "rank 0  1=  waits",
        "rank 1  1=  waits",
        "rank 2  2=  waits",
        "rank 3  2   stopped",
        "  = waits forever   1 SUM float32[2]   2 MAX float32[2]",
    ]


def test_groups_along_one_dimension_of_a_mesh_share_a_letter():
    story = Story(4)
    for dp in (0, 1):
        story.meet(call(0, group=f"tp (dp {dp})"), (2 * dp, 2 * dp + 1))
    ranks = tuple(Rank(rank, "returned", coordinates=f"dp {rank // 2}, tp {rank % 2}") for rank in range(4))
    legend = draw_lanes_as_text(story.run(ranks=ranks), 100).plain.splitlines()[-1]
    assert legend == "  A all_reduce"


@pytest.mark.parametrize("ranks", [4, 16])
def test_lanes_of_16_ranks_fit_100_columns(ranks):
    story = Story(ranks)
    for number in range(200):
        story.meet(call(number, group=f"{number % 7}"), range(ranks))
    lines = draw_lanes_as_text(story.run(), 100, is_brief=True).plain.splitlines()
    assert len([line for line in lines if line.startswith("rank ")]) == ranks
    assert max(map(cell_len, lines)) <= 100
