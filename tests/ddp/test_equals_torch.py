"""To the last bit: every parameter, buffer and gradient after every step is what torch's engine gives.

Torch's `gradient_as_bucket_view=False` multiplies by the reciprocal of the divisor, and its True divides what lies in
the bucket already; ours follows the one or the other, so each setting is compared with the same of torch's. Our default
(None) keeps gradients as views and has the arithmetic of torch's default, False.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim.ddp import DistributedDataParallel as OwnEngine
from tests.kit import networks
from tests.kit.running import run
from tests.kit.training import TINY, Training, assert_same, batches, mean_square, train_module, trained
from tests.tiers import sweep

VIEWS = ((None, False), (False, False), (True, True))
"""gradient_as_bucket_view: ours, and torch's."""
NIGHTLY = pytest.mark.tier("nightly")
WORLDS = pytest.mark.parametrize("world_size", sweep([2, 3, 4], lambda size: size == 3))
"""By default those whose division rounds: with 2 or 4 ranks a product with the reciprocal has the same bits."""
JOINS = [(3, 1, 2), *(pytest.param(c, marks=NIGHTLY, id=str(c)) for c in [(1, 3), (3, 0), (0, 2, 2), (2, 4, 1, 0)])]

pytestmark = [
    pytest.mark.usefixtures("rank_order"),  # before it rebuilds them, torch has one bucket, whatever the cap
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
    pytest.mark.filterwarnings("ignore:Grad strides do not match bucket view strides"),
]


def linear():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def convolution():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


def channels_last():
    return convolution().to(memory_format=torch.channels_last)


