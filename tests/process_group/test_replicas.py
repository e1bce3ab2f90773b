"""check="replicas": what makes replicas differ is found at the first step, and healthy training has no findings.

With torch's engine and ours, but for what ours refuses: see test_own_replicas.py.
"""

import copy
import io
import linecache
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as TorchEngine
from torch.nn.parallel.distributed import _BufferCommHookLocation

from ddpsim import simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine

from . import training
from .training import backward, inputs, network, sgd, train, wrapped

pytestmark = pytest.mark.filterwarnings("ignore:`broadcast_buffers` is deprecated:FutureWarning")


@pytest.fixture(autouse=True, params=[TorchEngine, OwnEngine], ids=["torch", "ddp"])
def engine(request, monkeypatch):
    """What `training.wrapped` makes."""
    monkeypatch.setattr(training, "DistributedDataParallel", request.param)
    return request.param


TORCH_ONLY = pytest.mark.parametrize("engine", [TorchEngine], ids=["torch"], indirect=True)


def DistributedDataParallel(module, **options):
    return training.DistributedDataParallel(module, **options)


def check(program, world_size=3, **options):
    result = simulate(program, world_size, check="replicas", **options)
    assert not result.errors, str(result)
    return [(finding.code.value, finding.ranks) for finding in result.findings], str(result)


def test_a_skipped_optimizer_step():
    def program(rank):
        model = wrapped()
        train(model, sgd(model), rank, 3, skips=lambda step: (rank, step) == (1, 1))

    codes, text = check(program)
    assert codes == [("divergence.parameters", (1,))]
    assert "after the optimizer step that followed step 3 of DDP #0" in text
    assert "rank 1 made no optimizer step after step 2 of DDP #0, and the others did" in text


def test_a_skipped_last_optimizer_step():
    def program(rank):
        model = wrapped()
        train(model, sgd(model), rank, 2, skips=lambda step: (rank, step) == (1, 1))

    codes, text = check(program)
    assert codes == [("divergence.parameters", (1,))]
    assert "rank 1 made no optimizer step after step 2 of DDP #0, and ranks 0, 2 did" in text


@TORCH_ONLY
def test_fine_tuning_on_one_rank_that_stays():
    codes, text = check(lambda rank: fine_tuning(rank, restores=False))
    assert codes == [("divergence.parameters", (1, 2))]
    assert "ranks 1, 2 made no optimizer step after step 2 of DDP #0, and rank 0 did" in text


def test_one_of_two_optimizers_that_changes_other_values():
    codes, text = check(lambda rank: two_optimizers_of_one_model(rank, changes_alone=1))
    assert codes == [("divergence.parameters", (1,))]
    assert "after the optimizer step that followed step 2" in text
    assert "1.bias[0] = " in text


def test_a_parameter_of_no_optimizer():
    def program(rank):
        model = wrapped()
        model.module[1].bias.data.fill_(float(rank == 2))
        train(model, torch.optim.SGD(model.module[0].parameters(), lr=0.1), rank, 1)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (2,))]
    assert "1.bias[0] = 1" in text


@TORCH_ONLY
def test_a_parameter_unfrozen_after_wrapping():
    def program(rank):
        inner = network()
        inner[0].weight.requires_grad = False
        model = DistributedDataParallel(inner)
        inner[0].weight.requires_grad = True
        train(model, sgd(model), rank, 2)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (0, 1, 2))]
    assert "0.weight is in no bucket" in text


@TORCH_ONLY
def test_the_inner_module_used_for_the_loss():
    def program(rank):
        model = wrapped()
        train(model, sgd(model), rank, 2, forward=model.module)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (0, 1, 2))]
    assert "no synchronising forward went through the wrapper" in text


def test_state_loaded_on_one_rank_after_wrapping():
    def program(rank):
        model = wrapped()
        if rank == 0:
            model.module[0].bias.data.fill_(2.0)
        train(model, sgd(model), rank, 2)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (0,))]
    assert "followed step 1 of" in text
    values = [line for line in text.splitlines() if line.startswith("  rank") and " = " in line]
    assert len(values) == 3
    assert values[1].partition(" = ")[2] == values[2].partition(" = ")[2] != values[0].partition(" = ")[2]


