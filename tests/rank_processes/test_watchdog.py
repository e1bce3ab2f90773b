"""When a rank as a process counts as blocked, on a clock of the test's own; and limits that hold while a rank polls."""

import os
import time
from contextlib import suppress
from itertools import repeat
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, simulate
from ddpsim.simulator.kernel.states import RunEnding, RunPhase
from ddpsim.simulator.rank_processes.watchdog import RankWatchdog

STUCK = 10.0


@pytest.fixture
def looks():
    """Look each half second for some seconds, at a rank that computes so much of each and has children, or not."""
    ended = []
    budget = Budget(stuck_seconds=STUCK, seconds=1000.0)
    life = SimpleNamespace(phase=RunPhase.RUNNING)
    run = SimpleNamespace(life=life, budget=budget, note_progress=lambda seconds, processes: None)
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


def polls_a_work(rank):
    work = dist.irecv(torch.ones(1), 1 - rank)
    while not work.is_completed():
        pass


def polls_the_clock(rank):
    if rank == 1:
        while time.time() >= 0:
            pass
    dist.barrier()


def makes_calls_for_ever(rank):
    alone = [dist.new_group([each]) for each in range(2)]
    for _ in repeat(None) if rank == 1 else ():
        dist.all_reduce(torch.ones(1), group=alone[1])
    dist.barrier()


def does_not_leave(rank):
    while rank == 1:
        with suppress(BaseException):
            dist.irecv(torch.ones(1), 0).is_completed()
    dist.barrier()


@pytest.mark.tier("ci")
@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("program", [polls_a_work, polls_the_clock, makes_calls_for_ever, does_not_leave])
def test_a_limit_of_seconds_holds_while_a_rank_makes_requests(program, isolation):
    (finding,) = simulate(program, 2, isolation=isolation, budget=Budget(seconds=1.0)).findings
    assert (finding.code.value, finding.summary) == ("budget", "the run took longer than 1 s of wall time")
    assert f", in {program.__name__}\n" in finding.text


def test_a_rank_that_is_interrupted_in_a_system_call_is_stuck_and_raised_nothing(tmp_path):
    """os.lockf raises InterruptedError where the rank is told to leave; Python does not call it again."""
    (locked := tmp_path / "locked").touch()

    def program(rank):
        dist.barrier()
        os.lockf(os.open(locked, os.O_RDWR), os.F_LOCK, 0)

    with open(locked, "wb") as file:
        os.lockf(file.fileno(), os.F_LOCK, 0)
        result = simulate(program, 2, isolation="process", budget=Budget(stuck_seconds=0.5))
    assert [finding.code for finding in result.findings] == [Code.STUCK]
    assert result.errors == {}
