"""docs/findings.md has a section for each code, whose example comes to it; that examples run, its blocks' test says."""

import doctest
import re
from pathlib import Path

import pytest

from ddpsim import Code
from ddpsim.scenarios import registry

TEXT = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def section_of(code):
    assert code in SECTIONS, f"docs/findings.md has no section `{code}`"
    return SECTIONS[code]


def test_a_section_for_each_code_in_their_order():
    assert list(SECTIONS) == [str(code) for code in Code]
    assert len(re.findall("^## ", TEXT, re.MULTILINE)) == len(SECTIONS)


def test_no_other_code_is_named():
    kinds = "|".join(sorted({str(code).split(".")[0] for code in Code if "." in code}))
    assert set(re.findall(rf"\b(?:{kinds})\.(?!md\b)\w+", TEXT)) <= {str(code) for code in Code}


@pytest.mark.parametrize("code", Code, ids=str)
def test_a_section_begins_with_the_verdict_and_has_an_example_of_its_code_and_scenarios_that_show_it(code):
    section = section_of(code)
    assert section.startswith(f"\n**{code.verdict.value}.** ")
    outputs = [each.want for each in doctest.DocTestParser().get_examples(section)]
    assert any(re.search(rf"(^|'){re.escape(code)}\b", output) for output in outputs)
    found = re.search(r"^Of the zoo: (.*?)\.$", section, re.MULTILINE | re.DOTALL)
    for name in re.findall("`([^`]+)`", found[1] if found else ""):
        assert registry[name].expected.code == code


def test_causes_and_remedies_for_each_code():
    for code, section in SECTIONS.items():
        parts = re.findall(r"^- \*\*(\w+)\.\*\* ", section, re.MULTILINE)
        assert parts[:2] == ["Causes", "Try"], code
        assert parts[2:] in ([], ["Elsewhere"]), code
