"""What the calls of optimizers, and of clipping by the norm of all shards, belong to."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm

from ddpsim import simulate
from tests.attribution.test_parallelism import found, parts
from tests.kit.results import codes

ZERO = "optimizer ZeroRedundancyOptimizer(Adam)"
NORM = "gradient norm Partial(2-norm) -> Replicate"


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def zero(model, kind=torch.optim.Adam):
    return ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.1)


def stepped(optimizer, model):
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_sharded_optimizer_tells_its_kind_its_step_and_that_its_state_is_collected():
    def program(rank):
        model = network()
        optimizer = zero(model)
        for _ in range(2):
            stepped(optimizer, model)
        optimizer.consolidate_state_dict(to=1)

    told = parts(program)
    assert told[:8] == [f"{ZERO} of step {step}, updated parameters" for step in (1, 2) for _ in range(4)]
    assert set(told[8:]) == {f"{ZERO}, consolidate_state_dict()"}


def test_a_step_of_another_optimizer_is_none_of_its_own():
    def program(rank):
        model, other = network(), network()
        plain = torch.optim.SGD(other.parameters(), lr=0.1)
        stepped(plain, other)
        stepped(zero(model, torch.optim.SGD), model)

    assert set(parts(program)) == {"optimizer ZeroRedundancyOptimizer(SGD) of step 1, updated parameters"}


def test_steps_of_joined_ranks_are_shadows():
    def program(rank):
        model = DistributedDataParallel(network())
        optimizer = zero(model)
        with torch.distributed.algorithms.Join([model, optimizer]):
            for _ in range(1 + rank):
                stepped(optimizer, model)

    result = simulate(program, 2)
    result.raise_for_verdict()
    last = [event.call.origin for event in result.trace if event.call and event.call.operation == "broadcast"]
    of_step = [origin for origin in last if f"{ZERO} of step 2" in str(origin)]
    assert {origin.shadow for origin in of_step} == {True, False}


def test_an_optimizer_that_averages_tells_the_step_it_counts_itself():
    def program(rank):
        model = network()
        averager = PeriodicModelAverager(period=2, warmup_steps=1)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
        for _ in range(4):
            stepped(optimizer, model)

    own = "optimizer PostLocalSGDOptimizer(SGD) of step {}, average of parameters"
    assert parts(program) == [own.format(2), own.format(4)]


def average_of_own_count(rank):
    model = DistributedDataParallel(network())
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    averager.step = int(rank == 1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    for _ in range(3):
        stepped(optimizer, model)


def skipped_before_ddp(rank):
    model = DistributedDataParallel(network())
    optimizer = zero(model)
    for step in range(3):
        model(torch.ones(2, 2)).sum().backward()
        if (rank, step) != (1, 1):
            optimizer.step()


def skipped(rank):
    model = network()
    optimizer = zero(model)
    for step in range(2):
        model(torch.ones(2, 2)).sum().backward()
        if (rank, step) != (1, 0):
            optimizer.step()


def stepped_on(rank, ranks):
    model = network()
    optimizer = zero(model)
    if rank in ranks:
        stepped(optimizer, model)


def other_parameters(rank):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3 if rank == 1 else 2))
    stepped(zero(model), model)


def state_on_one_rank(rank):
    optimizer = zero(network())
    if rank == 1:
        optimizer.consolidate_state_dict(to=1)
    dist.barrier()


def state_in_the_middle(rank):
    model = network()
    optimizer = zero(model)
    if rank == 1:
        optimizer.consolidate_state_dict(to=1)
    stepped(optimizer, model)


def sharded():
    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    return fully_shard(model, mesh=mesh)


def backward(model):
    model(torch.ones(2, 2)).sum().backward()


def test_the_norm_of_shards_tells_what_it_is_for_and_so_does_the_largest_of_all_gradients():
    def program(rank):
        model = sharded()
        backward(model)
        clip_grad_norm_(model.parameters(), 1.0)
        get_total_norm([parameter.grad for parameter in model.parameters()]).full_tensor()
        clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))

    assert [each for each in parts(program) if "FSDP" not in each] == [
        f'{NORM}, on "dp", for clip_grad_norm_',
        f'{NORM}, on "dp", for get_total_norm',
        'gradient norm Partial(max) -> Replicate, on "dp", for clip_grad_norm_',
    ]


def not_clipped(rank):
    model = sharded()
    for step in range(2):
        backward(model)
        if (rank, step) != (1, 0):
            clip_grad_norm_(model.parameters(), 1.0)


def clipped_on(rank, ranks):
    model = sharded()
    backward(model)
    if rank in ranks:
        clip_grad_norm_(model.parameters(), 1.0)


def of_fewer_gradients(rank):
    model = sharded()
    backward(model)
    clip_grad_norm_(list(model.parameters())[rank == 1 :], 1.0)


CASES = [
    (average_of_own_count, "mismatch.origin", "ranks 0, 2 made all_reduce while the others step an"),
    (skipped_before_ddp, "mismatch.operation", "rank 1 made all_reduce while the others step an"),
    (skipped, "deadlock.missing_rank", "rank 1 ran fewer optimizer steps than the others"),
    (partial(stepped_on, ranks=(0, 2)), "deadlock.missing_rank", "rank 1 ran fewer optimizer steps than the others"),
    (
        partial(stepped_on, ranks=(1,)),
        "deadlock.missing_rank",
        "rank 1 alone stepped the optimizer, or collected its state",
    ),
    (other_parameters, "mismatch.shape", "rank 1 has given the optimizer other parameters"),
    (state_on_one_rank, "mismatch.operation", "collecting the state of a sharded optimizer needs every"),
    (state_in_the_middle, "mismatch.dtype", "rank 1 took another branch"),
    (not_clipped, "mismatch.operation", "rank 1 made all_gather_into_tensor while the others sum the"),
    (partial(clipped_on, ranks=(0, 2)), "deadlock.missing_rank", "rank 1 did not clip"),
    (partial(clipped_on, ranks=(1,)), "deadlock.missing_rank", "rank 1 alone clipped"),
    (of_fewer_gradients, "mismatch.shape", "rank 1 has gradients for fewer, more or other parameters"),
]


@pytest.mark.parametrize(("program", "code", "cause"), CASES)
def test_what_a_rank_steps_or_clips_otherwise_is_found(program, code, cause):
    told, text = found(program, 3)
    assert told == [(code, (1,))]
    assert text.startswith(cause)


def test_ranks_that_all_clip_are_not_blamed():
    def program(rank):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            backward(model)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    assert codes(simulate(program, 3)) == []
