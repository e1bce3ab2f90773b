"""The lanes in a browser: what is highlighted, the pointer, the keys, the details, the scrubber, filters and zoom."""

from dataclasses import replace

import pytest

from ddpsim.reports.document import Document, Site
from ddpsim.reports.forms.html import to_html
from ddpsim.scenarios import registry
from ddpsim.simulator.events import EventKind
from tests.reports.browser.conftest import centre
from tests.reports.examples import MISSING, THREADS, document
from tests.reports.made import Story, call, exploration, missing_rank, of_own_size, passing
from tests.reports.test_wait_graph import ring

ODD = "rank0-eval-through-wrapper-with-buffers"
RING = "groups-in-a-ring"
WIDE = ".waits .on-wide"
"""The graph of who waits for whom, as a screen has it that is no phone's."""


@pytest.fixture
def shown(open_run):
    """The report of `missing_rank`: 4 ranks meet twice; then rank 1 returns, and the others wait in slot 2."""
    return open_run(missing_rank())


def test_the_slot_that_never_filled_is_highlighted_and_nothing_where_nothing_is_wrong(open_report):
    signs = (".ring", ".missing", ".bar.forever", ".label.culprit", ".call.odd")
    for name, counts in ((MISSING, [3, 1, 3, 1, 0]), (f"{MISSING}-repaired", [0] * 5)):
        report = open_report(document(name))
        assert [report.count(f".drawing {sign}") for sign in signs] == counts
        is_wrong = name == MISSING
        assert report.texts(f"{WIDE} .node text:first-of-type") == ["ranks 0, 2, 3", "rank 1"] * is_wrong
        assert (report.count(f"{WIDE} .wait"), report.count(".waits .in-cycle")) == (is_wrong, 0)
        assert report.count(".difference") == 0  # there is no other run
        if is_wrong:
            assert report.texts(".drawing .label.culprit")[0].startswith("rank 1")
            missing = report.box(".drawing .missing .box")
            assert {round(centre(box)[0]) for box in report.boxes(".drawing .ring")} == {round(centre(missing)[0])}


def test_the_odd_call_is_told_from_those_it_met(open_report):
    report = open_report(document(ODD))
    assert report.count(".drawing .call.odd") == 1
    assert report.texts(".drawing .word:not(.other)") == ["\N{NOT EQUAL TO} broadcast buffers"]
    assert report.texts(".drawing .word.other") == ["barrier"] * 3
    assert report.count(".drawing .missing") == 0


def test_all_open_slots_of_a_circle_are_its_cause_and_who_waits_for_whom_is_drawn(open_report):
    report = open_report(document(RING))
    strokes = report.look(".drawing .ring", "rings => rings.map(ring => getComputedStyle(ring).stroke)")
    boxes = report.look(".drawing .box", "boxes => boxes.map(box => getComputedStyle(box).stroke)")
    assert len(strokes) == len(boxes) == 4
    assert len({*strokes, *boxes}) == 1
    assert report.texts(".waits .node text:first-of-type") == [f"rank {rank}" for rank in range(4)]
    assert report.count(".waits .wait.in-cycle") == 4 == report.count(".waits .wait")
    assert report.texts(".wait-label") == [f'all_reduce #1 "{group}"' for group in (1, 2, 3, 4)]


def test_who_only_waits_is_not_as_red_as_who_is_missing(open_report):
    report = open_report(document(MISSING))
    stroke = "all => all.map(each => getComputedStyle(each).stroke)"
    rings, (missing,) = report.look(".drawing .ring", stroke), report.look(".drawing .box", stroke)
    assert len(rings) == 3
    assert missing not in rings
    assert report.look(".legend .ring", stroke) == [rings[0]]
    assert len(set(rings)) == 1


LEGENDS = {
    RING: ["collective", "new group", "never matched, missing", "waits forever"],
    ODD: [
        *("collective (b0: bucket 0)", "with a root", "barrier", "optimizer step"),
        *("differs from the others", "the other calls of its slot", "waits forever"),
    ],
}


