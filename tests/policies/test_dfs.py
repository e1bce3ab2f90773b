"""Depth-first search: each schedule once, and within a bound exactly those that have as few preemptions."""

import contextlib
import re
from itertools import permutations

import pytest

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun, Schedule
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.dfs import Dfs
from ddpsim.simulator.policies.spin_detection import MOST_POLLS
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code
from tests.kit.rows import rows
from tests.policies.interleaving import interleave

NOTHING = Result(2, (), (None, None), {}, Schedule(), Trace())


def orders_by(search, lengths):
    """The orders that the executions of a search have, in turn."""
    orders = []
    while (policy := search.next_policy()) is not None:
        orders.append(interleave(policy, lengths))
        assert search.take(NOTHING) is None
        assert len(orders) < 10_000
    return orders


def all_orders(lengths):
    """The same by brute force."""
    steps = [rank for rank, count in enumerate(lengths) for _ in range(count)]
    return sorted(set(permutations(steps)))


def preemptions(order, lengths):
    """How often an order leaves a rank that has steps left."""
    switches = [i for i in range(1, len(order)) if order[i] != order[i - 1]]
    return sum(order[:i].count(order[i - 1]) < lengths[order[i - 1]] for i in switches)


@rows(("lengths", "count"), [((3,), 1), ((2, 2), 6), ((3, 3), 20), ((1, 1, 1), 6), ((2, 2, 2), 90)])
def test_each_schedule_is_run_once(lengths, count):
    search = Dfs()
    orders = orders_by(search, lengths)
    assert len(orders) == count  # the multinomial coefficient
    assert sorted(orders) == all_orders(lengths)
    assert search.is_complete
    assert search.limits == ""
    assert search.coverage == 1.0


@rows("bound", [0, 1, 2, 3])
def test_a_bound_leaves_out_what_has_more_preemptions(bound):
    lengths = (2, 3, 2)
    search = Dfs(preemptions=bound)
    orders = orders_by(search, lengths)
    assert len(orders) == len(set(orders))
    assert sorted(orders) == [order for order in all_orders(lengths) if preemptions(order, lengths) <= bound]
    assert not search.is_complete


def test_a_bound_that_leaves_nothing_out_is_complete():
    search = Dfs(preemptions=4)
    assert len(orders_by(search, (2, 3))) == 10
    assert search.is_complete


def test_the_first_schedule_is_the_default_one():
    assert orders_by(Dfs(), (2, 2))[0] == (0, 0, 1, 1)


def test_coverage_grows_to_the_end():
    search = Dfs()
    shares = []
    while (policy := search.next_policy()) is not None:
        shares.append(search.coverage)
        interleave(policy, (2, 2))
        search.take(NOTHING)
    # The orders are 0011, 0101, 0110, 1100, 1010, 1001: of two choices the first and the fourth, of three the others.
    assert shares == [0, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 7 / 8]


def test_the_text_of_a_bound():
    assert Dfs(preemptions=0).limits == "without preemptions"
    assert Dfs(preemptions=1).limits == "with at most 1 preemption"
    assert Dfs(preemptions=2).limits == "with at most 2 preemptions"


@pytest.mark.parametrize("bound", [-1, 1.5, "2"])
def test_a_bound_that_is_none(bound):
    expected = f"preemptions is {bound!r}, expected a whole number from 0 on, or None for no bound: correct it"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        Dfs(preemptions=bound)


# --- programs that poll -----------------------------------------------------------------------------------------------


LOOK = (Access(("key", "k"), AccessMode.READ),)


def poll(policy, rank, step, look=LOOK):
    """Rank 0 or 1 polls in vain, and one of them is chosen: which?"""
    policy.observer.about_to_access(rank, look, looks_again=True)
    options = [1 - rank, rank]
    return options[policy.choose(ChoicePoint(ChoiceKind.RANK, step, rank), options)]


def poll_until_the_other_goes(search, between=lambda observer, polls: None, most=1_000):
    """Rank 0 polls until rank 1 is chosen, or `most` times; returns how often it did in each execution."""
    counts = []
    while (policy := search.next_policy()) is not None:
        polls = 1
        with contextlib.suppress(RedundantRun):
            while poll(policy, 0, polls) == 0 and polls < most:
                between(policy.observer, polls)
                polls += 1
            search.take(NOTHING)
            counts.append(polls)
        assert len(counts) < 200
    return counts


def test_a_loop_that_polls_in_vain_has_an_end():
    search = Dfs()
    assert poll_until_the_other_goes(search) == [1, 2]
    assert search.is_complete


def test_a_poll_after_somebody_got_on_may_see_something():
    """Rank 0 stores something itself after its first poll, as a loop does that does more than to poll."""

    def store_once(observer, polls):
        if polls == 1:
            observer.accessed(0, Access(("key", "other"), AccessMode.WRITE))

    assert poll_until_the_other_goes(Dfs(), store_once) == [1, 2, 3]


def test_looking_at_something_else_is_nothing_to_look_for():
    looked = Access(("key", "other"), AccessMode.READ)
    assert poll_until_the_other_goes(Dfs(), lambda observer, polls: observer.accessed(0, looked)) == [1, 2]


@rows("most", [1, 2, 3, 100])
def test_a_few_polls_are_no_loop(most):
    """The run that ends with the last poll is the one that rank 1 never comes first in."""
    search = Dfs()
    assert poll_until_the_other_goes(search, most=most) == [*range(1, most + 1), most]
    assert search.is_complete


def test_more_polls_than_can_be_waited_for_are_a_loop():
    assert poll_until_the_other_goes(Dfs(), most=MOST_POLLS + 1) == [1, 2]


# --- programs that do something else the second time ------------------------------------------------------------------


def test_another_choice_than_the_one_repeated_ends_the_search():
    search = Dfs()
    interleave(search.next_policy(), (2, 2))
    search.take(NOTHING)
    interleave(search.next_policy(), (1, 1))
    finding = search.take(NOTHING)
    assert finding.code is Code.NONDETERMINISM
    assert finding.ranks == (0,)
    assert str(finding).splitlines()[:3] == [
        "NONDETERMINISM  nondeterminism  at step 1",
        "  first   rank 0 has a choice at step 1, which of ranks 0, 1 runs next",
        "  again   it had ended",
    ]
    assert search.next_policy() is None
    assert not search.is_complete
