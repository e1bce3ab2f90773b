"""Names that would be more than names: in every place of the page they stay text."""

import pytest

from tests.reports.examples import HOSTILE, hostile

SHOWN = {"\x00": "\N{REPLACEMENT CHARACTER}", "\r": "\n", "\udcff": "?"}
"""What no page of HTML can hold, and what stands for it."""


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:16]))
def test_a_hostile_name_stays_text_and_breaks_no_layout(open_report, text):
    report = open_report(hostile(text))
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 1400
    assert report.count("script") == 2  # the data, and ours
    assert same(report.texts("h1")[0], text)
    assert same(report.page.locator(".whole pre").text_content(), text)
    report.click_cell(0)
    details = report.details()
    for name in ("operation", "group", "signature", "origin"):
        assert same(details[name], text), name
    assert same(details["parameters"], f"{text}, {text}")
    assert same(report.page.locator(".source bdi").text_content(), text)


def same(found, text):
    """True if a text is on the page as it was."""
    for raw, shown in SHOWN.items():
        text, found = text.replace(raw, shown), found.replace(raw, shown)
    return found.replace("\r", "\n") == text.replace("\r", "\n")
