"""`static_graph`: the first backward shows which gradients come, and how often; afterwards it is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpsim.ddp import DistributedDataParallel, OpenBackwardError, UsageError
from ddpsim.ddp.static_graph import StaticGraph
from tests.ddp.test_unused_parameters import Branches, expected, seeded, use
from tests.kit.running import TINY, assert_equal, average, counts, gradients, mark, mark_gradients, run, timeline

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
STEPS = 4


def steps(rank, names, options):
    module = seeded()
    model = DistributedDataParallel(module, static_graph=True, **options)
    found = []
    for _ in range(STEPS):
        module.zero_grad()
        use(names[rank], rank)(model).backward()
        found.append(gradients(module))
    return found


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
    result = run(steps, 2, names, options)
    for found in result.returns:
        for actual in found:
            assert_equal(actual, expected(*names))
    for rank in range(2):
        assert counts(result, rank)["used map"] == 1  # asked once, known since


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_is_unused_keeps_its_gradient(set_to_none):
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, static_graph=True)
        module.b.weight.grad = torch.full((2, 3), 0.1 + rank, dtype=torch.float64)
        for _ in range(STEPS):
            module.a.zero_grad(set_to_none=set_to_none)
            module.common.zero_grad(set_to_none=set_to_none)
            use("a", rank)(model).backward()
        return gradients(module)

    for rank, found in enumerate(run(program, 2).returns):
        assert found["b.weight"].tolist() == [[0.1 + rank] * 3] * 2
        assert found["b.bias"] is None
        assert torch.equal(found["a.weight"], expected("a", "a")["a.weight"])


def test_once_learned_buckets_start_early():
    def program(rank):
        module = seeded()
        mark_gradients(module)
        model = DistributedDataParallel(module, static_graph=True, bucket_cap_mb=TINY)
        for _ in range(2):
            output = use("a", rank)(model)
            mark("backward")
            output.backward()

    assert timeline(run(program, 2)) == [
        "backward", "a.bias", "a.weight", "common.bias", "common.weight", *(f"bucket {index}" for index in range(8)),
        "backward", "a.bias", "bucket 0", "a.weight", "bucket 1", "common.bias", "bucket 2", "common.weight",
        *(f"bucket {index}" for index in range(3, 8)),
    ]  # fmt: skip


class Twice(nn.Module):
    """A layer in two reentrant checkpoints: its gradient comes twice in a backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.twice = nn.Linear(3, 3, dtype=torch.float64)
        self.last = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, rank):
        value = self.first(torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3))
        for _ in range(2):
            value = checkpoint(self.twice, value, use_reentrant=True).tanh()
        return self.last(value).pow(2).sum()


@OPTIONS
def test_a_gradient_that_comes_twice(options):
    def program(rank):
        module = Twice()
        model = DistributedDataParallel(module, static_graph=True, **options)
        for _ in range(STEPS):
            module.zero_grad()
            model(rank).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(Twice, [lambda module, rank=rank: module(rank) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


def test_after_a_join_each_rank_knows_what_it_learned_itself():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, static_graph=True)
        for _ in range(2):
            with model.join():
                for _ in range(2):
                    module.zero_grad()
                    use("a" if rank else "ab", rank)(model).backward()
        return gradients(module)

    for found in run(program, 2).returns:
        assert_equal(found, expected("ab", "a"))


class View(nn.Module):
    """Returns a view of what its layer, in a reentrant checkpoint or not, puts out; the other layer is not used."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.is_checkpointed = is_checkpointed
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.last = nn.Linear(3, 1, dtype=torch.float64)
        self.unused = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, rank):
        value = self.first(torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3))
        if not self.is_checkpointed:
            return self.last(value).squeeze(1)
        return checkpoint(self.last, value, use_reentrant=True).squeeze(1)


def halved(module, rank):
    output = module(rank)
    output /= 2.0
    return output.pow(2).sum()


@pytest.mark.parametrize("is_checkpointed", [False, True])
@OPTIONS
def test_an_output_that_is_a_view_and_is_changed_in_place(options, is_checkpointed):
    def program(rank):
        module = View(is_checkpointed)
        model = DistributedDataParallel(module, static_graph=True, **options)
        for _ in range(STEPS):
            module.zero_grad()
            halved(model, rank).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(View, [lambda module, rank=rank: halved(module, rank) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


def test_a_loss_that_does_not_depend_on_the_output():
    class Leaves(View):
        def forward(self, rank):
            value = self.first(torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3))
            self.left = self.last(value)
            return value.tanh()

    def loss(module, rank, leaving):
        module(rank)
        return leaving.left.sum()

    def program(rank):
        module = Leaves()
        model = DistributedDataParallel(module, static_graph=True)
        for _ in range(STEPS):
            module.zero_grad()
            loss(model, rank, module).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(Leaves, [lambda module, rank=rank: loss(module, rank, module) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


# A graph that changes all the same.


def test_a_parameter_that_is_not_used_any_more_is_named():
    def program(rank):
        model = DistributedDataParallel(seeded(), static_graph=True)
        use("ab", rank)(model).backward()
        use("a", rank)(model).backward()
        with pytest.raises(OpenBackwardError, match=r"no gradient came for b.weight, b.bias on ranks 0, 1\. "):
            use("a", rank)(model)

    run(program, 2)


def test_a_parameter_that_is_used_after_all_is_named():
    def program(rank):
        model = DistributedDataParallel(seeded(), static_graph=True)
        use("a", rank)(model).backward()
        with pytest.raises(UsageError, match=r"^b.bias got a gradient, but none in the first backward, "):
            use("ab", rank)(model).backward()

    run(program, 2)


def test_more_gradients_than_before_are_named():
    class Repeats(Twice):
        times = 1

        def forward(self, rank):
            value = self.first(torch.ones(2, 3, dtype=torch.float64))
            for _ in range(self.times):
                value = checkpoint(self.twice, value, use_reentrant=True).tanh()
            return self.last(value).sum()

    def program(rank):
        module = Repeats()
        model = DistributedDataParallel(module, static_graph=True)
        model(rank).backward()
        module.times = 2
        with pytest.raises(
            UsageError, match=r"^twice.(bias|weight) got more gradients in this backward than in the first"
        ):
            model(rank).backward()

    run(program, 2)


# What is learned, as a value.


def test_learning_counts_and_then_counts_down():
    graph = StaticGraph()
    graph.begin()
    assert [graph.is_last(index) for index in (2, 0, 2, 1)] == [False] * 4
    assert not graph.is_learned
    assert graph.learn() == (2, 0, 1)
    assert graph.times == {2: 2, 0: 1, 1: 1}
    assert graph.times_by_index(4) == (1, 1, 2, 0)
    for _ in range(2):
        graph.begin()
        assert [graph.is_last(index) for index in (2, 1, 0, 2)] == [False, True, True, True]


def test_adopting_what_another_rank_learned():
    graph = StaticGraph()
    graph.adopt((1, 0, 3), {1})
    assert graph.is_learned
    assert graph.times == {0: 1, 2: 3}
    assert graph.unused_everywhere == {1}


def test_adopting_keeps_what_was_learned_here():
    graph = StaticGraph()
    graph.begin()
    graph.is_last(1)
    graph.learn()
    graph.adopt((1, 0, 3), {1})
    assert graph.times == {1: 1}
    assert graph.unused_everywhere == {1}


def test_branches_is_what_these_tests_think_it_is():
    assert [name for name, _ in Branches().named_parameters()][2:4] == ["a.weight", "a.bias"]
