"""Explorations: which executions they run, what they count, and when they end."""

import functools
import itertools
import re
import signal

import pytest

import ddpsim
from ddpsim import Budget, UsageError, Verdict, replay, simulate
from ddpsim.simulator.choices import RedundantRun
from ddpsim.simulator.policies.named import RoundRobin
from tests.exploration.programs import (
    add_up,
    overtaken,
    senders_to_one,
    store,
    two_receivers,
    waited_for_twice,
    write_and_read,
)
from tests.kit.rows import rows

explore = functools.partial(ddpsim.explore, policy="dfs")

PLENTY = Budget(executions=10_000, seconds=600)


def returned(exploration):
    """What the outcomes say was returned, in order."""
    return sorted(outcome.partition("returned ")[2] for outcome in exploration.outcomes)


# --- all interleavings ------------------------------------------------------------------------------------------------


def test_two_writers_and_a_reader():
    exploration = explore(write_and_read, 3, budget=PLENTY)
    # Each rank has two parts, before and after its choice point: 6! / (2! 2! 2!) orders.
    assert exploration.executions == 90
    assert exploration.complete
    assert exploration.verdict is Verdict.PASS
    assert exploration.first_failure is None
    # Of the orders of the three steps, which are all as frequent, a third each has the reader first, or a writer last
    # before it.
    assert exploration.outcomes == {
        "pass  returned (None, None, 'nobody')": 30,
        "pass  returned (None, None, 'by 0')": 30,
        "pass  returned (None, None, 'by 1')": 30,
    }
    assert str(exploration).splitlines()[:2] == [
        "PASS  write_and_read on 3 ranks",
        "  All interleavings covered: 90 executions",
    ]


@pytest.mark.parametrize(("senders", "orders"), [(1, 1), (2, 2), pytest.param(3, 6, marks=pytest.mark.tier("nightly"))])
def test_a_receiver_takes_messages_in_any_order(senders, orders):
    exploration = explore(senders_to_one, senders + 1, preemptions=0, budget=PLENTY, keep_going=True)
    assert len(exploration.outcomes) == orders
    assert len(set(exploration.outcomes.values())) == 1, "the senders are alike, so each order is as frequent"


def test_a_second_wait_for_a_message_is_none():
    exploration = explore(waited_for_twice, 3, policy="dpor", keep_going=True)
    assert exploration.outcomes == {"pass": 2}


def test_two_receivers_are_independent():
    exploration = explore(two_receivers, 6, policy="random", budget=Budget(executions=60))
    none = "None, None, None, None"
    assert returned(exploration) == [
        f"([2, 4], [3, 5], {none})",
        f"([2, 4], [5, 3], {none})",
        f"([4, 2], [3, 5], {none})",
        f"([4, 2], [5, 3], {none})",
    ]


def test_where_nothing_is_open_one_execution_is_all_whatever_the_policy():
    for policy in ("dpor", "dfs", "random", "pct"):
        exploration = explore(add_up, 1, policy=policy)
        assert (exploration.executions, exploration.complete) == (1, True)
        assert exploration.verdict is Verdict.PASS
        outside = ", but for files, shared objects, hash order and time" if policy == "dpor" else ""
        assert str(exploration).splitlines()[1] == f"  All interleavings covered{outside}: 1 execution"


# --- failures ---------------------------------------------------------------------------------------------------------


def test_the_first_failure_ends_it_and_can_be_replayed_and_one_that_passed_is_kept_to_compare_with():
    exploration = explore(overtaken, 2)
    assert exploration.verdict is Verdict.FAIL
    assert not exploration.complete
    failure = exploration.first_failure
    assert failure.verdict is Verdict.FAIL
    assert [finding.code for finding in failure.findings] == ["rank_error"]
    again = replay(overtaken, 2, failure.schedule)
    assert again.trace.digest() == failure.trace.digest()
    assert exploration.outcomes["fail  rank_error rank 0"] == 1
    assert exploration.outcomes.total() == exploration.executions
    assert simulate(overtaken, 2).verdict is Verdict.PASS, "the default schedule does not show it"
    assert exploration.first_pass.verdict is Verdict.PASS
    assert exploration.first_pass.trace.digest() != failure.trace.digest()
    assert explore(overtaken, 2, budget=Budget(executions=1)).first_pass is not None
    assert explore(fails_at_once, 2).first_pass is None
    lines = str(exploration).splitlines()
    assert lines[0] == "FAIL  overtaken on 2 ranks"
    assert lines[1] == (f"  Execution {exploration.executions} failed: stopped there; other interleavings were not run")
    assert lines[-1] == f'  replay  replay(overtaken, 2, "{failure.schedule}")'


