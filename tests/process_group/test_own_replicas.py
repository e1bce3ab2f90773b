"""check="replicas" with our own engine: what it refuses; what is found beside what test_replicas.py finds

The healthy twins are in test_own_replicas_healthy.py.
"""

import linecache
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel
from ddpsim.ddp.errors import (
    BypassedBackwardError,
    OpenBackwardError,
    ParameterChangedError,
    ReplicaMismatchError,
    UsageError,
)

from .own_engine import TwoBranches, check, wrapped
from .training import backward, inputs, network, sgd, train

# --- what the engine refuses ------------------------------------------------------------------------------------------


def inner_module_used_for_the_loss(rank):
    model = wrapped()
    train(model, sgd(model), rank, 1, forward=model.module)


def fine_tuning_on_one_rank(rank):
    model = wrapped()
    train(model, sgd(model), rank, 1)
    if rank == 0:
        backward(model.module, rank)


def unfrozen_after_wrapping(rank):
    inner = network()
    inner[0].weight.requires_grad = False
    model = DistributedDataParallel(inner)
    inner[0].weight.requires_grad = True
    train(model, sgd(model), rank, 1)


def replaced_after_wrapping(rank):
    model = wrapped()
    model.module[1].bias = torch.nn.Parameter(torch.ones(1))
    train(model, sgd(model), rank, 1)


def second_backward(rank):
    model = wrapped()
    loss = model(inputs(rank)).pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def unused_parameters(rank):
    model = DistributedDataParallel(TwoBranches())
    train(model, sgd(model), rank, 2)


def parameters_in_another_order(rank):
    names = "ab" if rank else "ba"
    layers = {name: torch.nn.Linear(4, 4) for name in names}
    DistributedDataParallel(torch.nn.ModuleDict(layers))


def graph_that_changes(rank):
    model = DistributedDataParallel(TwoBranches(), static_graph=True)
    backward(model, rank)
    model(inputs(rank), both=True).sum().backward()


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (inner_module_used_for_the_loss, BypassedBackwardError, "the inner module was called past the wrapper"),
        (fine_tuning_on_one_rank, BypassedBackwardError, "the inner module was called past the wrapper"),
        (unfrozen_after_wrapping, ParameterChangedError, "0.weight was unfrozen"),
        (replaced_after_wrapping, ParameterChangedError, "1.bias was replaced"),
        (second_backward, BypassedBackwardError, "1.bias"),
        (unused_parameters, OpenBackwardError, "b.0.weight"),
        (parameters_in_another_order, ReplicaMismatchError, "rank 0 has b.weight"),
        (graph_that_changes, UsageError, "b."),
    ],
)
def test_refused_by_the_engine(program, error, text):
    result = simulate(program, 3, check="replicas")
    assert [type(found) for found in result.errors.values()] == [error] * len(result.errors) != []
    assert all(text in str(found) for found in result.errors.values())


# --- what is found ----------------------------------------------------------------------------------------------------


def state_loaded_on_rank_0(rank, **options):
    model = wrapped(**options)
    if rank == 0:
        model.load_state_dict({name: torch.zeros_like(each) for name, each in model.state_dict().items()})
    train(model, sgd(model), rank, 1)


def learning_rate_of_one_rank(rank):
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + (rank == 1)))
    train(model, optimizer, rank, 1)


def momentum_on_one_rank(rank):
    model = wrapped()
    train(model, sgd(model, momentum=0.9 * (rank == 2)), rank, 2)


def gradient_clipped_on_one_rank(rank):
    model = wrapped()
    optimizer = sgd(model)
    backward(model, rank)
    if rank == 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def window_off_by_one(rank):
    model = wrapped()
    optimizer = sgd(model)
    for batch in range(4):
        with nullcontext() if batch % 2 == 0 else model.no_sync():
            backward(model, rank)
        if batch % 2:
            optimizer.step()
            optimizer.zero_grad()


def only_local_gradients(rank):
    model = wrapped()
    with model.no_sync():
        train(model, sgd(model), rank, 1)


