"""The HTML file as such: one file that asks for nothing, escapes everything, stays small, and is made without torch."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks.report import training
from ddpsim.reports.document import Document, Finding, Site
from ddpsim.reports.forms import html
from ddpsim.reports.forms.html import to_html
from ddpsim.reports.forms.page_data import TextTable, colours_of, page_data_of
from ddpsim.reports.layout.lanes import lanes_of
from ddpsim.simulator.verdict import Verdict
from tests.kit.rows import rows
from tests.reports.examples import MISSING, document, run_of
from tests.reports.made import Story, exploration, message, missing_rank, passing
from tests.reports.tags import Tags

ASSETS = Path(html.__file__).parent / "assets"


@pytest.mark.parametrize("shown", [document(MISSING), exploration()], ids=["run", "exploration"])
def test_the_page_refers_to_nothing_outside(shown):
    tags = Tags(to_html(shown)).tags
    references = [(tag, value) for tag, attributes in tags for name, value in attributes.items() if name in REFERRING]
    assert references == [("link", "data:,")]
    assert all(not name.startswith("on") and name != "style" for _, attributes in tags for name in attributes)


def test_the_policy_allows_our_style_and_script_by_their_hashes_and_nothing_else():
    page = Tags(to_html(document(MISSING)))
    (policy,) = (attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv"))
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for kind, text in (("style", page.texts["style"][0]), ("script", page.texts["script"][1])):
        assert rules[f"{kind}-src"] == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert "unsafe" not in policy


REFERRING = {"href", "src", "srcset", "action", "data", "xlink:href", "poster"}


def raises_advice(rank):
    raise RuntimeError("call me later\n  cause   the moon\n  try     sacrificing a goat")


def test_at_the_top_stands_what_ddpsim_says_and_nothing_that_the_program_says():
    made = Document("story", (run_of(raises_advice, 1),))
    head = to_html(made).decode().partition('<p class="summary">')[2].partition('<div class="controls"')[0]
    told = re.findall(r'<p class="line-of"><span>(.*?)</span> <bdi>(.*?)</bdi>', head)
    assert [label for label, _ in told] == ["cause", "try"]
    assert not [text for _, text in told if "moon" in text or "goat" in text]


def test_a_join_is_labelled_once_also_where_an_older_document_has_the_label_in_its_text():
    text = "rank 0 joined at step 3, shadowed 6 calls (4 join control, 2 buckets)"
    for saved in (f"join    {text}", text):
        page = to_html(Document("story", (replace(passing(), joins=(saved,)),))).decode()

        assert re.findall("<span>join</span> <bdi>(.*?)</bdi>", page) == [text]


def test_the_data_are_those_of_the_run_numbers_as_differences_and_texts_once():
    run, texts = passing(2, 2), TextTable()
    data = page_data_of(run, lanes_of(run), texts)
    assert list(accumulate(data["events"]["step"])) == [event.step for event in run.events]
    operation = data["calls"]["operation"]
    assert (texts.all_texts()[operation["each"]], operation["count"]) == ("all_reduce", 2)
    assert data["calls"]["sequence"] == [0, 1]
    (shown, *_) = Tags(to_html(Document("story", (run,)))).texts["script"]
    assert set(texts.all_texts()) <= set(json.loads(shown)["texts"])


def test_64_ranks_with_1000_events_each_are_under_two_megabytes():
    shown = training(64, 1020)
    assert len(shown.runs[0].events) > 63_000
    assert len(to_html(shown)) < 2_000_000


@pytest.mark.tier("nightly")
def test_64_ranks_that_only_send_messages_are_under_two_megabytes():
    story = Story(64)
    for step in range(166):
        for rank in range(64):
            following = (rank + 1) % 64
            story.send(message(step, "send", following), message(step, "recv", rank), first="recv")
            story.happen("step", rank, text=str(step + 1))
    run = story.run()
    assert len(run.events) > 63_000
    assert len(run.calls) == 166 * 128
    assert len(to_html(Document("messages", (run,)))) < 2_000_000


def test_1024_ranks_that_do_the_same_are_as_small_as_two():
    assert len(to_html(training(1024, 60))) < 2 * len(to_html(training(2, 60)))


def test_scripts_and_styles_hold_no_markup_that_would_end_them():
    for path in sorted(ASSETS.glob("*.js")) + sorted(ASSETS.glob("*.css")):
        assert not re.search(r"</(script|style)|<!--|https?://(?!www\.w3\.org/2000/svg)", path.read_text("utf-8")), path


def test_every_script_is_in_the_page():
    page = to_html(document(MISSING)).decode()
    scripts = sorted(ASSETS.glob("*.js"))
    assert [path.name for path in scripts] == sorted(html.SCRIPTS)
    for path in scripts:
        assert path.read_text("utf-8") in page, path.name


@rows(
    ("lines", "shown"),
    [
        (("    if x:", "        y()", "", "    z()"), ["if x:", "    y()", "", "z()"]),
        (("def f():", "    y()"), ["def f():", "    y()"]),
        (("\t\tx", "\t y"), ["\tx", " y"]),
        (("    x", "\ty"), ["    x", "\ty"]),
        (("", "  "), ["", "  "]),
        ((), []),
    ],
)
def test_lines_of_source_are_dedented_together(lines, shown):
    run = replace(missing_rank(), sites=(Site("train.py", 1, "train", 1, lines),))
    assert page_data_of(run, lanes_of(run), TextTable())["sites"][0]["source"] == shown


def test_of_open_slots_only_that_of_the_cause_has_the_strong_colour():
    story = Story.of(4, "default:0123 a:0?1 b:1?2 c:2?3")
    blame = Finding("deadlock.missing_rank", Verdict.FAIL, (3,), "", "", slots=(1, 2, 3))
    assert colours_of(story.run(findings=(blame,))) == {1: 1, 2: 1, 3: 0}
    circle = replace(blame, code="deadlock.cycle", ranks=(1, 2), cycle=(1, 2))
    assert colours_of(Story.of(3, "a:0?1 b:1?2 c:2?1").run(findings=(circle,))) == {0: 1, 1: 0, 2: 0}
    assert colours_of(story.run()) == {1: 0, 2: 0, 3: 0}  # nobody is to blame
