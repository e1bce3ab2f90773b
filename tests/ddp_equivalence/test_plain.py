"""Equal inputs: DDP's constructor options change how gradients meet, and never what comes out."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from tests.ddp_equivalence.engine import DistributedDataParallel, check, simulated
from tests.kit import networks
from tests.kit.results import returned
from tests.kit.training import (
    TINY,
    Trained,
    Training,
    assert_same,
    equal_batches,
    mean_square,
    seeded,
    trained,
)
from tests.tiers import sweep

_OPTIONS = {
    "defaults": {},
    "tiny-buckets": {"bucket_cap_mb": TINY},
    "bucket-list": {"bucket_cap_mb_list": [TINY, 2 * TINY]},
    "gradient-views": {"gradient_as_bucket_view": True},
    "gradient-views-tiny-buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY},
    "batched-copy": {"batched_grad_copy": True},
    "lazy-buckets": {"lazy_bucket_allocation": True},
    "static": {"static_graph": True},
    "static-gradient-views": {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": TINY},
    "unused": {"find_unused_parameters": True},
    "unused-static": {"find_unused_parameters": True, "static_graph": True},
    "skip-unused": {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
}
OPTIONS = {
    name: options for name, options in _OPTIONS.items() if options.keys() <= signature(TorchEngine).parameters.keys()
}
"""Those that this torch has. Ours does without some (conftest.py)."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified"),
    pytest.mark.filterwarnings("ignore:You passed find_unused_parameters=true to DistributedDataParallel"),
]


WORLDS = sweep((2, 3, 4), lambda size: size == 3)
"""By default the one whose division rounds, which has a rank that is neither the first nor the last."""


@pytest.mark.parametrize(
    ("world_size", "how"),
    [
        *sweep(((size, {}) for size in (2, 3, 4)), lambda case: case[0] == 3),
        pytest.param(2, {"momentum": 0.9, "set_to_none": False}, id="gradients that are zeroed in place, and momentum"),
        pytest.param(2, {"clear_gradients": False}, id="gradients that are never cleared"),
    ],
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options, world_size, how):
    check(Training(networks.multilayer, equal_batches(world_size), mean_square, **how), options)


@pytest.mark.parametrize("name", [name for name in OPTIONS if "static" not in name])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_no_sync(name, set_to_none):
    training = Training(
        networks.multilayer, equal_batches(3, count=4), mean_square, accumulate=2, set_to_none=set_to_none
    )
    check(training, OPTIONS[name])


@pytest.mark.parametrize("engine_name", ["ddp"], indirect=True)  # torch's refuses it
def test_no_sync_in_the_first_step_of_a_static_graph():
    check(Training(networks.multilayer, equal_batches(2, count=4), mean_square, accumulate=2), {"static_graph": True})


def test_without_init_sync_every_rank_keeps_its_own():
    training = Training(networks.multilayer, equal_batches(3, count=1), mean_square)
    own = [seeded(networks.multilayer, rank) for rank in range(3)]
    for module, (batch,) in zip(own, training.batches, strict=True):
        mean_square(module, batch).backward()
    for actual, module in zip(simulated(training, {"init_sync": False}).returns, own, strict=True):
        mean = {name: sum(each.get_parameter(name).grad for each in own) / 3 for name in actual.gradients}
        stepped = {name: parameter.detach() - 0.1 * mean[name] for name, parameter in module.named_parameters()}
        assert_same(actual, Trained(stepped, {}, mean))


def test_ignored_parameters_and_buffers_stay_each_ranks_own():
    def program(rank):
        module = seeded(networks.with_buffers, rank)
        TorchEngine._set_params_and_buffers_to_ignore_for_model(module, ["0.bias", "1.running_mean"])
        before = trained(module)
        model = DistributedDataParallel(module)
        mean_square(model, training.batches[rank][0]).backward()
        return before, trained(module)

    training = Training(networks.with_buffers, equal_batches(3, count=1), mean_square)
    returns = returned(program, 3)
    befores, afters = zip(*returns, strict=True)
    for before, after in returns:
        assert torch.equal(after.parameters["0.bias"], before.parameters["0.bias"])
        assert torch.equal(after.parameters["0.weight"], befores[0].parameters["0.weight"])
        assert torch.equal(after.gradients["0.weight"], afters[0].gradients["0.weight"])
    assert not torch.equal(afters[0].parameters["0.bias"], afters[1].parameters["0.bias"])
    assert not torch.equal(afters[0].gradients["0.bias"], afters[1].gradients["0.bias"])
    assert not torch.equal(afters[0].buffers["1.running_mean"], afters[1].buffers["1.running_mean"])
