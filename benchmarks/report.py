"""How large the HTML report is, how long it takes to write, and how long a browser takes until one can use it.

    python -m benchmarks.report [--ranks 64] [--events 1000] [--rounds 5]

The document is made up: every rank trains with four buckets, then one stops before the others. The browser is headless
Chromium; without it, or without playwright, the times of loading are left out.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from ddpsim.reports.document import Call, Document
from ddpsim.reports.forms.html import to_html
from ddpsim.reports.forms.json_form import to_json
from tests.reports.made import Story, all_but_one, call

BUCKETS = 4
EVENTS_PER_STEP = 3 * BUCKETS + 1
"""Of one rank: each bucket is issued, waited for and done; then the optimizer steps."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=1000, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    document = training(options.ranks, options.events)
    writing, page = [], b""
    for _ in range(options.rounds):
        start = time.perf_counter()
        page = to_html(document)
        writing.append(time.perf_counter() - start)
    events = len(document.runs[0].events)
    print(f"{options.ranks} ranks, {events:,} events, {options.rounds} rounds")
    print(f"report.html   {len(page):>12,} bytes   written in {statistics.median(writing):.2f} s")
    print(f"result.json   {len(to_json(document)):>12,} bytes")
    loads = loading(page, options.rounds)
    if loads:
        print(f"ready to use  {statistics.median(loads):.2f} s after it was asked for (at most {max(loads):.2f} s)")


def training(ranks: int, events: int) -> Document:
    """A run of so many ranks with about so many events each, in which one rank stops before the last step."""
    steps = max(1, events // EVENTS_PER_STEP)
    story = Story(ranks)
    for step in range(steps):
        for bucket in range(BUCKETS):
            story.meet(_call(step, bucket), range(ranks))
        for rank in range(ranks):
            story.happen("step", rank, text=str(step + 1))
    run = all_but_one(story, _call(steps, 0), ranks // 3)
    return Document(f"{ranks} ranks", (run,))


def _call(step: int, bucket: int) -> Call:
    origin = f"DDP #0 bucket {bucket} of step {step + 1}"
    names = tuple(f"layers.{4 * bucket + number}.weight" for number in range(4))
    return call(step * BUCKETS + bucket, site=0, origin=origin, phase="bucket", bucket=bucket, parameters=names)


def loading(page: bytes, rounds: int) -> list[float]:
    """Seconds from asking for the page until its scripts have drawn it, in a fresh tab each time."""
    browser_path = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if browser_path is None:
        return []
    seconds = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_bytes(page)
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for _ in range(rounds):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            start = time.perf_counter()
            tab.goto(path.as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            seconds.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    return seconds


if __name__ == "__main__":
    main()
