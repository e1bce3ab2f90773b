"""The page opens without a complaint and asks for nothing; what stands in it besides the lanes."""

import re

import pytest

from ddpsim.reports.forms.html import to_html
from tests.reports.browser.conftest import centre
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document
from tests.reports.made import exploration, parted, without_trace


@pytest.mark.parametrize("name", [MISSING, f"{MISSING}-repaired", MISMATCH, CYCLE, THREADS, "join-baseline"])
def test_a_report_opens_without_complaints_or_requests(open_report, name):
    report = open_report(document(name))
    assert report.texts("h1") == [name]
    assert report.count("section[data-run]") == 1
    assert report.count(".drawing .call") > 0


def test_a_request_would_be_refused_and_seen(open_page):
    page = to_html(document(MISSING)).replace(b"</main>", b'<img src="http://localhost:9/x.png"></main>')
    report = open_page(page)
    assert len(report.complaints) == 1
    assert "Content Security Policy" in report.complaints[0]
    assert report.requests == []


def test_a_script_that_is_none_of_ours_does_not_run(open_page):
    page = to_html(document(MISSING)).replace(b"</main>", b"<script>alert(1)</script></main>")
    report = open_page(page)
    assert report.dialogs == []
    assert len(report.complaints) == 1
    assert "script-src" in report.complaints[0]


def test_the_head_says_verdict_cause_and_remedy(open_report):
    report = open_report(document(MISSING))
    assert report.texts("header .verdict") == ["fail"]
    assert report.texts(".summary") == ["deadlock.missing_rank ranks 0, 2, 3 wait for rank 1, which returned"]
    lines = dict(zip(report.texts(".line-of > span:first-child"), report.texts(".line-of > :last-child"), strict=True))
    assert lines["cause"].startswith("rank 1 ran out of input")
    assert lines["try"].startswith("wrap the loop in `with model.join():`")


def test_the_replay_line_is_copied(open_report):
    shown = document(MISSING)
    report = open_report(shown, permissions=["clipboard-read", "clipboard-write"])
    report.page.locator(".copy").click()
    report.page.wait_for_function("() => document.querySelector('.copy').textContent !== 'copy'")
    assert report.texts(".copy") == ["copied"]
    assert report.page.evaluate("navigator.clipboard.readText()") == shown.runs[0].replay


def test_the_whole_text_unfolds(open_report):
    shown = document("exception-on-one-rank")
    report = open_report(shown)
    text = report.page.locator(".whole pre")
    assert not text.is_visible()
    report.page.locator(".whole summary").click()
    assert text.is_visible()
    assert text.text_content() == shown.runs[0].text


def test_a_run_without_a_trace_says_so(open_report):
    report = open_report(without_trace())
    assert report.texts(".no-trace") == ["There is no trace: no record of what each rank did."]
    assert report.count(".drawing") == 0
    assert report.texts(".summary code") == ["deadlock.missing_rank"]


def test_an_exploration_shows_its_outcomes_and_both_runs(open_report):
    shown = exploration()
    report = open_report(shown)
    rows = report.page.locator(".outcomes tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["executions", "outcome"],
        ["1,200", "pass"],
        ["34", "fail deadlock.missing_rank rank 1"],
    ]
    assert [report.section(number).locator("h2 .verdict").text_content() for number in (0, 1)] == ["fail", "pass"]


def test_where_the_runs_part_is_marked_in_both_and_in_view(open_report):
    report = open_report(exploration(steps=300))
    for number, sign in enumerate((".mark.return", ".call[data-cell='1200']")):
        frame, marked = report.box(".lanes", number), report.box(".difference", number)
        assert centre(marked) == pytest.approx(centre(report.box(f".drawing {sign}", number)), abs=0.5)
        assert frame["x"] + 100 < centre(marked)[0] < frame["x"] + frame["width"] - 100


def test_the_choices_before_the_one_that_differs_open_with_one_click(open_report):
    report = open_report(parted())
    table = report.page.locator(".choices table")
    assert not table.is_visible()
    report.page.locator(".choices summary").click()
    assert table.is_visible()
    rows = [row.split("\t") for row in table.locator("tr").all_inner_texts()]
    assert rows[:3] == [
        ["choice", "step", "chosen", "not chosen"],
        ["1 to 10", "0", "the default each time", ""],
        ["11", "11", "rank 2 runs", "ranks 0, 1"],
    ]
    assert report.texts(".difference-word") == ["runs diverge here, choice 17"] * 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast_in_both_themes(open_report, scheme):
    report = open_report(document(MISSING), color_scheme=scheme)
    for theme in (scheme, "dark" if scheme == "light" else "light"):
        colours = report.page.evaluate(COLOURS)
        ratios = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in PAIRS}
        assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}, theme
        assert (luminance(colours["ground"]) < 0.1) == (theme == "dark")
        report.page.locator(".theme").click()


COLOURS = """() => {
    const probe = document.body.appendChild(document.createElement("i"));
    const names = document.styleSheets[0].cssRules[0].cssText.match(/--[\\w-]+(?=:)/g);
    const value = name => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
    return Object.fromEntries(names.map(name => [name.slice(2), value(name)]));
}"""

WORDS = ("text", "quiet", "link", "alarm", "good", "unsure", "weak", "side0", "side1", "side2", "side3")
PAIRS = (
    *((word, "ground") for word in WORDS),
    ("text", "panel"),
    ("quiet", "panel"),
    ("text", "line"),
    ("text", "alarm-ground"),
    ("ground", "text"),
    *((word, f"{word}-ground") for word in ("alarm", "good", "unsure")),
    *(("ground", family) for family in ("collective", "rooted", "barrier", "message", "group")),
)
"""What is written in which colour on which."""


def contrast(one, other):
    """The contrast of two colours as WCAG 2 has it."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    """The relative luminance of "rgb(1, 2, 3)"."""
    parts = [int(number) / 255 for number in re.findall(r"\d+", colour)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