def weights_that_were_never_sent(rank):
    model = DistributedDataParallel(network(seed=int(rank == 1)), init_sync=False)
    train(model, sgd(model), rank, 1)


def buffers_that_were_never_sent(rank):
    inner = network()
    inner.register_buffer("offset", torch.tensor(float(rank == 1)))
    model = DistributedDataParallel(inner, init_sync=False, broadcast_buffers=False)
    train(model, sgd(model), rank, 1)


def second_epoch(rank):
    model = wrapped()
    optimizer = sgd(model)
    for epoch in range(2):
        with model.join():
            for batch in range(1 + (rank + epoch) % 3):
                backward(model, rank)
                if (rank, epoch, batch) == (1, 1, 0):
                    model.module[1].bias.data.fill_(2.0)
                optimizer.step()
                optimizer.zero_grad()


def second_model(rank):
    pairs = [(model, sgd(model)) for model in (wrapped(), wrapped(seed=1))]
    for step in range(2):
        for place, (model, optimizer) in enumerate(pairs):
            backward(model, rank)
            if (rank, step, place) != (1, 0, 1):
                optimizer.step()
            optimizer.zero_grad()


def evaluation_through_the_inner_module(rank):
    model = wrapped(normalised=True, broadcast_buffers=False)
    train(model, sgd(model), rank, 2)
    model.eval()
    model.module(inputs(rank))


def buffer_that_a_hook_makes_a_rank_s_own(rank):
    def shift(buffer, group):
        buffer.data.add_(rank)

    model = wrapped(normalised=True)
    model.register_buffer_comm_hook("1.running_mean", shift, when="after")
    train(model, sgd(model), rank, 1)


STEP = "optimizer.step()"
PARAMETERS, BUFFERS = "divergence.parameters", "divergence.buffers"
FOUND = {
    "state loaded, copied gradients": (
        partial(state_loaded_on_rank_0, gradient_as_bucket_view=False, find_unused_parameters=True),
        PARAMETERS,
        (0,),
        "that followed step 1 of DDP #0",
        STEP,
    ),
    "learning rate": (learning_rate_of_one_rank, PARAMETERS, (1,), "that followed step 1 of DDP #0", STEP),
    "momentum": (momentum_on_one_rank, PARAMETERS, (2,), "that followed step 2 of DDP #0", STEP),
    "clipping": (gradient_clipped_on_one_rank, PARAMETERS, (2,), "that followed step 1 of DDP #0", STEP),
    "window": (window_off_by_one, PARAMETERS, (0, 1, 2), "that followed step 1 of DDP #0", STEP),
    "only local": (only_local_gradients, PARAMETERS, (0, 1, 2), "the optimizer step since DDP #0 was made", STEP),
    "never sent": (weights_that_were_never_sent, PARAMETERS, (1,), "that followed step 1 of DDP #0", STEP),
    "buffers never sent": (buffers_that_were_never_sent, BUFFERS, (1,), "offset = 1", "model(inputs(rank))"),
    "second epoch": (second_epoch, PARAMETERS, (1,), "1.bias[0]", STEP),
    "second model": (second_model, PARAMETERS, (1,), "no optimizer step after step 1 of DDP #1", STEP),
    "inner module, nothing synchronised": (
        evaluation_through_the_inner_module,
        BUFFERS,
        (0, 1, 2),
        "in an evaluation of the inner module after step 2 of DDP #0",
        "model.module(inputs(rank))",
    ),
    "hook": (
        buffer_that_a_hook_makes_a_rank_s_own,
        BUFFERS,
        (0, 1, 2),
        "the buffer hook did not leave all ranks with the same values",
        STEP,
    ),
}


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("name", FOUND)
def test_found(name, policy):
    program, code, ranks, text, line = FOUND[name]
    codes, result = check(program, policy=policy)
    assert codes == [(code, ranks)]
    (finding,) = result.findings
    assert text in finding.text
    assert linecache.getline(finding.sites[0].path, finding.sites[0].line).strip().startswith(line)
