"""The search for unused parameters: tensors in any nesting of outputs, and the walk of the graph behind them."""

from __future__ import annotations

import collections
import dataclasses
import gc
import sys
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

from ddpsim.ddp.unused import accumulators_of, find_tensors, reached_parameters
from tests.kit.rows import rows

A, B, C = (torch.tensor(float(value)) for value in range(3))


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass
class Output:
    loss: object
    others: object = ()


@dataclasses.dataclass(frozen=True)
class SlottedOutput:
    __slots__ = ("loss", "others")
    loss: object
    others: object


class Attributes:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    @property
    def never(self):
        raise AssertionError("a property was run")


class Slots:
    __slots__ = ("__private", "plain", "unset")

    def __init__(self, plain, private):
        self.plain = plain
        self.__private = private


class MoreSlots(Slots):
    __slots__ = ("extra",)


class Registered:
    """Holds its tensors where only its registration finds them."""

    def __init__(self, tensors):
        self.get = lambda: tensors


_pytree.register_pytree_node(Registered, lambda node: (node.get(), None), lambda parts, _: Registered(parts))


def more_slots():
    item = MoreSlots(A, [B])
    item.extra = C
    return item


def listed():
    item = collections.UserList([A])
    item.extra = (B, C)
    return item


@pytest.mark.parametrize(
    "output",
    [
        pytest.param([A, B, C], id="list"),
        pytest.param((A, (B, (C,))), id="tuples"),
        pytest.param(Pair(A, Pair(B, C)), id="namedtuple"),
        pytest.param(collections.deque([A, B, C]), id="deque"),
        pytest.param({"a": A, "b": {"c": B, "d": [C]}}, id="dicts"),
        pytest.param({A: B, "c": C}, id="key"),
        pytest.param(collections.OrderedDict(a=A, b=B, c=C), id="ordered dict"),
        pytest.param(collections.ChainMap({"c": C}, {"a": A, "b": B}), id="chain map"),
        pytest.param(types.MappingProxyType({"a": A, "b": B, "c": C}), id="mapping proxy"),
        pytest.param(Output(A, [B, Output(C)]), id="dataclass"),
        pytest.param(SlottedOutput(A, [B, C]), id="slotted dataclass"),
        pytest.param(Attributes(a=A, b=Attributes(b=B), c=[C]), id="attributes"),
        pytest.param(listed(), id="user list with an attribute"),
        pytest.param(Registered([A, Registered((B, C))]), id="pytree"),
        pytest.param([A, A, [B, (A, B)], C, C], id="repeated"),
        pytest.param(["text", 1, None, b"", 2.0, range(3), A, torch.float32, A.shape, B, ..., C], id="among others"),
    ],
)
def test_tensors_are_found_in_order(output):
    found = list(find_tensors(output))
    if isinstance(output, collections.ChainMap):
        found.sort(key=float)
    assert [float(tensor) for tensor in found] == [0.0, 1.0, 2.0]
    assert {id(tensor) for tensor in found} == {id(A), id(B), id(C)}


@pytest.mark.parametrize("output", [{A, B, C}, frozenset([A, B, C]), more_slots()], ids=["set", "frozenset", "slots"])
def test_tensors_are_found(output):
    assert {id(tensor) for tensor in find_tensors(output)} == {id(A), id(B), id(C)}
    assert [id(tensor) for tensor in find_tensors(A)] == [id(A)]  # alone


@rows(
    "output",
    [
        None,
        "text",
        nn.Linear(2, 2),
        [nn.Linear(2, 2), Attributes(model=nn.Linear(2, 2))],
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1),
        Output,
        lambda: A,
        types.SimpleNamespace,
        torch,
        A.clone().requires_grad_().clone().grad_fn,
        (tensor for tensor in [A]),
        object(),
    ],
    ids=lambda output: type(output).__name__,
)
def test_nothing_to_find(output):
    assert list(find_tensors(output)) == []


def test_iterators_are_left_as_they_are():
    iterator = iter([A])
    assert list(find_tensors([iterator])) == []
    assert next(iterator) is A


def test_cycles_end():
    ring = [A]
    ring.append({"ring": ring, "b": B})
    node = Attributes(ring=ring)
    node.me = node
    assert [float(tensor) for tensor in find_tensors(node)] == [0.0, 1.0]


