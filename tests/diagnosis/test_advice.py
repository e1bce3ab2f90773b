"""The table of causes, and that its advice is what findings end with."""

import re
from pathlib import Path

import pytest

from ddpsim import scenarios, simulator
from ddpsim.simulator.diagnosis import advice as advice_module
from ddpsim.simulator.diagnosis.advice import Cause
from tests.kit.rows import rows

from .ending import TABLE

FOLDERS = [Path(package.__file__).parent for package in (simulator, scenarios)]


@rows("advice", TABLE.values(), ids=TABLE)
def test_each_cause_is_two_plain_lines_once_it_has_its_facts(advice):
    first, second = map(str, advice.lines(*["SOMETHING"] * len(advice.facts._fields)))
    assert re.fullmatch(r"  cause   \S.*[^.\s]", first)
    assert re.fullmatch(r"  try     \S.*[^.\s]", second)
    assert "{" not in first + second


def test_no_two_causes_are_one_and_no_fact_is_told_by_nobody():
    assert len({advice.cause for advice in TABLE.values()}) == len(TABLE)
    for facts in {advice.facts for advice in TABLE.values()}:
        texts = " ".join(advice.cause + advice.remedy for advice in TABLE.values() if advice.facts is facts)
        assert all(f"{{{name}}}" in texts for name in facts._fields), facts


def test_each_name_stands_in_the_table_once():
    texts = [path.read_text("utf-8") for path in Path(advice_module.__file__).parent.glob("*.py")]
    names = [name for text in texts for name in re.findall(r"^    ([A-Z_]+) = make_advice\(", text, re.MULTILINE)]
    assert sorted(names) == sorted(TABLE)  # the second of two would hide the first


def test_a_fact_that_a_cause_needs_must_be_given():
    with pytest.raises(TypeError, match="operation"):
        Cause.RETURNED_EARLY.lines(who="rank 2")
    cause, _ = Cause.RETURNED_EARLY.lines(who="rank 2", operation="barrier #1")
    assert cause == ("cause", "rank 2 returned without making barrier #1")


@pytest.mark.parametrize(
    ("who", "words"),
    [("rank 2", "is not, or has"), ("ranks 1, 2", "are not, or have"), ("some ranks", "are not")],
)
def test_verbs_follow_the_number_of_the_culprits(who, words):
    assert words in Cause.JOINED_ON_SOME_RANKS.lines(who=who)[0].text


def test_every_cause_is_one_that_some_finding_has():
    sources = [path.read_text(encoding="utf-8") for folder in FOLDERS for path in folder.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bCause\.([A-Z][A-Z_]*)", text)}
    assert used == set(TABLE)


def test_causes_stand_in_the_table_only():
    paths = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    labelled = [path.name for path in paths if re.search(r'\bLabelledLine\("(cause|try)"', path.read_text("utf-8"))]
    assert labelled == ["facts.py"]
