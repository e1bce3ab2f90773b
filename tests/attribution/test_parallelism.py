"""What calls of FSDP2, pipelines, DTensors and checkpoints belong to, read from torch's own objects."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ddpsim import simulate
from ddpsim.simulator.attribution import parallelism
from ddpsim.simulator.events import EventKind
from tests.kit.results import codes


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x, left_out=None):
        for index, block in enumerate(self.blocks):
            x = x if index == left_out else block(x)
        return x


def sharded():
    model = Blocks()
    for block in model.blocks:
        fully_shard(block, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def origins(result, rank=0, *, operations=()):
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.rank == rank]
    return [str(call.origin) for call in calls if not operations or call.operation in operations]


def parts(program, world_size=2, rank=0):
    result = simulate(program, world_size)
    result.raise_for_verdict()
    return [each for each in origins(result, rank) if each != "the user's program"]


def found(program, world_size=2):
    result = simulate(program, world_size)
    cause = [line.text for line in result.findings[0].lines if not isinstance(line, str) and line.label == "cause"]
    return codes(result), cause[0]


def test_a_unit_tells_its_name_its_phase_and_the_step():
    def program(rank):
        model, optimizer = sharded()
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    told = parts(program)
    assert told[:6] == [
        'FSDP unit "blocks.0" of step 1, all-gather before forward',
        'FSDP unit "blocks.1" of step 1, all-gather before forward',
        'FSDP unit "blocks.1" of step 1, all-gather before backward',
        'FSDP unit "blocks.0" of step 1, all-gather before backward',
        'FSDP unit "blocks.1" of step 1, reduce-scatter',
        'FSDP unit "blocks.0" of step 1, reduce-scatter',
    ]
    assert told[6:] == [each.replace("step 1", "step 2") for each in told[:6]]


def test_the_replicas_of_a_unit_are_reduced_over_their_own_group():
    def program(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = fully_shard(nn.Linear(4, 4), mesh=mesh)
        model(torch.ones(2, 4)).sum().backward()

    result = simulate(program, 4)
    result.raise_for_verdict()
    assert origins(result, operations=["all_reduce"]) == ["FSDP root unit of step 1, all-reduce"]


def test_an_optimizer_of_something_else_tells_no_step():
    def program(rank):
        model, _ = sharded()
        other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        other.step()
        model(torch.ones(2, 4))

    assert parts(program)[0] == 'FSDP unit "blocks.0", all-gather before forward'


def skipped_unit(rank):
    model, _ = sharded()
    model(torch.ones(2, 4), 0 if rank == 1 else None).sum().backward()


def skipped_step(rank):
    model, optimizer = sharded()
    for step in range(2):
        model(torch.ones(2, 4)).sum().backward()
        if (rank, step) != (1, 0):
            optimizer.step()


def evaluated_alone(rank):
    model, _ = sharded()
    if rank == 0:
        model(torch.ones(2, 4))
    dist.barrier()


def fewer_batches(rank):
    model, _ = sharded()
    for _ in range(2 - rank):
        model(torch.ones(2, 4)).sum().backward()


def used_otherwise(rank):
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(Blocks(), mesh=mesh)
    model(torch.ones(2, 4), 0 if rank == 1 else None).sum().backward()


def alone_with_a_unit(rank):
    model, _ = sharded()
    if rank == 2:
        model(torch.ones(2, 4))


def redistributed_otherwise(rank):
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("tp",))
    shard = DTensor.from_local(torch.ones(4, 4), mesh, [Shard(1 if rank == 2 else 0)])
    shard.full_tensor()


def parts_of_unlike_shapes(rank):
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("tp",))
    DTensor.from_local(torch.ones(4 + (rank == 2), 4), mesh, [Shard(0)]).full_tensor()


def summed_in_a_branch(rank):
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    whole = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    if rank == 0:
        whole.sum().full_tensor()
    dist.barrier()


def test_a_redistribution_tells_its_placements_its_dimension_and_its_operation():
    def program(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        whole = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        whole.redistribute(mesh, [Replicate()])
        whole.sum().full_tensor()
        whole.redistribute(mesh, [Shard(1)])
        nameless = init_device_mesh("cpu", (2,))
        torch.exp(distribute_tensor(torch.ones(4), nameless, [Shard(0)]).sum())

    assert parts(program) == [
        'DTensor scatter of shards, on "tp"',
        'DTensor Shard(0) -> Replicate, on "tp"',
        'DTensor Partial(sum) -> Replicate, on "tp", for full_tensor',
        'DTensor Shard(0) -> Shard(1), on "tp"',
        "DTensor scatter of shards",
        "DTensor Partial(sum) -> Replicate, for exp",
    ]


def stage(index, count):
    torch.manual_seed(index)
    return PipelineStage(nn.Linear(4, 4), index, count, torch.device("cpu"))


def step(schedule, rank, last, batches=2):
    x = torch.ones(2 * batches, 4)
    schedule.step(*[x] * (rank == 0), **({"target": x, "losses": []} if rank == last else {}))


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
def test_a_message_tells_its_micro_batch_and_its_stages(kind):
    def program(rank):
        step(kind(stage(rank, 2), n_microbatches=2, loss_fn=nn.functional.mse_loss), rank, last=1)

    sent = [f"pipeline activations of micro-batch {index}, stage 0 to stage 1" for index in range(2)]
    back = [f"pipeline gradients of micro-batch {index}, stage 1 to stage 0" for index in range(2)]
    for rank in range(2):
        told = [each for each in parts(program, rank=rank) if "micro-batch" in each]
        assert sorted(told) == sorted(sent + back)


def test_stages_that_share_a_rank_are_told_apart():
    def program(rank):
        stages = [stage(index, 4) for index in (rank, rank + 2)]
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        step(schedule, rank, last=1)

    told = parts(program, rank=1)
    assert "pipeline activations of micro-batch 1, stage 1 to stage 2" in told
    assert "pipeline gradients of micro-batch 0, stage 3 to stage 2" in told


def received_for_another_micro_batch(rank):
    own = stage(rank, 2)
    schedule = ScheduleGPipe(own, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    if rank == 1:
        taken = own.get_fwd_recv_ops
        own.get_fwd_recv_ops = lambda batch: taken(1 - batch)
    step(schedule, rank, last=1)


def scheduled_otherwise(rank):
    kind = Schedule1F1B if rank == 1 else ScheduleGPipe
    step(kind(stage(rank, 3), n_microbatches=4, loss_fn=nn.functional.mse_loss), rank, last=2, batches=4)


def fewer_steps_of_a_stage(rank):
    schedule = ScheduleGPipe(stage(rank, 2), n_microbatches=2, loss_fn=nn.functional.mse_loss)
    for _ in range(2 - rank):
        step(schedule, rank, last=1)


@pytest.mark.parametrize(
    ("program", "world_size", "code", "ranks", "cause"),
    [
        (skipped_unit, 2, "mismatch.origin", (0, 1), "some ranks reached another unit"),
        (skipped_step, 2, "mismatch.origin", (0, 1), "on some ranks the optimizer has updated this unit"),
        (evaluated_alone, 2, "mismatch.operation", (0, 1), "rank 1 made barrier while the others were"),
        (fewer_batches, 2, "deadlock.missing_rank", (1,), "rank 1 ran out of input"),
        (used_otherwise, 2, "mismatch.shape", (0, 1), "rank 1 has no gradient for blocks.0.weight, blocks.0.bias"),
        (alone_with_a_unit, 4, "deadlock.missing_rank", (2,), "rank 2 ran a forward or backward through FSDP units"),
        (redistributed_otherwise, 3, "mismatch.origin", (2,), "on rank 2 the DTensor has other placements"),
        (parts_of_unlike_shapes, 3, "mismatch.shape", (2,), "the ranks gather parts of unlike shapes"),
        (
            summed_in_a_branch,
            2,
            "mismatch.operation",
            (0, 1),
            "rank 1 made barrier while the others redistribute a DTensor",
        ),
        (
            received_for_another_micro_batch,
            2,
            "mismatch.origin",
            (0, 1),
            "activations of micro-batch 0, stage 0 to stage 1, is received as "
            "activations of micro-batch 1, stage 0 to stage 1",
        ),
        (
            scheduled_otherwise,
            3,
            "deadlock.cycle",
            (1, 2),
            "the stages of the cycle send and receive in orders that do not fit together",
        ),
        (fewer_steps_of_a_stage, 2, "deadlock.missing_rank", (1,), "rank 1 ran fewer steps of the schedule"),
    ],
)
def test_what_a_rank_does_otherwise_is_found(program, world_size, code, ranks, cause):
    told, text = found(program, world_size)
    assert told == [(code, ranks)]
    assert text.startswith(cause)


GREETS = """
def {name}(received, peers):
    return [dist.P2POp(dist.irecv, received, peer) for peer in peers]
