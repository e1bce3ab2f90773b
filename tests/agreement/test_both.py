"""Programs on both: what is no verdict of gloo's is none on the program either, whatever the simulator says of it."""

import os
import signal

import pytest

from ddpsim.scenarios.agreement import both
from ddpsim.scenarios.agreement.breaking import Kind, LabelledProgram
from ddpsim.scenarios.agreement.outcome import Ending, RankOutcome
from ddpsim.scenarios.agreement.pool import GlooPool, PoolError
from ddpsim.scenarios.ranks.interpreter import run_steps
from ddpsim.simulator.programs.program import Crash
from tests.programs.programs import barrier, program, waited

HEALTHY = LabelledProgram(7, program(waited(barrier("a")), waited(barrier("a"))), Kind.NONE)
CRASHING = LabelledProgram(8, program((Crash(),), waited(barrier("a"))), Kind.CRASH)
BROKEN = LabelledProgram(9, program((), waited(barrier("a"))), Kind.MISSING)


class Made:
    """A pool of which every job comes to the same."""

    def __init__(self, *outcomes):
        self._outcomes = outcomes

    def run(self, jobs):
        return ((job, self._outcomes) for job in jobs)


def compared(labelled, pool):
    (comparison,) = both.compared([labelled], pool, still_seconds=0.3)
    return comparison


HUNG = RankOutcome(Ending.HUNG, error="nothing has moved for 0.3 s")


@pytest.mark.parametrize("labelled", [HEALTHY, CRASHING, BROKEN], ids=lambda each: each.kind.value)
@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (Ending.DIED, "SIGKILL"),
        (Ending.DIED, "exit status 3"),
        (Ending.RAISED, "ImportError: cannot import name 'it'"),
        (Ending.RAISED, "MemoryError: "),
        (Ending.RAISED, "what it returned cannot be sent: TypeError: no"),
        (Ending.RAISED, "OSError: [Errno 28] No space left on device\nand more"),
    ],
)
def test_what_gloo_has_not_done(labelled, ending, error):
    with pytest.raises(PoolError) as refusal:
        compared(labelled, Made(HUNG, RankOutcome(ending, error=error)))
    head = (
        f"rank 1 of seed {labelled.seed} {ending.value} ({error.splitlines()[0]}), expected an ending that comes from "
    )
    assert str(refusal.value).startswith(head)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (Ending.DIED, "SIGABRT"),
        (Ending.DIED, "SIGSEGV"),
        (Ending.RAISED, "RuntimeError: [gloo] connection closed by peer"),
        (Ending.RAISED, "DistBackendError: no"),
        (Ending.RAISED, "InjectedCrashError: injected"),
    ],
)
def test_what_gloo_or_the_program_has(ending, error):
    comparison = compared(BROKEN, Made(HUNG, RankOutcome(ending, error=error)))
    assert comparison.disagreement == ""
    assert comparison.endings == (Ending.HUNG, ending)


def is_killed(rank, program):
    """A rank that the system ends, as when memory is short."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_steps(rank, program)


def test_a_rank_that_is_killed(monkeypatch):
    monkeypatch.setattr(both, "run_steps", is_killed)
    with GlooPool(teams=1) as pool, pytest.raises(PoolError, match=r"^rank 1 of seed 9 died \(SIGKILL\), "):
        compared(BROKEN, pool)
