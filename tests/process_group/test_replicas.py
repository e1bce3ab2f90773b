"""check="replicas": what makes replicas differ is found at the first step, at its line; with torch's engine and ours.

What ours refuses itself is at the end. Healthy training is in test_replicas_healthy.py.
"""

import copy
import io
import linecache
import pickle
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchEngine
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from ddpsim.ddp.errors import (
    BypassedBackwardError,
    OpenBackwardError,
    ParameterChangedError,
    ReplicaMismatchError,
    UsageError,
)

from . import training
from .replica_checks import TwoBranches, check
from .training import backward, inputs, network, sgd, train, wrap, wrapped

pytestmark = pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")

TORCH, OURS = TorchEngine, OwnEngine
BOTH = (TORCH, OURS)


# --- programs whose replicas differ -----------------------------------------------------------------------------------


def skips_a_step(rank, *, at, steps):
    model = wrapped()
    optimizer = sgd(model)
    for step in range(steps):
        backward(model, rank)
        if rank != 1:
            optimizer.step()
        elif step != at:
            optimizer.step()  # the culprit's
        optimizer.zero_grad()


def fine_tuning(rank, *, restores):
    model = wrapped()
    optimizer = sgd(model)
    train(model, optimizer, rank, 2)
    if rank == 0:
        state = copy.deepcopy(model.state_dict())
        train(model, optimizer, rank, 2, forward=model.module)
        if restores:
            model.load_state_dict(state)


def two_optimizers_of_one_model(rank, *, changes_alone=None):
    model = wrapped()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model.module]
    for _ in range(3):
        train(model, optimizers[rank % 2], rank, 1)
        optimizers[1 - rank % 2].step()
        if changes_alone == rank:
            model.module[1].bias.data.fill_(2.0)


def parameter_of_no_optimizer(rank):
    model = wrapped()
    model.module[1].bias.data.fill_(float(rank == 2))
    train(model, torch.optim.SGD(model.module[0].parameters(), lr=0.1), rank, 1)


def unfrozen_after_wrapping(rank):
    inner = network()
    inner[0].weight.requires_grad = False
    model = wrap(inner)
    inner[0].weight.requires_grad = True
    train(model, sgd(model), rank, 2)


def inner_module_used_for_the_loss(rank):
    model = wrapped()
    train(model, sgd(model), rank, 2, forward=model.module)


def state_loaded_on_rank_0(rank, **options):
    model = wrapped(**options)
    if rank == 0:
        model.load_state_dict({name: torch.zeros_like(each) for name, each in model.state_dict().items()})
    train(model, sgd(model), rank, 1)


def learning_rate_of_one_rank(rank):
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + (rank == 1)))
    train(model, optimizer, rank, 1)


def momentum_loaded_on_one_rank(rank):
    model = wrapped()
    optimizer = sgd(model, momentum=0.9)
    if rank == 2:
        optimizer.state[model.module[0].weight]["momentum_buffer"] = torch.ones(4, 4)
    train(model, optimizer, rank, 2)


def optimizer_state_alone(rank):
    model = wrapped()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    train(model, optimizer, rank, 1)
    if rank == 1:
        optimizer.state[model.module[0].bias]["exp_avg"].add_(1)
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


def accumulation(rank, *, last_is_synchronised):
    model = wrapped()
    optimizer = sgd(model)
    for batch in range(3):
        if batch == 0 or (batch == 2 and not last_is_synchronised):
            with model.no_sync():
                backward(model, rank)
        else:
            backward(model, rank)
        if batch:
            optimizer.step()
            optimizer.zero_grad()


def window_off_by_one(rank, **options):
    model = wrapped(**options)
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
    model = wrap(network(seed=int(rank == 1)), init_sync=False)
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
        for index, (model, optimizer) in enumerate(pairs):
            backward(model, rank)
            if (rank, step, index) != (1, 0, 1):
                optimizer.step()
            optimizer.zero_grad()


def unused_parameters(rank, *, steps):
    model = wrap(TwoBranches())
    train(model, sgd(model), rank, steps)


class Layers(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, torch.nn.Linear(4, 4, bias=False))

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def parameters_in_another_order(rank):
    model = wrap(Layers("ab" if rank else "ba"))
    train(model, sgd(model), rank, 1)


def buffers_that_nothing_synchronises(rank, *, accumulates, **options):
    inner = network()
    inner.register_buffer("offset", torch.tensor(float(rank == 1)))
    model = wrap(inner, broadcast_buffers=False, **options)
    if accumulates:
        with model.no_sync():
            backward(model, rank)
    train(model, sgd(model), rank, 1)


def evaluation(rank, *, through_wrapper, **options):
    model = wrapped(normalised=True, **options)
    train(model, sgd(model), rank, 2)
    model.eval()
    with torch.no_grad():
        (model if through_wrapper else model.module)(inputs(rank))


def average_buffers(state, buffers):
    for name, buffer in buffers.items():
        if buffer.is_floating_point() and state not in name:
            dist.all_reduce(buffer, op=dist.ReduceOp.AVG)


