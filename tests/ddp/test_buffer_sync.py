"""Buffers by strategy: the numbers, the collectives that were made for them, and what is refused."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpsim.ddp.buffer_strategies import Strategy, When
from ddpsim.ddp.buffer_sync import BufferSync
from ddpsim.ddp.errors import UsageError
from ddpsim.simulator.events import EventKind
from tests.kit.futures import done
from tests.kit.rows import rows
from tests.kit.running import run

WORLD_SIZES = (1, 2, 3, 4)
BEFORE, AFTER = When.BEFORE_FORWARD, When.AFTER_FORWARD


def holder(**buffers):
    """A module with these buffers; `a__b` is buffer b of submodule a."""
    module = nn.Module()
    for name, buffer in buffers.items():
        prefix, _, key = name.rpartition("__")
        if prefix and not hasattr(module, prefix):
            module.add_module(prefix, nn.Module())
        module.get_submodule(prefix).register_buffer(key, buffer)
    return module


def current_tensors(strategies):
    """The buffers as they are now, by name, without those that DDP ignores."""
    current = {name: slot.current_tensor for name, slot in strategies._slots.items()}
    return {name: buffer for name, buffer in current.items() if buffer is not None}


def sync_of(module, **options):
    return BufferSync(module, dist.group.WORLD, **options)


def registered(buffers, **strategies):
    """A synchronization of these buffers by these strategies."""
    sync = sync_of(holder(**buffers))
    for name, strategy in strategies.items():
        sync.set_strategy(name, strategy)
    return sync


def synchronize(sync, when=BEFORE, *, source=0, present=None):
    sync.synchronize(when, source=source, present=present or dist.get_world_size())


def calls(result, rank=0):
    """How many calls of which operation, reduction and dtype a rank made."""
    signatures = [
        event.call.signature for event in result.trace if event.kind is EventKind.ISSUE and event.rank == rank
    ]
    return Counter(
        " ".join(filter(None, (signature.operation, signature.reduction, signature.dtype))) for signature in signatures
    )


def value(rank, shape, dtype):
    """Values small enough to be exact in half precision, of both signs, different on every rank."""
    numbers = [(7 * rank + 3 * index) % 11 - 5 for index in range(math.prod(shape))]
    plain = torch.tensor(numbers, dtype=torch.int64).view(shape)
    return plain.to(dtype) * (1 + 2j) if dtype.is_complex else plain.to(dtype)


def reduced(strategy, values):
    """The same worked out element by element, in Python's own numbers."""
    plain = {
        "broadcast": lambda items: items[0],
        "none": None,
        "sum": sum,
        "mean": lambda items: sum(items) / len(items),
        "max": max,
        "min": min,
    }[strategy]
    lists = zip(*(value.flatten().tolist() for value in values), strict=True)
    return torch.tensor([plain(items) for items in lists], dtype=values[0].dtype).view(values[0].shape)


DTYPES = {
    "sum": (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.complex64),
    "mean": (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex128),
    "max": (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool),
    "min": (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool),
    "broadcast": (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64),
}
SHAPES = ((), (3,), (2, 2), (0,), (1, 0, 2))


def every_dtype(rank, strategy):
    buffers = {
        f"{str(dtype).removeprefix('torch.')}_{index}": value(rank, shape, dtype)
        for dtype in DTYPES[strategy]
        for index, shape in enumerate(SHAPES)
    }
    module = holder(**buffers)
    tensors = dict(module.named_buffers())
    sync = sync_of(module)
    for name in buffers:
        sync.set_strategy(name, strategy)
    synchronize(sync)
    assert all(getattr(module, name) is tensor for name, tensor in tensors.items())
    return [buffer.clone() for buffer in module.buffers()]


@rows("world_size", WORLD_SIZES)
@rows("strategy", DTYPES)
def test_strategy(strategy, world_size):
    result = run(every_dtype, world_size, strategy)
    sets = [(dtype, shape) for dtype in DTYPES[strategy] for shape in SHAPES]
    for returned in result.returns:
        for actual, (dtype, shape) in zip(returned, sets, strict=True):
            expected = reduced(strategy, [value(rank, shape, dtype) for rank in range(world_size)])
            torch.testing.assert_close(actual, expected, rtol=2**-8 if strategy == "mean" else 0, atol=0)
    makes_none = strategy == "broadcast" and world_size == 1
    assert calls(result).total() == (0 if makes_none else len(DTYPES[strategy]))


