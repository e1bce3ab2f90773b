"""Policies answer with an index; the same seed or schedule answers alike."""

import re

import pytest

from simulator.choices import ChoiceKind, ChoicePoint, Schedule
from simulator.errors import ReplayDivergedError
from simulator.policies.random_walk import RandomWalk
from simulator.policies.replay import Replay
from simulator.policies.round_robin import RoundRobin

POINT = ChoicePoint(ChoiceKind.RANK, 7, 0)


def test_round_robin_takes_the_default():
    assert [RoundRobin().choose(POINT, range(n)) for n in (2, 3, 9)] == [0, 0, 0]


def test_a_random_walk_is_made_by_its_seed():
    one, same, other = RandomWalk(1), RandomWalk(1), RandomWalk(2)
    answers = [one.choose(POINT, range(5)) for _ in range(100)]
    assert answers == [same.choose(POINT, range(5)) for _ in range(100)]
    assert answers != [other.choose(POINT, range(5)) for _ in range(100)]


def test_a_random_walk_draws_evenly():
    walk = RandomWalk(0)
    counts = [0] * 4
    for _ in range(40_000):
        counts[walk.choose(POINT, range(4))] += 1
    # Each count is binomial(40000, 1/4): mean 10000, standard deviation 86.6; 5 deviations.
    assert all(abs(count - 10_000) < 433 for count in counts)


def test_a_replay_gives_the_answers_and_then_the_default():
    replay = Replay(Schedule((1, 0, 2)))
    assert [replay.choose(POINT, range(3)) for _ in range(5)] == [1, 0, 2, 0, 0]


def test_a_replay_without_the_recorded_option_stops():
    replay = Replay(Schedule((3,)))
    text = "replay diverged at step 7: the schedule takes option 3 of a rank choice, but only [4, 5] are open"
    with pytest.raises(ReplayDivergedError, match="^" + re.escape(text)):
        replay.choose(POINT, [4, 5])