def hooked(rank, *, leaves_out):
    model = wrapped(normalised=True)
    model._register_buffer_comm_hook(leaves_out, average_buffers, _BufferCommHookLocation.POST_FORWARD)
    train(model, sgd(model), rank, 2)


def buffer_that_a_hook_makes_a_rank_s_own(rank):
    def shift(buffer, group):
        buffer.data.add_(rank)

    model = wrapped(normalised=True)
    model.register_buffer_comm_hook("1.running_mean", shift, when="after")
    train(model, sgd(model), rank, 1)


STEP, CULPRITS_STEP = "optimizer.step()", "optimizer.step()  # the culprit's"
PARAMETERS, BUFFERS = "divergence.parameters", "divergence.buffers"
ALL = (0, 1, 2)
FIRST = "after the optimizer step that followed step 1 of DDP #0"
BIAS = "1.bias[0] = "
LEFT_OUT = "rank 1 made no optimizer step after step 2 of DDP #0, and"
INNER = "(model if through_wrapper else model.module)(inputs(rank))"

# The engines, the program, what is found on which ranks, what the text says, and the first line that it names.
FOUND = {
    "a step left out": (
        BOTH,
        partial(skips_a_step, at=1, steps=3),
        PARAMETERS,
        (1,),
        f"{LEFT_OUT} the others did",
        CULPRITS_STEP,
    ),
    "the last step left out": (
        BOTH,
        partial(skips_a_step, at=1, steps=2),
        PARAMETERS,
        (1,),
        f"{LEFT_OUT} ranks 0, 2 did",
        CULPRITS_STEP,
    ),
    "fine-tuning": (
        (TORCH,),
        partial(fine_tuning, restores=False),
        PARAMETERS,
        (1, 2),
        "ranks 1, 2 made no optimizer step after step 2 of DDP #0, and rank 0 did",
        STEP,
    ),
    "one of two optimizers": (
        BOTH,
        partial(two_optimizers_of_one_model, changes_alone=1),
        PARAMETERS,
        (1,),
        BIAS,
        STEP,
    ),
    "in no optimizer": (BOTH, parameter_of_no_optimizer, PARAMETERS, (2,), "1.bias[0] = 1", STEP),
    "unfrozen": ((TORCH,), unfrozen_after_wrapping, PARAMETERS, ALL, "0.weight is in no bucket", STEP),
    "inner module": (
        (TORCH,),
        inner_module_used_for_the_loss,
        PARAMETERS,
        ALL,
        "no synchronising forward went through the wrapper",
        STEP,
    ),
    "state loaded": (BOTH, state_loaded_on_rank_0, PARAMETERS, (0,), FIRST, STEP),
    "state loaded, copied gradients": (
        BOTH,
        partial(state_loaded_on_rank_0, gradient_as_bucket_view=False, find_unused_parameters=True),
        PARAMETERS,
        (0,),
        FIRST,
        STEP,
    ),
    "learning rate": (BOTH, learning_rate_of_one_rank, PARAMETERS, (1,), FIRST, STEP),
    "momentum loaded": (BOTH, momentum_loaded_on_one_rank, PARAMETERS, (2,), FIRST, STEP),
    "optimizer state": (BOTH, optimizer_state_alone, PARAMETERS, (1,), "exp_avg of 0.bias[0]", STEP),
    "momentum": (BOTH, momentum_on_one_rank, PARAMETERS, (2,), "that followed step 2 of DDP #0", STEP),
    "clipping": (BOTH, gradient_clipped_on_one_rank, PARAMETERS, (2,), FIRST, STEP),
    "a window not synchronised": (
        BOTH,
        partial(accumulation, last_is_synchronised=False),
        PARAMETERS,
        ALL,
        "no synchronising forward preceded this optimizer step",
        STEP,
    ),
    "a window off by one": (BOTH, window_off_by_one, PARAMETERS, ALL, FIRST, STEP),
    "only local": (BOTH, only_local_gradients, PARAMETERS, ALL, "the optimizer step since DDP #0 was made", STEP),
    "never sent": (BOTH, weights_that_were_never_sent, PARAMETERS, (1,), FIRST, STEP),
    "second epoch": (BOTH, second_epoch, PARAMETERS, (1,), BIAS, STEP),
    "second model": (BOTH, second_model, PARAMETERS, (1,), "no optimizer step after step 1 of DDP #1", STEP),
    "a bucket not reduced": (
        BOTH,
        partial(unused_parameters, steps=1),
        PARAMETERS,
        ALL,
        "not reduced in this step",
        STEP,
    ),
    "names": ((TORCH,), parameters_in_another_order, PARAMETERS, (0,), "name of tensor 0 = b.weight", STEP),
    **{
        f"buffers, {options}": (
            BOTH,
            partial(buffers_that_nothing_synchronises, **options),
            BUFFERS,
            (1,),
            "offset = 1",
            "model(inputs(rank))",
        )
        for options in ({"accumulates": False}, {"accumulates": True}, {"accumulates": False, "init_sync": False})
    },
    **{
        f"running statistics, {options}": (
            BOTH,
            partial(evaluation, through_wrapper=False, **options),
            BUFFERS,
            ALL,
            "in an evaluation of the inner module after step 2 of DDP #0",
            INNER,
        )
        for options in ({}, {"broadcast_buffers": False})
    },
    "buffer hook": (
        (TORCH,),
        partial(hooked, leaves_out="mean"),
        BUFFERS,
        ALL,
        "the buffer hook did not leave all ranks with the same values",
        STEP,
    ),
    "buffer hook, ours": (
        (OURS,),
        buffer_that_a_hook_makes_a_rank_s_own,
        BUFFERS,
        ALL,
        "the buffer hook did not leave all ranks with the same values",
        STEP,
    ),
}


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for name, (engines, *_) in FOUND.items() for engine in engines],
    ids=lambda value: value if isinstance(value, str) else {TORCH: "torch", OURS: "ddp"}[value],
)
def test_found(monkeypatch, engine, name, policy):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    _, program, code, ranks, text, line = FOUND[name]
    codes, result = check(program, policy=policy)
    assert codes == [(code, ranks)]
    (finding,) = result.findings
    assert text in finding.text
    assert linecache.getline(finding.sites[0].path, finding.sites[0].line).strip().startswith(line)
    assert all(f"{site.file}:{site.line}" in finding.text for site in finding.sites)


