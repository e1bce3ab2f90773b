"""Whether a rank gets on, with a clock of the test's; no process is started."""

import os
import threading
import time
from itertools import count

import pytest
import torch.distributed as dist

from ddpsim.scenarios.jobs import rank_progress
from ddpsim.scenarios.jobs.job_rank import RankMessage
from ddpsim.scenarios.jobs.rank_progress import (
    ActiveClock,
    JobRankProgress,
    LastCalls,
    UnchangedTimer,
    _main_thread_sleep_count,
)
from ddpsim.scenarios.jobs.supervisor import RankChild, _IdleDetector
from ddpsim.scenarios.jobs.supervisor_notes import RankStarter, SupervisorStore


def test_time_in_which_nobody_looks_does_not_pass():
    times = iter([100.0, 100.3, 100.5, 160.5, 160.6])
    clock = ActiveClock(0.4, lambda: next(times))
    assert [round(clock.active_seconds(), 6) for _ in range(4)] == [0.3, 0.5, 0.9, 1.0]


def test_unchanged():
    value = UnchangedTimer()
    assert value.unchanged_seconds("a", 1.0) == 0.0
    assert value.unchanged_seconds("a", 3.5) == 2.5
    assert value.unchanged_seconds("b", 4.0) == 0.0


@pytest.fixture
def looks(monkeypatch):
    """Look ten times, a second apart, in a process that computes or sleeps before each look, or does not."""

    def looks(recordings, *, computes=False, sleeps=False):
        seconds = count()
        monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
        used = count(step=int(computes))
        monkeypatch.setattr(time, "process_time", lambda: float(next(used)))
        monkeypatch.setattr(time, "thread_time", lambda: 0.0)
        progress = JobRankProgress(100.0)
        monkeypatch.setattr(progress, "_clock", ActiveClock(100.0, time.monotonic))
        monkeypatch.setattr(progress, "_main_thread_frames", list)
        monkeypatch.setattr(
            "ddpsim.scenarios.jobs.rank_progress._main_thread_sleep_count", count(step=int(sleeps)).__next__
        )
        recorded = iter(recordings)
        monkeypatch.setattr(rank_progress, "read_recorder", lambda: next(recorded))
        return [progress.idle_seconds() for _ in range(10)][-1]

    return looks


WAITING = [LastCalls(("barrier #0",), in_flight=True)] * 10
CALLING = [LastCalls((f"barrier #{number}",), in_flight=True) for number in range(10)]


def test_a_rank_that_always_waits_gets_on_if_its_calls_do(looks):
    assert looks(CALLING) == (0.0, 0.0)
    assert looks(CALLING, computes=True) == (0.0, 0.0)


def test_a_rank_that_waits_in_one_call(looks):
    asleep, computing = looks(WAITING)
    assert asleep == computing >= 9.0
    asleep, computing = looks(WAITING, computes=True)
    assert (asleep, computing >= 9.0) == (0.0, True)
    asleep, computing = looks(WAITING, sleeps=True)
    assert (asleep, computing >= 9.0) == (0.0, True)


def test_how_often_this_thread_has_slept():
    before = _main_thread_sleep_count()
    threading.Event().wait(0.001)
    assert _main_thread_sleep_count() > before or not os.path.exists("/proc/self/task")


# --- as its supervisor sees it ----------------------------------------------------------------------------------------

TIMEOUT = 10.0


@pytest.fixture
def notes():
    return SupervisorStore(0, 1, dist.HashStore())


class _Computing(RankChild):
    """Nothing of a child but what it has computed, which the test sets."""

    seconds = 0.0

    def cpu_seconds(self):
        return self.seconds


@pytest.fixture
def child():
    return _Computing(0, 0, None, -1, RankStarter(os.getppid(), None))


def test_what_a_rank_says_is_its_vote(child, notes):
    quiet = _IdleDetector(child, TIMEOUT)
    for said, is_idle in [(RankMessage.STARTED, False), (RankMessage.IDLE, True), (RankMessage.ALIVE, False)]:
        assert not quiet.is_silent_too_long([said], 1.0)
        assert quiet.report_idle_if_changed(notes) == notes.are_all_idle() == is_idle


def test_a_silent_rank_is_frozen_and_no_longer_when_it_speaks(child, notes):
    quiet = _IdleDetector(child, TIMEOUT)
    quiet.is_silent_too_long([RankMessage.IDLE], 1.0)
    assert not quiet.is_silent_too_long([], 7.0)
    assert not quiet.report_idle_if_changed(notes)  # it has said so too long ago
    assert not quiet.is_silent_too_long([], 15.9)
    assert quiet.is_silent_too_long([], 16.1)
    assert quiet.report_idle_if_changed(notes)
    assert not quiet.is_silent_too_long([RankMessage.ALIVE], 17.0)
    assert not quiet.report_idle_if_changed(notes)


def test_a_silent_rank_that_computes_has_six_times_as_long(child):
    quiet = _IdleDetector(child, TIMEOUT)
    quiet.is_silent_too_long([RankMessage.ALIVE], 1.0)
    child.seconds = 50.0
    assert not quiet.is_silent_too_long([], 60.9)
    assert quiet.is_silent_too_long([], 61.1)


def test_what_a_process_has_computed():
    own = RankChild(0, os.getpid(), None, -1, RankStarter(os.getppid(), None))
    if os.path.exists("/proc/self/stat"):
        assert abs(own.cpu_seconds() - time.process_time()) < 0.2
    gone = RankChild(0, 0, None, -1, RankStarter(os.getppid(), None))
    assert gone.cpu_seconds() == 0.0
