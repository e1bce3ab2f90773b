"""The lines of a run: its events in order, each with the choice that led to it."""

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import ChoiceKind, ChoicePoint, simulate
from ddpsim.simulator.choices import Schedule
from ddpsim.simulator.policies.schedule_replay import ReplayPolicy
from ddpsim.simulator.transcript import TakenChoice, transcript_lines, transcript_of


def run(program, world_size, *choices, args=()):
    """The result of a run, and its steps."""
    policy = ReplayPolicy(Schedule(choices), keeps_choices=True)
    result = simulate(program, world_size, args=args, policy=policy)
    assert policy.divergence is None
    return result, transcript_of(result.trace, policy.choices)


def adds(rank):
    dist.all_reduce(torch.ones(2))
    if rank:
        time.sleep(1.5)


def test_the_lines_of_a_run():
    line = adds.__code__.co_firstlineno + 1
    _, steps = run(adds, 2, 1, 1)
    call = f'all_reduce #0  SUM float32[2]  group "default"  test_transcript.py:{line}'
    assert transcript_lines(steps) == [
        "    step      time  choice        rank  what",
        "       0       0 s  0 > 1 of 0 1     1  goes on",
        "       1       0 s  1 > 0 of 1 0     0  goes on",
        f"       2       0 s  0 > 0 of 0 1     0  issue   {call}",
        f"       3       0 s  0 > 0 of 0 1     0  wait    {call}",
        f"       4       0 s                   1  issue   {call}",
        f"       4       0 s                   1  match   {call}",
        "       5       0 s  1 > 1 of 1 0     1  goes on",
        "       6       0 s  1 > 1 of 1 0     1  sleep   1.5",
        f"       7       0 s                   0  done    {call}",
        "       7       0 s                   0  return",
        "       7     1.5 s                   1  return",
    ]


def test_without_choices_there_are_the_events():
    result = simulate(adds, 2)
    steps = transcript_of(result.trace)
    assert [(step.number, step.rank, step.kind) for step in steps] == [
        (event.choice_points, event.rank, event.kind.value) for event in result.trace
    ]
    assert not any(step.choice for step in steps)


def test_every_event_and_every_choice_is_told_once_and_in_order():
    def trains(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        with model.join():
            for _ in range(rank + 1):
                model(torch.ones(1, 2)).sum().backward()

    for seed in range(5):
        choices = simulate(trains, 3, policy="random", seed=seed).schedule.choices
        result, steps = run(trains, 3, *choices)
        assert [step.kind for step in steps if step.kind] == [event.kind.value for event in result.trace]
        assert [step.choice.taken for step in steps if step.choice] == list(choices)
        assert [step.number for step in steps] == sorted(step.number for step in steps)
        led = [step for step in steps if step.choice and step.choice.point.kind is ChoiceKind.RANK]
        assert all(step.rank == step.choice.chosen_number for step in led)


def test_buckets_are_told_with_their_parameters():
    def trains(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.ones(1, 2)).sum().backward()

    _, steps = run(trains, 2)
    (bucket,) = {step.text.partition("  DDP ")[2] for step in steps if "bucket" in step.text}
    assert bucket == "#0 bucket 0 of step 1 (weight, bias)"


def test_whose_message_a_receive_takes_is_told_after_the_receive():
    def mails(rank):
        if rank:
            dist.isend(torch.tensor(rank), dst=0)
        dist.barrier()
        if rank == 0:
            dist.recv(torch.tensor(0))

    _, steps = run(mails, 3)
    (at,) = [index for index, step in enumerate(steps) if step.choice and step.choice.point.kind is ChoiceKind.SOURCE]
    assert steps[at - 1].text.startswith("recv #0")
    assert (steps[at].kind, str(steps[at].choice)) == ("match", "0 < 1 of 1 2")


def test_threads_are_told_by_rank_and_name():
    def program(rank):
        thread = threading.Thread(target=dist.barrier, name="metrics")
        thread.start()
        thread.join()

    result, steps = run(program, 2, *simulate(program, 2, policy="random", seed=3).schedule.choices)
    assert {(step.rank, step.thread) for step in steps} == {(rank, name) for rank in (0, 1) for name in ("", "metrics")}
    told = [step.rank for step in steps if step.kind]
    assert told == [event.rank for event in result.trace]
    numbers = {(step.rank, step.thread): step.choice.chosen_number for step in steps if step.choice}
    assert {number for (_, thread), number in numbers.items() if thread} == {2, 3}
    assert all((step.rank, step.thread) == step.choice.next_rank_or_thread for step in steps if step.choice)
    head, *lines = transcript_lines(steps)
    column = head.index("what")
    assert all(line[: column - 2].endswith((' "metrics"', "  ")) or len(line) < column for line in lines)
    assert any(line[:column].endswith('1 "metrics"  ') for line in lines)


def test_options_in_few_words():
    assert transcript_lines([]) == []
    point = ChoicePoint(ChoiceKind.RANK, 0, 7)
    assert str(TakenChoice(point, (7, 8, 0), 1)) == "7 > 8 of 7 8 0"
    assert str(TakenChoice(point, tuple(range(64)), 3)) == "7 > 3 of 0-63"
    assert str(TakenChoice(point, tuple(range(0, 64, 2)), 3)) == "7 > 6 of 32 ranks"
