"""The table of causes, and that its advice is what findings end with."""

import re
from pathlib import Path

import pytest

import simulator
from simulator.diagnosis.advice import Cause

FACTS = ("culprits", "others", "operation", "field", "groups", "joined", "name", "fact", "parameters", "remedy")


@pytest.mark.parametrize("cause", Cause, ids=lambda cause: cause.name)
def test_the_texts_of_a_cause_are_two_plain_lines(cause):
    first, second = cause.lines(**dict.fromkeys(FACTS, "SOMETHING"))
    assert re.fullmatch(r"  cause   \S.*[^.\s]", first)
    assert re.fullmatch(r"  try     \S.*[^.\s]", second)
    assert "{" not in first + second


def test_a_fact_that_a_cause_needs_must_be_given():
    with pytest.raises(KeyError, match="culprits"):
        Cause.RAN_OUT_OF_INPUT.lines()
    assert Cause.RAN_OUT_OF_INPUT.lines(culprits="rank 2") == [
        "  cause   rank 2 ran out of input before the others and nothing shadows its collectives",
        "  try     wrap the loop in `with model.join():`",
    ]


def test_every_cause_is_one_that_some_finding_has():
    sources = [path.read_text(encoding="utf-8") for path in Path(simulator.__file__).parent.rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bCause\.([A-Z_]+)", text)}
    assert used == {cause.name for cause in Cause}


def test_causes_stand_in_the_table_only():
    folder = Path(simulator.__file__).parent
    labelled = [path.name for path in folder.rglob("*.py") if re.search(r'"(cause|try)"', path.read_text("utf-8"))]
    assert labelled == ["advice.py"]
