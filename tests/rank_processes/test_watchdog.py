"""When a rank as a process counts as blocked: told by looks at it, on a clock of the test's own."""

from types import SimpleNamespace

import pytest

from ddpsim import Budget
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.rank_processes.watchdog import RankWatchdog

STUCK = 10.0


@pytest.fixture
def looks():
    """Look each half second for some seconds, at a rank that computes so much of each and has children, or not."""
    ended = []
    budget = Budget(stuck_seconds=STUCK, seconds=1000.0)
    run = SimpleNamespace(life=SimpleNamespace(phase=RunPhase.RUNNING), budget=budget)
    watchdog = RankWatchdog(SimpleNamespace(run=run, stop_at_limit=lambda ending, me, stack: ended.append(ending)))
    state = SimpleNamespace(now=0.0, cpu=0.0)
    watchdog.clock = SimpleNamespace(elapsed_seconds=lambda: state.now)

    def look(seconds, *, every=0.5, share=0.0, has_children=False):
        child = SimpleNamespace(
            rank=0,
            core_seconds=lambda: state.cpu,
            has_children=lambda: has_children,
            read_stack=lambda: None,
            interrupt_program=lambda: None,
        )
        for _ in range(round(seconds / every)):
            state.now += every
            state.cpu += every * share
            watchdog.check_rank(None, child, 0.0)
        return ended

    return look


def test_a_rank_that_waits_without_an_end_is_stuck(looks):
    assert looks(STUCK) == []
    assert looks(1.0)[:1] == [RunEnding.STUCK]


def test_one_that_computes_is_not(looks):
    assert looks(3 * STUCK, share=0.2) == []


def test_one_whose_processes_have_just_ended_is_not(looks):
    assert looks(2 * STUCK, has_children=True) == []
    assert looks(STUCK) == []
    assert looks(1.0)[:1] == [RunEnding.STUCK]


def test_one_at_which_nobody_could_look_is_not(looks):
    # As when the whole machine stands still: then neither it nor who looks at it gets on.
    assert looks(1.0) == []
    assert looks(2 * STUCK, every=2 * STUCK) == []
    assert looks(STUCK - 1.0) == []
    assert looks(1.0)[:1] == [RunEnding.STUCK]