def test_deep_nesting():
    output = A
    for _ in range(20_000):
        output = [output]
    assert list(find_tensors(output)) == [A]
    while isinstance(output, list):  # else its destruction recurses
        output = output[0]


@pytest.mark.parametrize(("is_owner", "expected"), [(True, [0.0]), (False, [])])
def test_remote_references_of_this_process(monkeypatch, is_owner, expected):
    class Reference:
        def is_owner(self):
            return is_owner

        def local_value(self):
            assert is_owner
            return [A]

    monkeypatch.setitem(sys.modules, "torch.distributed.rpc", types.SimpleNamespace(RRef=Reference))
    assert [float(tensor) for tensor in find_tensors((Reference(),))] == expected


@pytest.mark.parametrize("rpc", [None, types.SimpleNamespace()], ids=["not imported", "not built"])
def test_without_remote_references(monkeypatch, rpc):
    monkeypatch.setitem(sys.modules, "torch.distributed.rpc", rpc)
    assert list(find_tensors(Attributes(a=A))) == [A]


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(2) * (index + 1)) for index in range(3))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def in_place(net):
    y = net.a.clone()
    y[0] = net.c[1]
    return y


def in_place_on_a_view(net):
    y = torch.zeros(2)
    y[:1].add_(net.b[:1])
    return y


def no_grad_inside(net):
    with torch.no_grad():
        hidden = net.b * 2
    return net.a * hidden


X = torch.ones(2)


@rows(
    ("forward", "expected"),
    [
        (lambda net: net.a * net.b * net.c, {0, 1, 2}),
        (lambda net: net.a * 2, {0}),
        (lambda net: (net.a + 1, net.c + 1), {0, 2}),
        (lambda net: net.b, {1}),
        (lambda net: [net.b, net.c.view(2, 1)[0]], {1, 2}),
        (lambda net: net.a * net.b.detach(), {0}),
        (lambda net: X, set()),
        (lambda net: (net.a * 2).detach(), set()),
        (lambda net: Double.apply(net.b) * 2, {1}),
        (in_place, {0, 2}),
        (in_place_on_a_view, {1}),
        (no_grad_inside, {0}),
        (lambda net: net.a.sum() * 0, {0}),
        (lambda net: torch.stack([net.a, net.b]).unbind()[0], {0, 1}),
        (lambda net: checkpoint(lambda x: x * net.b, net.a * X, use_reentrant=False), {0, 1}),
        (lambda net: net.a.grad_fn, set()),
    ],
)
def test_reached(forward, expected):
    net = Three()
    accumulators = accumulators_of(list(net.parameters()))
    gc.collect(1)  # what is as young as these; all that the session has would take 20 times as long as the test
    reached = reached_parameters(find_tensors(forward(net)), accumulators)
    assert reached.parameters == expected
    assert not reached.has_reentrant_checkpoint


def test_an_output_under_no_grad_reaches_nothing_but_parameters_themselves():
    net = Three()
    accumulators = accumulators_of(list(net.parameters()))
    with torch.no_grad():
        output = [net.a * 2, net.c]
        assert reached_parameters(find_tensors(output), accumulators).parameters == {2}


def test_the_reentrant_checkpoint_hides_what_is_used_inside():
    net = Three()
    accumulators = accumulators_of(list(net.parameters()))
    output = checkpoint(lambda x: x * net.b, net.a * X, use_reentrant=True)
    reached = reached_parameters([output + net.c], accumulators)
    assert reached.parameters == {0, 2}
    assert reached.has_reentrant_checkpoint
    output.sum().backward()
    assert net.b.grad is not None


def test_a_parameter_of_somebody_else_does_not_count():
    accumulators = accumulators_of(list(Three().parameters())[:2])
    assert reached_parameters([Three().a * 2], accumulators).parameters == set()


@pytest.mark.parametrize(
    ("times", "grow"),
    [(20_000, lambda output: output + 1), (200, lambda output: output + output)],
    ids=["deep", "wide"],
)
def test_a_large_graph_is_walked_once(times, grow):
    net = Three()
    accumulators = accumulators_of(list(net.parameters()))
    output = net.a
    for _ in range(times):
        output = grow(output)
    assert reached_parameters([output * net.c], accumulators).parameters == {0, 2}