def test_equal_ranks_have_equal_values_in_the_text():
    _, result = check(state_loaded_on_rank_0)
    values = [
        line.partition(" = ")[2] for line in str(result).splitlines() if line.startswith("  rank") and " = " in line
    ]
    assert len(values) == 3
    assert values[1] == values[2] != values[0]


def test_the_lines_of_all_who_stepped_the_culprits_first():
    (finding,) = check(partial(skips_a_step, at=1, steps=2))[1].findings
    assert [linecache.getline(site.path, site.line).strip() for site in finding.sites] == [CULPRITS_STEP, STEP]


# --- repaired twins ---------------------------------------------------------------------------------------------------


TWINS = {
    "two optimizers": (BOTH, two_optimizers_of_one_model),
    "a window": (BOTH, partial(accumulation, last_is_synchronised=True)),
    "an evaluation": (BOTH, partial(evaluation, through_wrapper=True)),
    "fine-tuning": ((TORCH,), partial(fine_tuning, restores=True)),
    "a buffer hook": ((TORCH,), partial(hooked, leaves_out="nothing")),
}


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize(
    ("engine", "program"), [(engine, program) for engines, program in TWINS.values() for engine in engines]
)
def test_the_repaired_twin(monkeypatch, engine, program, policy):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    assert check(program, policy=policy)[0] == []


@pytest.mark.parametrize("engine", BOTH)
def test_an_inner_module_is_pickled_and_copied_without_a_trace(monkeypatch, engine):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)

    def program(rank):
        model = wrapped(normalised=True)
        train(model, sgd(model), rank, 1)
        saved = io.BytesIO()
        torch.save(model.module, saved)
        pickle.dumps(model.module)
        received = [model.module]
        dist.broadcast_object_list(received)
        average = copy.deepcopy(model.module).eval()
        average(inputs(0))  # buffers of its own
        assert not model.module._forward_pre_hooks
        assert not average._forward_pre_hooks

    before = len(torch.nn.modules.module._global_forward_pre_hooks)
    assert check(program)[0] == []
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == before


def test_nothing_is_checked_unless_asked_for():
    assert simulate(inner_module_used_for_the_loss, 2).findings == ()


# --- what our engine refuses ------------------------------------------------------------------------------------------


def replaced_after_wrapping(rank):
    model = wrapped()
    model.module[1].bias = torch.nn.Parameter(torch.ones(1))
    train(model, sgd(model), rank, 1)


def second_backward(rank):
    model = wrapped()
    loss = model(inputs(rank)).pow(2).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def graph_that_changes(rank):
    model = wrap(TwoBranches(), static_graph=True)
    backward(model, rank)
    model(inputs(rank), both=True).sum().backward()


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (inner_module_used_for_the_loss, BypassedBackwardError, "the inner module was called past the wrapper"),
        (partial(fine_tuning, restores=False), BypassedBackwardError, "the inner module was called past the wrapper"),
        (unfrozen_after_wrapping, ParameterChangedError, "0.weight was unfrozen"),
        (replaced_after_wrapping, ParameterChangedError, "1.bias was replaced"),
        (second_backward, BypassedBackwardError, "1.bias"),
        (partial(unused_parameters, steps=2), OpenBackwardError, "b.0.weight"),
        (parameters_in_another_order, ReplicaMismatchError, "rank 0 has b.weight"),
        (graph_that_changes, UsageError, "b."),
    ],
)
def test_refused_by_our_engine(monkeypatch, program, error, text):
    monkeypatch.setattr(training, "DistributedDataParallel", OURS)
    result = simulate(program, 3, check="replicas")
    assert [type(found) for found in result.errors.values()] == [error] * len(result.errors) != []
    assert all(text in str(found) for found in result.errors.values())
