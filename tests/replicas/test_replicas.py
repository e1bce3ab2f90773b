"""check="replicas": what makes replicas differ is found at the first step, at its line; with torch's engine and ours.

What the zoo has is not here: its programs are checked as well, and tests/diagnosis/test_zoo_advice.py has the causes.
Healthy training is in test_replicas_healthy.py.
"""

import copy
import io
import linecache
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchEngine
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from tests.kit import small_training as training
from tests.kit.small_training import backward, inputs, network, sgd, train, wrap, wrapped
from tests.replicas.replica_checks import check

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


def parameters_divided(rank, *, sent, skips=False):
    """Each rank steps its own parameters, as ZeRO does, and sends as many of them as `sent`."""
    model = wrapped()
    parameters = list(model.parameters())
    optimizer = sgd(model) if skips else torch.optim.SGD(parameters[rank :: dist.get_world_size()], lr=0.1)
    for step in range(2):
        backward(model, rank)
        if not skips or rank != 1 or step == 0:
            optimizer.step()
        optimizer.zero_grad()
        for index, parameter in enumerate(parameters[:sent]):
            dist.broadcast(parameter.data, src=index % dist.get_world_size())


def optimizer_on_rank_0(rank, *, sends):
    model = wrapped()
    optimizer = sgd(model)
    for _ in range(2):
        backward(model, rank)
        if rank == 0:
            optimizer.step()
        optimizer.zero_grad()
        for parameter in list(model.parameters()) if sends else ():
            dist.broadcast(parameter.data, src=0)


def state_loaded_on_rank_0(rank, **options):
    model = wrapped(**options)
    if rank == 0:
        model.load_state_dict({name: torch.zeros_like(each) for name, each in model.state_dict().items()})
    train(model, sgd(model), rank, 1)


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


def steps_in_backward(rank):
    model = wrapped()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    backward(model, rank)


def flag_set_after_forward(rank, *, is_late=True):
    model = wrapped()
    optimizer = sgd(model)
    for batch in range(2):
        if not is_late:
            model.require_backward_grad_sync = batch == 1
        loss = model(inputs(rank)).square().sum()
        if is_late:
            model.require_backward_grad_sync = batch == 2
        loss.backward()
    optimizer.step()


