"""Reports that somebody edited: each is refused, or every form can be made of it. No other error."""

import copy
import json
import random

import pytest

from ddpsim.reports.document import ReportError
from ddpsim.reports.forms.json_form import from_json, to_json
from ddpsim.reports.making.exploration_document import document_of_exploration
from ddpsim.reports.report_folder import FORMS
from ddpsim.scenarios.running.exploring import explore_scenario
from tests.reports.examples import CYCLE, MISMATCH, MISSING, THREADS, document

VALUES = (
    *(None, True, -1, 0, 1, 3, 99, 2**40, 0.5, "", "x", [], [0], [1], [0, 1], [[0, ""]], {}),
    *("send", "recv", "open", "matched", "mismatched", "issue", "match", "wait", "done", "raised"),
)


@pytest.fixture(scope="module")
def originals():
    explored = explore_scenario("results-taken-in-order-of-arrival")
    made = [*map(document, (MISSING, CYCLE, MISMATCH, THREADS)), document_of_exploration(explored)]
    return [json.loads(to_json(each)) for each in made]


def places(value, path=()):
    """The paths of all that is within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def edit(plain, path, draw):
    """Take out what is at a path, or put something else there."""
    for key in path[:-1]:
        plain = plain[key]
    if draw.random() < 0.2:
        del plain[path[-1]]
    else:
        plain[path[-1]] = draw.choice(VALUES)


def made_of(data):
    """True if every form could be made, False if it was refused."""
    try:
        edited = from_json(data)
    except ReportError:
        return False
    return all(form(edited) for form in FORMS.values())


@pytest.mark.parametrize("seed", range(2))
def test_an_edited_report_is_refused_or_rendered(seed, originals):
    draw = random.Random(seed)
    outcomes = []
    for _ in range(300):
        plain = copy.deepcopy(draw.choice(originals))
        edit(plain, draw.choice(list(places(plain))), draw)
        outcomes.append(made_of(json.dumps(plain).encode()))
    assert 30 <= sum(outcomes) <= 270  # some of both, or it would check nothing
