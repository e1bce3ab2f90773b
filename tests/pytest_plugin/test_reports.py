"""`--ddpsim-report DIR`: a report of each failing test, in a folder of its own."""

import re
from xml.etree import ElementTree

import pytest

from ddpsim.reports.forms.json_form import from_json
from ddpsim.scenarios.pytest_plugin import failure_reports as reporting
from ddpsim.scenarios.pytest_plugin.failure_reports import folder_name
from tests.pytest_plugin.reading import HANGS, marked, report_of

FAILURES = "".join(
    [
        marked(
            "if rank == n:\n    dist.barrier()",
            'ranks(2)\n@pytest.mark.parametrize("n", [1, 2])',
            name="test_hangs",
            arguments="rank, n",
        ),
        marked("dist.barrier()\nassert not rank", name="test_fails"),
        marked("assert not rank", "xfail\n@pytest.mark.ranks(2)", name="test_known"),
        marked("assert not rank", "ranks(2, explore=True)", name="test_explored"),
        marked("dist.barrier()", 'ranks(2, expect="deadlock.cycle")', name="test_expects"),
        marked("pass", "ranks(0)", name="test_unusable"),
        "\ndef test_plain():\n    assert False\n",
    ]
)


def documents(folder):
    """The documents in a folder, by the name of their test."""
    found = [from_json(path.read_bytes()) for path in sorted(folder.glob("*/result.json"))]
    return {document.title.partition("::")[2]: document for document in found}


def test_each_failing_test_on_ranks_has_a_folder_and_says_where_its_report_is(run, pytester):
    result = run(FAILURES, "--ddpsim-report", "made/below")

    result.assert_outcomes(failed=6, passed=1, xfailed=1)
    found = documents(pytester.path / "made" / "below")
    assert sorted(found) == ["test_expects", "test_explored", "test_fails", "test_hangs[1]"]
    assert [finding.code for finding in found["test_hangs[1]"].runs[0].findings] == ["deadlock.missing_rank"]
    assert found["test_fails"].runs[0].world_size == 2
    assert found["test_explored"].exploration.executions == 1
    assert found["test_expects"].runs[0].conclusion == ("not as expected: found pass; expected fail, deadlock.cycle")
    result.stdout.fnmatch_lines([f"ddpsim: 4 reports in {pytester.path}/made/below/index.html"])
    for name in found:
        *_, place, replay = report_of(result, name)
        assert replay.startswith("  replay  ")
        assert place == f"  report  made/below/{folder_name(f'test_it.py::{name}')}/report.html"
        assert (pytester.path / place.split()[1]).is_file()


def test_the_page_over_all_links_each_failure_with_what_was_found(run, pytester):
    run(FAILURES, "--ddpsim-report", "made")

    page = (pytester.path / "made" / "index.html").read_text()
    rows = re.findall(r'<tr>\s*<td><a href="(\S+)/report.html"><bdi>(\S+)</bdi></a></td>(.*?)</tr>', page, re.DOTALL)
    found = {name.partition("::")[2]: re.findall(r"<bdi>(.*?)</bdi>", rest) for _, name, rest in rows}
    assert found == {
        "test_hangs[1]": ["pass", "deadlock.missing_rank: rank 1 waits for rank 0, which returned"],
        "test_fails": ["pass", "rank 1: assert not 1"],
        "test_explored": ["pass", "rank 1: assert not 1"],
        "test_expects": ["deadlock.cycle", "not as expected: found pass; expected fail, deadlock.cycle"],
    }
    assert sorted(folder for folder, *_ in rows) == sorted(
        path.name for path in (pytester.path / "made").iterdir() if path.is_dir()
    )
    assert "<th>engine</th>" not in page
    cases = ElementTree.parse(pytester.path / "made" / "junit.xml").findall(".//testcase")
    assert [case.get("name", "").partition("::")[2] for case in cases] == list(found)
    assert list((pytester.path / "made").glob("*/junit.xml")) == []  # each is counted once


PATCHED = """
import json

@pytest.fixture
def no_json(monkeypatch):
    monkeypatch.setattr(json, "dumps", None)
    monkeypatch.setattr("builtins.open", None)

""" + marked(HANGS, name="test_patched", arguments="rank, no_json")


def test_what_a_test_has_patched_is_taken_back_before_its_report_is_written(fails, pytester):
    fails(PATCHED, "--ddpsim-report", "made").stdout.no_fnmatch_line("*internal error of ddpsim*")
    assert list(documents(pytester.path / "made")) == ["test_patched"]


