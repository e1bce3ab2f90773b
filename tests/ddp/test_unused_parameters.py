"""`find_unused_parameters`: which parameters are waited for, what the ranks tell each other, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ddpsim.ddp import BypassedBackwardError, DistributedDataParallel
from ddpsim.ddp.used_map import UsedMap
from ddpsim.simulator.calls import Phase
from tests.kit.running import (
    TINY,
    assert_equal,
    average,
    calls,
    counts,
    gradients,
    mark,
    mark_gradients,
    run,
    timeline,
)

MODES = pytest.mark.parametrize("as_view", [None, False, True])
CAPS = pytest.mark.parametrize("cap_mb", [25, TINY])


class Branches(nn.Module):
    """Says in the forward which of its layers are used."""

    def __init__(self):
        super().__init__()
        self.common = nn.Linear(3, 3, dtype=torch.float64)
        self.a = nn.Linear(3, 2, dtype=torch.float64)
        self.b = nn.Linear(3, 2, dtype=torch.float64)
        self.c = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, names, rank=0):
        hidden = self.common(torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3)).tanh()
        return sum((getattr(self, name)(hidden) for name in names), hidden.sum())


def seeded():
    torch.manual_seed(0)
    return Branches()


def use(names, rank):
    return lambda module: module(names, rank).pow(2).sum()


def expected(*names_by_rank):
    with torch.random.fork_rng():
        return average(seeded, [use(names, rank) for rank, names in enumerate(names_by_rank)])


def steps(rank, *names_by_step, **options):
    """One backward per step; the gradients after each, cleared before it."""
    module = seeded()
    model = DistributedDataParallel(module, find_unused_parameters=True, **options)
    found = []
    for names in names_by_step:
        module.zero_grad()
        use(names[rank], rank)(model).backward()
        found.append(gradients(module))
    return found


USES = [
    pytest.param((("a", "a"), ("a", "a"), ("b", "b")), id="same on all"),
    pytest.param((("a", "b"), ("b", "a"), ("c", "c")), id="differs by rank"),
    pytest.param((("a", ""), ("", "abc"), ("abc", "")), id="one rank only"),
    pytest.param((("", ""), ("", ""), ("abc", "abc")), id="none anywhere"),
    pytest.param((("ab", "bc"), ("bc", "a"), ("", "")), id="some in common"),
]


@CAPS
@MODES
@pytest.mark.parametrize("uses", USES)
def test_gradients(uses, as_view, cap_mb):
    result = run(lambda rank: steps(rank, *uses, gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb), 2)
    for found in result.returns:
        for actual, names in zip(found, uses, strict=True):
            assert_equal(actual, expected(*names))  # None where no rank used it


@pytest.mark.parametrize("policy", ["round_robin", "random"])
def test_four_ranks(policy):
    uses = (("a", "b", "c", ""), ("ab", "", "", "bc"), ("", "", "", ""))
    result = run(lambda rank: steps(rank, *uses), 4, policy=policy, seed=5)
    for found in result.returns:
        for actual, names in zip(found, uses, strict=True):
            assert_equal(actual, expected(*names))


@CAPS
@MODES
def test_unused_everywhere_keeps_its_gradient_to_the_last_bit(as_view, cap_mb):
    value = torch.tensor([[0.1, float("nan"), -0.0], [1e-310, float("inf"), 1 / 3]], dtype=torch.float64)

    def program(rank):
        module = seeded()
        model = DistributedDataParallel(
            module, find_unused_parameters=True, gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb
        )
        found = []
        module.b.weight.grad = value.clone() * (rank + 1)
        for names in ("a", "a", "c"):
            use(names, rank)(model).backward()
            found.append((module.b.weight.grad.clone(), module.b.bias.grad, module.a.weight.grad.clone()))
        return found

    for rank, found in enumerate(run(program, 2).returns):
        for kept, none, _ in found:
            assert kept.view(torch.int64).tolist() == (value * (rank + 1)).view(torch.int64).tolist()
            assert none is None
        assert torch.equal(found[2][2], found[1][2])  # of the layer a, which the third step does not use


@MODES
def test_what_is_kept_is_used_again(as_view):
    # A gradient kept from a step without its layer adds up with the next one's, on every rank.
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=as_view)
        for names in ("a", "b", "a"):
            use(names, rank)(model).backward()
        return gradients(module)

    once, other = expected("a", "a"), expected("b", "b")
    for found in run(program, 2).returns:
        torch.testing.assert_close(found["a.weight"], 2 * once["a.weight"], rtol=1e-14, atol=0)
        torch.testing.assert_close(found["b.weight"], other["b.weight"], rtol=0, atol=0)
        assert found["c.weight"] is None


def test_the_used_map_is_one_call_for_each_backward():
    result = run(lambda rank: steps(rank, ("a", "b"), ("b", "b"), ("c", "a"), bucket_cap_mb=TINY), 2)
    for rank in range(2):
        found = counts(result, rank)
        assert found["used map"] == 3
        assert found["bucket"] == 3 * 8
    assert {(call.signature.dtype, call.signature.shapes) for call in calls(result, Phase.USED_MAP)} == {
        ("int32", ((8,),))
    }


def test_buckets_of_unused_parameters_do_not_wait_for_the_end():
    def program(rank):
        module = seeded()
        mark_gradients(module)
        model = DistributedDataParallel(module, find_unused_parameters=True, bucket_cap_mb=TINY)
        output = use("a", rank)(model)
        mark("backward")
        output.backward()
        mark("end")

    # c and b are last defined, so their four buckets come first: they start with the first gradient.
    assert timeline(run(program, 2)) == [
        "backward", "a.bias", "bucket 0", "bucket 1", "bucket 2", "bucket 3", "bucket 4", "a.weight", "bucket 5",
        "common.bias", "bucket 6", "common.weight", "bucket 7", "end",
    ]  # fmt: skip


# What a forward returns.


@dataclass
class Answer:
    values: Tensor
    rest: object = None


class Pair(NamedTuple):
    left: object
    right: object


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


WRAPPINGS = {
    "tensor": lambda tensor: tensor,
    "list": lambda tensor: [tensor],
    "dict in tuple": lambda tensor: ("text", {"key": (tensor, 3)}),
    "dataclass": lambda tensor: Answer(tensor),
    "named tuple in an object": lambda tensor: Slotted(Pair(None, Answer(None, [tensor]))),
}
UNWRAPPINGS = {
    "tensor": lambda output: output,
    "list": lambda output: output[0],
    "dict in tuple": lambda output: output[1]["key"][0],
    "dataclass": lambda output: output.values,
    "named tuple in an object": lambda output: output.inner.right.rest[0],
}


class Wrapping(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner = seeded()
        self.wrap = wrap

    def forward(self, names, rank):
        return self.wrap(self.inner(names, rank))


def returning(rank, wrap, unwrap):
    module = Wrapping(wrap)
    model = DistributedDataParallel(module, find_unused_parameters=True)
    for _ in range(2):
        module.zero_grad()
        unwrap(model("ab"[rank], rank)).pow(2).sum().backward()
    return gradients(module.inner)


@pytest.mark.parametrize("shape", WRAPPINGS)
def test_nested_outputs(shape):
    for found in run(returning, 2, WRAPPINGS[shape], UNWRAPPINGS[shape]).returns:
        assert_equal(found, expected("a", "b"))


def test_an_output_that_is_hidden():
    # In a closure nobody looks; the end of the backward shows all the same what has not come.
    for found in run(returning, 2, lambda tensor: lambda: tensor, lambda output: output()).returns:
        assert_equal(found, expected("a", "b"))


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 2, dtype=torch.float64)
        self.second = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, rank):
        batch = torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3)
        return {"first": self.first(batch), "second": (self.second(batch), "text")}


def first_output(output):
    return output["first"].pow(2).sum()


def second_output(output):
    return output["second"][0].pow(3).sum()


def both_outputs(output):
    return first_output(output) + second_output(output)


@MODES
@pytest.mark.parametrize(
    "losses",
    [
        pytest.param((first_output, first_output), id="one output"),
        pytest.param((first_output, second_output), id="another output on another rank"),
        pytest.param((both_outputs, second_output), id="both on one rank"),
    ],
)
def test_outputs_that_the_loss_leaves_out(losses, as_view):
    def program(rank):
        module = TwoOutputs()
        model = DistributedDataParallel(module, find_unused_parameters=True, gradient_as_bucket_view=as_view)
        for _ in range(3):
            module.zero_grad()
            losses[rank](model(rank)).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(
            TwoOutputs, [lambda module, rank=rank, loss=loss: loss(module(rank)) for rank, loss in enumerate(losses)]
        )
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


def test_two_losses_of_one_forward_added_up():
    def program(rank):
        module = TwoOutputs()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        output = model(rank)
        (first_output(output) + second_output(output)).backward()
        return gradients(module)

    with torch.random.fork_rng():
        wanted = average(TwoOutputs, [lambda module, rank=rank: both_outputs(module(rank)) for rank in range(2)])
    for found in run(program, 2).returns:
        assert_equal(found, wanted)


def test_a_gradient_of_the_input_on_the_way_to_the_loss():
    # A penalty on it: torch.autograd.grad goes through the forward's outputs, and brings no gradient of a parameter.
    def penalized(module, rank):
        batch = torch.linspace(-1, 1 + rank, 6, dtype=torch.float64).view(2, 3).requires_grad_()
        output = module(batch).pow(2).sum()
        (slope,) = torch.autograd.grad(output, batch, create_graph=True)
        return output + slope.pow(2).sum()

    def build():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        module.register_parameter("unused", nn.Parameter(torch.ones(2)))
        return module

    def program(rank):
        module = build()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        for _ in range(2):
            module.zero_grad()
            penalized(model, rank).backward()
        return gradients(module)

    result = run(program, 2)
    assert counts(result)["used map"] == 2
    with torch.random.fork_rng():
        wanted = average(build, [partial(_called_with, penalized, rank) for rank in range(2)])
    for found in result.returns:
        assert_equal(found, wanted)


def _called_with(function, rank, module):
    return function(module, rank)


# Without synchronization.


@MODES
@pytest.mark.parametrize("cap_mb", [25, TINY])
def test_windows_without_synchronization_count_as_used(as_view, cap_mb):
    # Rank 0 uses b in the window only, nobody uses c.
    windows, closing = ("b", "a"), ("a", "a")

    def program(rank):
        module = seeded()
        model = DistributedDataParallel(
            module, find_unused_parameters=True, gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb
        )
        for _ in range(3):
            module.zero_grad()
            with model.no_sync():
                use(windows[rank], rank)(model).backward()
            use(closing[rank], rank)(model).backward()
        return gradients(module)

    result = run(program, 2)
    first, second = expected(*windows), expected(*closing)
    for found in result.returns:
        for name, gradient in found.items():
            shares = [share for share in (first[name], second[name]) if share is not None]
            if shares:
                torch.testing.assert_close(gradient, sum(shares), rtol=1e-13, atol=1e-15)
            else:
                assert gradient is None
    assert counts(result)["used map"] == 3


def test_a_window_after_a_forward_without_backward():
    # The first forward announces a reduction of a alone; the backward that brings it comes from no_sync and reaches b.
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        use("a", rank)(model)
        with model.no_sync():
            use("ab", rank)(model).backward()
        return gradients(module)

    wanted = expected("ab", "ab")
    for found in run(program, 2).returns:
        for name in ("a.weight", "b.weight"):
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-13, atol=1e-15)
        assert found["c.weight"] is None


def test_a_window_past_the_wrapper_counts_as_used_too():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module, find_unused_parameters=True)
        for _ in range(2):
            module.zero_grad()
            with model.no_sync():
                use("b", rank)(module).backward()
            use("a", rank)(model).backward()
        return gradients(module)

    first, second = expected("b", "b"), expected("a", "a")
    for found in run(program, 2).returns:
        torch.testing.assert_close(found["b.weight"], first["b.weight"], rtol=0, atol=0)
        torch.testing.assert_close(found["a.weight"], second["a.weight"], rtol=0, atol=0)


def test_without_the_flag_it_is_reported():
    def program(rank):
        module = seeded()
        model = DistributedDataParallel(module)
        use("ab", rank)(model).backward()
        with pytest.raises(RuntimeError, match=r"no gradient came for c.weight, c.bias on ranks 0, 1\. If") as raised:
            use("ab", rank)(model)
        assert "find_unused_parameters=True" in str(raised.value)

    run(program, 2)


def test_the_used_map_is_not_read_where_everything_was_used(monkeypatch):
    monkeypatch.setattr(UsedMap, "unused", lambda self: pytest.fail("the host would wait for the device"))
    for found in run(lambda rank: steps(rank, ("abc", "abc"), ("abc", "abc")), 2).returns:
        for actual in found:
            assert_equal(actual, expected("abc", "abc"))


def test_two_backwards_through_one_forward_are_named():
    def program(rank):
        model = DistributedDataParallel(TwoOutputs(), find_unused_parameters=True)
        output = model(rank)
        first_output(output).backward()
        with pytest.raises(
            BypassedBackwardError,
            match="the first of two backwards ended the reduction: add the losses and call backward once",
        ):
            second_output(output).backward()

    run(program, 2)
