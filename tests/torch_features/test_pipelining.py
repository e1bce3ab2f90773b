"""Schedules of torch.distributed.pipelining against the model in one piece: torch's test_schedule_multiproc.py.

Every rank has a part of the layers; outputs, loss and gradients have to be those of all layers on one process.
"""

import re
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.testing import assert_close

from ddpsim import simulate
from ddpsim.simulator.events import EventKind
from tests.kit.results import returned

WIDTH = 3
MICRO_BATCHES = 4
LOOPED = (ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble)


def layers(count):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)])


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2 * MICRO_BATCHES, WIDTH, generator=generator)


def summed(output, target):
    return (output - target).square().sum()


def whole(count):
    """Output, loss and gradients of all layers, by micro-batch as the schedules have them."""
    model = layers(count)
    inputs, targets = data()
    outputs = model(inputs)
    loss = summed(outputs, targets)
    loss.backward()
    return outputs.detach(), loss.item(), {name: each.grad for name, each in model.named_parameters()}


def stages_of(kind, rank, world_size):
    if kind is ScheduleZBVZeroBubble:  # it goes there and back
        return [rank, 2 * world_size - 1 - rank]
    return [rank, rank + world_size] if kind in LOOPED else [rank]


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B, *LOOPED])
def test_a_schedule_is_the_whole_model(kind, world_size, seed):
    count = world_size * (2 if kind in LOOPED else 1)

    def program(rank):
        model = layers(count)
        stages = [
            PipelineStage(model[number], number, count, torch.device("cpu"))
            for number in stages_of(kind, rank, world_size)
        ]
        schedule = kind(stages if kind in LOOPED else stages[0], MICRO_BATCHES, loss_fn=summed, scale_grads=False)
        inputs, targets = data()
        losses = []
        last = any(stage.is_last for stage in stages)
        given = (inputs,) if any(stage.is_first for stage in stages) else ()
        output = schedule.step(*given, **({"target": targets, "losses": losses} if last else {}))
        gradients = {
            f"{stage.stage_index}.{name}": each.grad
            for stage in stages
            for name, each in stage.submod.named_parameters()
        }
        return (output.detach(), sum(losses).item()) if last else None, gradients

    policy = {} if seed is None else {"policy": "random", "seed": seed}
    returns = returned(program, world_size, **policy)
    outputs, loss, gradients = whole(count)
    [(output, found)] = [result for result, _ in returns if result is not None]
    assert_close(output, outputs)
    assert found == pytest.approx(loss, rel=1e-5)
    merged = {name: gradient for _, part in returns for name, gradient in part.items()}
    assert merged.keys() == gradients.keys()
    assert_close(merged, gradients)


def test_the_mean_of_the_micro_batches_where_gradients_are_scaled():
    def program(rank):
        model = layers(2)
        stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=summed)
        inputs, targets = data()
        schedule.step(inputs) if rank == 0 else schedule.step(target=targets)
        return {f"{rank}.{name}": each.grad * MICRO_BATCHES for name, each in stage.submod.named_parameters()}

    first, second = returned(program, 2)
    assert_close(first | second, whole(2)[2])


def test_stages_that_know_their_shapes_exchange_none():
    def program(rank, tells):
        model = layers(2)
        shape = {"input_args": torch.empty(2, WIDTH), "output_args": torch.empty(2, WIDTH)} if tells else {}
        stage = PipelineStage(model[rank], rank, 2, torch.device("cpu"), **shape)
        schedule = ScheduleGPipe(stage, MICRO_BATCHES)
        inputs, _ = data()
        return schedule.step(inputs) if rank == 0 else schedule.step().detach()

    carried = []
    for tells in (True, False):
        result = simulate(program, 2, args=(tells,))
        result.raise_for_verdict()
        assert_close(result.returns[1], whole(2)[0])
        parts = [event.call.origin.part for event in result.trace if event.kind is EventKind.ISSUE]
        carried.append(Counter(part.what.partition(" ")[0] for part in parts if part and " to " in part.action))
    # Sent and received: each micro-batch; and an object of two messages. How ranks greet each other is torch's.
    told, asked = {"activations": 2 * MICRO_BATCHES}, {"shapes": 2 * 2}
    assert carried == [told, told | asked]


@pytest.mark.tier("nightly")
def test_it_learns_step_by_step_as_the_whole_model_and_can_be_evaluated():
    def program(rank):
        stage = PipelineStage(layers(2)[rank], rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=summed, scale_grads=False)
        inputs, targets = data()
        given = (inputs,) if rank == 0 else ()
        told = {"target": targets} if rank == 1 else {}
        optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            schedule.step(*given, **told)
            optimizer.step()
        losses = []
        gradient = stage.submod[0].weight.grad.clone()
        output = schedule.eval(*given, **told, losses=losses)
        assert torch.equal(stage.submod[0].weight.grad, gradient)  # there was no backward
        return (output.detach(), sum(losses).item()) if rank == 1 else None

    model = layers(2)
    inputs, targets = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        summed(model(inputs), targets).backward()
        optimizer.step()
    output, loss = returned(program, 2)[1]
    assert_close(output, model(inputs).detach())
    assert loss == pytest.approx(summed(model(inputs), targets).item(), rel=1e-5)


def test_stages_hand_on_several_tensors_and_the_first_takes_named_ones():
    class First(nn.Linear):
        def forward(self, inputs, *, shift):
            return super().forward(inputs) + shift, inputs

    class Second(nn.Linear):
        def forward(self, hidden, inputs):
            return super().forward(hidden) + inputs

    def both():
        torch.manual_seed(0)
        return First(WIDTH, WIDTH), Second(WIDTH, WIDTH)

    def program(rank):
        stage = PipelineStage(both()[rank], rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=summed, scale_grads=False)
        inputs, targets = data()
        schedule.step(inputs, shift=2 * inputs) if rank == 0 else schedule.step(target=targets)
        return [each.grad for each in stage.submod.parameters()]

    first, second = both()
    inputs, targets = data()
    summed(second(*first(inputs, shift=2 * inputs)), targets).backward()
    assert_close(returned(program, 2), tuple([each.grad for each in part.parameters()] for part in (first, second)))


def test_a_pipeline_in_each_half_of_the_world():
    def program(rank):
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group, place = halves[rank // 2], rank % 2
        model = layers(2)
        stage = PipelineStage(model[place], place, 2, torch.device("cpu"), group=group)
        schedule = Schedule1F1B(stage, MICRO_BATCHES)
        inputs, _ = data()
        return schedule.step(inputs) if place == 0 else schedule.step().detach()

    _, first, _, second = returned(program, 4)
    assert_close(first, whole(2)[0])
    assert_close(second, whole(2)[0])


def test_a_stage_with_fewer_micro_batches_is_found():
    def program(rank):
        stage = PipelineStage(layers(2)[rank], rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, MICRO_BATCHES if rank == 0 else 2, loss_fn=summed)
        inputs, targets = data()
        schedule.step(inputs) if rank == 0 else schedule.step(target=targets[:4])

    # The first stage sends its third micro-batch, and the second one the gradient of its first.
    [finding] = simulate(program, 2).findings
    assert str(finding.code) == "deadlock.cycle"
    assert re.findall(r"waits in (\w+) #\d+", str(finding)) == ["send", "send"]
