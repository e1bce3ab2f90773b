"""The order of buckets is discovered: laid out anew after the first backward, on all ranks by one rank's order."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from ddpsim.ddp import DistributedDataParallel
from ddpsim.simulator.calls import Phase
from tests.kit import networks
from tests.kit.networks import Chain
from tests.kit.rows import rows
from tests.kit.running import calls, check, check_backwards, counts, mark, mark_gradients, run, timeline
from tests.kit.training import TINY, Training, equal_batches, mean_square

LAYERS = 20
WIDTH = 8
LAYER_BYTES = WIDTH * WIDTH * 8


class Backwards(nn.Module):
    """Layers of one size, used in the reverse order of their definition: the gradient of the first one comes first."""

    def __init__(self, is_reversed=True):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64) for _ in range(LAYERS)])
        self.is_reversed = is_reversed

    def forward(self, batch):
        for layer in reversed(self.layers) if self.is_reversed else self.layers:
            batch = layer(batch).tanh()
        return batch


def share_started_early(rank, is_reversed, layers_to_a_bucket, options):
    """Of each of four backwards: the share of bytes whose reduction started before the backward's last gradient."""
    torch.manual_seed(rank)
    module = Backwards(is_reversed)
    mark_gradients(module)
    model = DistributedDataParallel(module, bucket_cap_mb=layers_to_a_bucket * LAYER_BYTES / 2**20, **options)
    shares = []
    for _ in range(4):
        mark("forward")
        model(torch.ones(2, WIDTH, dtype=torch.float64) + rank).sum().backward()
        shares.append(model.reducer.bytes_started_early / (LAYERS * LAYER_BYTES))
    return shares


def share_in_trace(result, layers_to_a_bucket):
    """The same, counted in the trace of rank 0."""
    shares = []
    for line in timeline(result):
        if line == "forward":
            shares.append([])
        else:
            shares[-1].append(line)
    return [
        sum(word.startswith("bucket") for word in _to_last_gradient(steps)) * layers_to_a_bucket / LAYERS
        for steps in shares
    ]


def _to_last_gradient(steps):
    return steps[: max(index for index, word in enumerate(steps) if word.startswith("layers"))]


@rows("options", [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": False}], ids=str)
@rows(("layers_to_a_bucket", "late", "early"), [(1, 0.0, 0.95), (2, 0.0, 0.9), (4, 0.0, 0.8)])
def test_layers_used_in_the_reverse_order_of_definition(layers_to_a_bucket, late, early, options):
    result = run(share_started_early, 2, True, layers_to_a_bucket, options)
    expected = [late, early, early, early]
    assert result.returns == (expected, expected)
    assert share_in_trace(result, layers_to_a_bucket) == pytest.approx(expected)


def test_under_static_graph_the_first_backward_starts_nothing_early():
    # It learns how often each gradient comes: none is known to be the last one before the backward is over.
    for is_reversed in (True, False):
        result = run(share_started_early, 2, is_reversed, 1, {"static_graph": True})
        assert result.returns[0] == [0.0, 0.95, 0.95, 0.95]
        assert share_in_trace(result, 1) == pytest.approx(result.returns[0])


def test_layers_used_in_the_order_of_definition_need_no_discovery():
    result = run(share_started_early, 2, False, 1, {})
    assert result.returns[0] == [0.95] * 4


def plans(rank, build, options, steps=3):
    torch.manual_seed(rank)
    model = DistributedDataParallel(build(), bucket_cap_mb=TINY, **options)
    found = []
    for _ in range(steps):
        mean_square(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        found.append([name for bucket in model.reducer.bucket_plan for name in bucket])
    return found


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_the_plan_follows_the_gradients(options):
    defined = ["last.weight", "last.bias", "first.weight", "first.bias"]
    came = ["last.bias", "last.weight", "first.bias", "first.weight"]
    result = run(plans, 2, networks.registered_backwards, options)
    assert result.returns[0] == [defined[::-1], came, came]
    assert counts(result)["rebuild"] == 1


@rows("policy", ["round_robin", "random"])
@rows("orders", [("abcd", "dcba"), ("bdac", "abcd", "cabd"), ("dcba", "abcd", "abcd", "bcda")])
def test_ranks_that_record_different_orders_agree(orders, policy):
    size = len(orders)
    result = check_backwards(
        partial(Chain, "abcd"),
        Chain.using(*orders),
        options={"bucket_cap_mb": TINY / 2},
        world_size=size,
        tolerance=1e-15 if size == 3 else 0,
        policy=policy,
        seed=1,
    )
    for rank, (model, _) in enumerate(result.returns):
        assert "".join(name for (name,) in model.reducer.bucket_plan) == orders[0][::-1]
        starts = [call.origin.parameters[0] for call in calls(result, Phase.BUCKET, rank)]
        assert "".join(starts) == "dcba" + orders[0][::-1]


def test_what_got_no_gradient_comes_last():
    options = {"bucket_cap_mb": TINY / 2, "find_unused_parameters": True}
    for model, _ in check_backwards(partial(Chain, "abcd"), Chain.using("da", "da"), options=options).returns:
        assert "".join(name for (name,) in model.reducer.bucket_plan) == "adcb"


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_a_hook_sees_the_new_buckets(options):
    def program(rank):
        seen = []

        def hook(state, bucket):
            names = [state[parameter] for parameter in bucket.parameters()]
            sizes = [gradient.shape for gradient in bucket.gradients()]
            assert sizes == [parameter.shape for parameter in bucket.parameters()]
            seen.append((bucket.index(), names, bucket.is_last()))
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        module = networks.registered_backwards()
        model = DistributedDataParallel(module, bucket_cap_mb=200 / 2**20, **options)
        model.register_comm_hook({parameter: name for name, parameter in module.named_parameters()}, hook)
        for _ in range(3):
            mean_square(model, torch.ones(2, 4, dtype=torch.float64)).backward()
        return seen

    first = [(0, ["first.bias", "first.weight"], False), (1, ["last.bias", "last.weight"], True)]
    then = [(0, ["last.bias", "last.weight", "first.bias", "first.weight"], True)]
    # 40 + 160 bytes fill a bucket; so do 16 + 80 + 40 + 160, if they come in this order.
    assert run(program, 2).returns[0] == first + then + then


@rows("as_view", [None, False, True])
@rows("set_to_none", [True, False])
@rows("clear_gradients", [True, False])
@rows("accumulate", [1, 2])
def test_gradients_outlive_the_rebuild(as_view, set_to_none, clear_gradients, accumulate):
    training = Training(
        networks.registered_backwards,
        equal_batches(2, count=6),
        mean_square,
        accumulate=accumulate,
        clear_gradients=clear_gradients,
        set_to_none=set_to_none,
    )
    result = check(training, {"gradient_as_bucket_view": as_view, "bucket_cap_mb": TINY})
    assert counts(result)["rebuild"] == 1