def test_a_test_whose_teardown_fails_has_its_report(fails, pytester):
    fixture = "\n@pytest.fixture\ndef breaks():\n    yield\n    assert 0\n"
    failure = fails(fixture + marked(HANGS, arguments="rank, breaks"), "--ddpsim-report", "made", errors=1)
    failure.stdout.fnmatch_lines(["ddpsim: 1 report in *"])
    assert list(documents(pytester.path / "made")) == ["test_it"]


GATHERED = """\
print("here is", rank)
for sender in {senders}:
    if rank == sender:
        dist.send(torch.ones(1), 0)
    elif not rank:
        dist.recv(torch.ones(1))
assert rank != 2"""


def test_a_replay_that_diverges_has_a_report_of_how_it_went_on(fails, pytester):
    recorded, changed = (marked(GATHERED.format(senders=senders), "ranks(3)") for senders in ((1, 2), ()))
    token = fails(recorded, "--ddpsim-policy=random").token

    failure = fails(changed, "--ddpsim-replay", token, "--ddpsim-report", "made")

    diverged, *_ = failure.lines
    assert diverged.startswith("replay diverged")
    *_, table, place = [line for line in failure.lines if line]
    assert place == f"  report  made/{folder_name('test_it.py::test_it')}/report.html"
    assert re.match(r" +\d+ +0 s ", table), table
    failure.stdout.fnmatch_lines(["here is 2", "ddpsim: 1 report in *made/index.html"])
    (found,) = documents(pytester.path / "made")["test_it"].runs
    assert (
        found.conclusion == f"{diverged}; the replay continued, and took each later choice modulo the number of options"
    )
    assert found.is_expected is False
    assert [(finding.code, finding.ranks) for finding in found.findings] == [("rank_error", (2,))]
    assert found.replay != f"pytest test_it.py::test_it --ddpsim-replay {token}"


def test_a_session_that_passes_leaves_no_page_of_one_that_failed(run, pytester):
    failed, passed = (marked(f"assert {each}") for each in (False, True))
    made = pytester.path / "made"
    run(failed, "--ddpsim-report", "made")
    assert "test_it" in (made / "index.html").read_text()
    assert len(ElementTree.parse(made / "junit.xml").findall(".//testcase")) == 1

    result = run(passed, "--ddpsim-report", "made")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["ddpsim: 0 reports in *made/index.html"])
    assert "test_it" not in (made / "index.html").read_text()
    assert ElementTree.parse(made / "junit.xml").findall(".//testcase") == []


def test_a_folder_that_cannot_be_written_is_one_line_before_anything_runs(run, pytester):
    pytester.makefile(".txt", taken="")

    result = run(FAILURES, "--ddpsim-report", "taken.txt/below")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        f"ERROR: --ddpsim-report: report folder {pytester.path}/taken.txt/below cannot be written (Not a directory): "
        "give another folder"
    ]
    assert result.outlines == []


def test_a_report_that_cannot_be_written_later_is_told_with_the_test(fails):
    fixture = """
import pathlib

@pytest.fixture
def in_the_way(request):
    from ddpsim.scenarios.pytest_plugin.failure_reports import folder_name
    pathlib.Path("made", folder_name(request.node.nodeid)).touch()
"""
    failure = fails(fixture + marked(HANGS, arguments="rank, in_the_way"), "--ddpsim-report", "made")
    failure.stdout.fnmatch_lines(["*ddpsim report*", "report folder *test_it* cannot be written*", "ddpsim: 0 rep*"])


def test_a_bug_of_ours_in_a_report_does_not_end_the_session(run, monkeypatch):
    monkeypatch.setattr(reporting, "write_reports", lambda *arguments: {}["bug"])

    result = run(FAILURES, "--ddpsim-report", "made")

    result.assert_outcomes(failed=6, passed=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["*ddpsim report*", "internal error of ddpsim, *: KeyError: 'bug' (in the pytest plugin)"]
    )


@pytest.mark.parametrize(
    ("nodeid", "start"),
    [
        ("a/test_x.py::test_y[1]", "a-test_x.py-test_y-1-"),
        ("test_x.py::test_y[../../etc]", "test_x.py-test_y-..-..-etc-"),
        ("../up.py::test_y", "up.py-test_y-"),
        ("test_x.py::test_y[\u00e9<script>\n]", "test_x.py-test_y-script-"),
    ],
)
def test_names_of_folders_are_plain_and_differ(nodeid, start):
    name = folder_name(nodeid)

    assert name.startswith(start)
    assert len(name) == len(start) + 8
    assert name.isascii()
    assert "/" not in name
    assert folder_name(nodeid + " ") != name
    assert len(folder_name(nodeid * 100)) <= 89
