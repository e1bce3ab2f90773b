"""A headless Chromium that opens reports, and what the tests ask of every page: no complaint, and no request.

The browser is Debian's `chromium`; playwright only drives it, and loads none of its own. Without it the tests are
skipped, but where CI is set in the environment they fail.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddpsim.reports.document import Document, Run
from ddpsim.reports.forms.html import to_html
from tests.outside import do_without, missing

BOXES = "all => all.map(each => each.getBoundingClientRect()).map(({x, y, width, height}) => ({x, y, width, height}))"
SIZE = {"viewport": {"width": 1400, "height": 900}}


def pytest_itemcollected(item):
    item.add_marker(pytest.mark.tier("ci"))


@pytest.fixture(scope="package")
def browser():
    """One for this folder: playwright keeps an event loop in its thread, which other tests should not meet."""
    try:
        from playwright import sync_api  # not before: it takes a second, and each worker imports this file
    except ImportError:
        do_without("playwright is missing (of the extra dev)")
    do_without(missing("chromium"))
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@dataclass
class Report:
    """A page with a report, and what it complained of."""

    page: object
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def listen(self, path):
        """Note what the page says, and refuse what it asks for besides its own file; return what ends that."""
        listeners = {
            "console": lambda message: self.complaints.append(f"{message.type}: {message.text}"),
            "pageerror": lambda error: self.complaints.append(f"error: {error}"),
            "dialog": lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in listeners.items():
            self.page.on(event, listener)
        self.page.route("**/*", lambda route: self.only(path, route))

        def end():
            for event, listener in listeners.items():
                self.page.remove_listener(event, listener)
            self.page.unroute_all()

        return end

    def only(self, path, route):
        """Let nothing pass but the file itself."""
        if route.request.url == path.as_uri():
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def section(self, number=0):
        """The part of the page that belongs to one run, in the order on the page."""
        return self.page.locator("section[data-run]").nth(number)

    def details(self):
        """What the panel lists, by name; {} while it is closed."""
        panel = self.page.locator(".details:not([hidden])")
        if not panel.count():
            return {}
        return dict(zip(panel.locator("dt").all_text_contents(), panel.locator("dd").all_text_contents(), strict=True))

    def focused(self):
        """What a screen reader says of the element that has the focus."""
        return self.page.evaluate("document.activeElement.getAttribute('aria-label')")

    def texts(self, selector):
        """The texts of elements, in their order."""
        return self.page.locator(selector).all_text_contents()

    def look(self, selector, function, section=None):
        """What a function of JavaScript says of the array of elements, in one step: no redraw comes in between."""
        part = "document" if section is None else f"document.querySelectorAll('section[data-run]')[{section}]"
        return self.page.evaluate(f"selector => ({function})([...{part}.querySelectorAll(selector)])", selector)

    def boxes(self, selector, section=None):
        """Where elements stand in the window, in pixels: dicts of x, y, width and height."""
        return self.look(selector, BOXES, section)

    def box(self, selector, section=None):
        """Where the only such element stands."""
        (box,) = self.boxes(selector, section)
        return box

    def count(self, selector):
        """How many elements there are."""
        return self.page.locator(selector).count()

    def click_cell(self, cell, section=0):
        """Click a call by its number: they are counted in the order in which they were issued."""
        selector = f".call[data-cell='{cell}'], .missing[data-cell='{cell}'] .box"
        self.section(section).locator(selector).scroll_into_view_if_needed()
        self.page.mouse.click(*centre(self.box(selector, section)))

    def step(self):
        """The event that the scrubber stands at, counted from 0."""
        return int(self.page.locator(".slider").first.input_value())


def centre(box):
    """The middle of a box."""
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture(scope="package")
def usual_page(browser):
    """A tab for all tests that want nothing special."""
    page = browser.new_page(**SIZE)
    return page


@pytest.fixture
def open_page(browser, usual_page, tmp_path) -> Iterator[Callable[..., Report]]:
    """Opens HTML as a file; every request besides is refused, and noted. Options are those of a context."""
    ends = []

    def opened(html: bytes, **options: object) -> Report:
        path = Path(tmp_path, f"report{len(ends)}.html")
        path.write_bytes(html)
        page = browser.new_page(**{**SIZE, **options}) if options or ends else usual_page
        report = Report(page)
        ends.append(report.listen(path))
        if page is not usual_page:
            ends.append(page.close)
        page.goto(path.as_uri())
        return report

    yield opened
    for end in ends:
        end()


@pytest.fixture
def open_report(open_page) -> Iterator[Callable[..., Report]]:
    """Opens the report of a document. At the end of the test none may have complained, or asked for anything."""
    reports = []

    def opened(document: Document, **options: object) -> Report:
        report = open_page(to_html(document), **options)
        reports.append(report)
        assert report.count("html[data-ready]") == 1, report.complaints
        return report

    yield opened
    for report in reports:
        assert report.complaints == []
        assert report.requests == []
        assert report.dialogs == []


@pytest.fixture
def open_run(open_report) -> Callable[[Run], Report]:
    """Opens the report of one run."""
    return lambda run: open_report(Document("story", (run,)))
