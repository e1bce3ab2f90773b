"""Ranks share a core; the process keeps all of its own."""

import os
import threading

import pytest

from simulator import simulate
from simulator.runtime.one_core import threads_started_here_share_a_core

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the platform has no CPU affinity")


def cores_of(start):
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
    start(thread)
    thread.join()
    return found[0]


def test_threads_started_inside_stay_on_one_core_and_the_caller_gets_its_own_back():
    allowed = os.sched_getaffinity(0)
    with threads_started_here_share_a_core():
        inside = cores_of(threading.Thread.start)
    assert len(inside) == 1
    assert inside <= allowed
    assert os.sched_getaffinity(0) == allowed
    assert cores_of(threading.Thread.start) == allowed


def test_a_platform_that_forbids_it_is_left_alone(monkeypatch):
    def forbidden(pid, cores):
        raise PermissionError

    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    with threads_started_here_share_a_core():
        assert os.sched_getaffinity(0) == allowed


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


def test_a_process_forked_from_a_rank_has_all_cores():
    allowed = os.sched_getaffinity(0)
    assert simulate(lambda rank: forked(lambda: os.sched_getaffinity(0) == allowed), 2).returns == (True, True)


def test_a_process_forked_from_another_thread_on_one_core_stays_there():
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    simulate(lambda rank: None, 2)
    os.sched_setaffinity(0, core)
    try:
        assert forked(lambda: os.sched_getaffinity(0) == core)
    finally:
        os.sched_setaffinity(0, allowed)
