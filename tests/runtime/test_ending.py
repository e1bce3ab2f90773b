"""A thread is interrupted until it refuses; what it does after that is never cut short."""

import _thread
import sys
import threading

import pytest

from simulator import Budget, Verdict, simulate
from simulator.runtime.ending import Ending
from simulator.runtime.scheduler import Scheduler


class Interrupted(BaseException):
    pass


@pytest.fixture
def hasty():
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_an_interrupt_comes_to_a_thread_that_computes():
    def work():
        try:
            started.set()
            while not is_over:
                pass
        except Interrupted:
            told.append("interrupted")

    started, told, is_over = threading.Event(), [], []
    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    Ending(Interrupted).interrupt(thread.ident)
    thread.join(10)
    is_over.append(True)
    assert told == ["interrupted"]


def test_none_comes_once_the_thread_has_claimed_its_end(hasty):
    def work(ending, told):
        try:
            started.set()
            is_its_own = ending.claim()
        except Interrupted:
            is_its_own = ending.claim()
        told.extend([is_its_own] * 100)

    for _ in range(200):
        ending, told, started = Ending(Interrupted), [], threading.Event()
        thread = threading.Thread(target=work, args=(ending, told))
        thread.start()
        started.wait()
        ending.interrupt(thread.ident)  # one, as limits do: before, while or after the thread claims
        thread.join(10)
        assert told == [True] * 100


def test_an_end_is_claimed_by_one():
    ending, told = Ending(Interrupted), []
    assert ending.claim()
    thread = threading.Thread(target=lambda: told.append(ending.claim()))
    thread.start()
    thread.join(10)
    assert told == [False]
    assert ending.claim()


def test_a_rank_that_takes_long_to_give_the_baton_away_gives_it_away_itself(monkeypatch):
    def slowly(scheduler, me, status):
        if me.rank == 0:
            leaving.acquire(timeout=2.5)  # a rank that runs is interrupted after a second, and left after another
        told.append((me.rank, me.is_finished))
        finish(scheduler, me, status)

    def program(rank):
        while True:
            pass

    finish, told = Scheduler.finish, []
    leaving = _thread.allocate_lock()
    leaving.acquire()
    monkeypatch.setattr(Scheduler, "finish", slowly)
    result = simulate(program, 2, budget=Budget(seconds=0.1, stuck_seconds=60))
    assert result.verdict is Verdict.UNKNOWN
    assert told == [(0, False), (1, False)]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ddpsim")]
