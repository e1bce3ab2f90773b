"""Dpor finds all that threads of a rank can come to, by a model of Python's locks, queues, events and futures."""

import random

import pytest

from tests.exploration.thread_programs import FAMILIES, STUCK, all_programs, explored, possible
from tests.kit.rows import rows

SIZES = [(2, 2), (3, 1)]
"""How many threads, and how many operations each at most."""


@rows(
    ("program", "outcomes"),
    [
        # A future that a thread sets: looked at before and after, and set twice, which the second one is told.
        ((("finish",), ("done",)), {"- T", "- F"}),
        ((("done",), ("finish",)), {"T -", "F -"}),
        ((("finish",), ("finish",)), {"- E", "E -"}),
        # A lock as a signal: who gives back what another one has taken does so before it, in between, or after it.
        ((("acquire",), ("release",)), {"T -", "T E"}),
        ((("hold",), ("release",)), {"1 E", "E -"}),
        ((("acquire", "acquire"), ("release",)), {"TT -", STUCK}),
    ],
)
def test_outcomes_worked_out_by_hand(program, outcomes):
    assert explored(program) == possible(program) == outcomes


@rows("family", FAMILIES)
def test_all_programs_of_one_operation_a_thread(family):
    for program in all_programs(family, 2, 1):
        assert explored(program) == possible(program), program


@rows("family", FAMILIES)
def test_a_sample_of_larger_programs(family):
    chance = random.Random(1)
    for size in SIZES:
        for program in chance.sample(list(all_programs(family, *size)), 3):
            assert explored(program) == possible(program), program


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_programs_of_a_size(family, size):
    for program in all_programs(family, *size):
        assert explored(program) == possible(program), program
