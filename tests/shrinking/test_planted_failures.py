"""Shrinking reaches the exact minimum of four planted failures; each test says why nothing smaller can fail.

Where it is a program, all parts of it are looked at, too. Drawn programs are in test_programs.py.
"""

import pytest

from ddpsim import Code, Verdict, explore, replay, shrink, simulate
from ddpsim.ddp.join_coordinator import JoinCoordinator
from ddpsim.scenarios import run_scenario, shrink_scenario
from ddpsim.scenarios.files.value_scenarios import program_of_scenario, training_of_scenario
from ddpsim.scenarios.ranks.interpreter import run_rank_steps
from ddpsim.scenarios.training.training import JoinOptions, Training
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from tests.shrinking import planted
from tests.shrinking.enumeration import failure_of, parts_of


def shrunk(scenario, engine=None):
    """What came of it, which is minimal, fails as before, and does so again."""
    before = run_scenario(scenario, engine)
    found = shrink_scenario(scenario, engine)
    assert found.is_minimal
    assert found.result.findings[0].code == before.findings[0].code
    again = run_scenario(found.scenario)
    assert (again.findings, again.trace.digest()) == (found.result.findings, found.result.trace.digest())
    return found


def test_a_failure_of_one_order_of_arrival():
    """Three ranks, a message from each of two, one receive from any source, and one switch.

    The messages between two ranks keep their order, so two would pass or fail whatever the schedule; a failure under
    the default schedule would be what is expected, so one switch it is. Every part of it passes under every schedule,
    or fails under the default one.
    """
    found = shrunk(planted.order_of_arrival())
    assert (found.size_before[:3], found.size[:3]) == ((6, 44, 22), (3, 3, 3))
    assert found.size[6:] == (1, 1, 1)
    sends = sorted(
        (step.operation, step.dtype) for steps in program_of_scenario(found.scenario).ranks for step in steps
    )
    assert sends == [("recv", "float32"), ("send", "float32"), ("send", "float64")]
    for part in parts_of(program_of_scenario(found.scenario)):
        exploration = explore(run_rank_steps, 3, args=(part,), keep_going=True)
        assert exploration.complete
        assert exploration.verdict is Verdict.PASS or failure_of(part) is Code.MISMATCH_DTYPE


def test_uneven_input_without_join():
    """Two ranks, of which one has a batch of one row: one rank is missed by nobody, and with as many batches on both
    none is missing.
    """
    found = shrunk(planted.uneven_without_join())
    assert found.size_before[:3] == (8, 79, 3)
    assert training_of_scenario(found.scenario) == Training(iterations=(1, 0), rows=1)
    assert found.scenario.world_size == 2


@pytest.mark.tier("ci")
def test_a_fault_of_the_engine(monkeypatch):
    """A join that ends with the model of the highest rank, whoever was the last: two ranks, of which 0 trains once.

    With one rank, or nobody who trains, all models are alike; where rank 1 is the last, its model is the right one.
    """
    follow = JoinCoordinator.answer_calls_until_all_joined
    assert run_scenario(planted.uneven_with_join(), "ddp").findings == ()
    monkeypatch.setattr(
        JoinCoordinator, "answer_calls_until_all_joined", lambda self: (follow(self), self._size - 1)[1]
    )
    found = shrunk(planted.uneven_with_join(), "ddp")
    assert found.size_before[:2] == (5, 12)
    assert training_of_scenario(found.scenario) == Training(iterations=(1, 0), rows=1, join=JoinOptions())
    assert found.scenario.world_size == 2


@pytest.mark.tier("ci")
def test_a_torn_read():
    """Two switches: one to the reader just behind the first write, one away from it just behind its first read.

    With no switch, or one, it does not fail wherever that is, as is tried with one other operation instead of twelve:
    what the ranks do besides only moves the places.
    """
    runs = (simulate(planted.torn_read, 4, policy="random", seed=seed) for seed in range(100))
    failure = next(run for run in runs if run.errors)
    choices = failure.schedule.choices
    assert len(choices) > 130
    assert sum(choice > 0 for choice in choices) > 80
    found = shrink(planted.torn_read, 4, failure.schedule)
    assert found.is_minimal
    # A choice comes first of all, then one before each operation: 12 others and the write; 12 others and both looks.
    assert found.schedule.choices == (*(0,) * 14, 1, *(0,) * 14, 1)
    assert str(found.result.errors[1]) == "torn"
    assert found.result.trace.digest() == replay(planted.torn_read, 4, found.schedule).trace.digest()

    def fails(choices):
        return bool(simulate(planted.torn_read, 4, args=(1,), policy=GuidedPolicy(choices)).errors)

    assert fails((*(0,) * 3, 1, *(0,) * 3, 1))
    assert not any(fails((*(0,) * index, choice)) for index in range(25) for choice in range(1, 4))