def test_keep_going_counts_all_and_progress_tells_how_far_it_is():
    seen = []
    exploration = explore(overtaken, 2, keep_going=True, on_progress=seen.append)
    # Rank 0 has three parts and rank 1 two: 5! / (3! 2!) orders; in three of them rank 1's second part is between the
    # last two of rank 0.
    assert exploration.executions == 10
    assert exploration.outcomes == {"pass": 7, "fail  rank_error rank 0": 3}
    assert exploration.complete
    assert exploration.verdict is Verdict.FAIL
    assert [each.executions for each in seen] == list(range(1, 11))
    assert seen[-1].failures == 3
    shares = [each.coverage for each in seen]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    assert all(each.rate > 0 for each in seen)


@pytest.mark.parametrize(("preemptions", "failures"), [(0, 0), (1, 1)])
def test_a_bound_on_preemptions_is_told(preemptions, failures):
    """To change the key in between, rank 1 has to overtake rank 0 once; with one preemption there is one way to."""
    exploration = explore(overtaken, 2, preemptions=preemptions, keep_going=True)
    assert exploration.outcomes["fail  rank_error rank 0"] == failures
    assert not exploration.complete
    assert exploration.verdict is (Verdict.FAIL if failures else Verdict.UNKNOWN)
    limits = "with at most 1 preemption" if preemptions else "without preemptions"
    runs = exploration.executions
    assert str(exploration).splitlines()[1] == f"  All interleavings {limits} covered: {runs} executions"


def fails_at_once(rank):
    raise ValueError("always")


def test_what_fails_under_every_schedule_is_told_at_once():
    exploration = explore(fails_at_once, 1, keep_going=True)
    assert exploration.executions == 1
    assert str(exploration).splitlines()[1] == "  All interleavings covered: 1 execution, and every one fails"
    exploration = explore(fails_at_once, 3)
    assert exploration.executions == 1
    assert str(exploration).splitlines()[1].startswith("  The first execution failed: ")


# --- policies that draw -----------------------------------------------------------------------------------------------


def test_random_walks_take_one_seed_after_another():
    seen = []

    def note(progress):
        seen.append(progress.executions)

    exploration = explore(senders_to_one, 4, policy="random", seed=7, budget=Budget(executions=12), on_progress=note)
    singles = [simulate(senders_to_one, 4, policy="random", seed=7 + i).returns[0] for i in range(12)]
    assert seen == list(range(1, 13))
    for order in {str(each) for each in singles}:
        there = exploration.outcomes[f"pass  returned ({order}, None, None, None)"]
        assert there == sum(str(each) == order for each in singles)


@pytest.mark.parametrize("policy", ["random", "pct"])
def test_what_was_drawn_and_passed_is_unknown(policy):
    exploration = explore(add_up, 3, policy=policy, budget=Budget(executions=5))
    assert exploration.executions == 5
    assert exploration.verdict is Verdict.UNKNOWN
    assert not exploration.complete
    assert str(exploration).splitlines()[1] == (
        "  Not all interleavings covered: the budget ran out after 5 executions"
    )


def test_pct_runs_a_single_simulation():
    assert simulate(senders_to_one, 4, policy="pct", seed=3).verdict is Verdict.PASS
    tokens = {str(simulate(senders_to_one, 4, policy="pct", seed=seed).schedule) for seed in range(20)}
    assert len(tokens) > 5


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("executions", "verdict"), [(89, Verdict.UNKNOWN), (90, Verdict.PASS)])
def test_a_budget_that_runs_out_is_unknown_and_one_that_is_just_enough_complete(executions, verdict):
    exploration = explore(write_and_read, 3, budget=Budget(executions=executions))
    assert (exploration.executions, exploration.complete) == (executions, executions == 90)
    assert exploration.verdict is verdict


