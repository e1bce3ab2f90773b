"""Dpor finds what a plain search finds: by exhaustion of small programs, and by drawn ones."""

import pytest

from ddpsim.simulator.exploration.dpor import Dpor
from tests.exploration.differential import (
    FAMILIES,
    PRODUCTS,
    Product,
    against_search,
    against_walks,
    all_programs,
    drawn_programs,
)
from tests.exploration.kernel_programs import explored

SET, GET, CHECK, DELETE = ("set", "a", b"1"), ("get", "a"), ("check", "a"), ("delete", "a")
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
    (((("receive", None),), (("receive", None), ("send", 0)), (("send", 0), ("receive", None))), 2),
    # Whoever is woken by the clock at the same instant may come first.
    (((("wait_key", "a", 1.0),), (("sleep", 1.0), SET)), 2),
    (((("reduce",), ("wait", 1.0)), (("sleep", 1.0), ("reduce",))), 2),
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
    """Rank 1 makes the wrong call unless rank 2 has come to its second step, and the run ends there."""
    program = (
        (("reduce",),),
        (("unless", "k", "broadcast"),),
        (("set", "other", b"1"), ("set", "k", b"1")),
    )
    found = {ran.found for ran in explored(program, Dpor(3)).outcomes}
    assert found == {("mismatch.operation",), ("deadlock.missing_rank",)}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_drawn_programs_have_the_outcomes_of_random_schedules(family):
    for _, program in drawn_programs(1, 8, family=family):
        assert not against_walks(program, 30)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_programs_of_one_operation_a_rank(family):
    """Of random schedules 25 come to all that 3,000 of a plain search do, which the next test has at night."""
    for program in all_programs(family, Product(3, 1, 3)):
        assert not against_walks(program, 30)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_programs_have_the_outcomes_of_a_plain_search(family, size):
    for program in all_programs(family, size):
        assert not against_search(program)


@pytest.mark.tier("nightly")
def test_two_thousand_drawn_programs():
    for _, program in drawn_programs(0, 2000):
        assert not against_walks(program)
