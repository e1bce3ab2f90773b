"""The check of determinism finds what differs between two runs of one schedule, and nothing where none does."""

import itertools
import random
import time

import numpy
import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, Verdict, explore, replay, shrink, simulate
from ddpsim.simulator.choices import RankSeeds
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from tests.diagnosis.ending import ends_with
from tests.exploration.programs import senders_to_one, store


def rows(finding):
    """The lines of its text but those that show source."""
    return [line for line in finding.body.splitlines() if not line.startswith("  where ")]


def counting(counter):
    """A program that reduces as many elements as it has been run before, on rank 1 only in every other run."""

    def program(rank):
        number = next(counter)
        if number >= 2 and rank == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(1))

    return program


def test_state_that_outlives_a_run_is_found():
    result = simulate(counting(itertools.count()), 2, check_determinism=True, name="counts")
    assert result.verdict is Verdict.FAIL
    (finding,) = [each for each in result.findings if each.code is Code.NONDETERMINISM]
    assert finding.ranks == (1,)
    first, again = rows(finding)[1:3]
    assert first.startswith("  first   rank 1  issue  all_reduce #0  SUM float32[1]")
    assert again.startswith("  again   rank 1  issue  barrier #0")
    ends_with(finding, Cause.RUNS_DIFFER)
    assert str(finding).splitlines()[-1].startswith("  replay  ")
    assert [site.file for site in finding.sites] == ["test_determinism.py"] * 2


def count_of_its_own(rank):
    counting(itertools.count())(rank)


def test_state_of_one_run_is_not():
    assert simulate(count_of_its_own, 2, check_determinism=True).verdict is Verdict.PASS


def test_each_schedule_of_an_exploration_runs_twice():
    runs = itertools.count()

    def program(rank):
        if rank == 0:
            next(runs)
        return senders_to_one(rank)

    budget = Budget(executions=10)
    exploration = explore(program, 3, policy="random", budget=budget, check_determinism=True)
    assert next(runs) == 2 * exploration.executions == 20
    assert exploration.first_failure is None


@pytest.mark.parametrize("policy", ["dpor", "dfs", "random", "pct"])
def test_an_exploration_finds_what_changes(policy):
    exploration = explore(counting(itertools.count()), 2, policy=policy, check_determinism=True)
    assert exploration.executions == 1
    assert "nondeterminism" in {finding.code for finding in exploration.first_failure.findings}
    assert any("nondeterminism" in outcome for outcome in exploration.outcomes)


def test_a_search_notices_without_the_check_what_changes_its_choices():
    """Depth-first search repeats the start of an execution, and finds other choices there."""
    runs = itertools.count()

    def program(rank):
        if rank == 0:
            for step in range(3 - next(runs)):
                store().set("key", f"{step}")
        else:
            store().set("key", "other")

    exploration = explore(program, 2, keep_going=True)
    assert exploration.verdict is Verdict.FAIL
    assert not exploration.complete
    assert exploration.outcomes["fail  nondeterminism rank 0"] == 1
    assert str(exploration).splitlines()[-1].startswith("  replay  ")


def test_a_step_more_is_found_where_all_events_read_the_same():
    """Rank 1 lets the others run once more in the second run, which is a step without an event, and takes 1 ms."""
    runs = itertools.count()

    def program(rank):
        if rank == 1 and next(runs) == 1:
            time.sleep(0)
        store().set("key", "value")

    result = simulate(program, 2, check_determinism=True)
    assert [finding.code for finding in result.findings] == ["nondeterminism"]
    first, again = rows(result.findings[0])[1:3]
    assert first == "  first   rank 1  store  set default_pg/0//key  at step 2, 0 s"
    assert again == "  again   rank 1  store  set default_pg/0//key  at step 3, 0.001 s"


# --- ranks start unlike -----------------------------------------------------------------------------------------------

DRAWS = {"random": random.random, "torch": lambda: torch.rand(1).item(), "numpy": numpy.random.random}
EACH_DRAW = pytest.mark.parametrize(
    ("draw", "isolation"),
    [
        *((draw, "thread") for draw in DRAWS),
        pytest.param("numpy", "process", marks=pytest.mark.tier("ci")),
        *(pytest.param(draw, "process", marks=pytest.mark.tier("nightly")) for draw in ("random", "torch")),
    ],
)


def dropping(draw):
    """A program that leaves out a layer, and so a call, with a chance of one in two; it may be told a seed."""

    def program(rank, seed=None):
        if seed is not None:
            random.seed(seed)
            torch.manual_seed(seed)
            numpy.random.seed(seed)
        for size in (1, 2):
            if draw() > 0.5:
                dist.all_reduce(torch.ones(size))

    return program


@EACH_DRAW
def test_a_layer_drop_that_no_rank_has_seeded_is_found(draw, isolation):
    program = dropping(DRAWS[draw])
    options = {"check_determinism": True, "isolation": isolation}
    failure = explore(program, 2, **options).first_failure
    assert failure is not None
    assert failure.findings[0].code in (Code.DEADLOCK_MISSING_RANK, Code.MISMATCH_SHAPE)
    token = str(failure.schedule)
    assert token.split(":")[2] == "u"
    assert replay(program, 2, token, isolation=isolation).trace.digest() == failure.trace.digest()
    assert simulate(program, 2, check_determinism=True, isolation=isolation).findings == failure.findings
    # As it was, and as it is where nobody asks.
    assert explore(program, 2, alike=True, **options).verdict is Verdict.PASS
    assert explore(program, 2, isolation=isolation).verdict is Verdict.PASS


@EACH_DRAW
def test_one_that_all_have_seeded_is_not(draw, isolation):
    result = explore(dropping(DRAWS[draw]), 3, args=(7,), check_determinism=True, isolation=isolation)
    assert (result.verdict, result.complete) == (Verdict.PASS, True)


def test_ranks_start_with_the_same_numbers_in_threads_and_in_processes():
    def program(rank):
        return [draw() for draw in DRAWS.values()], torch.initial_seed()

    first, second = (simulate(program, 4, check_determinism=True, isolation=each) for each in ("thread", "process"))
    assert first.returns == second.returns
    highs = [[drawn > 0.5 for drawn in draws] for draws, _ in first.returns]
    assert highs[:2] == [[False] * 3, [True] * 3]
    assert all(one is not other for one, other in zip(*highs[2:], strict=True))


def test_a_failure_of_ranks_that_start_unlike_is_shrunk():
    def program(rank):
        if random.random() > 0.5:
            dist.all_reduce(torch.ones(1))

    failure = simulate(program, 2, policy=GuidedPolicy((1,), RankSeeds()))
    shrunk = shrink(program, 2, failure.schedule)
    assert shrunk.is_minimal
    assert shrunk.result.findings[0].code is failure.findings[0].code is Code.DEADLOCK_MISSING_RANK
    assert str(shrunk.schedule).split(":")[1:3] == ["0", "u"]
