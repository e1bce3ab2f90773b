"""Policies answer with an index; the same seed or schedule answers alike."""

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Schedule
from ddpsim.simulator.policies.named import RandomWalk, RoundRobin
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy, ReplayDivergence, ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice

POINT = ChoicePoint(ChoiceKind.RANK, 7, 0)


def test_round_robin_takes_the_default():
    assert [RoundRobin().choose(POINT, range(n)) for n in (2, 3, 9)] == [0, 0, 0]


def test_a_random_walk_is_made_by_its_seed():
    one, same, other = RandomWalk(1), RandomWalk(1), RandomWalk(2)
    choices = [one.choose(POINT, range(5)) for _ in range(100)]
    assert choices == [same.choose(POINT, range(5)) for _ in range(100)]
    assert choices != [other.choose(POINT, range(5)) for _ in range(100)]


def test_a_random_walk_draws_evenly():
    walk = RandomWalk(0)
    counts = [0] * 4
    for _ in range(40_000):
        counts[walk.choose(POINT, range(4))] += 1
    # Each count is binomial(40000, 1/4): mean 10000, standard deviation 86.6; 5 deviations.
    assert all(abs(count - 10_000) < 433 for count in counts)


def test_a_replay_gives_the_answers_and_then_the_default():
    replay = ReplayPolicy(Schedule((1, 0, 2)))
    assert [replay.choose(POINT, range(3)) for _ in range(5)] == [1, 0, 2, 0, 0]
    assert (replay.made, replay.divergence, replay.choices) == (5, None, [])


def test_a_replay_keeps_what_was_offered_if_told_to():
    replay = ReplayPolicy(Schedule((1, 0)), keeps_choices=True)
    for options in ([4, 5], [7, 8, 9]):
        replay.choose(POINT, options)
    assert replay.choices == [TakenChoice(POINT, (4, 5), 1), TakenChoice(POINT, (7, 8, 9), 0)]
    assert [choice.chosen_number for choice in replay.choices] == [5, 7]


def test_a_replay_without_the_recorded_option_says_where_and_goes_on_with_what_fits():
    replay = ReplayPolicy(Schedule((1, 3, 1, 5)))
    guided = GuidedPolicy((1, 3, 1, 5))
    assert [replay.choose(POINT, [4, 5]) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert [guided.choose(POINT, [4, 5]) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert replay.divergence == ReplayDivergence(1, (3, 1, 5), POINT, (4, 5))


def test_a_replay_that_ends_before_its_answers_do_says_what_is_left():
    replay = ReplayPolicy(Schedule((1, 0, 2)))
    replay.choose(POINT, range(3))
    assert replay.divergence == ReplayDivergence(1, (0, 2), None)


def test_guided_answers_are_taken_modulo_the_options_and_then_come_zeros():
    policy = GuidedPolicy((1, 5, 7))
    assert [policy.choose(POINT, options) for options in ((0, 1), (0, 1, 2), (0, 1), (0, 1, 2))] == [1, 2, 1, 0]