def closure_that_each_rank_ends(rank):
    """The forwards of a step end by the rank's own loss, so the calls of the next steps do not meet."""
    model = wrapped()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, tolerance_change=1e9 * (rank == 1))

    def closure():
        optimizer.zero_grad()
        loss = model(inputs(rank)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    dist.all_reduce(torch.ones(1))


def only_local_gradients(rank):
    model = wrapped()
    with model.no_sync():
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


class Found(NamedTuple):
    """What is found, on which ranks, what the text says, and how the first line that it names begins."""

    program: Callable[[int], None]
    ranks: tuple[int, ...]
    text: str
    line: str = STEP
    code: str = PARAMETERS
    engines: tuple[type, ...] = BOTH


FOUND = {
    "a step left out": Found(partial(skips_a_step, at=1, steps=3), (1,), f"{LEFT_OUT} the others did", CULPRITS_STEP),
    "the last step": Found(partial(skips_a_step, at=1, steps=2), (1,), f"{LEFT_OUT} ranks 0, 2 did", CULPRITS_STEP),
    "fine-tuning": Found(
        partial(fine_tuning, restores=False),
        (1, 2),
        "ranks 1, 2 made no optimizer step after step 2 of DDP #0, and rank 0 did",
        engines=(TORCH,),
    ),
    "one of two optimizers": Found(partial(two_optimizers_of_one_model, changes_alone=1), (1,), BIAS),
    "in no optimizer": Found(parameter_of_no_optimizer, (2,), "1.bias[0] = 1"),
    "state loaded": Found(state_loaded_on_rank_0, (0,), FIRST),
    "state loaded, copied gradients": Found(
        partial(state_loaded_on_rank_0, gradient_as_bucket_view=False, find_unused_parameters=True), (0,), FIRST
    ),
    "optimizer state": Found(optimizer_state_alone, (1,), "exp_avg of 0.bias[0]"),
    "momentum": Found(momentum_on_one_rank, (2,), "that followed step 2 of DDP #0"),
    "a window not synchronised": Found(
        partial(accumulation, last_is_synchronised=False), ALL, "no synchronising forward preceded this optimizer step"
    ),
    "a window off by one": Found(window_off_by_one, ALL, FIRST),
    "in the backward": Found(
        steps_in_backward, ALL, "stepped during the backward", "parameter.register", engines=(TORCH,)
    ),
    "a flag set late": Found(flag_set_after_forward, ALL, "its forward ran under no_sync()", engines=(TORCH,)),
    "only local": Found(only_local_gradients, ALL, "the optimizer step since DDP #0 was made"),
    "divided, none sent": Found(partial(parameters_divided, sent=0), ALL, "step unlike parameters", "optimizer.step()"),
    "divided, the last not sent": Found(
        partial(parameters_divided, sent=3), (0,), "nothing made 1.bias equal", "optimizer.step()"
    ),
    "not divided": Found(
        partial(parameters_divided, sent=0, skips=True), (1,), "no optimizer step", "optimizer.step()"
    ),
    "only one optimizer": Found(
        partial(optimizer_on_rank_0, sends=False), (1, 2), "no optimizer step after step 2", "optimizer.step()"
    ),
    "second epoch": Found(second_epoch, (1,), BIAS),
    "second model": Found(second_model, (1,), "no optimizer step after step 1 of DDP #1"),
    **{
        f"buffers, {options}": Found(
            partial(buffers_that_nothing_synchronises, **options), (1,), "offset = 1", "model(inputs(rank))", BUFFERS
        )
        for options in ({"accumulates": True}, {"accumulates": False, "init_sync": False})
    },
    "running statistics": Found(
        partial(evaluation, through_wrapper=False, broadcast_buffers=False),
        ALL,
        "in an evaluation of the inner module after step 2 of DDP #0",
        "(model if through_wrapper else model.module)(inputs(rank))",
        BUFFERS,
    ),
    "running statistics, through the wrapper": Found(
        partial(evaluation, through_wrapper=True, broadcast_buffers=False),
        ALL,
        "in an evaluation after step 2 of DDP #0",
        "(model if through_wrapper else model.module)(inputs(rank))",
        BUFFERS,
    ),
    **{
        f"buffer hook of {engine.__module__}": Found(
            program, ALL, "the buffer hook did not leave all ranks with the same values", STEP, BUFFERS, (engine,)
        )
        for engine, program in {
            TORCH: partial(hooked, leaves_out="mean"),
            OURS: buffer_that_a_hook_makes_a_rank_s_own,
        }.items()
    },
}


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for name, found in FOUND.items() for engine in found.engines],
    ids=lambda value: value if isinstance(value, str) else {TORCH: "torch", OURS: "ddp"}[value],
)
def test_found(monkeypatch, engine, name, policy):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    expected = FOUND[name]
    codes, result = check(expected.program, policy=policy)
    assert codes == [(expected.code, expected.ranks)]
    (finding,) = result.findings
    assert expected.text in finding.text
    assert linecache.getline(finding.sites[0].path, finding.sites[0].line).strip().startswith(expected.line)
    assert all(f"{site.file}:{site.line}" in finding.text for site in finding.sites)


def test_forwards_of_a_closure_that_do_not_meet_are_no_steps_left_out():
    codes, result = check(closure_that_each_rank_ends)
    assert [code for code, _ in codes] == ["mismatch.shape"], str(result)


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
    "divided": (BOTH, partial(parameters_divided, sent=4)),
    "only one optimizer": (BOTH, partial(optimizer_on_rank_0, sends=True)),
    "two optimizers": (BOTH, two_optimizers_of_one_model),
    "a window": (BOTH, partial(accumulation, last_is_synchronised=True)),
    "a flag set early": ((TORCH,), partial(flag_set_after_forward, is_late=False)),
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
    assert simulate(only_local_gradients, 2).findings == ()


