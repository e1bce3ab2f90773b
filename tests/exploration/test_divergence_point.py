"""What differs between an execution that failed and one that passes: one choice, which decides."""

import random
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from ddpsim import Code, Schedule, Verdict, explore, simulate
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.model import CLEAN, Scenario
from ddpsim.scenarios.running.exploring import explore_with_closest_pass
from ddpsim.simulator.choices import ChoiceKind
from ddpsim.simulator.exploration.divergence_point import find_closest_pass
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy, ReplayPolicy
from tests.kit.rows import rows


def collect(rank):
    """Rank 0 takes the last rank for the last to come."""
    if rank > 0:
        dist.send(torch.tensor(rank), dst=0)
        return
    sender = 0
    while sender != dist.get_world_size() - 1:
        sender = dist.recv(torch.tensor(0))


def never(rank):
    """Rank 1 does not come."""
    if rank != 1:
        dist.barrier()


class Runs:
    """Runs a program under choices, and counts how often."""

    def __init__(self, program):
        self.program = program
        self.ranks = 4
        self.count = 0

    def __call__(self, choices):
        self.count += 1
        policy = ReplayPolicy(Schedule(tuple(choices)), keeps_choices=True)
        return simulate(self.program, self.ranks, policy=policy), policy.choices


def drawn(program, verdict, seed=0):
    """The first run from a seed on that comes to a verdict."""
    return next(
        result
        for number in range(seed, seed + 50)
        if (result := simulate(program, 4, policy="random", seed=number)).verdict is verdict
    )


def padded(choices, length):
    return (*choices, *(0,) * length)[:length]


@rows("seed", [0, 7, 13])
@rows("has_passed", [True, False], ids=["passed", "default"])
def test_two_schedules_drawn_apart_are_brought_to_differ_in_one_choice_that_decides(seed, has_passed):
    failing = drawn(collect, Verdict.FAIL, seed)
    passing = drawn(collect, Verdict.PASS, seed) if has_passed else None
    runs = Runs(collect)
    found, parting = find_closest_pass(failing, passing, runs)
    number, failed = len(parting.before), failing.schedule.choices
    taken = found.schedule.choices
    assert found.verdict is Verdict.PASS
    assert padded(taken, number) == padded(failed, number) == tuple(each.taken for each in parting.before)
    assert (parting.failing.taken, parting.passing.taken) == (failed[number], padded(taken, number + 1)[number])
    assert parting.failing.point == parting.passing.point
    assert parting.failing.options == parting.passing.options
    # The same with the failing one's choice there does not pass: it is that choice.
    others = padded(() if passing is None else passing.schedule.choices, 100)[number + 1 :]
    assert runs((*failed[: number + 1], *others))[0].verdict is Verdict.FAIL
    assert runs.count <= 2 + 2 * len(bin(len(failed)))  # by halves, with two ways on


@pytest.mark.parametrize("seed", [0, 7, 13])
def test_with_ways_on_that_are_drawn_it_is_the_choice_after_which_none_passes(seed):
    failing = drawn(collect, Verdict.FAIL, seed)
    failed, runs = failing.schedule.choices, Runs(collect)
    _, parting = find_closest_pass(failing, drawn(collect, Verdict.PASS, seed), runs, drawn=4)
    number = len(parting.before)
    # Rank 0 takes the message of rank 3 before another one, or lets it come first: nothing mends that.
    kind, text = parting.failing.point.kind, parting.failing.choice_text
    assert (kind, text) == (ChoiceKind.SOURCE, "rank 0 receives from rank 3") or text in (
        "rank 3 runs",
        "rank 3 goes on",
    )
    assert all(
        simulate(collect, 4, policy=GuidedPolicy((*failed[: number + 1], *way))).verdict is Verdict.FAIL
        for way in ((), *([numbers.randrange(60) for _ in range(40)] for numbers in map(random.Random, range(20))))
    )


def test_what_fails_whatever_is_chosen_has_nothing_to_be_compared_with():
    failing = drawn(never, Verdict.FAIL, 3)
    runs = Runs(never)
    assert find_closest_pass(failing, None, runs) is None
    assert runs.count == 1
    for default in (
        simulate(never, 4),
        simulate(never, 4, policy=ReplayPolicy(Schedule())),
    ):  # one notes its choices, all 0
        assert find_closest_pass(default, None, runs) is None
    assert runs.count == 1


def test_a_program_that_does_not_repeat_itself_is_not_compared():
    failing = drawn(collect, Verdict.FAIL)
    runs = Runs(lambda rank: None)
    runs.ranks = 1  # nobody else is there, so nothing is left to choose
    assert find_closest_pass(failing, None, runs) is None


def test_a_failure_that_does_not_come_again_is_of_no_choice():
    failing, passing = drawn(collect, Verdict.FAIL, 7), drawn(collect, Verdict.PASS, 7)

    def passes_now(choices):
        found, offered = runs(choices)
        return replace(found, findings=()), offered

    runs = Runs(collect)
    assert find_closest_pass(failing, passing, runs) is not None
    assert find_closest_pass(failing, passing, passes_now) is None


def test_a_search_that_is_over_gives_what_it_has():
    failing, passing = drawn(collect, Verdict.FAIL, 7), drawn(collect, Verdict.PASS, 7)
    runs = Runs(collect)
    found, parting = find_closest_pass(failing, passing, runs, drawn=4, is_over=lambda: True)
    assert runs.count == 2  # the one that passed, and the failing one again
    assert found.schedule.choices == passing.schedule.choices
    assert parting.failing.taken != parting.passing.taken


@pytest.mark.parametrize("code", [Code.STUCK, Code.NONDETERMINISM])
def test_what_hangs_on_more_than_the_schedule_is_run_no_more(code):
    def never_run(rank):
        raise AssertionError

    explored = explore(collect, 4)
    assert (explored.first_failure is not None, explored.first_pass is not None) == (True, True)
    (finding,) = explored.first_failure.findings
    odd = replace(explored.first_failure, findings=(replace(finding, code=code),))
    other = replace(explored, first_failure=odd)
    scenario = Scenario("never", "", never_run, CLEAN, world_size=4)
    assert explore_with_closest_pass(other, scenario, Engine.TORCH) == (other, None)
