"""What one sees at a glance: messages, bands of a mesh, folded columns, two ranks side by side, and all on a phone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.reports.document import Document, Finding, Rank, Site
from ddpsim.simulator.verdict import Verdict
from tests.reports.browser.conftest import centre
from tests.reports.made import Story, call, message, missing_rank, of_own_size, parted
from tests.reports.test_finding_cards import long_run

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def inside(box, frame):
    """True if all of a box is in another one, from left to right."""
    return frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]


def tagged(send, receive):
    """Rank 0 sends to rank 1, which receives from it: both wait for good, under these tags."""
    story = Story(2)
    sent, received = (
        replace(message(0, operation, peer), tag=tag)
        for operation, peer, tag in (("send", 1, send), ("recv", 0, receive))
    )
    slots = [story.hang(each, [rank], [1 - rank]) for rank, each in enumerate((sent, received))]
    finding = Finding("deadlock.cycle", Verdict.FAIL, (0, 1), "", "", cycle=(0, 1), slots=tuple(slots))
    ranks = tuple(Rank(rank, "waiting") for rank in (0, 1))
    return story.run(verdict=Verdict.FAIL, findings=(finding,), ranks=ranks)


def test_a_message_and_a_receive_under_another_tag_are_joined_by_a_broken_arrow(open_run):
    report = open_run(tagged(7, 8))
    assert report.texts(".drawing text.near") == ["tag 7 \N{NOT EQUAL TO} tag 8"]
    assert report.count(".drawing .link.near") == report.count(".drawing .tip-of.near") == 1
    assert report.count(".drawing .missing") == 0  # nobody is missing: the other half is there, with another tag


def test_a_message_that_nobody_takes_hangs_in_the_air_with_its_peer(open_run):
    story = Story(3)
    slot = story.hang(message(0, "send", 1), [0], [1])
    other = story.hang(message(0, "recv", 2), [1], [2])
    finding = Finding("deadlock.missing_rank", Verdict.FAIL, (2,), "", "", slots=(slot, other))
    ranks = (Rank(0, "waiting"), Rank(1, "waiting"), Rank(2, "returned"))
    report = open_run(story.run(findings=(finding,), ranks=ranks))
    assert report.texts(".drawing .tag.hanging") == ["to rank 1"]  # that of rank 1 leads to the place of rank 2
    assert report.count(".drawing .missing") == 1


def test_lanes_of_a_mesh_stand_in_bands(open_run):
    places = [f"pp {pp}, dp {dp}, tp {tp}" for pp in (0, 1) for dp in (0, 1) for tp in (0, 1)]
    ranks = tuple(Rank(rank, "returned", coordinates=place) for rank, place in enumerate(places))
    story = Story(8)
    for one in range(0, 8, 2):
        story.meet(call(0, group=f"tp (pp {one // 4}, dp {one // 2 % 2})"), (one, one + 1))
    report = open_run(story.run(ranks=ranks))
    assert report.texts(".drawing .band-name") == ["pp 0, dp 0", "pp 0, dp 1", "pp 1, dp 0", "pp 1, dp 1"]
    labels = report.look(".drawing .label", "all => all.map(each => each.firstChild.textContent)")
    assert labels == [f"rank {rank} \N{MIDDLE DOT} tp {rank % 2}" for rank in range(8)]
    assert {text.split('"')[0] for text in report.texts(".drawing .head")} == {"all_reduce tp"}
    report.click_cell(7)
    assert report.texts(".details h3") == ["rank 7 (pp 1, dp 1, tp 1): all_reduce #0"]


def test_folded_columns_are_one_click_away(open_run):
    report = open_run(long_run(60))
    assert report.texts(".drawing .fold text") == ["steps 5 to 50 ", "the same on all ranks"]
    assert report.count(".drawing .call") == 2 * (61 - 46) - 1
    report.page.locator(".fold").click()
    assert report.count(".drawing .fold") == 0
    report.page.locator("[data-action=fold]").click()
    report.page.locator(".lanes").focus()
    for _ in range(12):  # to the left, until it comes to a folded call
        report.page.keyboard.press("ArrowLeft")
    assert report.count(".drawing .fold") == 0
    assert report.focused() == "rank 1, all_reduce #49, matched"


def test_the_first_call_that_differs_between_two_ranks_stands_side_by_side(open_run):
    run = replace(missing_rank(), sites=(Site("train.py", 2, "train", 1, ("for batch in data:", "    step(batch)")),))
    report = open_run(run)
    report.page.locator(".compare summary").click()
    assert report.texts(".compared > p") == ["2 calls are the same; then:"]
    assert report.texts(".compared .present") == [
        "rank 1: returned",
        "rank 0: all_reduce #2 \N{MIDDLE DOT} SUM float32[2]",
    ]
    assert report.texts(".compared .marked bdi") == ["    step(batch)"]
    report.page.locator(".compare select").first.select_option(label="rank 2")
    assert report.texts(".compared > p") == ["All 3 calls are the same."]


def test_a_lane_of_many_ranks_tells_which_they_are(open_run):
    report = open_run(missing_rank(128, 21, 3))
    report.page.mouse.click(*centre(report.boxes(".drawing .shared-lane text")[1]))
    assert report.details()["ranks"] == "0-20, 22-127"


@pytest.mark.parametrize("run", [missing_rank(4, 1, 60), tagged(7, 8)], ids=["missing", "tags"])
def test_a_phone_shows_what_counts_at_once(open_report, run):
    report = open_report(Document("story", (run,)), **PHONE)
    assert report.page.evaluate("document.documentElement.scrollWidth") == 390  # nothing is beside the screen
    frame = report.box(".frame")
    for sign in (".missing .word", ".missing .box", "text.near", ".ring"):
        assert all(inside(box, frame) for box in report.boxes(f".drawing {sign}")), sign
    labels = report.look(".drawing .label", "all => all.map(each => each.firstChild.textContent)")
    assert labels == [f"rank {rank}" for rank in range(run.world_size)]
    buttons = sorted((box["y"], box["x"], box["width"], box["height"]) for box in report.boxes(".controls button"))
    assert all(height >= 40 and width >= 40 for _, _, width, height in buttons if height)
    if run.waiting:
        assert [report.page.locator(f".waits svg.on-{each}").is_visible() for each in ("wide", "narrow")] == [
            False,
            True,
        ]


def test_a_phone_shows_the_calls_that_differ_before_a_rank_that_has_not_come_yet(open_report):
    story = Story(4)
    story.hang(call(0, group="tp (dp 1)"), [2], [3])  # an early column, of which nobody is to blame
    for number in range(30):
        story.meet(call(number, group="tp (dp 0)"), (0, 1))
    story.differ(*(replace(each, group="tp (dp 0)", sequence=30) for each in of_own_size(2)))
    finding = Finding("mismatch.shape", Verdict.FAIL, (0,), "", "", slots=(len(story.slots) - 1,))
    report = open_report(Document("story", (story.run(verdict=Verdict.FAIL, findings=(finding,)),)), **PHONE)
    frame = report.box(".frame")
    odd = report.boxes(".drawing .call.odd")
    assert odd
    assert all(inside(box, frame) for box in odd)


def test_where_two_runs_part_is_said_in_full_on_a_phone(open_report):
    report = open_report(parted(), **PHONE)
    for number in (0, 1):
        frame, word = report.box(".lanes", number), report.box(".difference-word", number)
        assert frame["x"] < word["x"]
        assert word["x"] + word["width"] < frame["x"] + frame["width"] - 60  # how ranks ended stands there
