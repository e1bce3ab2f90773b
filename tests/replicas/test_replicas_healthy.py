"""check="replicas": trainings of every kind are healthy, and have no findings; with torch's engine and with ours."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.ddp.errors import ReplicaMismatchError
from tests.kit import small_training as training
from tests.kit.small_training import backward, inputs, network, sgd, train, wrap, wrapped
from tests.replicas.replica_checks import TwoBranches, check

pytestmark = pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")


def plain(rank, *, normalised=True, to_none=True, make_optimizer=sgd, **options):
    model = wrapped(normalised=normalised, **options)
    optimizer = make_optimizer(model)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        backward(model, rank)
        optimizer.step()


def windows(rank, *, batches=5, **options):
    """Windows of two batches; the last may be short."""
    model = wrapped(normalised=True, **options)
    optimizer = sgd(model)
    for batch in range(batches):
        closes = batch % 2 == 1 or batch == batches - 1
        with nullcontext() if closes else model.no_sync():
            backward(model, rank)
        if closes:
            optimizer.step()
            model.zero_grad()


def windows_that_are_reduced_twice(rank):
    model = wrapped()
    optimizer = sgd(model)
    for batch in range(4):
        backward(model, rank)
        if batch % 2:
            optimizer.step()
            optimizer.zero_grad()


def epochs_with_uneven_inputs(rank, *, together=True, **options):
    model = wrapped(normalised=True, **options)
    optimizer = sgd(model)
    for epoch in range(4):
        with model.join(divide_by_initial_world_size=together):
            for _ in range((rank + epoch) % 3):
                optimizer.zero_grad()
                backward(model, rank)
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    model(inputs(rank))
                model.train()
        if epoch == 1:
            train(model, optimizer, rank, 2)


def windows_inside_a_join(rank):
    model = wrapped()
    optimizer = sgd(model)
    for epoch in range(3):
        with model.join():
            for batch in range(2 * ((rank + epoch) % 3)):
                with model.no_sync() if batch % 2 == 0 else nullcontext():
                    backward(model, rank)
                if batch % 2:
                    optimizer.step()
                    optimizer.zero_grad()


def evaluation_of_averaged_buffers(rank):
    model = wrapped(normalised=True, broadcast_buffers=False)
    train(model, sgd(model), rank, 2)
    for name, buffer in model.named_buffers():
        if "running" in name:
            dist.all_reduce(buffer)
    model.eval()(inputs(rank))


def evaluation_in_between(rank, *, guard=torch.no_grad, on=None):
    """`on`: the rank that evaluates, without the others; so nothing may be synchronised there."""
    model = wrapped(normalised=on is None)
    optimizer = sgd(model)
    for _ in range(3):
        train(model.train(), optimizer, rank, 1)
        model.eval()
        if on in (None, rank):
            with guard():
                model(inputs(rank))


def copies_that_only_evaluate(rank):
    """A copy on one rank is no wrapper that the others have to make, too."""
    models = [wrapped()]
    average = copy.deepcopy(models[0]).eval() if rank == 1 else None
    models.append(wrapped(seed=1))
    for model in models:
        train(model, sgd(model), rank, 2)
        if average is not None:
            with torch.no_grad():
                average(inputs(rank))


def wrapped_again_after_a_failure(rank):
    """The wrapper that could not be constructed lives on in the exception."""
    inner = network()
    inner[0].weight.requires_grad = rank != 1
    with pytest.raises(ReplicaMismatchError) as failure:
        wrap(inner)
    inner[0].weight.requires_grad = True
    model = wrap(inner)
    train(model, sgd(model), rank, 2)
    assert failure.value.__traceback__ is not None


def branches(rank, **options):
    model = wrap(TwoBranches(), **options)
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        model(inputs(rank), both="static_graph" not in options and step == rank).pow(2).sum().backward()
        optimizer.step()


def frozen_in_turns(rank):
    """As a GAN does: all parameters of one model are frozen while the other trains."""
    models = [wrapped(), wrapped(seed=1)]
    optimizers = [sgd(model) for model in models]
    for step in range(4):
        first, second = models[step % 2], models[1 - step % 2]
        second.requires_grad_(False)
        (first(inputs(rank)) + second(inputs(rank))).pow(2).sum().backward()
        optimizers[step % 2].step()
        first.zero_grad()
        second.requires_grad_(True)


def steps_in_the_backward(rank):
    model = wrapped()
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.step(lambda: backward(model, rank) or optimizer.zero_grad())


def buffers_of_every_kind(rank):
    """Those that are even are compared where they are; one that is a rank's own never is."""
    inner = network(normalised=True)
    inner.register_buffer("own", torch.tensor(float(rank)))
    model = wrap(inner)
    model.register_buffer_comm_hook("own", "none")
    model.register_buffer_comm_hook("1.running_mean", "mean", when="after")
    model.register_buffer_comm_hook("1.running_var", lambda buffer, group: dist.all_reduce(buffer.data, group=group))
    inner.own.fill_(float(rank))
    train(model, sgd(model), rank, 2)
    for name in ("1.running_var", "1.num_batches_tracked"):
        dist.broadcast(model.module.get_buffer(name), 0)
    model.eval()
    model.module(inputs(rank))


