"""docs/replaced.md has every row of the table, and docs/versions.md what was tested with what."""

import re

from ddpsim.simulator.foreign_names.names import load_table
from ddpsim.simulator.imports import TESTED
from tests.docs.blocks import ROOT
from tests.docs.foreign_names_page import PAGE, brought_up_to_date


def test_the_page_is_made_from_the_table():
    """If not: python -m tests.docs.foreign_names_page."""
    text = PAGE.read_text(encoding="utf-8")
    assert brought_up_to_date(text) == text
    rows = [line for line in text.splitlines() if re.search(r"\| `[\w.]+`: `", line)]
    assert len(rows) == len(load_table())


def test_the_doctor_says_what_was_tested():
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+\.\d+)\.\d+ \| (\d+\.\d+)\.\d+", page, re.MULTILINE)
    assert list(TESTED) == rows
