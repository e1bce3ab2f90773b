"""What one sees without a click: heads, words, colours and their legend; and that whatever is drawn can be clicked."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from ddpsim.reports.document import Document, Finding, Rank, Site, Waiting
from ddpsim.simulator.choices import Who
from ddpsim.simulator.verdict import Verdict
from tests.reports.browser.conftest import centre
from tests.reports.made import Story, call, exploration, missing_rank
from tests.reports.test_wait_graph import ring

MISSING_STATE = "missing: it never came"


def heads(report):
    """What stands above the columns, from left to right."""
    return report.look(".drawing .head", "all => all.map(each => each.firstChild.textContent)")


def opened(open_report, story, **fields):
    return open_report(Document("story", (story.run(**fields),)))


# --- a click ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", " .box", " .word"])
def test_a_click_anywhere_on_a_missing_call_shows_it(open_report, part):
    report = open_report(Document("story", (missing_rank(),)))
    report.page.mouse.click(*centre(report.box(f".drawing .missing{part}")))
    assert report.texts(".details h3") == ["rank 1: all_reduce #2 is missing"]


def test_a_click_on_the_bar_of_a_wait_shows_the_call_that_it_is_for(open_report):
    report = open_report(Document("story", (missing_rank(),)))
    report.page.mouse.click(*centre(report.boxes(".drawing .bar.forever")[1]))
    assert report.texts(".details h3") == ["rank 2: all_reduce #2"]


def test_a_click_on_the_bar_of_another_wait_tells_what_it_is_for(open_report):
    story = Story(1)
    story.happen("wait", 0, text="the end of thread 'late'")
    waiting = (Waiting(Who(0), "the end of thread 'late'"),)
    report = opened(open_report, story, waiting=waiting, ranks=(Rank(0, "waiting"),))
    report.page.mouse.click(*centre(report.box(".drawing .bar.forever")))
    assert report.details() == {"event 1": "rank 0 waits for the end of thread 'late'"}


def test_a_click_on_the_word_beside_an_odd_call_shows_it(open_report):
    report = opened(open_report, Story(2).differ(call(0), call(0, "barrier")), **culprit(1))
    report.page.mouse.click(*centre(report.box(".drawing .word:not(.other)")))
    assert report.texts(".details h3") == ["rank 1: barrier #0"]


# --- where a rank went that never came --------------------------------------------------------------------------------


def test_the_details_of_a_missing_call_say_that_the_rank_returned(open_report):
    report = open_report(Document("story", (missing_rank(),)))
    report.page.locator(".drawing .missing .box").click()
    details = report.details()
    # 4 issues, 3 waits, a match and 3 ends of waits, twice: the second issue of rank 1 is event 14, its return 23.
    assert list(details.items())[:3] == [
        ("state", MISSING_STATE),
        ("instead", "returned, in event 23"),
        ("last call", "all_reduce #1 at train.py:2, in event 14"),
    ]
    assert report.texts(".where") == ["the others called it at train.py:2 in train"]


@pytest.mark.parametrize(
    ("end", "text", "instead"),
    [
        ("waiting", 'recv #0  from rank 0  group "default"', 'waits for good: recv #0  from rank 0  group "default"'),
        ("raised", "ValueError: no", "raised ValueError: no"),
        ("stopped", "", "stopped"),
    ],
)
def test_the_details_of_a_missing_call_say_what_the_rank_did_instead(open_report, end, text, instead):
    story = Story(2)
    story.hang(call(0), [0], [1])
    ranks = (Rank(0, "waiting"), Rank(1, end, text))
    report = opened(open_report, story, ranks=ranks)
    report.page.locator(".drawing .missing .box").click()
    details = report.details()
    assert (details["instead"], details["last call"]) == (instead, "none")


def test_of_several_groups_the_last_call_has_its_own(open_report):
    story = Story(2)
    story.meet(call(0, group="1"), (0, 1))
    story.hang(call(0), [0], [1])
    report = opened(open_report, story, ranks=(Rank(0, "waiting"), Rank(1, "stopped")))
    report.page.locator(".drawing .missing .box").click()
    assert report.details()["last call"] == 'all_reduce #0 on group "1", in event 3'


# --- heads ------------------------------------------------------------------------------------------------------------


def test_a_head_says_the_operation(open_report):
    story = Story(2)
    story.meet(call(0), (0, 1))
    story.meet(call(1, "barrier"), (0, 1))
    assert heads(opened(open_report, story)) == ["all_reduce", "barrier"]


def test_of_several_groups_a_head_says_which(open_report):
    story = Story(4)
    story.meet(call(0), range(4))
    story.meet(call(0, group="1"), (0, 1))
    story.meet(call(0, group="2"), (2, 3))
    story.meet(call(1, group="1"), (0, 1))
    story.meet(call(1, "barrier", group="2"), (2, 3))
    assert heads(opened(open_report, story)) == [
        'all_reduce "default"',
        'all_reduce "1", "2"',
        'all_reduce "1" / barrier "2"',
    ]


def test_a_head_says_what_of_ddp_it_is_for(open_report):
    story = Story(2)
    phases = ("parameter check", "state broadcast", "buffers", "bucket", "used map", "rebuild", "join control", "")
    for number, phase in enumerate(phases):
        bucket = 3 if phase == "bucket" else None
        story.meet(call(number, phase=phase, bucket=bucket, origin=phase), (0, 1))
    words = ("check", "state", "buffers", "bucket 3", "used map", "rebuild", "join", "")
    assert heads(opened(open_report, story)) == [f"all_reduce {word}".rstrip() for word in words]


def test_calls_that_differ_in_operation_have_words_and_no_head(open_report):
    one = call(0, phase="bucket", bucket=0, origin="DDP")
    made = Story(2).differ(one, call(0, "broadcast", phase="rebuild", origin="DDP"))
    report = opened(open_report, made, **culprit(1))
    assert heads(report) == []
    assert report.texts(".drawing .word") == ["all_reduce bucket 0", "\N{NOT EQUAL TO} broadcast rebuild"]


def test_calls_that_differ_in_purpose_have_both_in_their_head(open_report):
    one, other = call(0, phase="bucket", bucket=0, origin="DDP"), call(0, phase="buffers", origin="other")
    assert heads(opened(open_report, Story(2).differ(one, other), **culprit(1))) == ["all_reduce bucket 0 / buffers"]
    assert heads(opened(open_report, Story(2).differ(one, call(0)), **culprit(1))) == ["all_reduce bucket 0 / program"]


def test_a_call_that_only_follows_the_others_has_no_purpose_of_its_own(open_report):
    following = call(0, phase="following", origin="following (shadow)", is_shadow=True)
    for other, head in ((call(0), "all_reduce"), (call(0, phase="buffers", origin="DDP"), "all_reduce buffers")):
        assert heads(opened(open_report, Story(2).differ(following, other))) == [head]


def test_a_long_head_is_cut_and_has_all_of_it_for_a_title(open_report):
    name = "tensor-parallel-and-more-of-it"
    story = Story(2)
    story.meet(call(0, group=name), (0, 1))
    story.meet(call(0), (0, 1))
    report = opened(open_report, story)
    assert heads(report) == [f'all_reduce "{name}"'[:29] + "\N{HORIZONTAL ELLIPSIS}", 'all_reduce "default"']
    assert report.texts(".drawing .head title") == [f'all_reduce "{name}"']
    frame = report.box(".frame")
    assert all(box["y"] >= frame["y"] for box in report.boxes(".drawing .head"))


PLACES = "all => all.map(each => [Number(each.getAttribute('x')), each.getBBox().height, each.getBBox().width])"


def test_heads_do_not_overlap_where_columns_are_as_narrow_as_is_legible(open_report):
    story = Story(2)
    for number in range(120):
        story.meet(call(number, group="a group with a name", phase="used map", origin="DDP"), (0, 1))
    story.meet(call(0), (0, 1))
    report = opened(open_report, story)
    places = report.look(".drawing .head", PLACES)
    assert len(places) > 20
    distances = [right[0] - left[0] for left, right in pairwise(places)]
    assert distances == pytest.approx([24] * len(distances))
    assert max(height for _, height, _ in places) < 24 * math.sin(math.radians(48))
    last = report.boxes(".drawing .head")[-1]
    frame = report.box(".frame")
    assert last["x"] + last["width"] <= frame["x"] + frame["width"]  # that of the last column is there to its end


# --- colours ----------------------------------------------------------------------------------------------------------


def culprit(rank):
    return {
        "verdict": Verdict.FAIL,
        "findings": (Finding("mismatch.operation", Verdict.FAIL, (rank,), "", "", slots=(0,)),),
    }


STYLE = "all => all.map(each => { const s = getComputedStyle(each); return [s.fill, s.stroke, s.strokeDasharray]; })"


def test_a_shadow_that_differs_is_a_shadow_in_the_colour_of_trouble(open_report):
    report = opened(open_report, Story(2).differ(call(0), call(0, "barrier", is_shadow=True)), **culprit(1))
    ((fill, stroke, dashes),) = report.look(".drawing .call.odd", STYLE)
    (ring_style,) = report.look(".drawing .ring:not(.other)", STYLE)
    assert stroke == ring_style[1]
    assert fill == report.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dashes != "none"
    report = opened(open_report, Story(2).differ(call(0), call(0, "barrier")), **culprit(1))
    (odd,) = report.look(".drawing .call.odd", STYLE)
    assert (odd[0], odd[2]) == (stroke, "none")


STROKES = "all => [...new Set(all.map(each => getComputedStyle(each).stroke))].sort()"


@pytest.mark.parametrize(("ranks", "colours"), [(2, 2), (4, 4), (7, 5)])
def test_each_colour_of_a_ring_is_in_the_legend(open_report, ranks, colours):
    report = open_report(Document("ring", (ring(ranks),)))
    for sign in (".ring", ".box"):
        drawn = report.look(f".drawing {sign}", STROKES)
        assert len(drawn) == colours
        assert report.look(f".legend {sign}", STROKES) == drawn


def test_rings_around_calls_that_differ_are_in_the_legend(open_report):
    report = opened(open_report, Story(2).differ(call(0), call(0, "barrier")), **culprit(1))
    for sign in (".ring:not(.other)", ".ring.other"):
        assert report.look(f".legend {sign}", STYLE) == report.look(f".drawing {sign}", STYLE) != []
    assert report.texts(".legend span")[-2:] == ["differs from the others", "the others it met"]


# --- words ------------------------------------------------------------------------------------------------------------


FITS = "all => all.map(each => each.scrollWidth <= each.clientWidth)"


def test_long_lines_of_source_and_of_findings_are_not_cut_off(open_report):
    run = missing_rank()
    source = tuple(f"            {line}" for line in ("for batch in data:", f"    step({'batch, ' * 30})", ""))
    finding = replace(run.findings[0], text="  cause  " + "because " * 60)
    shown = replace(run, sites=(Site("train.py", 2, "train", 1, source),), findings=(finding,), text=finding.text)
    report = open_report(Document("story", (shown,)))
    report.click_place(0)
    assert report.texts(".source bdi") == ["for batch in data:", f"    step({'batch, ' * 30})", ""]
    for summary in report.page.locator(".finding summary, .whole summary").all():
        summary.click()
    assert report.look(".source, .finding pre, .whole pre", FITS) == [True] * 3
    assert report.texts(".finding pre") == [finding.text]


def test_the_lane_of_a_thread_ends_with_its_state(open_report):
    story = Story(1)
    for name, *texts in (("a", "thread ended"), ("b", "thread raised ValueError", "thread ended"), ("c", "goes on")):
        for text in texts:
            story.happen("note", 0, text=text, thread=name)
    report = opened(open_report, story, ranks=(Rank(0, "returned"),))
    ends = report.look(".drawing .end", "all => all.map(each => each.firstChild.textContent.slice(2))")
    assert ends == ["returned", "returned", "raised", "stopped"]
    assert report.texts(".drawing .end title")[2] == "ValueError"


def test_an_exploration_says_what_each_run_did_where_they_part(open_report):
    report = open_report(exploration())
    rows = report.page.locator(".sides .line-of")
    assert [row.locator("> *").all_text_contents() for row in rows.all()] == [
        ["failing", "rank 1 returns"],
        ["passing", "rank 0 issues all_reduce"],
    ]


def test_the_head_says_what_was_found_and_who_joined_in_a_word_each(open_report):
    run = replace(missing_rank(), is_expected=False, conclusion="not as expected: found fail; expected pass")
    report = open_report(Document("story", (replace(run, joins=("rank 1 joined at step 4",)),)))
    rows = report.page.locator(".line-of")
    assert [row.locator("> *").all_text_contents() for row in rows.all()[:2]] == [
        ["outcome", "\N{BALLOT X} not as expected: found fail; expected pass"],
        ["join", "rank 1 joined at step 4"],
    ]