class Branching(nn.Module):
    """The sign of a number says which branch a batch takes; one branch is never taken."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
        self.first = nn.Linear(5, 4)

    def forward(self, batch):
        return self.branches[int(batch[0, 0] > 0)](self.first(batch).tanh())


NETWORKS = {
    "linear": (linear, (3, 5)),
    "convolution": (convolution, (3, 2, 4, 4)),
    "channels-last": (channels_last, (3, 2, 4, 4)),
    "residual": (networks.Residual, (3, 2, 4, 4)),
    "mixed": (networks.Mixed, (3, 5)),
    "sparse": (networks.Sparse, (3, 4)),
    "branching": (Branching, (3, 5)),
    "one unused": (lambda: networks.OneUnused().float(), (3, 4)),
}
MODES = {
    "plain": {},
    "accumulating": {"accumulate": 2},
    "zeroed": {"set_to_none": False},
    "accumulating-zeroed": {"accumulate": 2, "set_to_none": False},
}


def training(name, counts, **how):
    build, shape = NETWORKS[name]
    data = batches(*counts, rows=shape[0], features=prod(shape[1:]), dtype=torch.float32)
    shaped = tuple(tuple(batch.view(shape) for batch in own) for own in data)
    return Training(build, shaped, **{"loss": mean_square, "momentum": 0.9, **how})


def joined(name, counts, divides_by_initial_size, **how):
    return training(name, counts, is_joined=True, divide_by_initial_world_size=divides_by_initial_size, **how)


def history(rank, training, options, prepare, wrap):
    """What a rank has after every backward, after every step, and at the end."""
    torch.manual_seed(rank)
    module, found = training.build(), []
    last = train_module(rank, training, module, options, prepare, wrap, lambda: found.append(trained(module)))
    return found, last


@pytest.fixture(
    params=[pytest.param({}, marks=NIGHTLY, id="one bucket"), pytest.param({"bucket_cap_mb": TINY}, id="a bucket each")]
)
def cap(request):
    """The option for the size of buckets. By default each parameter has its own, so that their order counts, too."""
    return request.param


def compare(training, cap, options=None, prepare=None):
    """Train with both engines, and compare everything to the last bit."""
    given = {**cap, **(options or {})}
    for theirs in (False, True):
        wanted = _histories(TorchEngine, training, {**given, "gradient_as_bucket_view": theirs}, prepare)
        for own in (own for own, same in VIEWS if same is theirs):
            found = _histories(OwnEngine, training, {**given, "gradient_as_bucket_view": own}, prepare)
            _assert_equal(training, found, wanted)


def _histories(engine, training, options, prepare):
    return run(history, training.world_size, training, options, prepare, engine).returns


def _assert_equal(training, actual, expected):
    for (found, last), (wanted, wanted_last) in zip(actual, expected, strict=True):
        for each, other in zip(found, wanted, strict=True):
            assert_same(each, other, tolerance=0)
        assert_same(last, wanted_last, tolerance=0, gradients=not training.is_joined)


@WORLDS
@pytest.mark.parametrize(
    ("name", "mode"),
    sweep(
        product(sorted(NETWORKS.keys() - {"branching", "one unused"}), MODES),
        lambda case: case[0] == "linear" or case[1] == "accumulating-zeroed" or case == ("sparse", "plain"),
    ),
)
def test_networks(name, mode, world_size, cap):
    compare(training(name, (4,) * world_size, **MODES[mode]), cap)


@WORLDS
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", ["linear", "residual"])
def test_static_graph(name, set_to_none, world_size, cap):
    compare(training(name, (4,) * world_size, set_to_none=set_to_none), cap, {"static_graph": True})


@WORLDS
@pytest.mark.parametrize("mode", MODES)
def test_unused_parameters(mode, world_size, cap):
    compare(training("branching", (6,) * world_size, **MODES[mode]), cap, {"find_unused_parameters": True})


@WORLDS
def test_unused_parameters_of_a_static_graph(world_size, cap):
    compare(training("one unused", (4,) * world_size), cap, {"static_graph": True})


@WORLDS
@pytest.mark.parametrize("name", ["linear", "residual"])
def test_two_forwards_before_a_backward(name, world_size, cap):
    def loss(model, batch):
        return model(batch).square().mean() + model(2 * batch).abs().mean()

    # Without this, the broadcast of buffers before the second forward changes what the first one saved.
    compare(training(name, (3,) * world_size, loss=loss), cap, {"forward_sync_buffers": False})


HOOKS = {
    "allreduce": allreduce_hook,
    "fp16": fp16_compress_hook,
    "bf16": bf16_compress_hook,
    "fp16 wrapper": fp16_compress_wrapper(allreduce_hook),
    "bf16 wrapper": bf16_compress_wrapper(allreduce_hook),
    "noop": noop_hook,
}


@WORLDS
@pytest.mark.parametrize(
    ("hook", "mode"),
    sweep(
        product(HOOKS, ["plain", "accumulating-zeroed"]),
        lambda case: case[0] == "allreduce" or case[1] == "accumulating-zeroed",
    ),
)
def test_communication_hooks(hook, mode, world_size, cap):
    register = partial(_register, HOOKS[hook], lambda: None)
    compare(training("linear", (4,) * world_size, **MODES[mode]), cap, prepare=register)


def _register(hook, state, model):
    # torch refuses bfloat16 where CUDA is missing, by the name of the hook.
    model.register_comm_hook(state(), lambda state, bucket: hook(state, bucket))


@WORLDS
@pytest.mark.parametrize("columns", sweep([1, 2], lambda columns: columns == 2))
@pytest.mark.parametrize(
    ("hook", "start"),
    [
        (powerSGD_hook, 2),
        (fp16_compress_wrapper(powerSGD_hook), 2),
        (bf16_compress_wrapper(powerSGD_hook), 2),
        (batched_powerSGD_hook, 10),  # torch 2.13's raises in the first step that compresses
    ],
    ids=["plain", "fp16 wrapper", "bf16 wrapper", "batched"],
)
def test_power_sgd(hook, start, columns, world_size):
    def state():
        return PowerSGDState(
            None, matrix_approximation_rank=columns, start_powerSGD_iter=start, min_compression_rate=0.5
        )

    # In one bucket: with several the hook's calls come in different orders on different ranks, with torch's engine too.
    compare(training("linear", (6,) * world_size), {}, prepare=partial(_register, hook, state))


@pytest.mark.parametrize("divides_by_initial_size", [True, False], ids=["by-all", "by-present"])
@pytest.mark.parametrize("counts", JOINS, ids=str)
@pytest.mark.parametrize(
    "name", sweep(["linear", "convolution", "residual", "mixed"], lambda name: name in ("linear", "mixed"))
)
def test_join(name, counts, divides_by_initial_size, cap):
    compare(joined(name, counts, divides_by_initial_size), cap)


@pytest.mark.parametrize("divides_by_initial_size", [True, False], ids=["by-all", "by-present"])
@pytest.mark.parametrize("mode", ["accumulating", "zeroed", "accumulating-zeroed"])
@pytest.mark.parametrize(
    "counts", [(4, 0, 2), pytest.param((2, 4), marks=NIGHTLY), pytest.param((2, 6, 4, 4), marks=NIGHTLY)], ids=str
)
def test_join_with_kept_gradients(counts, mode, divides_by_initial_size, cap):
    compare(joined("linear", counts, divides_by_initial_size, **MODES[mode]), cap)