def test_models_of_groups_that_began_equal_and_ended_different_are_noted():
    def notes(across, seed=lambda half: 0):
        def program(rank):
            half = rank % 2
            groups = [dist.new_group([side, side + 2]) for side in (0, 1)]
            torch.manual_seed(seed(half))
            model = TorchEngine(torch.nn.Linear(2, 1), process_group=None if across else groups[half])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.full((1, 2), 1.0 + half)).sum().backward()
                optimizer.step()

        return simulate(program, 4, check="replicas").notes

    models = 'models of groups "1" (ranks 0, 2), "2" (ranks 1, 3)'
    assert notes(across=False) == (f"not compared: {models}, which began equal and ended different",)
    assert notes(across=True) == notes(across=False, seed=int) == ()


def test_models_of_one_group_that_end_different_are_two_models():
    def program(rank):
        for scale in (1.0, 2.0):
            torch.manual_seed(0)
            model = TorchEngine(torch.nn.Linear(2, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.full((1, 2), scale)).sum().backward()
                optimizer.step()

    assert simulate(program, 2, check="replicas").notes == ()


@pytest.mark.parametrize(("dimension", "is_noted"), [("tp", True), ("pp", False)])
def test_replicas_beside_the_shards_of_a_model_are_noted_if_they_part(dimension, is_noted):
    def program(rank):
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", dimension))
        torch.manual_seed(1 + mesh.get_local_rank(dimension))
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.LayerNorm(2))
        wrapper = TorchEngine(model, process_group=mesh.get_group("dp"))
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
        for _ in range(2):
            wrapper(torch.tensor([[1.0, 2.0 + rank % 2]])).square().sum().backward()
            optimizer.step()

    groups = f'"dp ({dimension} 0)" (ranks 0, 2), "dp ({dimension} 1)" (ranks 1, 3)'
    note = f"not compared: 1.weight, 1.bias of groups {groups}, which began equal and ended different"
    assert simulate(program, 4, check="replicas").notes == ((note,) if is_noted else ())


def test_parameters_beside_the_wrapped_model_are_noted():
    def program(rank, *, averages=False, steps_center=True):
        model, center = wrapped(), torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([*model.parameters(), *[center] * steps_center], lr=0.1)
        backward(model, rank)
        (center * (rank + 1)).sum().backward()
        if averages:
            dist.all_reduce(center.grad)
        optimizer.step()

    note = "not compared: 1 parameter that optimizers step, and whose gradient no call of DDP and no all_reduce shows"
    for options, notes in (({}, (note,)), ({"averages": True}, ()), ({"steps_center": False}, ())):
        assert simulate(partial(program, **options), 2, check="replicas").notes == notes


def test_a_parameter_that_a_loop_by_hand_forgets_is_noted():
    def program(rank, *, forgets, is_broadcast=True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        for parameter in list(model.parameters()) * is_broadcast:
            dist.broadcast(parameter.data, 0)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 2), rank + 1.0)).sum().backward()
            for parameter in list(model.parameters())[forgets:]:
                dist.all_reduce(parameter.grad)
            optimizer.step()

    note = "not compared: 1 parameter that optimizers step, and whose gradient no call of DDP and no all_reduce shows"
    for mode in ("replicas", "replicas-if-any"):
        assert simulate(partial(program, forgets=1), 2, check=mode).notes == (note,)
        assert simulate(partial(program, forgets=0), 2, check=mode).notes == ()


@pytest.mark.parametrize(
    ("forgotten", "exchanged", "is_noted"),
    [
        ("weight", (5, 2), True),  # activations
        ("bias", (5, 2), True),
        ("weight", (2, 2), False),  # may be its gradient
        ("weight", (5, 2, 2), False),  # may be gradients on top of each other
        ("weight", (9,), False),  # may be gradients in a row
        ("bias", (2,), False),
    ],
)
def test_a_forgotten_parameter_is_noted_beside_tensors_that_are_not_its_gradient(forgotten, exchanged, is_noted):
    def program(rank):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = sgd(model)
        for _ in range(2):
            optimizer.zero_grad()
            dist.all_reduce(torch.full(exchanged, 7.0))
            model(torch.full((1, 2), rank + 1.0)).sum().backward()
            for name, parameter in model.named_parameters():
                if name != forgotten:
                    dist.all_reduce(parameter.grad)
            optimizer.step()

    note = "not compared: 1 parameter that optimizers step, and whose gradient no call of DDP and no all_reduce shows"
    assert simulate(program, 2, check="replicas").notes == ((note,) if is_noted else ())