def test_momentum_loaded_on_one_rank():
    def program(rank):
        model = wrapped()
        optimizer = sgd(model, momentum=0.9)
        if rank == 2:
            optimizer.state[model.module[0].weight]["momentum_buffer"] = torch.ones(4, 4)
        train(model, optimizer, rank, 2)

    assert check(program)[0] == [("divergence.parameters", (2,))]


def test_optimizer_state_alone():
    def program(rank):
        model = wrapped()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        train(model, optimizer, rank, 1)
        if rank == 1:
            optimizer.state[model.module[0].bias]["exp_avg"].add_(1)
        train(model, optimizer, rank, 1)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (1,))]
    assert "exp_avg of 0.bias[0]" in text


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


def test_a_window_of_accumulation_that_is_not_synchronised():
    codes, text = check(lambda rank: accumulation(rank, last_is_synchronised=False))
    assert codes == [("divergence.parameters", (0, 1, 2))]
    assert "no synchronising forward preceded this optimizer step" in text


def test_a_bucket_that_no_rank_reduced():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = network(), network(seed=1)

        def forward(self, x):
            return self.a(x)

    def program(rank):
        model = DistributedDataParallel(Model())
        train(model, sgd(model), rank, 1)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (0, 1, 2))]
    assert "was not reduced in this step" in text


@TORCH_ONLY
def test_parameters_of_other_names():
    class Model(torch.nn.Module):
        def __init__(self, names):
            super().__init__()
            for name in names:
                self.add_module(name, torch.nn.Linear(4, 4, bias=False))

        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x

    def program(rank):
        model = DistributedDataParallel(Model("ab" if rank else "ba"))
        train(model, sgd(model), rank, 1)

    codes, text = check(program)
    assert codes == [("divergence.parameters", (0,))]
    assert "name of tensor 0 = b.weight" in text


@pytest.mark.parametrize("accumulates", [False, True])
def test_buffers_that_nothing_synchronises(accumulates):
    def program(rank):
        inner = network()
        inner.register_buffer("offset", torch.tensor(float(rank == 1)))
        model = DistributedDataParallel(inner, broadcast_buffers=False)
        if accumulates:
            with model.no_sync():
                backward(model, rank)
        train(model, sgd(model), rank, 1)

    codes, text = check(program)
    assert codes == [("divergence.buffers", (1,))]
    assert "offset = 1" in text


def evaluation(rank, *, through_wrapper):
    model = wrapped(normalised=True)
    train(model, sgd(model), rank, 3)
    model.eval()
    with torch.no_grad():
        (model if through_wrapper else model.module)(inputs(rank))


def test_running_statistics_that_drifted():
    codes, text = check(lambda rank: evaluation(rank, through_wrapper=False))
    assert codes == [("divergence.buffers", (0, 1, 2))]
    assert "in an evaluation of the inner module after step 3 of DDP #0" in text


def test_an_inner_module_is_pickled_and_copied_without_a_trace():
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


def average_buffers(state, buffers):
    for name, buffer in buffers.items():
        if buffer.is_floating_point() and state not in name:
            dist.all_reduce(buffer, op=dist.ReduceOp.AVG)


def hooked(rank, *, leaves_out):
    model = wrapped(normalised=True)
    model._register_buffer_comm_hook(leaves_out, average_buffers, _BufferCommHookLocation.POST_FORWARD)
    train(model, sgd(model), rank, 2)


@TORCH_ONLY
def test_a_buffer_hook_that_leaves_out_a_buffer():
    codes, text = check(lambda rank: hooked(rank, leaves_out="mean"))
    assert codes == [("divergence.buffers", (0, 1, 2))]
    assert "the buffer hook did not leave all ranks with the same values" in text


# --- lines ----------------------------------------------------------------------------------------------------------


def sites(program, **options):
    result = simulate(program, 3, check="replicas", **options)
    (finding,) = result.findings
    lines = [linecache.getline(site.path, site.line).strip() for site in finding.sites]
    return lines, [f"{site.file}:{site.line}" in finding.text for site in finding.sites]


def test_the_lines_of_optimizer_steps_the_culprits_first():
    def program(rank):
        model = wrapped()
        if rank == 2:
            model.module[0].bias.data.fill_(2.0)
        optimizer = sgd(model)
        backward(model, rank)
        if rank == 2:
            optimizer.step()  # the culprit's
        else:
            optimizer.step()

    assert sites(program) == (["optimizer.step()  # the culprit's", "optimizer.step()"], [True, True])