def one_alone(rank, strategy, transform):
    sync = registered({"x": transform(value(rank, (2, 3), torch.complex64))}, x=strategy)
    synchronize(sync)
    return current_tensors(sync.strategies)["x"].clone()


@rows(
    "transform", [torch.clone, torch.t, torch.conj, lambda x: x.conj().imag], ids=["plain", "transposed", "conj", "neg"]
)
@rows("strategy", ["sum", "mean"])
def test_a_single_buffer_that_may_not_travel_as_it_is(strategy, transform):
    result = run(one_alone, 2, strategy, transform)
    expected = reduced(strategy, [transform(value(rank, (2, 3), torch.complex64)) for rank in range(2)])
    for actual in result.returns:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert calls(result).total() == 1


def test_a_single_contiguous_buffer_is_reduced_in_place(monkeypatch):
    sent = []
    all_reduce = dist.all_reduce

    def recording(tensor, *args, **options):
        sent.append(tensor)
        return all_reduce(tensor, *args, **options)

    monkeypatch.setattr(dist, "all_reduce", recording)

    def program(rank):
        sync = registered({"x": torch.ones(3), "y": torch.ones(2)}, x="mean")
        synchronize(sync)
        return sent[-1].data_ptr() == current_tensors(sync.strategies)["x"].data_ptr()

    assert run(program, 1).returns == (True,)


def division(rank, present):
    sync = registered({"x": torch.full((2,), 1.0 + rank), "y": torch.full((), 2.0 + rank)}, x="mean", y="mean")
    synchronize(sync, present=present)
    return [buffer.tolist() for buffer in current_tensors(sync.strategies).values()]


@pytest.mark.parametrize("present", [1, 2, 3])
def test_a_mean_is_over_the_ranks_present(present):
    assert run(division, 3, present).returns == ([[6 / present] * 2, 9 / present],) * 3


def from_source(rank, source):
    buffers = {"x": torch.full((2,), float(rank)), "y": torch.tensor(10 * rank), "z": torch.tensor(7 * rank)}
    sync = registered(buffers, z=Strategy.NONE)
    synchronize(sync, source=source)
    return tuple(buffer.tolist() for buffer in current_tensors(sync.strategies).values())


@pytest.mark.parametrize("source", [0, 1, 2])
def test_broadcast_takes_the_rank_it_is_told_and_is_the_default(source):
    result = run(from_source, 3, source)
    assert result.returns == tuple(([source, source], 10 * source, 7 * rank) for rank in range(3))
    assert calls(result) == {"broadcast float32": 1, "broadcast int64": 1}


def test_ranks_are_those_of_the_group():
    def program(rank):
        group = dist.new_group([1, 2])
        if rank == 0:
            return None
        module = holder(x=torch.tensor(1.0 + rank), y=torch.tensor(1.0 + rank))
        sync = BufferSync(module, group)
        sync.set_strategy("y", "sum")
        sync.synchronize(BEFORE, source=1, present=2)
        return module.x.item(), module.y.item()

    assert run(program, 3).returns == (None, (3.0, 5.0), (3.0, 5.0))


def test_without_broadcasts_nothing_is_done_until_something_is_registered():
    def program(rank):
        module = holder(x=torch.tensor(float(rank)), y=torch.tensor(float(rank)))
        sync = sync_of(module, broadcasts=False)
        had_any = sync.has_work(BEFORE), sync.has_work(AFTER)
        synchronize(sync)
        sync.set_strategy("x", "max", when="after")
        synchronize(sync)
        synchronize(sync, AFTER)
        return had_any, (sync.has_work(BEFORE), sync.has_work(AFTER)), module.x.item(), module.y.item()

    result = run(program, 2)
    assert result.returns == (((False, False), (False, True), 1.0, 0.0), ((False, False), (False, True), 1.0, 1.0))
    assert calls(result) == {"all_reduce MAX float32": 1}