@pytest.mark.parametrize(("name", "legend"), LEGENDS.items())
def test_the_legend_explains_what_occurs_and_no_more(open_report, name, legend):
    assert open_report(document(name)).texts(".legend span") == legend


def test_a_thread_has_a_lane_of_its_own(open_report):
    report = open_report(document(THREADS))
    labels = [text.removesuffix(text[len(text) // 2 :]) for text in report.texts(".drawing .label")]
    assert labels[:4] == ["rank 0", "\N{BOX DRAWINGS LIGHT UP AND RIGHT} reporter", "rank 1", labels[1]]
    assert "note, such as a rank that joined or a thread that began" in report.texts(".legend span")


DASHES = "all => all.map(each => getComputedStyle(each).strokeDasharray)"


def test_a_long_cycle_is_drawn_with_a_dashed_pile_for_its_middle(open_run):
    report = open_run(ring(64))
    assert report.texts(".waits .node.folded text") == ["ranks 4-60", "57 ranks wait"]
    assert report.look(".waits .node:not(.folded) rect", DASHES) == ["none"] * 7
    behind, before = report.boxes(".waits .node.folded rect")
    assert set(report.look(".waits .node.folded rect", DASHES)) == {"3px, 3px"}
    assert [behind["x"] > before["x"], behind["y"] < before["y"]] == [True, True]
    assert report.count(".waits .wait.in-cycle") == 8 == report.count(".waits .wait")
    assert len(set(report.look(".waits .wait", "all => all.map(each => getComputedStyle(each).stroke)"))) == 1
    assert report.texts(".waits figcaption") == ["A dashed box is several nodes; ddpsim report --dot draws all 64."]
    figure, picture = report.box(".waits"), report.box(".waits svg")
    assert picture["height"] < figure["height"]  # all of it is in view: no scroll bar
    report = open_run(ring(24))
    assert report.count(".waits .node") == 24
    assert report.count(".waits .folded") == report.count(".waits figcaption") == 0


def test_a_click_shows_the_call(open_report):
    shown = document(MISSING)
    run = shown.runs[0]
    report = open_report(shown)
    issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
    slot = run.slots[-1]
    report.click_cell(issues.index(slot.issues[0]))
    assert report.texts(".details h3") == ["rank 3: all_reduce #9"]
    assert report.details() == {
        "state": "waits, 1 of 4 missing",
        "operation": "all_reduce",
        "group": "default",
        "sequence": "#9",
        "signature": "SUM float32[11]",
        "origin": "DDP #0 bucket 0 of step 5",
        "bucket": "0",
        "parameters": "bias, weight",
        "issued": f"in event {slot.issues[0] + 1}, after {run.events[slot.issues[0]].step} choices",
        "matched": "no",
        "beside it": "ranks 0, 2",
        "waits for": "rank 1",
    }
    marked = report.page.locator(".source .marked")
    assert marked.count() == 1
    (line,) = registry[MISSING].expected.lines
    assert marked.text_content().split(maxsplit=2)[1:] == [str(line), run.sites[1].source[3].strip() + "\n"]
    assert report.texts(".where")[0].startswith(f"scenarios/zoo/uneven_batches.py:{line} in ")


def test_the_details_of_a_call_in_a_library_say_who_called_it(open_run):
    story = Story(2)
    story.meet(call(0, site=0, caller=1), (0, 1))
    sites = (Site("metrics.py", 3, "update", 3, ("dist.all_reduce(total)",)), Site("train.py", 9, "main"))
    report = open_run(story.run(sites=sites))
    report.click_cell(0)
    assert report.texts(".where") == ["metrics.py:3 in update", "called from train.py:9 in main"]
    assert report.texts(".source .marked bdi") == ["dist.all_reduce(total)"]


def test_a_click_on_a_mark_tells_its_events(open_run):
    story = Story(2)
    story.meet(call(0), (0, 1))
    for number in (1, 2):
        story.happen("store", 0, text=f"set key{number}")
    report = open_run(story.run())
    report.page.mouse.click(*centre(report.box(".drawing .mark.store")))
    assert report.details() == {"event 6": "rank 0 store set key1", "event 7": "rank 0 store set key2"}


def test_hovering_shows_one_line_and_a_click_with_whom_a_call_met(shown):
    assert not shown.page.locator(".tip").is_visible()
    shown.page.mouse.move(*centre(shown.box(".call[data-cell='0']")))
    assert shown.page.locator(".tip").text_content() == (
        'rank 0, all_reduce #0, matched · SUM float32[2] · group "default"'
    )
    shown.page.mouse.move(5, 5)
    assert not shown.page.locator(".tip").is_visible()
    shown.click_cell(0)
    details = shown.details()
    told = [details.get(name) for name in ("state", "matched", "met", "parameters", "waits for")]
    # Three issue and wait, the fourth issues: events 1 to 7.
    assert told == ["matched", "in event 8", "ranks 1-3", "weight", None]


def test_keys_go_from_call_to_call(shown):
    shown.page.locator(".filter-groups").focus()
    for _ in range(4):  # three buttons, then the lanes
        shown.page.keyboard.press("Tab")
    assert shown.focused() == "rank 1, all_reduce #2, missing: it never came"
    for keys, focused in (
        (["ArrowDown"], "rank 2, all_reduce #2, waits, 1 of 4 missing"),
        (["ArrowLeft"], "rank 2, all_reduce #1, matched"),
        (["Home", "ArrowUp"], "rank 1, all_reduce #0, matched"),
        (["ArrowLeft"], "rank 1, all_reduce #0, matched"),
        (["End"], "rank 1, all_reduce #2, missing: it never came"),
    ):
        for key in keys:
            shown.page.keyboard.press(key)
        assert shown.focused() == focused


def test_enter_shows_the_details_and_escape_closes_them(shown):
    shown.page.locator(".lanes").focus()
    shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("Enter")
    assert shown.details()["state"] == "missing: it never came"
    shown.page.keyboard.press("ArrowUp")
    assert shown.details()["state"] == "waits, 1 of 4 missing"
    shown.page.keyboard.press("Escape")
    assert shown.details() == {}
    assert shown.focused() == "rank 0, all_reduce #2, waits, 1 of 4 missing"


def test_everything_is_reached_by_tab(shown):
    shown.page.locator(".theme").focus()
    reached = []
    for _ in range(30):
        shown.page.keyboard.press("Tab")
        reached.append(shown.page.evaluate("document.activeElement.className + document.activeElement.tagName"))
    for name in ("slider", "filter-ranks", "filter-groups"):
        assert any(name in each for each in reached), name
    assert sum("BUTTON" in each for each in reached) >= 8
    assert sum("SUMMARY" in each for each in reached) >= 4


def test_the_scrubber_steps_through_the_schedule(shown):
    last = len(missing_rank().events) - 1
    assert shown.step() == last
    assert shown.count(".drawing .veiled") == 0
    press(shown, "first")
    assert shown.step() == 0
    assert shown.texts(".now") == ["event 1 of 29: rank 0 issues all_reduce #0"]
    # Of 8 + 3 calls one has happened; the missing one comes at the end; the links of slots 1 and 2 are one each.
    assert shown.count(".drawing .call.veiled") == 10
    assert shown.count(".drawing .missing.veiled") == 1
    assert shown.count(".drawing .label.running") == 1
    press(shown, "next")
    assert shown.texts(".now") == ["event 2 of 29: rank 0 waits for all_reduce #0"]
    assert shown.texts(".drawing .end")[0].startswith("\N{HORIZONTAL ELLIPSIS} waits")
    shown.page.locator(".slider").fill("6")
    assert shown.count(".drawing .call.veiled") == 7
    press(shown, "previous")
    assert shown.step() == 5
    press(shown, "last")
    assert shown.count(".drawing .veiled") == 0


def test_keys_step_through_the_schedule(shown):
    shown.page.locator(".lanes").focus()
    for keys, step in (("<", 0), (".", 1), (".", 2), (",", 1), (">", 28)):
        shown.page.keyboard.press(keys)
        assert shown.step() == step
    assert not shown.page.locator(".keys table").is_visible()
    shown.page.keyboard.press("?")
    assert shown.page.locator(".keys table").is_visible()


def test_playing_goes_on_by_itself_and_stops(shown):
    press(shown, "first")
    press(shown, "play")
    assert shown.page.locator("[data-action=play]").get_attribute("aria-pressed") == "true"
    shown.page.wait_for_function("() => document.querySelector('.slider').value > 0")
    press(shown, "play")
    assert shown.page.locator("[data-action=play]").get_attribute("aria-pressed") == "false"


def test_filters_by_rank(shown):
    everybody = [f"rank {rank}" for rank in range(4)]
    for text, labels in (("0-1", everybody[:2]), ("3, 1", everybody[1::2]), ("", everybody)):
        shown.page.locator(".filter-ranks").fill(text)
        assert names(shown) == labels
    for text, note in (("two", "expected ranks such as 0-3,7"), ("9", "no lane has such a rank")):
        shown.page.locator(".filter-ranks").fill(text)
        assert shown.texts(".filter-note") == [note]
    assert shown.page.locator(".filter-ranks").get_attribute("aria-invalid") == "true"


def test_filters_by_group(open_report):
    report = open_report(document(RING))
    assert report.page.locator(".filter-groups option").all_text_contents() == ["all", "1", "2", "3", "4"]
    assert report.count(".drawing .call") == 12
    report.page.locator(".filter-groups").select_option(label="2")
    assert report.count(".drawing .call") == 3  # its new_group on two ranks, and one all_reduce
    assert report.count(".drawing .missing") == 1
    report.page.locator(".filter-groups").select_option(label="all")
    assert report.count(".drawing .call") == 12


def test_zoom_by_buttons_keys_and_wheel(open_run):
    report = open_run(passing(2, 40))
    distance = apart(report)
    press(report, "wider")
    assert apart(report) == pytest.approx(distance * 1.3, abs=0.2)
    report.page.locator(".lanes").focus()
    report.page.keyboard.press("-")
    assert apart(report) == pytest.approx(distance, abs=0.2)
    report.page.locator(".lanes").hover()
    drawn = report.page.query_selector(".drawing .call")
    report.page.keyboard.down("Control")
    report.page.mouse.wheel(0, 100)
    report.page.keyboard.up("Control")
    report.page.wait_for_function("call => !call.isConnected", arg=drawn)  # the wheel does not wait for the page
    assert apart(report) == pytest.approx(distance / 1.3, abs=0.2)
    report.page.keyboard.press("0")
    assert report.count(".drawing .call") == 80


IS_DRAWN_ANEW = """async change => {
    new Function(change)();
    const drawn = document.querySelector(".drawing .call");
    for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
    return !drawn.isConnected;
}"""


def test_a_scroll_is_drawn_once(open_run):
    report = open_run(missing_rank(4, 1, 300))
    report.page.evaluate(IS_DRAWN_ANEW, "")  # until the first view has settled
    by_the_page = "document.querySelector('[data-action=wider]').click()"
    by_the_reader = "document.querySelector('.lanes').scrollLeft -= 400"
    assert [report.page.evaluate(IS_DRAWN_ANEW, each) for each in (by_the_page, by_the_reader)] == [False, True]


def test_the_end_where_it_went_wrong_is_in_view(open_run):
    report = open_run(missing_rank(4, 1, 300))
    frame = report.box(".lanes")
    missing = report.box(".drawing .missing .box")
    assert frame["x"] + 100 < missing["x"] < frame["x"] + frame["width"] - 100
    assert report.count(".drawing .call") < 4 * 80  # only what is in view
    report.page.locator(".lanes").focus()
    report.page.keyboard.press("Home")
    assert report.focused() == "rank 1, all_reduce #0, matched"


def test_messages_lean_from_sender_to_receiver(open_run):
    report = open_run(Story.of(2, "1<0").run())
    receipt, sent = (centre(report.box(f".call[data-cell='{cell}']")) for cell in (0, 1))
    assert sent[0] < receipt[0]
    assert sent[1] < receipt[1] or sent[1] > receipt[1]
    assert report.count(".drawing .link") == 1


def test_7_ranks_have_a_lane_each_and_more_share_them(open_run):
    report = open_run(missing_rank(7, 5, 3))
    assert len(names(report)) == 7
    assert report.count(".shared") == 0
    assert names(open_run(missing_rank(8, 5, 3))) == ["ranks 0-4, 6-7 \N{MIDDLE DOT} 7 alike", "rank 5"]
    report = open_run(missing_rank(128, 21, 3))
    assert names(report) == ["ranks 0-20, 22-127 \N{MIDDLE DOT} 127 alike", "rank 21"]
    assert report.count(".shared") == 1
    report.page.keyboard.press("Tab")
    report.page.locator(".lanes").focus()
    report.page.keyboard.press("ArrowUp")
    assert report.focused() == "ranks 0-20, 22-127 \N{MIDDLE DOT} 127 alike, all_reduce #3, waits, 1 of 128 missing"


def test_16_ranks_of_a_device_mesh_have_a_lane_each(open_run):
    run = missing_rank(16, 5, 3)
    placed = tuple(replace(rank, coordinates=f"dp {rank.rank // 4}, tp {rank.rank % 4}") for rank in run.ranks)
    assert len(names(open_run(replace(run, ranks=placed)))) == 16


def test_calls_are_found_by_their_words_and_enter_goes_from_one_to_the_next(shown):
    shown.page.locator(".find").fill("ALL_reduce #1")
    assert shown.texts(".find-note") == ["4 found"]
    places = []
    for _ in range(5):
        shown.page.locator(".find").press("Enter")
        places.append(shown.page.locator(".cursor").get_attribute("aria-label"))
    assert places == [f"rank {rank}, all_reduce #1, matched" for rank in (0, 1, 2, 3, 0)]
    shown.page.locator(".find").press("Shift+Enter")
    assert shown.texts(".find-note") == ["4 of 4"]
    shown.page.locator(".find").fill("all_reduce of nobody")
    assert shown.texts(".find-note") == ["0 found"]
    assert shown.page.locator(".find").get_attribute("aria-invalid") == "true"


def test_the_call_whose_details_are_open_stays_in_view(shown):
    shown.page.locator(".lanes").focus()
    shown.page.keyboard.press("End")
    shown.page.keyboard.press("Enter")
    cursor, frame, details = (shown.box(each) for each in (".cursor rect", ".frame", ".details"))
    assert cursor["x"] + cursor["width"] < frame["x"] + frame["width"] - 90  # before the ends of the lanes
    assert frame["x"] + frame["width"] < details["x"]


def test_the_address_leads_to_the_event_that_is_looked_at(shown):
    shown.click_cell(5)
    address = shown.page.evaluate("location.href")
    state = shown.details()["issued"].split(",")[0]
    assert address.endswith(f"#run0-event{state.removeprefix('in event ')}")
    shown.page.goto("about:blank")
    shown.page.goto(address)
    assert shown.details()["issued"].startswith(state)
    assert shown.page.locator(".cursor").get_attribute("data-cursor") == "5"


def test_on_paper_there_is_no_button_and_every_column(open_run):
    report = open_run(missing_rank(4, 1, 24))
    columns = "all => new Set(all.map(each => each.getAttribute('data-cell'))).size"
    report.page.emulate_media(media="print")
    report.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert report.look(".drawing .call[data-cell]", columns) == 4 * 24 + 3
    assert report.box(".drawing")["width"] == 700
    assert not any(report.page.locator(each).first.is_visible() for each in ("button", ".controls", ".keys"))
    report.page.emulate_media(media="screen")
    report.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert report.box(".drawing")["width"] > 1000


def test_without_scripts_the_last_calls_are_drawn(open_page):
    report = open_page(to_html(Document("story", (missing_rank(4, 1, 30),))), java_script_enabled=False)
    assert report.page.locator(".drawing .label").all_text_contents() == [f"rank {rank}" for rank in range(4)]
    # Of 31 columns the last 24: 23 in which all met, and 3 calls that wait for rank 1.
    assert (report.page.locator(".drawing .call").count(), report.page.locator(".drawing .box").count()) == (95, 1)
    assert not report.page.locator(".controls").is_visible()


def test_lanes_that_are_left_out_are_counted(open_run):
    story = Story(100)
    for rank in range(100):
        story.hang(call(0, group=f"of {rank}"), [rank], [])
    report = open_run(story.run())
    assert report.texts(".left-out") == ["36 more lanes are not shown: all of them are in result.json"]


def all_meet(ranks, *, differ):
    """Ranks meet once, and return; if they differ no two can share a lane."""
    story = Story(ranks)
    for rank in range(ranks if differ else 0):
        story.happen("note", rank, text=f"I am {rank}")
    story.meet(call(0), range(ranks))
    for rank in range(ranks):
        story.happen("return", rank)
    return story.run()


@pytest.mark.parametrize(("differ", "met", "last"), [(False, "ranks 0-129", 0), (True, "ranks 1-129", 63)])
def test_of_130_ranks_the_details_tell_all_that_met_and_the_events_of_the_whole_run(open_run, differ, met, last):
    run = all_meet(130, differ=differ)
    report = open_run(run)
    report.click_cell(0)
    details = report.details()
    (slot,) = run.slots
    assert details["met"] == met
    assert details["matched"] == f"in event {slot.match + 1}"
    assert details["issued"].startswith(f"in event {slot.issues[0] + 1}, ")
    press(report, "first")
    assert report.texts(".now")[0].startswith(f"event 1 of {len(run.events)}: ")
    press(report, "last")
    shown = max(index for index, event in enumerate(run.events) if event.rank == last)
    assert report.texts(".now")[0].startswith(f"event {shown + 1} of {len(run.events)}: ")


def test_where_runs_part_on_a_lane_that_is_not_shown_nobody_else_is_pointed_at(open_report):
    run = all_meet(130, differ=True)
    of_rank = {event.rank: index for index, event in enumerate(run.events) if event.kind is EventKind.RETURN}
    explored = exploration().exploration
    for rank, marks in ((100, 0), (5, 1)):
        parted = replace(explored, difference=replace(explored.difference, failing=of_rank[rank], passing=None))
        report = open_report(Document("parted", (run, run), exploration=parted))
        assert report.section().locator(".difference-word").count() == marks


def test_ranks_that_differ_but_have_no_lane_are_counted(open_run):
    report = open_run(Story(130).differ(*of_own_size(130)).run())
    report.click_cell(0)
    lines = report.details()["differs"].split("\n")
    assert lines[0] == "rank 0: all_reduce SUM float32[1]"
    assert lines[64:] == ["66 more ranks are not shown"]
    assert report.details()["beside it"] == "ranks 1-129"


def names(report):
    """The lanes, without the titles that say the same."""
    return report.look(".drawing .label", "all => all.map(each => each.firstChild.textContent)")


def press(report, action):
    """Click a button of the first run."""
    report.page.locator(f"[data-action={action}]").first.click()


def apart(report):
    """How far the columns of two calls in view are apart."""
    columns = sorted({round(centre(box)[0], 1) for box in report.boxes(".drawing .call")})
    return columns[1] - columns[0]
