"""The life of a rank's threads: started, joined, ended with their rank, carried out of it, abandoned."""

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Crash, EarlyReturn, Verdict, explore, simulate
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.runtime import rank_thread
from tests.kit.leftovers import no_thread_is_left
from tests.kit.limit_clocks import SecondsAsleep, limits_go_by
from tests.kit.rank_threads import start
from tests.kit.results import codes


@pytest.fixture
def told(monkeypatch):
    """What threading.excepthook was told, by thread name and type of error."""
    told = []
    monkeypatch.setattr(
        threading, "excepthook", lambda arguments: told.append((arguments.thread.name, arguments.exc_type.__name__))
    )
    return told


@pytest.mark.parametrize("seed", range(5))
def test_a_daemon_may_end_by_itself_as_its_rank_ends(seed):
    def program(rank):
        for target in (threading.Event().wait, lambda: [time.sleep(0), time.sleep(0)]):
            threading.Thread(target=target, daemon=True).start()

    assert simulate(program, 2, policy="random", seed=seed).findings == ()


def test_a_thread_is_alive_until_it_has_ended_and_starts_once():
    def program(rank):
        thread = threading.Thread(target=time.sleep, args=(5,))
        with pytest.raises(RuntimeError, match=r"cannot join thread before it is started"):
            thread.join()
        seen = [thread.is_alive()]
        thread.start()
        with pytest.raises(RuntimeError, match=r"threads can only be started once"):
            thread.start()
        with pytest.raises(RuntimeError, match=r"cannot join current thread"):
            threading.current_thread().join()
        thread.join(timeout=1)
        seen.append(thread.is_alive())
        thread.join(timeout=0)
        seen.append(thread.is_alive())
        thread.join(timeout=10)
        seen.append(thread.is_alive())
        thread.join()
        return seen, round(time.monotonic(), 1)

    for policy in ("round_robin", "random"):
        assert simulate(program, 1, policy=policy).returns == (([False, True, True, False], 5.0),)


def test_names_and_kinds_are_those_of_a_process_of_its_own():
    """However many threads and executors this process and its other ranks have made before."""

    def program(rank):
        with ThreadPoolExecutor(1) as pool:
            name = pool.submit(lambda: threading.current_thread().name).result()
        thread = threading.Thread(target=int)
        return thread.name, thread.daemon, threading.Timer(1, int).name, name, threading.Thread(daemon=True).daemon

    expected = ("Thread-1 (int)", False, "Thread-2", "ThreadPoolExecutor-0_0", True)
    assert simulate(program, 2).returns == (expected, expected)
    assert simulate(program, 2).returns == (expected, expected)


def test_a_rank_sees_its_own_threads_only():
    def program(rank):
        thread = start(dist.barrier, name="caller")
        seen = [each.name for each in threading.enumerate()], threading.active_count()
        for each in threading.enumerate():
            if each is not threading.current_thread():
                each.join()
        return *seen, threading.enumerate() == [threading.current_thread()], thread.is_alive()

    for rank, seen in enumerate(simulate(program, 2).returns):
        assert seen == ([f"ddpsim rank {rank}", "caller"], 2, True, False)


def test_how_many_threads_there_are_depends_on_which_have_ended():
    def program(rank):
        start(int)
        start(int)
        return threading.active_count()

    found = explore(program, 1, keep_going=True)
    assert found.complete
    assert set(found.outcomes) == {f"pass  returned ({count},)" for count in (1, 2, 3)}


def test_a_subclass_and_a_run_of_its_own():
    class Own(threading.Thread):
        def run(self):
            self.result = dist.get_rank()

    def program(rank):
        thread, other = Own(), threading.Thread()
        other.run = lambda: setattr(other, "result", -1)
        for each in (thread, other):
            each.start()
        for each in (thread, other):
            each.join()
        return thread.result, other.result, "run" in vars(thread)

    assert simulate(program, 2).returns == ((0, -1, False), (1, -1, False))


# --- the end of a rank ------------------------------------------------------------------------------------------------


def test_a_rank_waits_for_its_threads_as_a_process_does():
    def program(rank):
        def work():
            time.sleep(10)
            start(lambda: (time.sleep(5), ended.append(rank)))

        start(work)
        return rank

    ended = []
    result = simulate(program, 2)
    assert result.returns == (0, 1)
    assert (result.virtual_seconds, sorted(ended)) == (15.0, [0, 1])
    assert result.trace.events[-1].kind is EventKind.RETURN


def test_a_rank_that_raised_waits_for_its_threads_too():
    def program(rank):
        start(lambda: (time.sleep(5), ended.append(rank)))
        raise ValueError("main")

    ended = []
    result = simulate(program, 1)
    assert codes(result) == [("rank_error", (0,))]
    assert ended == [0]