def test_the_lines_of_a_skipped_step():
    def program(rank):
        model = wrapped()
        optimizer = sgd(model)
        for step in range(2):
            backward(model, rank)
            if step == 0:
                optimizer.step()  # the first
            elif rank != 1:
                optimizer.step()

    assert sites(program) == (["optimizer.step()  # the first", "optimizer.step()"], [True, True])


def test_the_line_of_an_evaluation():
    lines, are_shown = sites(lambda rank: evaluation(rank, through_wrapper=False))
    assert lines == ["(model if through_wrapper else model.module)(inputs(rank))"]
    assert are_shown == [True]


# --- healthy twins ----------------------------------------------------------------------------------------------------


def batch_norm(rank):
    model = wrapped(normalised=True)
    train(model, torch.optim.Adam(model.parameters()), rank, 3)


def batch_norm_without_synchronised_buffers(rank):
    model = wrapped(normalised=True, broadcast_buffers=False)
    train(model, sgd(model), rank, 3)


def batch_norm_and_accumulation(rank, **options):
    model = wrapped(normalised=True, **options)
    with model.no_sync():
        backward(model, rank)
    backward(model, rank)
    sgd(model).step()


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


def fine_tuning(rank, *, restores):
    model = wrapped()
    optimizer = sgd(model)
    train(model, optimizer, rank, 2)
    if rank == 0:
        state = copy.deepcopy(model.state_dict())
        train(model, optimizer, rank, 2, forward=model.module)
        if restores:
            model.load_state_dict(state)


def join_and_go_on(rank):
    model = wrapped(normalised=True)
    optimizer = sgd(model, momentum=0.9)
    for epoch in range(3):
        with model.join():
            train(model, optimizer, rank, 1 + rank * (epoch % 2))
        optimizer.state.clear()  # momentum of ranks that ran out is stale
    train(model, optimizer, rank, 2)


def join_with_a_sharded_optimizer(rank):
    model = wrapped()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    with Join([model, optimizer]):
        train(model, optimizer, rank, 1 + rank)
    train(model, optimizer, rank, 1)


def two_models_and_optimizers(rank):
    pairs = [(model, sgd(model)) for model in (wrapped(), wrapped(seed=1))]
    for _ in range(2):
        for model, optimizer in pairs:
            train(model, optimizer, rank, 1)


def two_optimizers_of_one_model(rank, *, changes_alone=None):
    model = wrapped()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model.module]
    for _ in range(3):
        train(model, optimizers[rank % 2], rank, 1)
        optimizers[1 - rank % 2].step()
        if changes_alone == rank:
            model.module[1].bias.data.fill_(2.0)


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
    model = DistributedDataParallel(inner)
    train(model, sgd(model), rank, 2)


def losses_that_are_not_numbers(rank):
    model = wrapped()
    optimizer = sgd(model)
    (model(inputs(rank)) * float("nan")).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize(
    "program",
    [
        batch_norm,
        batch_norm_without_synchronised_buffers,
        batch_norm_and_accumulation,
        partial(batch_norm_and_accumulation, broadcast_buffers=False),
        batch_norm_after_a_trial_of_the_inner_module,
        partial(batch_norm_after_a_trial_of_the_inner_module, broadcast_buffers=False),
        evaluation_on_one_rank,
        steps_of_one_rank_that_are_broadcast,
        join_and_go_on,
        join_with_a_sharded_optimizer,
        two_models_and_optimizers,
        two_optimizers_of_one_model,
        lbfgs,
        an_ignored_parameter,
        losses_that_are_not_numbers,
        lambda rank: accumulation(rank, last_is_synchronised=True),
        lambda rank: evaluation(rank, through_wrapper=True),
    ],
)
def test_healthy_training(program, policy):
    assert check(program, policy=policy)[0] == []


@TORCH_ONLY
@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("program", [partial(fine_tuning, restores=True), partial(hooked, leaves_out="nothing")])
def test_healthy_training_that_our_engine_refuses_or_does_otherwise(program, policy):
    assert check(program, policy=policy)[0] == []


@TORCH_ONLY
def test_nothing_is_checked_unless_asked_for():
    def program(rank):
        model = wrapped()
        train(model, sgd(model), rank, 2, forward=model.module)

    assert simulate(program, 2).findings == ()
