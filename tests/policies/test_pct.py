"""PCT: what it runs, and that it finds bugs as often as its paper promises."""

import math
import re
from collections import Counter
from itertools import permutations

import pytest

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.named import RandomWalk
from ddpsim.simulator.policies.pct import Pct
from tests.kit.rows import rows
from tests.policies.interleaving import interleave


def bug(depth, fillers, between=0):
    """A bug of a depth: the lengths of both ranks, and whether an order of their steps shows it.

    It shows if the steps of rank 0, and those that rank 1 makes after its fillers, alternate, rank 0 first: one
    ordering at depth 1, and one more for each step up. Nothing else matters. Rank 1 may have fillers between its steps,
    too.
    """
    needed = [step % 2 for step in range(depth + 1)]
    telling = [fillers + each * (between + 1) for each in range(needed.count(1))]

    def shows(order):
        made, told = 0, []
        for rank in order:
            if rank == 0 or made in telling:
                told.append(rank)
            made += rank
        return told == needed

    return (needed.count(0), telling[-1] + 1), shows


def found(policy_of, runs, *shape):
    """In how many of the runs, by seeds from 0, the bug of that shape shows."""
    lengths, shows = bug(*shape)
    return sum(shows(interleave(policy_of(seed), lengths)) for seed in range(runs))


def is_at_least(count, runs, probability):
    """True unless `count` is too small for its probability, by five standard deviations of a binomial count."""
    return count >= runs * probability - 5 * math.sqrt(runs * probability * (1 - probability))


@pytest.mark.parametrize(("depth", "fillers", "runs"), [(1, 6, 1_000), (2, 6, 1_000), (3, 2, 4_000), (4, 1, 12_000)])
def test_a_bug_is_found_as_often_as_promised(depth, fillers, runs):
    choices = sum(bug(depth, fillers)[0])
    promised = 1 / (2 * choices ** (depth - 1))
    count = found(lambda seed: Pct(seed, depth=depth, choices=choices), runs, depth, fillers)
    assert is_at_least(count, runs, promised)
    assert not is_at_least(0, runs, promised), "so few runs would show nothing"


def test_the_bound_is_missed_where_the_depth_is_too_small():
    """Otherwise the test above would show nothing: who was overtaken comes back only where priorities change."""
    assert found(lambda seed: Pct(seed, depth=1), 1_000, 2, 6) == 0
    assert found(lambda seed: Pct(seed, depth=2, choices=9), 1_000, 4, 3) == 0


def test_depth_3_is_found_more_often_than_by_a_random_walk():
    shape, runs = (3, 10, 10), 1_000
    choices = sum(bug(*shape)[0])
    by_priorities = found(lambda seed: Pct(seed, depth=3, choices=choices), runs, *shape)
    by_walk = found(RandomWalk, runs, *shape)
    # Rank 0 steps before any of ten fillers or the step after them, which come before its second step: 12 draws. Then
    # rank 1 must not make eleven steps before that: all but 2 ** -11.
    expected = runs * 11 / 2**12
    assert abs(by_walk - expected) < 5 * math.sqrt(expected)
    assert by_priorities > 4 * expected


def test_without_changes_the_order_of_ranks_is_drawn_evenly():
    orders = Counter(interleave(Pct(seed, depth=1), (2, 2, 2)) for seed in range(6_000))
    assert sorted(orders) == [tuple(rank for rank in each for _ in range(2)) for each in permutations(range(3))]
    # Each is binomial(6000, 1/6): mean 1000, standard deviation 28.9; 5 deviations.
    assert all(abs(count - 1_000) < 145 for count in orders.values())


def test_the_seed_makes_the_schedule():
    orders = [interleave(Pct(seed, choices=12), (4, 4, 4)) for seed in range(50)]
    assert orders == [interleave(Pct(seed, choices=12), (4, 4, 4)) for seed in range(50)]
    assert len(set(orders)) > 25


def test_a_rank_that_polls_in_vain_goes_below_all_others():
    policy = Pct(0, depth=1)
    chosen = [policy.choose(ChoicePoint(ChoiceKind.RANK, 0, 2), [0, 1, 2])]
    for step in range(1, 4):  # whoever is chosen polls in vain
        rank = [0, 1, 2][chosen[-1]]
        options = [each for each in (0, 1, 2) if each != rank] + [rank]
        chosen.append(options[policy.choose(ChoicePoint(ChoiceKind.RANK, step, rank), options)])
    assert sorted(chosen[:3]) == [0, 1, 2]
    assert chosen[3] == chosen[0]


def test_sources_are_drawn_evenly():
    policy = Pct(0)
    counts = Counter(policy.choose(ChoicePoint(ChoiceKind.SOURCE, 3, 0), (1, 2, 3, 4)) for _ in range(40_000))
    assert all(abs(counts[answer] - 10_000) < 433 for answer in range(4))


@rows("depth", [0, -1, 1.5, "3", True])
def test_a_depth_that_is_none(depth):
    expected = f"depth is {depth!r}, expected a whole number from 1 on: give the depth of the bug"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        Pct(0, depth=depth)
