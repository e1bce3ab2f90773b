"""What the running of ranks promises: one at a time, in the order the policy says, every end told apart."""

import threading

import pytest
import torch
import torch.distributed as dist

from simulator import ChoiceKind, Crash, Delay, EarlyReturn, InjectedCrashError, UsageError, Verdict, replay, simulate


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


def test_only_one_rank_runs_at_a_time():
    running = []

    def program(rank):
        for _ in range(5):
            running.append(rank)
            torch.ones(1000).sum()
            assert running == [rank]
            running.remove(rank)
            dist.barrier()

    for seed in range(5):
        simulate(program, 4, policy="random", seed=seed).raise_for_verdict()


def test_a_policy_that_answers_out_of_range_is_a_usage_error_in_the_rank_that_asked():
    class Wild:
        def choose(self, point, options):
            return 7

    with pytest.raises(UsageError, match="policy Wild answered 7, expected 0 to 1"):
        simulate(exchange, 2, args=([],), policy=Wild())


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
    seen = []

    def program(rank):
        try:
            dist.barrier() if rank else None
        except Exception:
            seen.append(("except", rank))
        finally:
            seen.append(("finally", rank))

    assert codes(simulate(program, 3)) == ["deadlock.missing_rank"]
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


def test_a_crash_strikes_before_its_call():
    result = simulate(train, 3, faults=[Crash(1, before_call=2)])
    assert codes(result) == ["rank_error", "deadlock.dead_rank"]
    assert isinstance(result.errors[1], InjectedCrashError)
    assert [event.call.sequence for event in result.trace if event.rank == 1 and event.kind.value == "issue"] == [0, 1]


def test_an_early_return_looks_like_a_return():
    result = simulate(train, 3, faults=[EarlyReturn(2, before_call=3)])
    assert codes(result) == ["deadlock.missing_rank"]
    assert result.findings[0].ranks == (2,)


def test_a_delay_takes_virtual_time_only():
    result = simulate(train, 3, faults=[Delay(0, before_call=1, seconds=3600)])
    result.raise_for_verdict()
    assert result.virtual_seconds == 3600.0


def test_another_thread_of_a_rank_may_not_communicate():
    def program(rank):
        errors = []

        def background():
            try:
                dist.barrier()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=background, name="checkpointer")
        thread.start()
        thread.join()
        return errors

    (error,) = simulate(program, 1).returns[0]
    assert isinstance(error, UsageError)
    assert str(error).startswith("thread 'checkpointer' communicates while rank 0 runs, expected only the rank's own")


def test_completions_are_delivered_to_a_rank_on_its_own_thread():
    def program(rank):
        threads = []
        work = dist.all_reduce(torch.ones(1), async_op=True)
        future = work.get_future().then(lambda f: threads.append(threading.get_ident()) or f.value())
        dist.barrier()
        future.wait()
        return threads == [threading.get_ident()]

    assert simulate(program, 3).returns == (True, True, True)


def test_the_same_error_on_many_ranks_is_one_finding():
    def program(rank):
        raise ValueError("odd" if rank % 2 else "even")

    result = simulate(program, 6)
    assert [(finding.code.value, finding.ranks) for finding in result.findings] == [
        ("rank_error", (0, 2, 4)),
        ("rank_error", (1, 3, 5)),
    ]
    assert "ranks 1, 3, 5 raised ValueError: odd" in str(result.findings[1])


def test_an_error_that_cannot_be_printed_is_told_all_the_same():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def program(rank):
        raise Unprintable

    assert simulate(program, 2).findings[0].summary.startswith("ranks 0, 1 raised Unprintable: <its message cannot")
