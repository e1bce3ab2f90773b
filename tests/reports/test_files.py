"""A folder with the forms of a document."""

import json
from pathlib import Path

import pytest

from ddpsim.reports.forms.json_form import read_document
from ddpsim.reports.report_folder import WRITTEN, make_folder, write_reports
from tests.reports.examples import MISSING, document


def test_the_forms_that_people_open_are_written_and_nothing_else(tmp_path):
    paths = write_reports(document(MISSING), tmp_path / "deep" / "er")
    assert [path.name for path in paths] == list(WRITTEN)
    assert sorted((tmp_path / "deep" / "er").iterdir()) == sorted(paths)
    assert read_document(tmp_path / "deep" / "er" / "result.json") == document(MISSING)
    assert json.loads((tmp_path / "deep" / "er" / "trace.json").read_bytes())["traceEvents"]


def test_a_report_is_written_again_over_the_one_before(tmp_path):
    write_reports(document(MISSING), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_reports(document("send-send"), tmp_path)
    write_reports(document(MISSING), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["mine", ".ddpsim", "tmp", ".probe"])
@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_whatever_the_folder_has_is_neither_in_the_way_nor_lost(name, make, tmp_path):
    make(tmp_path / name)
    make_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
