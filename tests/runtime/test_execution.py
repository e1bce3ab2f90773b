"""What the running of ranks promises: one at a time, in the order the policy says, every end told apart."""

import _thread
import threading
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist

from ddpsim import (
    ChoiceKind,
    Crash,
    Delay,
    EarlyReturn,
    InjectedCrashError,
    UsageError,
    Verdict,
    explore,
    replay,
    simulate,
)


def codes(result):
    return [finding.code.value for finding in result.findings]


def exchange(rank, out):
    for step in range(3):
        out.append((rank, step))
        dist.barrier()


def test_round_robin_runs_each_rank_until_it_waits():
    out = []
    assert simulate(exchange, 3, args=(out,)).verdict is Verdict.PASS
    # The last to arrive goes on at once: 2 begins its next step, and only then waits.
    assert out == [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1), (1, 1), (1, 2), (2, 2), (0, 2)]


class Last:
    """Always takes the last option, and remembers what it was asked."""

    def __init__(self):
        self.points = []

    def choose(self, point, options):
        assert [options[i] for i in range(len(options))] == list(options)
        self.points.append((point.kind, point.rank, tuple(options)))
        return len(options) - 1


def test_a_policy_of_ones_own_decides_and_sees_ranks_from_the_running_one_on():
    policy = Last()
    out = []
    result = simulate(exchange, 3, args=(out,), policy=policy)
    assert policy.points[0] == (ChoiceKind.RANK, 0, (0, 1, 2))
    assert out[0] == (2, 0)
    assert (ChoiceKind.RANK, 2, (2, 0, 1)) in policy.points
    again = []
    assert replay(exchange, 3, str(result.schedule), args=(again,)).trace.digest() == result.trace.digest()
    assert again == out


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_what_a_policy_raises_comes_out(error):
    class Broken:
        def choose(self, point, options):
            raise error

    with pytest.raises(type(error)):
        simulate(exchange, 2, args=([],), policy=Broken())


def test_an_answer_may_be_any_index():
    class Yes:
        def choose(self, point, options):
            return True

    result = simulate(exchange, 2, args=([],), policy=Yes())
    assert replay(exchange, 2, str(result.schedule), args=([],)).trace.digest() == result.trace.digest()


def test_what_a_rank_raises_is_told_and_the_waiting_ones_are_its_victims():
    def program(rank):
        if rank == 1:
            raise ValueError("no data")
        dist.barrier()

    result = simulate(program, 3)
    assert codes(result) == ["rank_error", "deadlock.dead_rank"]
    assert [finding.ranks for finding in result.findings] == [(1,), (1,)]
    assert str(result.errors[1]) == "no data"
    assert "raised ValueError: no data" in str(result)
    assert result.returns == (None, None, None)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError("x")])
def test_no_exception_of_a_rank_is_swallowed_or_comes_out(error):
    def program(rank):
        if rank == 0:
            raise error
        return "fine"

    result = simulate(program, 2)
    assert codes(result) == ["rank_error"]
    assert result.errors == {0: error}
    assert result.returns == (None, "fine")


def test_ranks_are_unwound_through_finally_and_not_through_except():
    seen = []  # on gloo the handler would catch that the connection was closed

    def program(rank):
        try:
            dist.barrier() if rank else None
        except Exception:
            seen.append(("except", rank))
        finally:
            seen.append(("finally", rank))

    assert codes(simulate(program, 3, backend_semantics="nccl")) == ["deadlock.missing_rank"]
    assert seen == [("finally", 0), ("finally", 1), ("finally", 2)]


def test_a_program_that_clings_to_life_is_unwound_all_the_same():
    def program(rank):
        while rank:
            try:
                dist.barrier()
            except BaseException:
                if len(attempts) > 5:
                    raise
                attempts.append(rank)

    attempts = []
    assert codes(simulate(program, 2)) == ["deadlock.missing_rank"]
    assert attempts == [1] * 6


def test_a_partial_deadlock_is_told_once_the_others_are_done():
    def program(rank):
        if rank < 2:
            dist.recv(torch.zeros(1), 1 - rank)
        return rank

    result = simulate(program, 4)
    assert codes(result) == ["deadlock.cycle"]
    assert result.findings[0].ranks == (0, 1)
    assert result.returns == (None, None, 2, 3)


