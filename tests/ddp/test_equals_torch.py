"""To the last bit: every parameter, buffer and gradient after every step is what torch's engine gives.

Torch's `gradient_as_bucket_view=False` multiplies by the reciprocal of the divisor, and its True divides what lies in
the bucket already; ours follows the one or the other, so each setting is compared with the same of torch's. Our default
(None) keeps gradients as views and has the arithmetic of torch's default, False.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from tests.ddp.equals_training import Case, assert_equal
from tests.tiers import sweep

TINY = 1e-5
"""MiB: every parameter has a bucket of its own."""
VIEWS = ((None, False), (False, False), (True, True))
"""gradient_as_bucket_view: ours, and torch's."""
CAPS = ({}, {"bucket_cap_mb": TINY})
NIGHTLY = pytest.mark.tier("nightly")
WORLDS = pytest.mark.parametrize("world_size", sweep([2, 3, 4], lambda size: size == 3))
"""By default those whose division rounds: with 2 or 4 ranks a product with the reciprocal has the same bits."""
JOINS = [(3, 1, 2), *(pytest.param(c, marks=NIGHTLY, id=str(c)) for c in [(1, 3), (3, 0), (0, 2, 2), (2, 4, 1, 0)])]

pytestmark = [
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


class Residual(nn.Module):
    """Two convolutions with BatchNorm around which the input passes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, batch):
        hidden = self.norm(self.stem(batch)).relu()
        hidden = (hidden + self.block(hidden)).relu()
        return self.head(hidden.mean(dim=(2, 3)))


class Branching(nn.Module):
    """The sign of a number says which branch a batch takes; one branch is never taken."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
        self.first = nn.Linear(5, 4)

    def forward(self, batch):
        return self.branches[int(batch[0, 0] > 0)](self.first(batch).tanh())


class Mixed(nn.Module):
    """A parameter of each dtype, each with a gradient that depends on it."""

    DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(5).to(dtype) for dtype in self.DTYPES * 2])

    def forward(self, batch):
        return sum((scale * batch.to(scale.dtype)).abs().double().sum(dim=0) for scale in self.scales)


class Sparse(nn.Module):
    """An embedding of which every batch uses some rows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)
        self.out = nn.Linear(3, 2)

    def forward(self, batch):
        return self.out(self.table((batch.abs() * 3).long() % 6).sum(dim=1))


NETWORKS = {
    "linear": (linear, (3, 5)),
    "convolution": (convolution, (3, 2, 4, 4)),
    "channels-last": (channels_last, (3, 2, 4, 4)),
    "residual": (Residual, (3, 2, 4, 4)),
    "mixed": (Mixed, (3, 5)),
    "sparse": (Sparse, (3, 4)),
}
MODES = {
    "plain": {},
    "accumulating": {"accumulate": 2},
    "zeroed": {"set_to_none": False},
    "accumulating-zeroed": {"accumulate": 2, "set_to_none": False},
}


def compare(case_of, caps=CAPS, views=VIEWS):
    for (own, theirs), options in product(views, caps):
        case = case_of(options)
        assert_equal(case, {"gradient_as_bucket_view": own}, {"gradient_as_bucket_view": theirs})


@WORLDS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, mode, world_size):
    build, shape = NETWORKS[name]
    compare(lambda options: Case(build, shape, (4,) * world_size, options, **MODES[mode]))


@WORLDS
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("name", ["linear", "residual"])
def test_static_graph(name, set_to_none, world_size):
    build, shape = NETWORKS[name]
    compare(
        lambda options: Case(
            build, shape, (4,) * world_size, {**options, "static_graph": True}, set_to_none=set_to_none
        )
    )


@WORLDS
@pytest.mark.parametrize("mode", MODES)
def test_unused_parameters(mode, world_size):
    compare(
        lambda options: Case(
            Branching, (3, 5), (6,) * world_size, {**options, "find_unused_parameters": True}, **MODES[mode]
        )
    )


@WORLDS
def test_unused_parameters_of_a_static_graph(world_size):
    def build():
        return nn.ModuleDict({"used": linear(), "unused": nn.Linear(2, 2)})

    compare(lambda options: Case(lambda: OneOf(build()), (3, 5), (4,) * world_size, {**options, "static_graph": True}))


class OneOf(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, batch):
        return self.parts["used"](batch)


@WORLDS
@pytest.mark.parametrize("name", ["linear", "residual"])
def test_two_forwards_before_a_backward(name, world_size):
    def loss(model, batch):
        return model(batch).square().mean() + model(2 * batch).abs().mean()

    # Without this, the broadcast of buffers before the second forward changes what the first one saved.
    build, shape = NETWORKS[name]
    compare(
        lambda options: Case(build, shape, (3,) * world_size, {**options, "forward_sync_buffers": False}, loss=loss)
    )


def renamed_bf16_hook(state, bucket):
    """By its own name torch refuses it where CUDA is missing."""
    return bf16_compress_hook(state, bucket)


def compressing(model):
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, powerSGD_hook)


HOOKS = {
    "allreduce": lambda model: model.register_comm_hook(None, allreduce_hook),
    "fp16": lambda model: model.register_comm_hook(None, fp16_compress_hook),
    "bf16": lambda model: model.register_comm_hook(None, renamed_bf16_hook),
    "noop": lambda model: model.register_comm_hook(None, noop_hook),
}


@WORLDS
@pytest.mark.parametrize("mode", ["plain", "accumulating-zeroed"])
@pytest.mark.parametrize("hook", HOOKS)
def test_communication_hooks(hook, mode, world_size):
    compare(lambda options: Case(linear, (3, 5), (4,) * world_size, options, hook=HOOKS[hook], **MODES[mode]))


@WORLDS
def test_power_sgd(world_size):
    # In one bucket: with several the hook's calls come in different orders on different ranks, with torch's engine too.
    compare(lambda options: Case(linear, (3, 5), (6,) * world_size, options, hook=compressing), caps=({},))


@pytest.mark.parametrize("divides_by_initial_size", [True, False], ids=["by-all", "by-present"])
@pytest.mark.parametrize("counts", JOINS, ids=str)
@pytest.mark.parametrize("name", ["linear", "convolution", "residual", "mixed"])
def test_join(name, counts, divides_by_initial_size):
    build, shape = NETWORKS[name]
    compare(lambda options: Case(build, shape, counts, options, divides_by_initial_size=divides_by_initial_size))


@pytest.mark.parametrize("divides_by_initial_size", [True, False], ids=["by-all", "by-present"])
@pytest.mark.parametrize("mode", ["accumulating", "zeroed", "accumulating-zeroed"])
@pytest.mark.parametrize(
    "counts", [(4, 0, 2), pytest.param((2, 4), marks=NIGHTLY), pytest.param((2, 6, 4, 4), marks=NIGHTLY)], ids=str
)
def test_join_with_kept_gradients(counts, mode, divides_by_initial_size):
    compare(
        lambda options: Case(
            linear, (3, 5), counts, options, divides_by_initial_size=divides_by_initial_size, **MODES[mode]
        )
    )