def spin(rank):
    while True:
        store().set("key", "value")


def test_the_seconds_are_for_all_executions_together():
    exploration = explore(spin, 2, budget=Budget(seconds=0.2))
    assert exploration.executions == 1
    assert exploration.outcomes.total() == 1
    assert exploration.verdict is Verdict.UNKNOWN
    assert exploration.seconds < 10


def test_an_interrupt_leaves_what_was_found():
    def interrupt(progress):
        if progress.executions == 3:
            raise KeyboardInterrupt

    exploration = explore(write_and_read, 3, on_progress=interrupt)
    assert exploration.interrupted
    assert exploration.executions == exploration.outcomes.total() == 3
    assert not exploration.complete
    assert exploration.verdict is Verdict.UNKNOWN
    assert str(exploration).splitlines()[1] == "  Not all interleavings covered: interrupted after 3 executions"
    assert simulate(add_up, 2).verdict is Verdict.PASS


def test_an_interrupt_within_an_execution_does_so_too():
    runs = itertools.count()

    def program(rank):
        if rank == 0 and next(runs) == 2:
            signal.raise_signal(signal.SIGINT)
            spin(rank)

    exploration = explore(program, 2, policy="random")
    assert exploration.interrupted
    assert exploration.executions == 2, "the one that was interrupted does not count"
    assert simulate(add_up, 2).verdict is Verdict.PASS


class EveryOtherIsRedundant:
    """A strategy of six executions, of which every other breaks off."""

    is_complete, coverage, limits = True, None, ""

    def __init__(self):
        self.count = self.taken = 0

    def next_policy(self):
        self.count += 1
        return self if self.count <= 6 else None

    def choose(self, point, options):
        if self.count % 2:
            raise RedundantRun
        return 0

    def take(self, result):
        self.taken += 1


def test_an_execution_that_breaks_off_does_not_count():
    strategy = EveryOtherIsRedundant()
    exploration = explore(add_up, 2, policy=strategy)
    assert exploration.executions == strategy.taken == 3
    assert exploration.verdict is Verdict.PASS


def test_an_observer_that_breaks_is_dropped():
    calls = []

    def broken(progress):
        calls.append(progress)
        raise RuntimeError("no screen")

    with pytest.warns(
        UserWarning, match=r"^on_progress raised RuntimeError\('no screen'\), and is not called any more$"
    ):
        exploration = explore(write_and_read, 3, on_progress=broken)
    assert len(calls) == 1
    assert exploration.complete


# --- what it cannot work with -----------------------------------------------------------------------------------------


@rows(
    ("arguments", "message"),
    [
        ({"policy": "fair"}, "policy is 'fair', expected one of .*: give one of these names"),
        (
            {"policy": RoundRobin()},
            r"policy is <.*>, expected a name or an object with next_policy\(\) and take\(result\)",
        ),
        ({"depth": 2}, "depth is 2, which only policy 'pct' has, not 'dfs': leave it out"),
        (
            {"policy": "random", "preemptions": 2},
            "preemptions is 2, which only policy 'dfs' has, not 'random': leave it out",
        ),
        ({"budget": 5}, "budget is 5, expected a Budget: .*"),
    ],
)
def test_arguments(arguments, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        explore(add_up, 2, **arguments)


def test_a_program_a_world_size_or_a_budget_that_is_none():
    with pytest.raises(UsageError, match=f"^{re.escape('world_size is 0, expected a whole number from 1 to 16384')}"):
        explore(add_up, 0)
    with pytest.raises(UsageError, match=r"^program is 3, expected a function"):
        explore(3, 2)
    with pytest.raises(UsageError, match=r"^Budget\(executions=0\), expected more than 0"):
        Budget(executions=0)