def train(rank, calls=4):
    for _ in range(calls):
        dist.all_reduce(torch.ones(2))
    return rank


start_natively = _thread.start_new_thread
"""As a library in C starts threads."""


def test_a_thread_that_is_none_of_a_rank_may_not_communicate():
    """Not silently: what is raised in a thread is lost with it, so it ends the run."""
    done = threading.Event()

    def call():
        threading.current_thread().name = "checkpointer"
        with suppress(UsageError):
            dist.barrier()
        done.set()

    def program(rank):
        start_natively(call, ())
        done.wait()

    with pytest.raises(UsageError, match=r"^thread 'checkpointer' communicates while rank 0 runs: communicate only"):
        simulate(program, 1)
    assert simulate(train, 2).returns == (0, 1)


def test_the_same_error_on_many_ranks_is_one_finding():
    def program(rank):
        raise ValueError("odd" if rank % 2 else "even")

    result = simulate(program, 6)
    assert [(finding.code.value, finding.ranks) for finding in result.findings] == [
        ("rank_error", (0, 2, 4)),
        ("rank_error", (1, 3, 5)),
    ]
    assert "ranks 1, 3, 5 raised ValueError: odd" in str(result.findings[1])


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_an_error_that_cannot_be_printed_is_told_all_the_same(error):
    class Unprintable(Exception):
        def __str__(self):
            raise error("no text")

    def program(rank):
        raise Unprintable

    assert simulate(program, 2).findings[0].summary.startswith("ranks 0, 1 raised Unprintable: <its message cannot")


def test_a_sleep_of_no_time_lets_the_others_run():
    done = []

    def program(rank):
        if rank == 1:
            time.sleep(1)
            done.append(rank)
        while not done:
            time.sleep(0)

    assert simulate(program, 2).verdict is Verdict.PASS


def test_a_loop_that_looks_at_the_clock_sees_it_move():
    def program(rank):
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        return rank

    assert simulate(program, 2).returns == (0, 1)


def test_a_rank_that_recurses_without_end_is_told_like_any_error():
    def program(rank):
        dist.barrier()
        return program(rank)

    result = simulate(program, 2)
    assert result.findings[0].code == "rank_error"
    assert isinstance(next(iter(result.errors.values())), RecursionError)


def test_a_fault_inside_a_callback_is_the_fault():
    def program(rank):
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        future.then(lambda done: dist.barrier() or done.value()).wait()

    crashed = simulate(program, 2, faults=[Crash(1, before_call=1)])
    assert isinstance(crashed.errors[1], InjectedCrashError)
    assert codes(crashed) == ["rank_error", "deadlock.dead_rank"]
    returned = simulate(program, 2, faults=[EarlyReturn(1, before_call=1)])
    assert codes(returned) == ["deadlock.missing_rank"]


def test_what_a_rank_returns_after_the_end_is_not_a_return():
    def program(rank):
        try:
            dist.recv(torch.ones(1), 1 - rank)
        except BaseException:
            return "swallowed"

    assert simulate(program, 2).returns == (None, None)


def test_a_traceback_that_pytest_shows_begins_with_the_program():
    def program(rank):
        raise ValueError("no")

    error = pytest.ExceptionInfo.from_exception(simulate(program, 1).errors[0])
    assert [entry.name for entry in error.traceback.filter(error)] == ["program"]


def test_a_fault_that_did_not_strike_is_told():
    def program(rank):
        for _ in range(2):
            dist.all_reduce(torch.ones(1))

    text = str(simulate(program, 2, faults=[Delay(0, 1, 2.0), Crash(1, 2)]))
    note = "  note    the fault before call 2 of rank 1 did not happen: the rank made only 2 calls (numbered from 0)\n"
    assert note in text
    assert "of rank 0" not in text
    assert "note" not in str(simulate(program, 2, faults=[Delay(0, 0, 2.0), Delay(1, 1, 2.0)]))
    assert note.replace("note    ", "note    in the first passing run ").rstrip() in str(
        explore(program, 2, faults=[Crash(1, 2)])
    )
    assert "note" not in str(explore(program, 2, faults=[Delay(0, 1, 2.0)]))
