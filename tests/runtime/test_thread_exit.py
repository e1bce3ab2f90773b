"""A thread is interrupted until it refuses; what it does after that is never cut short."""

import sys
import threading

import pytest
import torch.distributed as dist

from ddpsim import Budget, simulate
from ddpsim.simulator.kernel.states import RunEnding
from ddpsim.simulator.runtime.rank_thread import RankUnwound, ThreadEndClaim
from ddpsim.simulator.runtime.thread_host import ThreadHost
from tests.kit.rank_threads import start


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
    def compute():  # not in `work`: Python 3.13 takes the end of a loop for outside of its `try`
        while not is_over:
            pass

    def work():
        try:
            started.set()
            compute()
        except Interrupted:
            told.append("interrupted")

    started, told, is_over = threading.Event(), [], []
    thread = start(work)
    started.wait()
    ThreadEndClaim(Interrupted).interrupt_thread(thread.ident)
    thread.join(10)
    is_over.append(True)
    assert told == ["interrupted"]


def test_none_comes_once_the_thread_has_claimed_its_end(hasty):
    def work(its_exit, told):
        try:
            started.set()
            is_its_own = its_exit.claim_end()
        except Interrupted:
            is_its_own = its_exit.claim_end()
        told.extend([is_its_own] * 100)

    for _ in range(200):
        its_exit, told, started = ThreadEndClaim(Interrupted), [], threading.Event()
        thread = start(work, its_exit, told)
        started.wait()
        its_exit.interrupt_thread(thread.ident)  # one, as limits do: before, while or after the thread claims
        thread.join(10)
        assert told == [True] * 100


def test_an_end_is_claimed_by_one():
    its_exit, told = ThreadEndClaim(Interrupted), []
    assert its_exit.claim_end()
    start(lambda: told.append(its_exit.claim_end())).join(10)
    assert told == [False]
    assert its_exit.claim_end()


@pytest.mark.parametrize("interrupted", [0, 2], ids=["program", "thread"])
def test_who_is_interrupted_as_it_ends_gives_the_baton_away_once(monkeypatch, interrupted):
    def claim(its_exit):
        is_ours = own_claim(its_exit)
        if its_exit is threads[interrupted] and not told:
            told.append("interrupted")
            raise RankUnwound  # as one that came just before
        return is_ours

    def made(its_exit, error):
        own_init(its_exit, error)
        threads.append(its_exit)

    def program(rank):
        start(lambda: None).join()
        dist.barrier()
        return rank

    own_claim, own_init, threads, told = ThreadEndClaim.claim_end, ThreadEndClaim.__init__, [], []
    monkeypatch.setattr(ThreadEndClaim, "claim_end", claim)
    monkeypatch.setattr(ThreadEndClaim, "__init__", made)
    result = simulate(program, 2, budget=Budget(seconds=60, stuck_seconds=10))
    assert (result.returns, result.findings, told) == ((0, 1), (), ["interrupted"])


class Endless:
    """A policy that does not come back when it is asked who runs after a rank that ends."""

    def choose(self, point, options):
        frame = sys._getframe()
        while frame is not None and frame.f_code is not ThreadHost.finish_thread.__code__:
            frame = frame.f_back
        while frame is not None:
            pass
        return 0


def test_an_interrupt_may_come_before_a_started_thread_is_known(monkeypatch):
    """The kernel knows the thread by then, and gives it the baton to leave."""
    adopt, came = ThreadHost.connect_task, []

    def interrupted(host, child):
        if not came:
            came.append(child)
            host.kernel.stop_run(RunEnding.INTERRUPTED)
            raise RankUnwound
        adopt(host, child)

    def program(rank):
        if rank == 0:
            threading.Thread(target=dist.barrier).start()
        dist.barrier()

    monkeypatch.setattr(ThreadHost, "connect_task", interrupted)
    result = simulate(program, 2, budget=Budget(stuck_seconds=5))
    assert (result.returns, result.findings) == ((None, None), ())
    assert came[0].thread is None  # it was told to leave, and has


def test_a_policy_that_does_not_come_back_ends_nothing_but_the_run():
    with pytest.raises(RankUnwound):
        simulate(lambda rank: dist.barrier(), 3, policy=Endless(), budget=Budget(seconds=0.2, stuck_seconds=60))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ddpsim")]