def test_daemon_threads_are_carried_out_of_what_they_run():
    def program(rank):
        def beat():
            try:
                while True:
                    time.sleep(1)
            finally:
                log.append("out")

        start(beat, daemon=True)
        start(threading.Event().wait, daemon=True)
        time.sleep(3.5)
        return rank

    log = []
    result = simulate(program, 2)
    assert (result.returns, result.verdict, log) == ((0, 1), Verdict.PASS, ["out", "out"])


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_executors_that_nobody_shut_down_end_with_their_rank(policy):
    def program(rank):
        pool = ThreadPoolExecutor(2)
        futures.append(pool.submit(dist.barrier))
        futures.append(pool.submit(time.sleep, 3))

    futures = []
    with no_thread_is_left():
        simulate(program, 2, policy=policy).raise_for_verdict()
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_that_clings_to_what_it_runs_is_left_behind(daemon):
    def program(rank):
        def cling():
            while True:
                with suppress(BaseException):
                    dist.barrier()

        if rank:
            start(cling, daemon=daemon, name="clinging")
        return rank

    result = simulate(program, 2)
    if daemon:
        assert (result.returns, result.verdict) == ((0, 1), Verdict.PASS)
    else:
        assert codes(result) == [("deadlock.missing_rank", (0,))]
        assert 'rank 1, thread "clinging"  waits in barrier #0' in str(result)
    assert simulate(lambda rank: rank, 2).returns == (0, 1)


def test_a_thread_blocked_outside_the_simulation_is_stuck(monkeypatch):
    limits_go_by(monkeypatch, SecondsAsleep())

    def program(rank):
        start(gate.wait, name="blocked").join()

    gate = threading.Event()
    result = simulate(program, 1, budget=Budget(stuck_seconds=0.2, seconds=60))
    gate.set()
    assert codes(result) == [("stuck", (0,))]
    assert 'rank 0, thread "blocked" has been blocked outside the simulation' in str(result)


@pytest.mark.parametrize("interrupted", [0, 2], ids=["program", "thread"])
def test_who_is_interrupted_as_it_gets_the_baton_gives_it_back(monkeypatch, interrupted):
    class Baton:
        """A lock whose owner is interrupted once it has it."""

        def __init__(self):
            self._lock = threading.Lock()
            self._number = len(batons)
            batons.append(self)

        def acquire(self):
            is_taken = self._lock.locked()
            self._lock.acquire()
            if is_taken and self._number == interrupted:
                raise rank_thread.RankUnwound

        def release(self):
            self._lock.release()

    def program(rank):
        start(lambda: ended.append(rank), name="worker").join()

    batons, ended = [], []
    monkeypatch.setattr(rank_thread, "_allocate_lock", Baton)
    result = simulate(program, 2, budget=Budget(seconds=60))
    assert result.findings == ()
    assert ended == [1]


# --- exceptions -------------------------------------------------------------------------------------------------------


def test_an_exception_ends_its_thread_alone(told):
    def program(rank):
        def fail():
            raise ValueError("no")

        start(fail, name="bad").join()
        start(sys.exit, name="leaves").join()
        dist.barrier()
        return rank

    result = simulate(program, 3)
    assert (result.returns, result.verdict, result.errors) == ((0, 1, 2), Verdict.PASS, {})
    assert told == [("bad", "ValueError")] * 3
    (finding,) = result.findings
    assert (finding.code.value, finding.ranks) == ("hazard.thread_error", (0, 1, 2))
    assert finding.summary.startswith('thread "bad" of ranks 0-2 raised ValueError: no at test_life.py:')
    assert 'raise ValueError("no")' in str(finding)
    assert "simulator" not in finding.body


def test_a_hook_of_exceptions_that_leaves_ends_its_thread_alone(monkeypatch):
    def program(rank):
        start(lambda: 1 / 0, name="bad").join()
        dist.barrier()
        return rank

    monkeypatch.setattr(threading, "excepthook", lambda arguments: sys.exit(1))
    result = simulate(program, 2)
    assert (result.returns, result.verdict) == ((0, 1), Verdict.PASS)
    assert codes(result) == [("hazard.thread_error", (0, 1))]


def test_a_fault_strikes_in_the_thread_that_makes_the_call(told):
    def program(rank):
        start(dist.barrier, name="caller").join()

    result = simulate(program, 2, faults=[Crash(1, before_call=0)])
    assert codes(result) == [("deadlock.missing_rank", (1,)), ("hazard.thread_error", (1,))]
    assert told == [("caller", "InjectedCrashError")]
    assert "  cause   the fault plan crashes rank 1 here" in str(result.findings[1]).splitlines()


@pytest.mark.parametrize(("fault", "names"), [(Crash(1, 1), ["InjectedCrashError"]), (EarlyReturn(1, 1), [])])
def test_a_fault_strikes_once(told, fault, names):
    """Call 1 of each rank is its thread's; what the program itself calls next is its call 2."""

    def program(rank):
        dist.barrier()
        start(lambda: dist.barrier() if rank else None, name="caller").join()
        dist.all_reduce(torch.ones(1))
        return rank

    result = simulate(program, 2, faults=[fault])
    assert (result.returns, result.errors) == ((0, 1), {})
    assert codes(result) == [("hazard.thread_error", (1,))] * len(names)
    assert told == [("caller", name) for name in names]


# --- what is left -----------------------------------------------------------------------------------------------------


def test_a_thousand_threads_one_after_another_leave_nothing():
    def program(rank):
        most = 0
        for number in range(500):
            thread = start(lambda number=number: done.append(number))
            references.append(weakref.ref(thread))
            thread.join()
            most = max(most, threading.active_count())
        return most

    done, references = [], []
    with no_thread_is_left():
        result = simulate(program, 2)
    assert len(done) == 1000
    assert max(result.returns) <= 3  # what is about to end
    gc.collect()
    assert [reference for reference in references if reference() is not None] == []
