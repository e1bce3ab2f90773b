"""Make the pictures of reports in docs/images anew: what the HTML report of some scenarios looks like.

    python docs/pictures.py

It needs Chromium and playwright. Look at the pictures before you commit them: the cause should be visible without
reading a word.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ddpsim.reports.forms.html import to_html
from ddpsim.reports.making.result_document import document_of
from ddpsim.scenarios import run_scenario

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH = 1400
LARGEST_BYTES = 240_000


def main() -> None:
    """Make all of them; say what each came to."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("chromium is not on the PATH: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        for name, (scenario, prepare) in PICTURES.items():
            path = Path(folder) / f"{name}.html"
            path.write_bytes(to_html(document_of(run_scenario(scenario), name=scenario)))
            page.goto(path.as_uri())
            prepare(page)
            size = _take(page, FOLDER / f"{name}.png")
            print(f"docs/images/{name}.png  {size:,} bytes  {scenario}")
        browser.close()


def _take(page: Page, path: Path) -> int:
    """A picture down to the legend, without what is folded; its size in bytes."""
    page.mouse.move(0, 0)
    end = page.locator(".legend").evaluate("legend => legend.getBoundingClientRect().bottom + scrollY")
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": end + 4})
    size = path.stat().st_size
    if size > LARGEST_BYTES:
        sys.exit(f"{path} has {size:,} bytes, expected at most {LARGEST_BYTES:,}: show less")
    return size


def _as_it_opens(page: Page) -> None:
    page.locator(".drawing .call").first.wait_for(state="attached")


def _with_details(page: Page) -> None:
    page.locator(".lanes").focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.locator(".details").wait_for()


PICTURES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "report-hang": ("examples/hang.py:train", _as_it_opens),
    "report-missing-rank": ("uneven-inputs-without-join", _as_it_opens),
    "report-mismatch": ("rank0-eval-through-wrapper-with-buffers", _as_it_opens),
    "report-cycle": ("groups-in-a-ring", _as_it_opens),
    "report-join": ("join-baseline", _as_it_opens),
    "report-details": ("uneven-inputs-without-join", _with_details),
}
"""By the name of the file: the scenario, and what is done on the page before."""


if __name__ == "__main__":
    main()
