"""Simpler schedules: what each way gives, and where they lead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim import Budget
from ddpsim.simulator.choices import without_trailing_defaults
from ddpsim.simulator.shrinking import shrunk_schedule
from ddpsim.simulator.shrinking.greedy import FailureSize, ShrinkAttempt, shrink_value

SCHEDULES = st.lists(st.integers(0, 3), max_size=12).map(lambda drawn: without_trailing_defaults(tuple(drawn)))


@pytest.mark.parametrize(
    ("way", "simpler"),
    [
        (shrunk_schedule.truncate_choices, [(), (0, 2), (0, 2)]),
        (shrunk_schedule.zero_switches, [(), (0, 0, 0, 3), (0, 2)]),
        (shrunk_schedule.zero_switch_pairs, [()]),
        (shrunk_schedule.merge_switches, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]),
        (
            shrunk_schedule.use_single_switch,
            [(1,), (2,), (3,), *[(*zeros, each) for zeros in ((0,), (0, 0), (0, 0, 0)) for each in (1, 2, 3)]],
        ),
        (shrunk_schedule.make_choices_smaller, [(0, 1, 0, 3), (0, 2, 0, 1), (0, 2, 0, 2)]),
    ],
)
def test_what_a_way_gives(way, simpler):
    assert [*way((0, 2, 0, 3))] == simpler


def test_without_a_block_later_answers_come_earlier():
    assert [*shrunk_schedule.remove_choices((1, 0, 2))] == [(), (0, 2), (1,), (0, 2), (1, 2), (1,)]


def test_two_turns_of_a_rank_become_one():
    # Behind 2 choices to 1 for 3 choices, to 1 further for 2, and on: what runs for 3 choices may run behind the 2.
    found = [*shrunk_schedule.regroup_switches((0, 0, 1, 0, 0, 1, 0, 3))]
    assert (0, 0, 2, 0, 0, 0, 0, 3) in found
    assert all(sum(map(bool, each)) == 2 for each in found)


@given(SCHEDULES)
def test_no_way_says_more_than_it_was_given(schedule):
    for way in shrunk_schedule.PASSES:
        for simpler in way(schedule):
            assert simpler == without_trailing_defaults(simpler)
            assert sum(map(bool, simpler)) <= max(1, sum(map(bool, schedule)))


@given(SCHEDULES, st.integers(0, 11), st.integers(1, 3))
def test_one_switch_that_is_needed_is_left_as_it_is(schedule, index, choice):
    schedule = without_trailing_defaults((*(*schedule, *(0,) * 12)[:index], choice, *schedule[index + 1 :]))

    def attempt(tried):
        return ShrinkAttempt(tried if tried[index : index + 1] == (choice,) else None)

    found = shrink_value(
        schedule,
        shrunk_schedule.PASSES,
        attempt,
        size=FailureSize(2, 0).with_schedule,
        budget=Budget(executions=10_000),
    )
    assert found.value == (*(0,) * index, choice)
    assert found.is_minimal


def test_the_size_under_a_schedule():
    assert FailureSize(2, 5).with_schedule((0, 2, 0, 1)) == FailureSize(2, 5, switches=2, choices=4, total=3)
    assert FailureSize(2, 5).with_schedule((0, 0, 0, 9)) < FailureSize(2, 5).with_schedule((1, 1)) < FailureSize(2, 6)
