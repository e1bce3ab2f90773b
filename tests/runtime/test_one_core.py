"""Ranks share a core; the process keeps all of its own."""

import os

import pytest

from ddpsim import simulate
from ddpsim.simulator.runtime.one_core import threads_started_here_share_a_core
from tests.kit.rank_threads import start

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the platform has no CPU affinity")


def placement():
    """The cores of the calling thread, and how the system schedules it."""
    return os.sched_getaffinity(0), os.sched_getscheduler(0)


def placement_of_a_thread():
    found = []
    start(lambda: found.append(placement())).join()
    return found[0]


def test_threads_started_inside_stay_on_one_core_and_the_caller_gets_its_own_back():
    usual = placement()
    with threads_started_here_share_a_core():
        cores, policy = placement_of_a_thread()
    assert len(cores) == 1
    assert cores <= usual[0]
    assert policy == (os.SCHED_BATCH if usual[1] == os.SCHED_OTHER else usual[1])
    assert placement() == usual
    assert placement_of_a_thread() == usual


def test_where_the_caller_is_scheduled_otherwise_so_are_its_threads():
    def body():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        with threads_started_here_share_a_core():
            found.append(placement_of_a_thread()[1])
        found.append(os.sched_getscheduler(0))

    found = []
    start(body).join()
    assert found == [os.SCHED_IDLE] * 2


def test_where_scheduling_otherwise_is_forbidden_the_core_stays_and_where_a_core_is_all_do(monkeypatch):
    def forbidden(*_):
        raise PermissionError

    usual = placement()
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with threads_started_here_share_a_core():
        cores, policy = placement_of_a_thread()
    assert (len(cores), policy) == (1, usual[1])
    assert placement() == usual
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with threads_started_here_share_a_core():
        assert os.sched_getaffinity(0) == usual[0]


def test_the_ranks_of_a_simulation_share_a_core():
    allowed = os.sched_getaffinity(0)
    cores = simulate(lambda rank: os.sched_getaffinity(0), 4).returns
    assert all(core == cores[0] and len(core) == 1 for core in cores)
    assert os.sched_getaffinity(0) == allowed


def forked(check):
    """Whether `check` holds in a process forked here."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_a_process_forked_from_a_rank_is_placed_as_any_other():
    usual = placement()
    assert simulate(lambda rank: forked(lambda: placement() == usual), 2).returns == (True, True)


def test_a_process_forked_from_another_thread_on_one_core_stays_there():
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    simulate(lambda rank: None, 2)
    os.sched_setaffinity(0, core)
    try:
        assert forked(lambda: os.sched_getaffinity(0) == core)
    finally:
        os.sched_setaffinity(0, allowed)
