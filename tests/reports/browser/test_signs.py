"""What one sees without a click: heads, words, colours and their legend; and that whatever is drawn can be clicked."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from ddpsim.reports.document import Finding, Rank, Site, Waiting
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.verdict import Verdict
from tests.reports.browser.conftest import centre
from tests.reports.made import Story, call, exploration, missing_rank


def heads(report):
    """What stands above the columns, from left to right."""
    return report.look(".drawing .head", "all => all.map(each => each.firstChild.textContent)")


def differ(*calls):
    """A run that fails as each rank made a call of its own, of which that of rank 1 is the odd one."""
    finding = Finding("mismatch.operation", Verdict.FAIL, (1,), "", "", slots=(0,))
    return Story(len(calls)).differ(*calls).run(verdict=Verdict.FAIL, findings=(finding,))


@pytest.mark.parametrize(
    ("sign", "number", "shown"),
    [
        *((f".missing{part}", 0, "rank 1: all_reduce #2 is missing") for part in ("", " .box", " .word")),
        (".bar.forever", 1, "rank 2: all_reduce #2"),
    ],
)
def test_a_click_shows_the_call_that_a_sign_is_of(open_run, sign, number, shown):
    report = open_run(missing_rank())
    report.page.mouse.click(*centre(report.boxes(f".drawing {sign}")[number]))
    assert report.texts(".details h3") == [shown]


def test_a_click_on_the_bar_of_another_wait_tells_what_it_is_for(open_run):
    story = Story(1)
    story.happen("wait", 0, text="the end of thread 'late'")
    waiting = (Waiting(RankOrThread(0), "the end of thread 'late'"),)
    report = open_run(story.run(waiting=waiting, ranks=(Rank(0, "waiting"),)))
    report.page.mouse.click(*centre(report.box(".drawing .bar.forever")))
    assert report.details() == {"event 1": "rank 0 waits for the end of thread 'late'"}


def test_a_click_on_the_word_beside_an_odd_call_shows_it(open_run):
    report = open_run(differ(call(0), call(0, "barrier")))
    report.page.mouse.click(*centre(report.box(".drawing .word:not(.other)")))
    assert report.texts(".details h3") == ["rank 1: barrier #0"]


def details_of_missing(report):
    report.page.locator(".drawing .missing .box").click()
    return report.details()


def test_the_details_of_a_missing_call_say_that_the_rank_returned(open_run):
    report = open_run(missing_rank())
    # 4 issues, 3 waits, a match and 3 ends of waits, twice: the second issue of rank 1 is event 14, its return 23.
    assert list(details_of_missing(report).items())[:3] == [
        ("state", "missing: it never came"),
        ("instead", "returned, in event 23"),
        ("last call", "all_reduce #1 at train.py:2, in event 14"),
    ]
    assert report.texts(".where") == ["the others called it at train.py:2 in train"]


@pytest.mark.parametrize(
    ("met", "end", "text", "instead", "last"),
    [
        ("", "waiting", 'recv #0  group "default"', 'waits forever: recv #0  group "default"', "none"),
        ("", "raised", "ValueError: no", "raised ValueError: no", "none"),
        ("1:01 ", "stopped", "", "stopped", 'all_reduce #0 on group "1", in event 3'),  # its own group, of several
    ],
)
def test_the_details_of_a_missing_call_say_what_the_rank_did_instead(open_run, met, end, text, instead, last):
    ranks = (Rank(0, "waiting"), Rank(1, end, text))
    details = details_of_missing(open_run(Story.of(2, f"{met}default:0?1").run(ranks=ranks)))
    assert (details["instead"], details["last call"]) == (instead, last)


def test_a_head_says_the_operation_and_of_several_groups_which(open_run):
    story = Story(2)
    story.meet(call(0), (0, 1))
    story.meet(call(1, "barrier"), (0, 1))
    assert heads(open_run(story.run())) == ["all_reduce", "barrier"]
    story = Story.of(4, "default:0123 1:01 2:23 1:01")
    story.meet(call(1, "barrier", group="2"), (2, 3))
    several = ['all_reduce "default"', 'all_reduce "1", "2"', 'all_reduce "1" / barrier "2"']
    assert heads(open_run(story.run())) == several


def test_a_head_says_what_of_ddp_it_is_for(open_run):
    story = Story(2)
    phases = ("parameter check", "state broadcast", "buffers", "bucket", "used map", "rebuild", "join control", "")
    for number, phase in enumerate(phases):
        bucket = 3 if phase == "bucket" else None
        story.meet(call(number, phase=phase, bucket=bucket, origin=phase), (0, 1))
    words = ("check", "state", "buffers", "bucket 3", "used map", "rebuild", "join", "")
    assert heads(open_run(story.run())) == [f"all_reduce {word}".rstrip() for word in words]


BUCKET = call(0, phase="bucket", bucket=0, origin="DDP")
BUFFERS = call(0, phase="buffers", origin="DDP buffers")
FOLLOWING = call(0, phase="following", origin="following (shadow)", is_shadow=True)


@pytest.mark.parametrize(
    ("calls", "head", "words"),
    [
        (
            (BUCKET, call(0, "broadcast", phase="rebuild", origin="DDP")),
            *([], ["all_reduce bucket 0", "\N{NOT EQUAL TO} broadcast rebuild"]),
        ),
        ((BUCKET, BUFFERS), ["all_reduce bucket 0 / buffers"], ["bucket 0", "\N{NOT EQUAL TO} buffers"]),
        ((BUCKET, call(0)), ["all_reduce bucket 0 / program"], ["DDP", "\N{NOT EQUAL TO} the program itself"]),
        # A call that only follows the others has no purpose of its own.
        ((FOLLOWING, call(0)), ["all_reduce"], None),
        ((FOLLOWING, BUFFERS), ["all_reduce buffers"], None),
    ],
)
def test_calls_that_differ_have_words_and_of_one_operation_a_head_with_both_purposes(open_run, calls, head, words):
    report = open_run(differ(*calls))
    assert heads(report) == head
    assert words in (None, report.texts(".drawing .word"))


def test_a_long_head_is_cut_and_has_all_of_it_for_a_title(open_run):
    name = "tensor-parallel-and-more-of-it"
    report = open_run(Story.of(2, f"{name}:01 default:01").run())
    assert heads(report) == [f'all_reduce "{name}"'[:29] + "\N{HORIZONTAL ELLIPSIS}", 'all_reduce "default"']
    assert report.texts(".drawing .head title") == [f'all_reduce "{name}"']
    frame = report.box(".frame")
    assert all(box["y"] >= frame["y"] for box in report.boxes(".drawing .head"))


PLACES = "all => all.map(each => [Number(each.getAttribute('x')), each.getBBox().height, each.getBBox().width])"


def test_heads_do_not_overlap_where_columns_are_as_narrow_as_is_legible(open_run):
    story = Story(2)
    for number in range(120):
        story.meet(call(number, group="a group with a name", phase="used map", origin="DDP"), (0, 1))
    story.meet(call(0), (0, 1))
    report = open_run(story.run())
    report.page.locator("[data-action=fold]").click()
    places = report.look(".drawing .head", PLACES)
    assert len(places) > 20
    distances = [right[0] - left[0] for left, right in pairwise(places)]
    assert distances == pytest.approx([24] * len(distances))
    assert max(height for _, height, _ in places) < 24 * math.sin(math.radians(48))
    last, frame = report.boxes(".drawing .head")[-1], report.box(".frame")
    assert last["x"] + last["width"] <= frame["x"] + frame["width"]  # that of the last column is there to its end


STYLE = "all => all.map(each => { const s = getComputedStyle(each); return [s.fill, s.stroke, s.strokeDasharray]; })"


def test_a_shadow_that_differs_is_a_shadow_in_the_colour_of_trouble(open_run):
    report = open_run(differ(call(0), call(0, "barrier", is_shadow=True)))
    ((fill, stroke, dashes),) = report.look(".drawing .call.odd", STYLE)
    (ring_style,) = report.look(".drawing .ring:not(.other)", STYLE)
    assert stroke == ring_style[1]
    assert fill == report.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dashes != "none"
    report = open_run(differ(call(0), call(0, "barrier")))
    (odd,) = report.look(".drawing .call.odd", STYLE)
    assert (odd[0], odd[2]) == (stroke, "none")
    for sign in (".ring:not(.other)", ".ring.other"):  # both are in the legend
        assert report.look(f".legend {sign}", STYLE) == report.look(f".drawing {sign}", STYLE) != []
    assert report.texts(".legend span")[-2:] == ["differs from the others", "the other calls of its slot"]


STROKES = "all => [...new Set(all.map(each => getComputedStyle(each).stroke))].sort()"


def test_the_cause_and_what_follows_have_a_colour_each_and_both_are_in_the_legend(open_run):
    blame = Finding("deadlock.missing_rank", Verdict.FAIL, (3,), "", "", slots=(0, 1, 2))
    report = open_run(Story.of(4, "a:0?1 b:1?2 c:2?3").run(verdict=Verdict.FAIL, findings=(blame,)))
    for sign, colours in ((".ring", 1), (".box", 2)):  # nobody who waits is to blame
        drawn = report.look(f".drawing {sign}", STROKES)
        assert len(drawn) == colours
        assert report.look(f".legend {sign}", STROKES) == drawn


FITS = "all => all.map(each => each.scrollWidth <= each.clientWidth)"


def test_long_lines_of_source_and_of_findings_are_not_cut_off(open_run):
    run = missing_rank()
    source = tuple(f"            {line}" for line in ("for batch in data:", f"    step({'batch, ' * 30})", ""))
    finding = replace(run.findings[0], text="  cause  " + "because " * 60)
    sites = (Site("train.py", 2, "train", 1, source),)
    report = open_run(replace(run, sites=sites, findings=(finding,), text=finding.text))
    report.click_cell(0)
    assert report.texts(".source bdi") == [line[12:] for line in source]
    for summary in report.page.locator(".whole summary").all():
        summary.click()
    assert report.look(".excerpt, .source, .whole pre", FITS) == [True] * 3
    assert report.texts(".whole pre bdi") == [finding.text]


def test_the_lane_of_a_thread_ends_with_its_state(open_run):
    story = Story(1)
    for name, *texts in (("a", "thread ended"), ("b", "thread raised ValueError", "thread ended"), ("c", "goes on")):
        for text in texts:
            story.happen("note", 0, text=text, thread=name)
    report = open_run(story.run(ranks=(Rank(0, "returned"),)))
    ends = report.look(".drawing .end", "all => all.map(each => each.firstChild.textContent.slice(2))")
    assert ends == ["returned", "returned", "raised", "stopped"]
    assert report.texts(".drawing .end title")[2] == "ValueError"


def lines(report, part):
    return [row.locator("> *").all_text_contents() for row in report.page.locator(f"{part}.line-of").all()]


def test_an_exploration_says_what_each_run_did_where_they_part(open_report):
    told = [["failing", "rank 1 returns"], ["passing", "rank 0 issues all_reduce"]]
    assert lines(open_report(exploration()), ".sides ") == told


def test_the_head_says_what_was_found_and_who_joined_in_a_word_each(open_run):
    conclusion = "not as expected: found fail; expected pass"
    run = replace(missing_rank(), is_expected=False, conclusion=conclusion, joins=("rank 1 joined at step 4",))
    told = [["outcome", f"\N{BALLOT X} {conclusion}"], ["join", "rank 1 joined at step 4"]]
    assert lines(open_run(run), "")[:2] == told
