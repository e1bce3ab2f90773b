"""Dpor finds what a plain search finds: by exhaustion of small programs, and by drawn ones."""

import random

import pytest

from ddpsim.simulator.exploration.dpor import Dpor
from ddpsim.simulator.policies.dfs import Dfs
from tests.exploration.differential import (
    FAMILIES,
    PRODUCTS,
    Product,
    against_search,
    against_walks,
    all_programs,
    drawn_programs,
    exhausted,
)
from tests.exploration.kernel_programs import explored
from tests.exploration.stateful import searched
from tests.tiers import sweep

SET, GET, CHECK, DELETE = ("set", "a", b"1"), ("get", "a"), ("check", "a"), ("delete", "a")
SET_B = ("set", "b", b"1")
PUSH, POP, TRY = ("push", "a", b"1"), ("pop", "a", True), ("pop", "a", False)

MISSED_ONCE = [
    # Sleeping ranks counted as covering, and a first look in vain as a step that touches nothing.
    (((SET,), (CHECK,), (CHECK,)), 4),
    (((SET,), (("check", "b"), CHECK), (CHECK, ("add", "n", 1))), 4),
    (((CHECK, ("add", "n", 1)), (("add", "n", 1), CHECK), (("add", "n", 1), SET)), 17),
    # Who waits for what another one takes away.
    (((POP, POP), (PUSH, POP)), 2),
    (((PUSH, POP), (TRY, CHECK), (POP,)), 5),
    (((("pop", "a", False), ("push", "a", b"2")), (CHECK, TRY), (POP, CHECK)), 4),
    # A key that is there again when it is got could have been got before it was deleted.
    (((GET, DELETE), (SET, DELETE, SET)), 3),
    # A message that comes when its receive sleeps.
    (((("receive", None),), (("receive", None), ("send", -1)), (("send", 1), ("receive", None))), 2),
    # What a receive took does not count for the next one of its rank, before which nobody else could be chosen.
    (((("receive", None),) * 2, (("receive", None), ("send", -1)), (("send", 1),)), 2),
    # A receive that is not waited for takes what it may have led to, if what was there comes later.
    (((("receive", None), ("send", 1)), (("receive", None), ("send", -1)), (("send", 1), ("send", -1))), 4),
    # A receive that had its message before another one was sent might have come when both were there.
    (
        (
            (("receive", None), ("wait", None)),
            (("get", "k"), ("send", -1), SET),
            (("set", "k", b"1"), GET, ("send", 1)),
        ),
        2,
    ),
    # Whoever is woken by the clock at the same instant may come first.
    (((("wait_key", "a", 1.0),), (("sleep", 1.0), SET)), 2),
    (((("reduce",), ("wait", 1.0)), (("sleep", 1.0), ("reduce",))), 2),
    # A key that is set and deleted again: who waits for it with a time-out may come before, in between or afterwards.
    (((SET,), (DELETE,), (("wait_key", "a", 1.0),)), 3),
    # Who comes last to calls that do not match ends the run, and what it would do next is seen in none.
    (((CHECK, ("reduce",), SET), (("unless", "a", "broadcast"),)), 2),
    # Of two keys that are waited for one is taken away before the other one comes, or afterwards.
    (((DELETE,), (SET, SET_B), (("count",), ("get_all", ("a", "b")))), 9),
    (((DELETE,), (SET, SET_B), (("wait_all", ("a", "b")),)), 3),
    # Who is let go by a key that is deleted again might have come too late for it.
    (((SET,), (DELETE,), (("wait_key", "a", None),)), 3),
]


@pytest.mark.parametrize(("program", "outcomes"), MISSED_ONCE, ids=str)
def test_outcomes_that_were_missed_once(program, outcomes):
    """As many as a plain search finds, which takes up to a minute for some."""
    found = explored(program, Dpor(len(program)))
    assert found.is_complete
    assert len(found.outcomes) == outcomes


def test_one_execution_for_each_class():
    """Two readers and a writer: 2 x 2 classes. Of three writers: 3!. Of two that write what is there: one."""
    assert explored(((SET,), (CHECK,), (CHECK,)), Dpor(3)).executions == 4
    assert explored(tuple((("set", "a", b"%d" % rank),) for rank in range(3)), Dpor(3)).executions == 6
    assert explored(((SET,), (GET, SET), (GET, SET)), Dpor(3)).executions == 1


def test_a_mismatch_does_not_hide_what_others_could_do():
    """Rank 1 makes the wrong call unless rank 0 has come to its last step, and the run ends there.

    No run that ends so has that step: nothing in it is in a race with what rank 1 did.
    """
    program = (
        (("reduce",), ("set", "other", b"1"), ("set", "k", b"1")),
        (("unless", "k", "broadcast"),),
    )
    found = {ran.found for ran in explored(program, Dpor(2)).outcomes}
    assert found == {("mismatch.operation",), ()}


def test_a_look_in_vain_is_part_of_the_step_that_looks_again():
    """Else who has looked once sleeps as one who did nothing, and runs are broken off where it looks again."""
    assert explored(((SET,), (CHECK,), (CHECK,)), Dpor(3)).redundant == 0
    assert explored(((SET,), (CHECK, CHECK), (CHECK, CHECK)), Dpor(3)).redundant == 1


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_programs_have_the_outcomes_of_random_schedules(family):
    for _, program in drawn_programs(1, 4, family=family):
        assert not against_walks(program, 30).differs


@pytest.mark.parametrize("family", PRODUCTS)
def test_drawn_programs_have_the_outcomes_of_all_schedules(family):
    for _, program in drawn_programs(2, 3, family=family):
        assert not any(compared.differs for compared in against_search(family, program))


@pytest.mark.parametrize("family", PRODUCTS)
def test_the_search_that_runs_no_state_twice_finds_what_plain_search_finds(family):
    """Whatever `state_of` left out would be missed here."""
    programs = list(all_programs(family, Product(2, 1)))
    for program in random.Random(0).sample(programs, 6):
        full, found = explored(program, Dfs()), searched(program)
        assert full.is_complete
        assert found.outcomes == full.outcomes


@pytest.mark.parametrize("family", sweep(PRODUCTS, lambda family: family in sorted(PRODUCTS)[::3]))
def test_what_comes_of_a_state_is_the_same_whatever_program_led_to_it(family):
    programs, futures = random.Random(0).sample(list(all_programs(family, Product(2, 2))), 5), {}
    shared = [searched(program, futures).outcomes for program in programs]
    assert shared == [searched(program).outcomes for program in programs]


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("family", PRODUCTS)
def test_so_it_does_of_three_ranks(family):
    futures = {}
    for program in random.Random(0).sample(list(all_programs(family, Product(3, 1))), 10):
        full = explored(program, Dfs())
        assert full.is_complete
        assert searched(program, futures).outcomes == full.outcomes


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(("family", "size"), [(family, size) for family, sizes in PRODUCTS.items() for size in sizes])
def test_all_programs_have_the_outcomes_of_all_schedules(family, size):
    for compared in exhausted(family, size):
        assert not compared.differs, compared


@pytest.mark.tier("nightly")
def test_two_thousand_drawn_programs():
    for _, program in drawn_programs(0, 2000):
        assert not against_walks(program).differs
