"""The shrinker itself, on tuples of numbers of which some are needed."""

import pytest

from ddpsim import Budget
from ddpsim.simulator.shrinking.greedy import FailureSize, ShrinkAttempt, ShrinkEnd, shrink_value
from ddpsim.simulator.shrinking.structure import index_blocks


def without_a_block(value):
    """Without a block of its numbers."""
    for block in index_blocks(len(value)):
        yield (*value[: block.start], *value[block.stop :])


def one_less(value):
    """With one number smaller by one, but not below 0."""
    for index, number in enumerate(value):
        yield (*value[:index], max(number - 1, 0), *value[index + 1 :])


def size_of(value):
    return FailureSize(len(value), sum(value))


class Tried:
    """Fails for values that hold all these numbers, and remembers what it was asked."""

    def __init__(self, *needed):
        self.needed = set(needed)
        self.values = []

    def __call__(self, value):
        self.values.append(value)
        return ShrinkAttempt(value if self.needed <= set(value) else None)


def shrunk(value, tried, ways=(without_a_block,), *, executions=10_000, seconds=60.0, **options):
    budget = Budget(executions=executions, seconds=seconds)
    return shrink_value(value, ways, tried, size=size_of, budget=budget, **options)


def test_blocks_are_halves_quarters_and_single_ones():
    assert [(block.start, block.stop) for block in index_blocks(5)] == [
        *[(0, 5), (0, 2), (2, 5)],
        *[(0, 1), (1, 2), (2, 3), (3, 5)],
        *[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
    ]
    assert [*index_blocks(0)] == []
    assert [*index_blocks(1)] == [range(1)]


def test_what_is_needed_is_left():
    tried = Tried(3, 17, 900)
    found = shrunk(tuple(range(1000)), tried)
    assert found.value == (3, 17, 900)
    assert found.is_minimal
    assert found.tries == found.executions == len(tried.values) < 150
    assert found.size == FailureSize(3, 920)


def test_nothing_is_tried_twice_and_the_same_in_the_same_order():
    one, other = Tried(3, 4, 5), Tried(3, 4, 5)
    for tried in (one, other):
        shrunk((5, 4, 3, 3, 4, 5, 4, 3), tried, [without_a_block, one_less, without_a_block])
    assert len(one.values) == len(set(one.values))
    assert one.values == other.values


def test_a_way_that_led_on_makes_room_for_those_before_it():
    # A 9 or an 8 needs both others beside it, a 7 none: the first way goes on when the second has led there.
    def attempt(value):
        return ShrinkAttempt(value if 7 in value or value in [(9, 2, 2), (8, 2, 2)] else None)

    assert shrunk((9, 2, 2), attempt, [without_a_block, one_less]).value == (7,)


def test_what_is_no_smaller_is_not_tried():
    tried = Tried(1)
    found = shrunk((1,), tried, [lambda value: [(*value, 0), (2,)]])
    assert (found.value, tried.values, found.is_minimal) == ((1,), [], True)


def test_a_value_that_fails_as_another_one_counts_as_that_unless_it_is_larger():
    found = shrunk((3, 2, 1), lambda value: ShrinkAttempt(value[:1] or None, 5))
    assert (found.value, found.tries, found.executions) == ((2,), 2, 10)
    found = shrunk((3, 2), lambda value: ShrinkAttempt((9, 9, 9)))
    assert (found.value, found.tries, found.is_minimal) == ((3, 2), 3, True)


@pytest.mark.parametrize("options", [{"executions": 7}, {"seconds": 1e-9}])
def test_a_budget_that_runs_out_is_said(options):
    found = shrunk(tuple(range(1000)), Tried(3, 17, 900), **options)
    assert found.end is ShrinkEnd.BUDGET
    assert not found.is_minimal
    assert found.executions == options.get("executions", 0)
    assert {3, 17, 900} <= set(found.value)


def test_after_ctrl_c_the_smallest_so_far_is_returned():
    def interrupt(progress):
        if progress.executions == 10:
            raise KeyboardInterrupt

    found = shrunk(tuple(range(1000)), Tried(3, 17, 900), on_progress=interrupt)
    assert (found.end, found.executions) == (ShrinkEnd.INTERRUPT, 10)
    assert {3, 17, 900} <= set(found.value)
    assert len(found.value) < 1000


def test_progress_is_told_after_each_try():
    told = []
    found = shrunk(tuple(range(100)), Tried(3, 17), on_progress=told.append)
    assert [progress.executions for progress in told] == [*range(1, found.tries + 1)]
    sizes = [progress.size for progress in told]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == found.size


def test_who_watches_may_break():
    with pytest.warns(UserWarning, match=r"^on_progress raised ValueError\('x'\), and is not called any more$"):
        found = shrunk((1, 2, 3), Tried(2), on_progress=_raise)
    assert found.value == (2,)


def _raise(progress):
    raise ValueError("x")


def test_values_without_a_hash_have_a_key():
    found = shrink_value(
        {"a": 1, "b": 2},
        [lambda value: ({key: value[key] for key in value if key != gone} for gone in value)],
        lambda value: ShrinkAttempt(value if "b" in value else None),
        size=lambda value: FailureSize(len(value), 0),
        key=str,
        budget=Budget(),
    )
    assert found.value == {"b": 2}