def a_buffer_of_the_ranks_own_that_nothing_sends(rank):
    inner = network()
    inner.register_buffer("own", torch.tensor(float(rank)))
    model = wrap(inner, broadcast_buffers=False)
    model.register_buffer_comm_hook("own", "none")
    train(model, sgd(model), rank, 1)


def sparse_gradients_with_momentum(rank):
    table = torch.nn.Embedding(4, 2, sparse=True)
    model = wrap(table)
    optimizer = sgd(model, momentum=0.9)
    for step in range(2):
        optimizer.zero_grad()
        model(torch.tensor([rank % 4, step])).pow(2).sum().backward()
        optimizer.step()


def batch_norm_after_a_trial_of_the_inner_module(rank, **options):
    model = wrapped(normalised=True, **options)
    with torch.no_grad():
        model.module(inputs(rank))
    train(model, sgd(model), rank, 1)


def evaluation_on_one_rank(rank):
    model = wrapped(normalised=True)
    for _ in range(2):
        train(model.train(), sgd(model), rank, 2)
        model.eval()
        if rank == 1:
            model.module(inputs(rank))


def steps_of_one_rank_that_are_broadcast(rank):
    model = wrapped()
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer, rank, 1, skips=lambda step: rank != 0)
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)


def lbfgs(rank):
    model = wrapped()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)

    def loss():
        optimizer.zero_grad()
        found = model(inputs(rank)).pow(2).sum()
        found.backward()
        return found

    for _ in range(2):
        optimizer.step(loss)


def an_ignored_parameter(rank):
    inner = network()
    inner[0].register_parameter("own", torch.nn.Parameter(torch.tensor(float(rank))))
    TorchEngine._set_params_and_buffers_to_ignore_for_model(inner, ["0.own"])
    model = wrap(inner)
    train(model, sgd(model), rank, 2)


def losses_that_are_not_numbers(rank):
    model = wrapped()
    optimizer = sgd(model)
    (model(inputs(rank)) * float("nan")).sum().backward()
    optimizer.step()


def join_and_go_on(rank):
    model = wrapped(normalised=True)
    optimizer = sgd(model, momentum=0.9)
    for epoch in range(3):
        with model.join():
            train(model, optimizer, rank, 1 + rank * (epoch % 2))
        optimizer.state.clear()  # momentum of ranks that ran out is stale
    train(model, optimizer, rank, 2)


WITH_BOTH = [
    plain,
    partial(plain, gradient_as_bucket_view=True, bucket_cap_mb=1e-5),
    partial(plain, gradient_as_bucket_view=False, to_none=False),
    partial(plain, to_none=False, broadcast_buffers=False),
    partial(plain, find_unused_parameters=True, make_optimizer=lambda model: torch.optim.Adam(model.parameters())),
    partial(plain, static_graph=True, make_optimizer=partial(sgd, momentum=0.9)),
    partial(plain, normalised=False, init_sync=False),
    windows,
    partial(windows, batches=2, broadcast_buffers=False),
    join_and_go_on,
    windows_that_are_reduced_twice,
    windows_inside_a_join,
    evaluation_of_averaged_buffers,
    evaluation_in_between,
    partial(evaluation_in_between, guard=nullcontext, on=1),
    partial(branches, find_unused_parameters=True),
    partial(branches, static_graph=True),
    frozen_in_turns,
    steps_in_the_backward,
    sparse_gradients_with_momentum,
    batch_norm_after_a_trial_of_the_inner_module,
    partial(batch_norm_after_a_trial_of_the_inner_module, broadcast_buffers=False),
    evaluation_on_one_rank,
    steps_of_one_rank_that_are_broadcast,
    lbfgs,
    an_ignored_parameter,
    losses_that_are_not_numbers,
]
WITH_OURS = [
    partial(windows, batches=4, gradient_as_bucket_view=False, broadcast_buffers=False),
    epochs_with_uneven_inputs,
    partial(epochs_with_uneven_inputs, together=False, static_graph=True),
    partial(epochs_with_uneven_inputs, find_unused_parameters=True, bucket_cap_mb=1e-5),
    copies_that_only_evaluate,
    wrapped_again_after_a_failure,
    buffers_of_every_kind,
    a_buffer_of_the_ranks_own_that_nothing_sends,
]
RUNS = [
    *(pytest.param(TorchEngine, program, id=f"torch-{place}") for place, program in enumerate(WITH_BOTH)),
    *(pytest.param(OwnEngine, program, id=f"ddp-{place}") for place, program in enumerate([*WITH_BOTH, *WITH_OURS])),
]


@pytest.mark.parametrize(
    ("world_size", "policy"),
    [
        (3, "random"),
        pytest.param(2, "round_robin", marks=pytest.mark.tier("nightly")),
        pytest.param(4, "random", marks=pytest.mark.tier("nightly")),
    ],
)
@pytest.mark.parametrize(("engine", "program"), RUNS)
def test_healthy_training(monkeypatch, engine, program, world_size, policy):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    assert check(program, world_size, policy=policy)[0] == []
