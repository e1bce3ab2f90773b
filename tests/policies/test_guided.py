"""Guided: choices that are made to fit."""

from ddpsim import simulate
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from tests.exploration.programs import senders_to_one

POINT = ChoicePoint(ChoiceKind.RANK, 0, 0)


def test_answers_are_taken_modulo_the_options_and_then_come_zeros():
    policy = GuidedPolicy((1, 5, 7))

    assert [policy.choose(POINT, options) for options in ((0, 1), (0, 1, 2), (0, 1), (0, 1, 2))] == [1, 2, 1, 0]


def test_no_answers_are_round_robin():
    guided, plain = (simulate(senders_to_one, 4, policy=each) for each in (GuidedPolicy(()), "round_robin"))

    assert guided.trace.digest() == plain.trace.digest()
