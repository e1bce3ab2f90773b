"""`static_graph`: the first backward shows which gradients come, and how often; afterwards it is known."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpsim.ddp import DistributedDataParallel, UsageError
from ddpsim.ddp.backward_progress import StaticGraph
from tests.kit.networks import Branches, Checkpointed
from tests.kit.running import (
    check_backwards,
    counts,
    each_equals,
    expected,
    gradients,
    mark,
    mark_gradients,
    run,
    timeline,
)
from tests.kit.training import TINY, mean_square, ramp, seeded

OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": TINY},
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": False, "bucket_cap_mb": TINY},
        {"find_unused_parameters": True},
    ],
    ids=str,
)


def check(build, loss, options, steps=4):
    return check_backwards(build, *[loss] * steps, options={"static_graph": True, **options})


def wrapped(build=Branches, **options):
    return DistributedDataParallel(seeded(build), static_graph=True, **options)


@OPTIONS
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("abc", "abc"), id="all used"),
        pytest.param(("a", "a"), id="some used"),
        pytest.param(("a", "b"), id="differs by rank"),
        pytest.param(("abc", ""), id="one rank only"),
    ],
)
def test_gradients(names, options):
    result = check(Branches, Branches.using(*names), options)
    for rank in range(2):
        assert counts(result, rank)["used map"] == 1  # asked once, known since


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_is_unused_keeps_its_gradient(set_to_none):
    using_a = Branches.using("a", "a")

    def program(rank):
        model = wrapped()
        module = model.module
        module.b.weight.grad = torch.full((2, 3), 0.1 + rank, dtype=torch.float64)
        for _ in range(4):
            module.a.zero_grad(set_to_none=set_to_none)
            module.common.zero_grad(set_to_none=set_to_none)
            using_a(model, rank).backward()
        return gradients(module)

    for rank, found in enumerate(run(program, 2).returns):
        assert found["b.weight"].tolist() == [[0.1 + rank] * 3] * 2
        assert found["b.bias"] is None
        assert torch.equal(found["a.weight"], expected(Branches, using_a)["a.weight"])


def test_once_learned_buckets_start_early():
    def program(rank):
        module = Branches()
        mark_gradients(module)
        model = DistributedDataParallel(module, static_graph=True, bucket_cap_mb=TINY)
        for _ in range(2):
            output = model("a", rank).sum()
            mark("backward")
            output.backward()

    assert timeline(run(program, 2)) == [
        "backward", "a.bias", "a.weight", "common.bias", "common.weight", *(f"bucket {index}" for index in range(8)),
        "backward", "a.bias", "bucket 0", "a.weight", "bucket 1", "common.bias", "bucket 2", "common.weight",
        *(f"bucket {index}" for index in range(3, 8)),
    ]  # fmt: skip


def in_checkpoints(times=2):
    """The gradient of the layer in the middle comes several times in a backward."""
    return Checkpointed(is_reentrant=True, times=times).double()


@OPTIONS
def test_a_gradient_that_comes_twice(options):
    check(in_checkpoints, lambda model, rank: mean_square(model, ramp(rank)), options)


def test_after_a_join_each_rank_knows_what_it_learned_itself():
    using = Branches.using("ab", "a")

    def program(rank):
        model = wrapped()
        for _ in range(2):
            with model.join():
                for _ in range(2):
                    model.zero_grad()
                    using(model, rank).backward()
        return gradients(model.module)

    each_equals(run(program, 2), expected(Branches, using))


class View(nn.Module):
    """Returns a view of what its layer, in a reentrant checkpoint or not, puts out; the other layer is not used."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.last, self.unused = nn.Linear(3, 1, dtype=torch.float64), nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, rank):
        value = self.first(ramp(rank, features=3))
        if not self.is_checkpointed:
            return self.last(value).squeeze(1)
        return checkpoint(self.last, value, use_reentrant=True).squeeze(1)


@pytest.mark.parametrize("is_checkpointed", [False, True])
@OPTIONS
def test_an_output_that_is_a_view_and_is_changed_in_place(options, is_checkpointed):
    def halved(model, rank):
        output = model(rank)
        output /= 2.0
        return output.pow(2).sum()

    check(lambda: View(is_checkpointed), halved, options)


def test_a_loss_that_does_not_depend_on_the_output():
    class Leaves(View):
        def forward(self, rank):
            value = self.first(ramp(rank, features=3))
            self.left = self.last(value)
            return value.tanh()

    def loss(model, rank):
        model(rank)
        return getattr(model, "module", model).left.sum()

    check(Leaves, loss, {})


def test_a_parameter_that_is_used_after_all_is_named():
    def program(rank):
        model = wrapped()
        model("a").sum().backward()
        with pytest.raises(UsageError, match=r"^b.bias got a gradient, but none in the first backward: "):
            model("ab").sum().backward()

    run(program, 2)


def test_more_gradients_than_before_are_named():
    def program(rank):
        model = wrapped(partial(in_checkpoints, times=1))
        mean_square(model, ramp(rank)).backward()
        model.module.times = 2
        with pytest.raises(
            UsageError, match=r"^middle.(bias|weight) got more gradients in this backward than in the first"
        ):
            mean_square(model, ramp(rank)).backward()

    run(program, 2)


def test_learning_counts_and_then_counts_down():
    graph = StaticGraph()
    graph.begin_backward()
    assert [graph.count_gradient(index) for index in (2, 0, 2, 1)] == [False] * 4
    assert not graph.is_learned
    assert graph.end_first_backward() == (2, 0, 1)
    assert graph.times == {2: 2, 0: 1, 1: 1}
    assert graph.gradient_counts(4) == (1, 1, 2, 0)
    for _ in range(2):
        graph.begin_backward()
        assert [graph.count_gradient(index) for index in (2, 1, 0, 2)] == [False, True, True, True]


@pytest.mark.parametrize(("learned", "times"), [((), {0: 1, 2: 3}), ((1,), {1: 1})], ids=["nothing yet", "something"])
def test_what_another_rank_learned_is_adopted_where_nothing_was_learned_here(learned, times):
    graph = StaticGraph()
    for index in learned:
        graph.begin_backward()
        graph.count_gradient(index)
        graph.end_first_backward()
    graph.adopt_counts((1, 0, 3), {1})
    assert graph.is_learned
    assert graph.times == times
    assert graph.unused_everywhere == {1}
