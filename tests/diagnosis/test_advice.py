"""The table of causes, and that its advice is what findings end with."""

import re
from pathlib import Path

import pytest

from ddpsim import scenarios, simulator
from ddpsim.simulator.diagnosis.advice import Cause

FOLDERS = [Path(package.__file__).parent for package in (simulator, scenarios)]
FACTS = (
    "culprits",
    "command",
    "operation",
    "field",
    "groups",
    "joined",
    "name",
    "fact",
    "parameters",
    "remedy",
    "factor",
    "site",
    "ahead",
    "behind",
    "sides",
)


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.name)
def test_the_texts_of_a_cause_are_two_plain_lines(cause):
    first, second = cause.lines(**dict.fromkeys(FACTS, "SOMETHING"))
    assert re.fullmatch(r"  cause   \S.*[^.\s]", first)
    assert re.fullmatch(r"  try     \S.*[^.\s]", second)
    assert "{" not in first + second


def test_a_fact_that_a_cause_needs_must_be_given():
    with pytest.raises(KeyError, match="culprits"):
        Cause.RAN_OUT_OF_INPUT.lines()
    assert Cause.RETURNED_EARLY.lines(culprits="rank 2", operation="barrier #1")[0] == (
        "  cause   rank 2 returned without making barrier #1"
    )


@pytest.mark.parametrize(
    ("culprits", "words"),
    [("rank 2", "is not, or has"), ("ranks 1, 2", "are not, or have"), ("some ranks", "are not")],
)
def test_verbs_follow_the_number_of_the_culprits(culprits, words):
    assert words in Cause.JOINED_ON_SOME_RANKS.lines(culprits=culprits)[0]


def test_every_cause_is_one_that_some_finding_has():
    sources = [path.read_text(encoding="utf-8") for folder in FOLDERS for path in folder.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bCause\.([A-Z_]+)", text)}
    assert used == {cause.name for cause in Cause}


def test_causes_stand_in_the_table_only():
    paths = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    labelled = [path.name for path in paths if re.search(r'indent\("(cause|try)"', path.read_text("utf-8"))]
    assert labelled == ["advice.py"]
