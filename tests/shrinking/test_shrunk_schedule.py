"""`ddpsim.shrink`: the simplest schedule under which a plain function fails."""

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, Code, ReplayError, Schedule, UsageError, replay, shrink, simulate
from ddpsim.simulator.policies.schedule_replay import GuidedPolicy
from ddpsim.simulator.shrinking.greedy import ShrinkEnd


def first_come(rank, wanted):
    """Rank 0 takes one message from whoever sends, and wants it to be that of one rank."""
    if rank > 0:
        dist.send(torch.tensor(rank), dst=0)
        return
    dist.recv(room := torch.tensor(0))
    assert room.item() != wanted
    for _ in range(dist.get_world_size() - 2):
        dist.recv(room)


def crashes(rank):
    raise ValueError(rank)


def failing(program, world_size, *args):
    runs = (simulate(program, world_size, args=args, policy="random", seed=seed) for seed in range(100))
    return next(run.schedule for run in runs if run.errors)


def test_one_switch_is_left():
    schedule = failing(first_come, 4, 3)
    assert sum(map(bool, schedule.choices)) > 3
    shrunk = shrink(first_come, 4, schedule, args=(3,))
    # Rank 3 goes first, and then round robin leads on to rank 0.
    assert shrunk.schedule.choices == (3,)
    assert shrunk.is_minimal
    assert shrunk.result.findings[0].code is Code.RANK_ERROR
    again = replay(first_come, 4, str(shrunk.schedule), args=(3,))
    assert shrunk.result.trace.digest() == again.trace.digest()


def test_what_fails_under_the_default_schedule_has_no_answers():
    schedule = simulate(crashes, 3, policy="random", seed=1).schedule
    assert any(schedule.choices)
    shrunk = shrink(crashes, 3, schedule)
    assert (shrunk.schedule.choices, shrunk.executions) == ((), 1)


def test_another_error_is_another_failure():
    def fails_either_way(rank):
        if rank > 0:
            dist.send(torch.tensor(rank), dst=0)
            return
        dist.recv(room := torch.tensor(0))
        raise ValueError if room.item() == 2 else KeyError

    schedule = simulate(fails_either_way, 3, policy=GuidedPolicy((2,))).schedule
    shrunk = shrink(fails_either_way, 3, schedule)
    assert shrunk.schedule.choices == (2,)
    assert type(shrunk.result.errors[0]) is ValueError


def interrupt(progress):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("how", "end", "executions"),
    [({"budget": Budget(executions=2)}, ShrinkEnd.BUDGET, 2), ({"on_progress": interrupt}, ShrinkEnd.INTERRUPT, 1)],
)
def test_a_budget_and_ctrl_c_leave_the_simplest_so_far(how, end, executions):
    shrunk = shrink(first_come, 4, failing(first_come, 4, 3), args=(3,), **how)
    assert (shrunk.end, shrunk.executions, shrunk.is_minimal) == (end, executions, False)
    assert shrunk.result.errors


def test_a_schedule_that_passes_is_refused():
    with pytest.raises(
        UsageError,
        match=r"^the verdict of test_a_.*<locals>\.<lambda> on 2 ranks under this schedule is pass, expected a "
        r"failure to shrink: give a schedule under which it fails$",
    ):
        shrink(program := lambda rank: None, 2, Schedule((), f"{program.__qualname__} on 2 ranks"))


def test_a_token_of_another_program_is_refused():
    with pytest.raises(ReplayError, match=r"was recorded for another world size than crashes on 3 ranks"):
        shrink(crashes, 3, simulate(crashes, 2).schedule)


def test_what_does_not_fail_again_is_flaky():
    runs = []

    def fails_once(rank):
        runs.append(rank)
        if len(runs) == 1:
            raise ValueError

    shrunk = shrink(fails_once, 1, Schedule((), f"{fails_once.__qualname__} on 1 ranks"))
    assert (shrunk.end, shrunk.is_minimal) == (ShrinkEnd.FLAKY, False)
    assert not shrunk.result.errors


@pytest.mark.tier("nightly")
def test_the_schedule_of_a_command_is_shrunk_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "order.py").write_text(
        "import torch, torch.distributed as dist\n"
        'dist.init_process_group("gloo")\n'
        "if dist.get_rank():\n"
        "    dist.send(torch.zeros(1), 0)\n"
        "else:\n"
        "    assert [dist.recv(torch.zeros(1)), dist.recv(torch.zeros(1))] == [2, 1]\n"
    )
    schedule = failing(["order.py"], 3)
    shrunk = shrink(["order.py"], 3, schedule)
    assert shrunk.is_minimal
    assert sum(map(bool, shrunk.schedule.choices)) <= sum(map(bool, schedule.choices))
    assert replay(["order.py"], 3, shrunk.schedule).trace.digest() == shrunk.result.trace.digest()