"""


@pytest.mark.parametrize(
    ("name", "told"), [("_get_init_p2p_neighbors_ops", []), ("_get_other_ops", ["hazard.tensor_in_flight"])]
)
def test_neighbours_that_greet_each_other_may_share_a_tensor(name, told):
    """As those of torch 2.11 do: nobody reads what is received, and no program can help it."""
    stage = {"__name__": "torch.distributed.pipelining.stage", "dist": dist}
    exec(GREETS.format(name=name), stage)

    def program(rank):
        if rank != 1:
            return dist.send(torch.ones(1), 1)
        for work in dist.batch_isend_irecv(stage[name](torch.zeros(1), (0, 2))):
            work.wait()

    result = simulate(program, 3)
    assert [finding.code.value for finding in result.findings] == told
    of_ranks = [origins(result, 1), *(origins(result, rank) for rank in (0, 2))]
    if not told:
        assert of_ranks == [["pipeline greeting"] * 2, ["the user's program"], ["the user's program"]]


def test_every_message_of_a_pipeline_is_told():
    def program(rank):
        step(ScheduleGPipe(stage(rank, 3), n_microbatches=2, loss_fn=nn.functional.mse_loss), rank, last=2)

    for rank in range(3):
        result = simulate(program, 3)
        sent = origins(result, rank, operations=("send", "recv"))
        assert len(sent) > 4
        assert "the user's program" not in sent


def test_what_a_torch_does_not_tell_is_left_out(monkeypatch):
    monkeypatch.setattr(parallelism, "_STAGE", "torch.somewhere.else")

    def program(rank):
        step(ScheduleGPipe(stage(rank, 2), n_microbatches=2, loss_fn=nn.functional.mse_loss), rank, last=1)

    assert not [each for each in parts(program) if "micro-batch" in each]


def test_a_placement_without_its_usual_attributes_is_printed_as_it_is():
    class Ragged:
        def __str__(self):
            return "ragged"

    assert parallelism._placement_text(Ragged()) == "ragged"


def notes(program, world_size=2, rank=0):
    result = simulate(program, world_size)
    result.raise_for_verdict()
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.rank == rank]
    return [call.origin.part.note for call in calls if call.origin.part is not None and call.origin.part.note]


def test_a_redistribution_tells_the_layer_that_is_split():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(4, 4), "down": nn.Linear(4, 4)}) for _ in "ab")

        def forward(self, x):
            for block in self.blocks:
                x = block["down"](block["up"](x))
            return x

    def program(rank):
        model = Mlp()
        plan = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)
        model(torch.ones(2, 4))
        model.blocks[0]["down"](torch.ones(2, 2))  # called by itself, it has no name

    assert [each.partition(" (")[0] for each in notes(program)] == [
        'outputs of layer "blocks.0.down"',
        'outputs of layer "blocks.1.down"',
    ]


@pytest.mark.parametrize("kind", [Schedule1F1B, ScheduleInterleaved1F1B])
def test_a_message_tells_schedule_and_action(kind):
    def program(rank):
        is_looped = kind is ScheduleInterleaved1F1B
        numbers = (rank, rank + 2) if is_looped else (rank,)
        stages = [PipelineStage(nn.Linear(2, 2), each, 2 * len(numbers), torch.device("cpu")) for each in numbers]
        schedule = kind(stages if is_looped else stages[0], 2, loss_fn=nn.functional.mse_loss)
        batch = torch.ones(4, 2)
        schedule.step(*([batch] if rank == 0 else []), **({"target": batch, "losses": []} if rank else {}))

    found = notes(program)
    if kind is Schedule1F1B:
        whens = ["after its forward"] * 2 + ["before its backward"] * 2
        assert sorted(found) == [f"{when}, Schedule1F1B" for when in whens]
    else:
        name = "ScheduleInterleaved1F1B"
        assert f"after its forward, {name} action 0SEND_F0" in found
        assert f"before its forward, {name} action 2RECV_F0" in found
