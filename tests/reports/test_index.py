"""The page over several runs, and the folders that it links to."""

import re
from pathlib import Path

from ddpsim.reports.forms.junit import JunitCase
from ddpsim.reports.index import IndexEntry, IndexRow, folder_name, index_row_of, to_index
from tests.kit.rows import rows
from tests.reports.examples import document

ROOT = Path(__file__).resolve().parents[2]


def entry(name, state, folder="f", seconds=0.5):
    return IndexEntry(
        index_row_of(name, engine="torch", expected="wanted", found="got"),
        JunitCase(name, "ddpsim.torch", state, seconds),
        folder,
    )


def page(*entries, title="zoo"):
    return to_index(entries, title=title).decode()


def names(text):
    return re.findall(r"<td>(?:<a [^>]*>)?<bdi>(.*?)</bdi>", text)


def test_what_is_not_as_expected_comes_first_and_the_rest_in_order():
    states = ["passed", "not run", "passed", "failed", "unknown", "failed"]
    text = page(*(entry(f"n{number}", state) for number, state in enumerate(states)))
    assert [name for name in names(text) if name.startswith("n")] == ["n3", "n5", "n4", "n1", "n0", "n2"]
    assert "2 as expected, 1 not run, 1 unknown, 2 not as expected</span>" in text
    assert '<span class="quiet">3.0 s</span>' in text
    assert '<span class="verdict fail">2 as' in text
    assert '<span class="verdict pass">0 as expected</span>' in page()
    either = page(entry("n", "passed"), entry("n", "unknown"))
    assert '<span class="verdict unknown">1 as expected, 1 unknown</span>' in either


def test_a_column_is_filled_shown_and_described():
    assert not IndexRow._field_defaults, (
        "reports/index.py:IndexRow: a field with a default may stay unfilled without an error"
    )
    row = index_row_of(document("send-send"), engine="torch", expected="wanted", found="got")
    empty = [name for name, text in row._asdict().items() if not text]
    assert not empty, f"reports/index.py:index_row_of does not fill {empty[0]} of a run that has a report"
    docs = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8").partition("## Several runs")[2]
    (listed,) = re.findall(r"`index.html`, a table of ([a-z, ]*) and milliseconds", docs)
    lacking = [name for name in IndexRow._fields if name not in listed.split(", ")]
    assert not lacking, f"docs/reports.md, Several runs, does not name the column {lacking[0]}"
    text = page(
        IndexEntry(IndexRow(*(f"the {name}" for name in IndexRow._fields)), JunitCase("n", "ddpsim.torch", "passed"))
    )
    hidden = [
        name for name in IndexRow._fields if f"<bdi>the {name}</bdi>" not in text or f"<th>{name}</th>" not in text
    ]
    assert not hidden, f"reports/forms/assets/index.html.j2 does not show {hidden[0]}"


def test_a_column_that_is_empty_for_every_run_is_left_out():
    entries = [IndexEntry(index_row_of("n", expected="wanted", found="got"), JunitCase("n", "ddpsim.pytest", "failed"))]
    assert re.findall("<th[^>]*>(.*?)</th>", page(*entries)) == ["name", "outcome", "expected", "found", "ms"]
    headers = ["name", "outcome", "engine", "expected", "found", "ms"]
    assert re.findall("<th[^>]*>(.*?)</th>", page(*entries, entry("m", "failed"))) == headers


def test_the_page_may_ask_for_nothing_and_what_has_no_report_has_no_link():
    assert "default-src &#39;none&#39;" in page()
    assert "http" not in page().replace("http-equiv", "")
    text = page(entry("with", "passed", "own"), entry("without", "failed", ""))
    assert re.findall(r'<a href="([^"]*)"', text) == ["own/report.html", "junit.xml"]


@rows(
    ("name", "folder"),
    [
        ("send-send-torch", "send-send-torch"),
        ("own.py:main-ddp", "own.py-main-ddp"),
        ("../../etc/passwd", "etc-passwd"),
        (".hidden", "hidden"),
        ("a b\n\tc", "a-b-c"),
        ("\N{GREEK SMALL LETTER ALPHA}", "run"),
        ("", "run"),
        ("x" * 500, "x" * 80),
    ],
)
def test_a_folder_has_a_safe_name(name, folder):
    assert folder_name(name, ()) == folder


def test_a_folder_has_a_name_of_its_own_also_where_case_does_not_count():
    taken = set()
    for expected in ("Run", "run-2", "RUN-3"):
        found = folder_name(expected.partition("-")[0], taken)
        assert found == expected
        taken.add(found.lower())


def test_many_runs_that_came_out_as_expected_are_folded_by_what_was_found():
    found = ["pass"] * 20 + ["fail, deadlock.missing_rank, rank 1"] * 12 + ["fail, stuck, rank 2"]
    entries = [
        IndexEntry(
            index_row_of(f"n{number}", engine="torch", expected=each, found=each),
            JunitCase(f"n{number}", "ddpsim", "passed"),
            "f",
        )
        for number, each in enumerate(found)
    ]
    text = page(*entries, entry("odd", "failed"))
    before, *folded = text.split("<details>")
    assert names(before)[0] == "odd"
    assert [re.search('<bdi>(.*?)</bdi> <span class="quiet">(.*?)<', part).groups() for part in folded] == [
        ("pass", "20"),
        ("deadlock.missing_rank", "12"),
        ("stuck", "1"),
    ]
    assert [len(names(part)) for part in folded] == [20, 12, 1]
    assert "<details>" not in page(*entries[:30])
