"""Names that a careless writer would let through as something else than text: in every form they stay text."""

import io
import json
import re
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from junitparser import JUnitXml
from rich.cells import cell_len

from ddpsim.reports.forms.chrome_trace import to_chrome_trace
from ddpsim.reports.forms.html import to_html
from ddpsim.reports.forms.json_form import from_json, to_json
from ddpsim.reports.forms.junit import JunitCase, to_junit
from ddpsim.reports.forms.narrow_lanes import draw_lanes_as_text
from ddpsim.reports.forms.text import to_text
from ddpsim.reports.index import IndexEntry, folder_name, index_row_of, to_index
from ddpsim.reports.report_folder import FORMS, write_reports
from tests.reports.examples import HOSTILE, hostile
from tests.reports.schema import document_schema
from tests.reports.tags import Tags


@pytest.fixture(params=HOSTILE, ids=lambda text: ascii(text[:16]))
def text(request):
    return request.param


@pytest.fixture
def whole(text):
    """What of it is text in UTF-8: half a character is none."""
    return text.replace("\udcff", "?")


def test_every_form_is_written_and_json_has_it_as_it_was(text, whole, tmp_path):
    assert all(path.stat().st_size for path in write_reports(hostile(text), tmp_path, tuple(FORMS)))
    data = to_json(hostile(text))
    assert from_json(data) == hostile(whole)
    Draft202012Validator(document_schema()).validate(json.loads(data))


def test_the_chrome_trace_has_it_as_it_was(text, whole):
    found = json.loads(to_chrome_trace(hostile(text)))
    assert found["otherData"]["title"] == whole
    (call,) = [each for each in found["traceEvents"] if each["ph"] == "X"]
    assert (call["name"], call["args"]["parameters"]) == (f"{whole} #0", f"{whole}, {whole}")


def test_junit_shows_what_xml_forbids_as_such(text):
    ((case,),) = JUnitXml.fromroot(ElementTree.parse(io.BytesIO(to_junit(hostile(text)))).getroot())
    forbidden = "\x00\x07\x1b\udcff\ufffe"  # by XML 1.0, section 2.2
    shown = "".join("\N{REPLACEMENT CHARACTER}" if each in forbidden else each for each in text)
    (failure,) = case.result
    assert case.name == shown
    # Parsers turn a carriage return into a line break, by section 2.11, unless it is escaped.
    found = [each.replace("\r", "\n") for each in (failure.text, case.system_out)]
    assert found == [each.replace("\r", "\n") for each in (shown, f"replay  {shown}")]


def test_it_adds_no_tags_to_a_page(text):
    plain = [tag for tag, _ in Tags(to_html(hostile("plain"))).tags]
    assert [tag for tag, _ in Tags(to_html(hostile(text))).tags] == plain


def test_it_adds_nothing_to_the_page_over_several(text):
    entry = IndexEntry(
        index_row_of(text, engine="torch", expected="wanted", found="got"),
        JunitCase(text, "ddpsim.torch", "failed"),
        folder_name(text, ()),
    )
    shown = to_index([entry], title=text).decode()
    assert "<script" not in shown
    assert "{{ 7 * 7 }}" in shown or "{{" not in text
    (link, _) = re.findall(r'<a href="([^"]*)"', shown)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,84}/report\.html", link)


def test_it_has_no_power_over_a_terminal(text):
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", to_text(hostile(text)).decode())
    lines = draw_lanes_as_text(hostile(text).runs[0], 80).plain.splitlines()
    assert [line[:6] for line in lines[:4]] == ["lanes ", "rank 0", "rank 1", "rank 1"]  # rank 1 has a thread
    assert 5 <= len(lines) <= 6  # the legend may take two
    assert all(line.startswith("  ") for line in lines[4:])
    assert all(cell_len(line) <= 80 for line in lines)
