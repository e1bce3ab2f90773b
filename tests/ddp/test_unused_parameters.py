"""`find_unused_parameters`: which parameters are waited for, what the ranks tell each other, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ddpsim.ddp import DistributedDataParallel
from ddpsim.ddp.rank_agreement import LearnedState, UsedParameterCount
from ddpsim.simulator.calls import Phase
from tests.kit.networks import Branches, TwoOutputs
from tests.kit.rows import rows
from tests.kit.running import calls, check_backwards, counts, expected, gradients, mark, mark_gradients, run, timeline
from tests.kit.training import TINY, ramp, seeded

MODES = pytest.mark.parametrize("as_view", [None, False, True])
CAPS = pytest.mark.parametrize("cap_mb", [25, TINY])
using = Branches.using


def wrapped(build=Branches, **options):
    return DistributedDataParallel(seeded(build), find_unused_parameters=True, **options)


def check(build, *losses, world_size=2, policy="round_robin", seed=0, **options):
    options = {"find_unused_parameters": True, **options}
    return check_backwards(build, *losses, options=options, world_size=world_size, policy=policy, seed=seed)


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
    losses = [using(*names) for names in uses]  # the gradient is None where no rank uses it
    result = check(Branches, *losses, gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb)
    for rank in range(2):
        assert counts(result, rank)["used map"] == 3
        assert counts(result, rank)["bucket"] == 3 * (8 if cap_mb == TINY else 1)
    sent = {(call.signature.dtype, call.signature.shapes) for call in calls(result, Phase.USED_MAP)}
    assert sent == {("int32", ((8,),))}


@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.usefixtures("rank_order")
def test_four_ranks(policy):
    uses = using("a", "b", "c", ""), using("ab", "", "", "bc"), using("", "", "", "")
    check(Branches, *uses, world_size=4, policy=policy, seed=5)


@CAPS
@MODES
def test_unused_everywhere_keeps_its_gradient_to_the_last_bit(as_view, cap_mb):
    value = torch.tensor([[0.1, float("nan"), -0.0], [1e-310, float("inf"), 1 / 3]], dtype=torch.float64)

    def program(rank):
        model = wrapped(gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb)
        module, found = model.module, []
        module.b.weight.grad = value.clone() * (rank + 1)
        for names in ("a", "a", "c"):
            model(names, rank).sum().backward()
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
    using_a, using_b = using("a", "a"), using("b", "b")

    def program(rank):
        model = wrapped(gradient_as_bucket_view=as_view)
        for loss in (using_a, using_b, using_a):
            loss(model, rank).backward()
        return gradients(model.module)

    once, other = expected(Branches, using_a), expected(Branches, using_b)
    for found in run(program, 2).returns:
        torch.testing.assert_close(found["a.weight"], 2 * once["a.weight"], rtol=1e-14, atol=0)
        torch.testing.assert_close(found["b.weight"], other["b.weight"], rtol=0, atol=0)
        assert found["c.weight"] is None


def test_buckets_of_unused_parameters_do_not_wait_for_the_end():
    def program(rank):
        module = Branches()
        mark_gradients(module)
        model = DistributedDataParallel(module, find_unused_parameters=True, bucket_cap_mb=TINY)
        output = model("a", rank).sum()
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
    "tensor": (lambda tensor: tensor, lambda output: output),
    "list": (lambda tensor: [tensor], lambda output: output[0]),
    "dict in tuple": (lambda tensor: ("text", {"key": (tensor, 3)}), lambda output: output[1]["key"][0]),
    "dataclass": (Answer, lambda output: output.values),
    "named tuple in an object": (
        lambda tensor: Slotted(Pair(None, Answer(None, [tensor]))),
        lambda output: output.inner.right.rest[0],
    ),
    # Nobody looks into a closure; the end of the backward shows all the same what has not come.
    "hidden": (lambda tensor: lambda: tensor, lambda output: output()),
}


@rows("shape", WRAPPINGS)
def test_nested_outputs(shape):
    wrap, unwrap = WRAPPINGS[shape]

    class Wrapping(Branches):
        def forward(self, names, rank):
            return wrap(super().forward(names, rank))

    check(Wrapping, lambda model, rank: unwrap(model("ab"[rank], rank)).pow(2).sum())


@MODES
@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param([{1}, {1}], id="one output"),
        pytest.param([{1}, {0}], id="another output on another rank"),
        pytest.param([set(), {0}], id="both on one rank"),
        pytest.param([set(), set()], id="none"),
    ],
)
def test_outputs_that_the_loss_leaves_out(left_out, as_view):
    def loss(model, rank):
        losses = TwoOutputs.losses(model(ramp(rank)))
        return sum(own for index, own in enumerate(losses) if index not in left_out[rank])

    check(TwoOutputs, *[loss] * 3, gradient_as_bucket_view=as_view)


def test_a_gradient_of_the_input_on_the_way_to_the_loss():
    # A penalty on it: torch.autograd.grad goes through the forward's outputs, and brings no gradient of a parameter.
    def penalized(module, rank):
        batch = ramp(rank, features=3).requires_grad_()
        output = module(batch).pow(2).sum()
        (slope,) = torch.autograd.grad(output, batch, create_graph=True)
        return output + slope.pow(2).sum()

    def build():
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        module.register_parameter("unused", nn.Parameter(torch.ones(2)))
        return module

    assert counts(check(build, penalized))["used map"] == 2


# Without synchronization.


@CAPS
@MODES
@pytest.mark.parametrize(
    ("windows", "closing", "is_past"),
    [
        pytest.param("ba", "aa", False, id="rank 0 uses b in the window only"),
        pytest.param("bb", "aa", True, id="the window is past the wrapper"),
    ],
)
def test_windows_without_synchronization_count_as_used(windows, closing, is_past, as_view, cap_mb):
    in_window, at_last = using(*windows), using(*closing)

    def program(rank):
        model = wrapped(gradient_as_bucket_view=as_view, bucket_cap_mb=cap_mb)
        for _ in range(3):
            model.zero_grad()
            with model.no_sync():
                in_window(model.module if is_past else model, rank).backward()
            at_last(model, rank).backward()
        return gradients(model.module)

    result = run(program, 2)
    first, second = expected(Branches, in_window), expected(Branches, at_last)
    for found in result.returns:
        for name, gradient in found.items():
            shares = [share for share in (first[name], second[name]) if share is not None]
            torch.testing.assert_close(gradient, sum(shares) if shares else None, rtol=1e-13, atol=1e-15)
    assert counts(result)["used map"] == 3


def test_a_window_after_a_forward_without_backward():
    # The first forward announces a reduction of a alone; the backward that brings it comes from no_sync and reaches b.
    using_both = using("ab", "ab")

    def program(rank):
        model = wrapped()
        model("a", rank)
        with model.no_sync():
            using_both(model, rank).backward()
        return gradients(model.module)

    wanted = expected(Branches, using_both)
    for found in run(program, 2).returns:
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-15)


def test_the_used_map_is_not_read_where_everything_was_used(monkeypatch):
    monkeypatch.setattr(
        UsedParameterCount, "unused_parameters", lambda self: pytest.fail("the host would wait for the device")
    )
    check(Branches, using("abc", "abc"))


def test_what_a_rank_learned_is_sent_whole():
    for learned in (LearnedState(7, (1, 0), (1, 2), frozenset({1}), 2), LearnedState(0, None, None, frozenset(), 2)):
        assert LearnedState.decode(learned.encode()) == learned