def test_leaves_autograd_alone():
    def program(rank):
        module = holder(x=torch.ones(2, requires_grad=True), y=torch.ones(2, requires_grad=True))
        sync = sync_of(module)
        sync.set_strategy("y", lambda buffer, group: buffer * 3)
        synchronize(sync)
        return module.x.requires_grad, module.y.grad_fn, module.y.tolist()

    assert run(program, 2).returns == ((True, None, [3.0, 3.0]),) * 2


def ten_buffers(rank, order, when):
    module = holder(
        **{f"s{index}": torch.full((index,), 1.0) for index in range(5)},
        **{f"block__i{index}": torch.tensor(rank + index) for index in range(3)},
        **{f"m{index}": torch.tensor([float(rank)]) for index in range(2)},
    )
    sync = sync_of(module)
    strategies = {name: "max" if name.startswith("m") else "sum" for name in current_tensors(sync.strategies)}
    for name in sorted(strategies, reverse=order == "reverse" or (order == "by rank" and rank == 0)):
        sync.set_strategy(name, strategies[name], when=when)
    for _ in range(2):
        synchronize(sync, BEFORE)
        synchronize(sync, AFTER)
    return {name: buffer.tolist() for name, buffer in current_tensors(sync.strategies).items()}


@rows("world_size", WORLD_SIZES)
@rows("when", ["before", "after", AFTER])
@rows("order", ["forward", "reverse", "by rank"])
def test_one_collective_a_strategy_and_dtype(order, when, world_size):
    result = run(ten_buffers, world_size, order, when)
    per_step = {"all_reduce SUM float32": 1, "all_reduce SUM int64": 1, "all_reduce MAX float32": 1}
    for rank in range(world_size):
        assert calls(result, rank) == {call: 2 * count for call, count in per_step.items()}
    ranks = sum(range(world_size))
    assert result.returns[0] == {
        **{f"s{index}": [float(world_size**2)] * index for index in range(5)},
        **{f"m{index}": [world_size - 1.0] for index in range(2)},
        **{f"block.i{index}": (ranks + world_size * index) * world_size for index in range(3)},
    }
    assert all(returned == result.returns[0] for returned in result.returns)


def test_empty_buffers_take_no_collective():
    def program(rank):
        empty = {"x": torch.zeros(0), "y": torch.zeros(2, 0), "z": torch.zeros(0, dtype=torch.int64)}
        synchronize(registered(empty, x="sum", y="sum", z="sum"))

    assert calls(run(program, 2)) == {}


def each_strategy(rank):
    names = [f"{strategy.value}{index}" for strategy in Strategy for index in range(2)]
    sync = registered({name: torch.tensor([float(rank)]) for name in names}, **{name: name[:-1] for name in names})
    synchronize(sync)
    return [current_tensors(sync.strategies)[name].item() for name in names]


def test_a_collective_for_each_strategy_all_in_flight_together():
    for seed in range(3):
        result = run(each_strategy, 3, policy="random", seed=seed)
        for rank, returned in enumerate(result.returns):
            assert returned == [0, 0, 3, 3, 1, 1, 2, 2, 0, 0, rank, rank]
        assert calls(result) == {
            "broadcast float32": 1,
            "all_reduce SUM float32": 2,
            "all_reduce MAX float32": 1,
            "all_reduce MIN float32": 1,
        }
        kinds = [event.kind for event in result.trace if event.rank == 0]
        kinds = [kind for kind in kinds if kind in (EventKind.ISSUE, EventKind.WAIT, EventKind.DONE)]
        assert kinds[:2] == [EventKind.ISSUE, EventKind.ISSUE]


def average_in_place(buffer, group):
    dist.all_reduce(buffer, group=group)
    buffer /= dist.get_world_size(group)


def average_as_tensor(buffer, group):
    total = buffer.clone()
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)


def total_as_work(buffer, group):
    return dist.all_reduce(buffer, group=group, async_op=True)


def total_as_future(buffer, group):
    return total_as_work(buffer.clone(), group).get_future()


def average_as_future(buffer, group):
    future = total_as_future(buffer, group)
    return future.then(lambda future: future.value()[0] / dist.get_world_size(group))


def total_as_future_in_place(buffer, group):
    return total_as_work(buffer, group).get_future().then(lambda future: None)


def completed_future(buffer, group):
    return done(buffer + 1)


def itself(buffer, group):
    return buffer.add_(1)


def with_hook(rank, hook, when):
    module = holder(a=torch.zeros(1), x=torch.tensor([2.0 * rank, 4.0]))
    sync = sync_of(module)
    sync.set_strategy(module.x, hook, when=when)
    before = module.x.clone()
    synchronize(sync, AFTER if when is BEFORE else BEFORE)
    assert torch.equal(module.x, before)
    synchronize(sync, when)
    return module.x.tolist()


@rows("when", When)
@rows(
    ("hook", "expected"),
    [
        (average_in_place, [[2.0, 4.0]] * 3),
        (average_as_tensor, [[2.0, 4.0]] * 3),
        (total_as_work, [[6.0, 12.0]] * 3),
        (total_as_future, [[6.0, 12.0]] * 3),
        (average_as_future, [[2.0, 4.0]] * 3),
        (total_as_future_in_place, [[6.0, 12.0]] * 3),
        (completed_future, [[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]]),
        (itself, [[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]]),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_callable(hook, expected, when):
    assert list(run(with_hook, 3, hook, when).returns) == expected


def test_callables_run_in_order_of_registration_after_all_else_and_wait_together():
    def program(rank):
        module = holder(**{name: torch.tensor([float(rank)]) for name in "abcd"})
        seen = []

        def recording(name):
            def hook(buffer, group):
                seen.append((name, module.d.item()))
                return dist.all_reduce(buffer, group=group, async_op=True)

            return hook

        sync = sync_of(module)
        sync.set_strategy("d", "sum")
        for name in "abca":
            sync.set_strategy(name, recording(name))
        synchronize(sync)
        return seen, module.a.item()

    result = run(program, 3)
    assert result.returns == (([("b", 3.0), ("c", 3.0), ("a", 3.0)], 3.0),) * 3
    kinds = [event.kind for event in result.trace if event.rank == 0 and event.kind is not EventKind.MATCH]
    first_wait = kinds.index(EventKind.ISSUE, kinds.index(EventKind.DONE))
    assert kinds[first_wait : first_wait + 3] == [EventKind.ISSUE] * 3


class Callable:
    def __call__(self, buffer, group):
        return "a string"


@rows(
    ("hook", "message"),
    [
        (
            Callable(),
            r"hook Callable of buffer 'x' returned str, expected a tensor float32\[2\], a future of one, a work",
        ),
        (lambda *_: torch.ones(3), r"hook \S*<lambda> of buffer 'x' returned a tensor float32\[3\], expected a tensor"),
        (
            lambda *_: torch.ones(2, dtype=torch.float64),
            r"returned a tensor float64\[2\], expected a tensor float32\[2\]",
        ),
        (lambda *_: [torch.ones(2)], "returned list, expected"),
        (lambda *_: completed_future("no tensor", None), None),
        (lambda buffer, group: done([buffer, buffer]), "returned a future of list, expected"),
        (lambda buffer, group: done(buffer[:1]), r"returned a tensor float32\[1\], expected"),
        (lambda buffer, group: done(3), r"returned a future of int, expected .*: change the buffer in place"),
    ],
    ids=["object", "shape", "dtype", "list", "own-error", "future-of-two", "future-shape", "future-type"],
)
def test_a_callable_that_returns_the_wrong_thing(hook, message):
    def program(rank):
        sync = registered({"x": torch.zeros(2)}, x=hook)
        with pytest.raises(UsageError if message else TypeError, match=message):
            synchronize(sync)

    run(program, 1)


def test_a_reassigned_buffer_is_synchronised_with_its_new_tensor():
    def program(rank):
        module = holder(x=torch.zeros(2), y=torch.zeros(()), z=torch.zeros(1), block__x=torch.zeros(2))
        sync = sync_of(module)
        for name in ("y", "block.x"):
            sync.set_strategy(name, "sum")
        sync.set_strategy("z", total_as_work)
        synchronize(sync)
        module.x, module.block.x = torch.full((2,), 3.0 + rank), torch.full((2,), 1.0 + rank)
        module.y, module.z = torch.tensor(5.0 + rank), torch.full((1,), 1.0)
        synchronize(sync)
        sync.set_strategy(module.x, "max")
        assert current_tensors(sync.strategies)["x"] is module.x
        return [buffer.tolist() for buffer in current_tensors(sync.strategies).values()]

    assert run(program, 2).returns == ([[3.0, 3.0], 11.0, [2.0], [3.0, 3.0]],) * 2


DELETED = object()


@rows("strategy", ["broadcast", "sum", total_as_work])
@rows(
    ("replacement", "message"),
    [
        (None, r"buffer 'a.x' is None, and was float32\[2\] when the model was wrapped: keep its shape.* \"none\""),
        (DELETED, r"buffer 'a.x' is None, and was float32\[2\]"),
        (torch.zeros(3), r"buffer 'a.x' is float32\[3\], and was float32\[2\]"),
        (torch.zeros(2).double(), r"buffer 'a.x' is float64\[2\], and was float32\[2\]"),
        (torch.zeros(2, device="meta"), r"buffer 'a.x' is float32\[2\] on meta, and was float32\[2\] when"),
    ],
    ids=["none", "deleted", "shape", "dtype", "device"],
)
def test_a_buffer_of_another_layout_is_named_before_anything_is_sent(replacement, message, strategy):
    def program(rank):
        module = holder(a__x=torch.zeros(2), y=torch.zeros(2), z=torch.zeros(2))
        sync = sync_of(module)
        sync.set_strategy("a.x", strategy)
        sync.set_strategy("y", "sum")
        if replacement is DELETED:
            del module.a.x
        else:
            module.a.x = replacement
        assert ("a.x" in current_tensors(sync.strategies)) == isinstance(replacement, torch.Tensor)
        with pytest.raises(UsageError, match=message):
            synchronize(sync)
        sync.set_strategy("a.x", "none")
        synchronize(sync)

    result = run(program, 2)
    assert calls(result) == {"all_reduce SUM float32": 1, "broadcast float32": 1}


def shared():
    module = holder(a__x=torch.ones(2), b__x=torch.ones(2), y=torch.ones(2))
    module.b.x = module.a.x
    return module


def test_a_shared_buffer_counts_once_under_each_of_its_names():
    def program(rank):
        module = shared()
        sync = sync_of(module)
        sync.set_strategy("y", "sum")
        sync.set_strategy("b.x", "sum")
        names = list(current_tensors(sync.strategies))
        synchronize(sync)
        module.a.x = module.b.x = torch.full((2,), 3.0)
        synchronize(sync)
        return names, module.b.x.tolist()

    assert run(program, 2).returns == ((["y", "a.x"], [6.0, 6.0]),) * 2


def test_a_shared_buffer_that_is_shared_no_longer():
    def program(rank):
        module = shared()
        sync = sync_of(module)
        module.b.x = torch.zeros(2)
        with pytest.raises(
            UsageError, match=r"buffers 'a.x' and 'b.x' were one tensor when .*: assign one tensor to both"
        ):
            synchronize(sync)

    run(program, 1)


# Bad input

IT_HAS = r"which is no buffer of the module; It has 'flag', 'count', .*: give one"
REGISTRATIONS = [
    ("runing_mean", "sum", r"name_or_tensor is 'runing_mean', which is no .* mean 'bn.running_mean' or .*\? It"),
    ("module.bn.running_mean", "sum", r"did you mean 'bn.running_mean'"),
    ("running_mean", "sum", r"did you mean 'bn.running_mean'"),
    ("bias", "sum", f"is 'bias', {IT_HAS}"),
    (torch.zeros(3), "sum", rf"is a tensor float32\[3\], {IT_HAS}"),
    (3, "sum", "name_or_tensor is 3, which is no buffer"),
    (None, "sum", "name_or_tensor is None, which is no buffer"),
    ("secret", "sum", "name_or_tensor is 'secret', a buffer that the engine ignores: remove 'secret'"),
    ("count", "average", r"hook is 'average', expected one of 'broadcast', 'sum', .*, or a callable of \(buf"),
    ("count", None, "hook is None, expected one of"),
    ("count", dist.ReduceOp.SUM, "hook is <RedOpType.SUM: 0>, expected one of"),
    ("flag", "sum", "hook is 'sum' for buffer 'flag' of bool: truth values have no sum; take \"max\""),
    ("flag", Strategy.MEAN, "hook is 'mean' for buffer 'flag' of bool: truth values"),
    ("count", "mean", "hook is 'mean' for buffer 'count' of int64: an integer cannot hold a mean; take"),
    ("wave", "max", "hook is 'max' for buffer 'wave' of complex64: complex numbers have no order; take"),
    ("wave", "min", "hook is 'min' for buffer 'wave' of complex64"),
]


@rows(
    ("buffer", "hook", "message", "when"),
    [
        *((*registration, "before") for registration in REGISTRATIONS),
        ("count", "sum", r"when is 'later', expected 'before' or 'after' \(the forward\)", "later"),
        ("count", "sum", "when is None, expected 'before' or 'after'", None),
    ],
)
def test_register_refuses(buffer, hook, message, when):
    def program(rank):
        module = holder(
            flag=torch.tensor(True),
            count=torch.tensor(1),
            wave=torch.zeros(2, dtype=torch.complex64),
            secret=torch.zeros(1),
        )
        module.add_module("bn", nn.BatchNorm1d(2))
        sync = sync_of(module, ignored=["secret"])
        with pytest.raises(UsageError, match=message) as raised:
            sync.set_strategy(buffer, hook, when=when)
        assert "\n" not in str(raised.value)
        synchronize(sync)

    assert calls(run(program, 2)).total() == 4


def test_an_ignored_buffer_is_left_alone_and_refused_as_a_tensor():
    def program(rank):
        module = holder(x=torch.tensor([float(rank)]), y=torch.tensor([float(rank)]))
        sync = sync_of(module, ignored={"x"})
        with pytest.raises(UsageError, match=r"is a tensor float32\[1\], a buffer that the engine ignores"):
            sync.set_strategy(module.x, "sum")
        synchronize(sync)
        return list(current_tensors(sync.strategies)), module.x.item(), module.y.item()

    assert run(program, 2).returns == ((["y"], 0.0, 0.0), (["y"], 1.0, 0.0))


def test_a_module_without_buffers():
    def program(rank):
        sync = sync_of(nn.Linear(2, 2))
        assert not sync.has_work(BEFORE)
        with pytest.raises(UsageError, match="is 'x', which is no buffer of the module, which has none to synchronise"):
            sync.set_strategy("x", "sum")
        synchronize(sync)

    assert calls(run(program, 2)) == {}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: holder(**{f"b{index}": torch.zeros(1) for index in range(10)}),
            "'b7' and 2 more: give one of these",
        ),
        (
            lambda: nn.LazyBatchNorm1d(affine=False),
            "module has the uninitialised buffer 'running_mean': run one forward",
        ),
    ],
    ids=["many names are cut short", "uninitialised"],
)
def test_no_buffer_of_a_module(build, message):
    def program(rank):
        with pytest.raises(UsageError, match=message):
            sync_of(build()).set_strategy("nothing", "sum")

    run(program, 1)


@pytest.mark.parametrize("strategy", ["broadcast", "mean", "max"])
def test_a_backward_may_follow_the_next_forward(strategy):
    """Synchronising does not count as a change of what a backward has saved: batch norm saves its statistics."""

    def program(rank):
        norm = nn.BatchNorm1d(2)
        buffers = BufferSync(norm, dist.group.WORLD)
        for name in ("running_mean", "running_var"):
            buffers.set_strategy(name, strategy)
        loss = norm(torch.arange(6.0).view(3, 2) * (rank + 1)).square().mean()
        version = norm.running_mean._version
        buffers.synchronize(When.BEFORE_FORWARD, source=0, present=2)
        loss.backward()
        return norm.running_mean._version - version

    assert run(program, 2).returns == (0, 0)
