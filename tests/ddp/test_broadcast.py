"""The coalesced broadcast: every rank gets rank src's bits, in as many calls as the bytes need and no more."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddpsim import simulate
from ddpsim.ddp.broadcast import DEFAULT_BUFFER_BYTES, broadcast_coalesced
from ddpsim.ddp.errors import UsageError
from ddpsim.simulator.events import EventKind
from tests.kit.results import returned
from tests.kit.rows import rows
from tests.semantics.real_gloo import GlooWorld, state_per_thread
from tests.tiers import sweep

WORLD_SIZES = [1, 2, 3, 4]


def floats(*sizes):
    return [torch.randn(size) for size in sizes]


def bits(tensor: Tensor) -> list[int]:
    """The elements as bytes, row by row, so that NaN and -0.0 count."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return plain.view(-1).view(torch.uint8).tolist()


def broadcast(rank, build, src=0, buffer_bytes=64):
    """What the tensors were, and what they are after the broadcast."""
    torch.manual_seed(rank)
    tensors = build(rank)
    before = [bits(tensor) for tensor in tensors]
    broadcast_coalesced(tensors, src, buffer_bytes=buffer_bytes)
    return before, [bits(tensor) for tensor in tensors]


def check(world_size, build, src, buffer_bytes=64):
    result = simulate(broadcast, world_size, args=(build, src, buffer_bytes))
    result.raise_for_verdict()
    assert not result.findings
    assert_equal_to_source(result.returns, src)
    return calls(result)


def calls(result, rank=0):
    """The dtype and number of elements of each broadcast that a rank issued."""
    signatures = [
        event.call.signature for event in result.trace if event.kind is EventKind.ISSUE and event.rank == rank
    ]
    assert all(signature.operation == "broadcast" for signature in signatures)
    return [(signature.dtype, torch.Size(signature.shapes[0]).numel()) for signature in signatures]


def on_real_gloo(*programs):
    """What each of these returns on two ranks."""
    with state_per_thread():
        world = GlooWorld(2)
        try:
            for program in programs:
                outcomes = world.run(program)
                assert [outcome.error for outcome in outcomes] == [None, None]
                yield [outcome.value for outcome in outcomes]
        finally:
            world.close()


def assert_equal_to_source(outcomes, src):
    sent = outcomes[src][0]
    for before, after in outcomes:
        assert after == sent
        assert before == sent or before != after


# --- tensors of every kind --------------------------------------------------------------------------------------------


def every_dtype(rank):
    real = [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
    whole = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]
    numbers = [torch.randn(size).to(dtype) for dtype in real for size in (3, 70)]
    numbers += [torch.randint(0, 100, (size,)).to(dtype) for dtype in whole for size in (3, 70)]
    numbers += [torch.randn(size, dtype=dtype) for dtype in (torch.complex64, torch.complex128) for size in (3, 70)]
    return [*numbers, torch.rand(3) < 0.5, torch.rand(70) < 0.5]


def parameters(rank):
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 30))
    return [*module.parameters(), *module.buffers()]


def strided(rank):
    images = torch.randn(2, 3, 4, 5)
    return [torch.randn(6, 5).t(), torch.randn(3)[::2], images.permute(0, 2, 3, 1), torch.randn(9, 9)[2:5]]


def strides_of_ranks(rank):
    images, matrix, line = torch.randn(2, 3, 4, 5), torch.randn(6, 5), torch.randn(12)
    if rank % 2:
        return [images.to(memory_format=torch.channels_last), matrix.t().contiguous().t(), line]
    return [images, matrix, torch.stack([line, line], dim=1)[:, rank % 2]]


def views_in_one_memory(rank):
    memory = torch.randn(60)
    return [memory[:20], memory[20:23], memory[23:60].view(37, 1)]


def overlapping(rank):
    memory = torch.randn(60)
    return [memory[:20], memory[10:50], memory, memory.view(6, 10).t(), memory[::3]]


def listed_twice(rank):
    little, much = floats(5, 40)
    return [little, much, little, much, little]


def conjugates_and_negatives(rank):
    waves = torch.randn(4, 4, dtype=torch.complex64)
    line, one = torch.randn(20, dtype=torch.complex64), torch.randn(1, dtype=torch.complex64)
    return [waves.conj(), line.conj(), waves.clone().conj().imag, waves.clone().mH, one.conj().imag]


def special_numbers(rank):
    if rank:
        return floats(4, 40)
    return [torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]), torch.full((40,), -float("nan"))]


CASES = {
    "small": lambda rank: floats(3, 5, 1, 4, 8, 2, 7),
    "large": lambda rank: floats(16, 40, 17),
    "small and large": lambda rank: floats(3, 40, 5, 16, 20, 1, 2),
    "mixed dtypes": lambda rank: [*floats(5, 30), torch.arange(9) + rank, torch.randn(7).double(), torch.tensor(rank)],
    "every dtype": every_dtype,
    "shapes": lambda rank: [torch.randn(2, 3, 4), torch.randn(()), torch.randn(1, 1), torch.randn(5, 5)],
    "empty": lambda rank: [*floats(0, 3), torch.randn(2, 0, 3), torch.empty(0, dtype=torch.int64)],
    "nothing": lambda rank: [],
    "only empty": lambda rank: [torch.randn(0), torch.randn(4, 0)],
    "scalar": lambda rank: [torch.tensor(float(rank)), torch.tensor(rank, dtype=torch.int16)],
    "lone element of a column": lambda rank: [
        torch.randn(1, 2)[:, 1],
        torch.tensor([[rank, rank + 1]], dtype=torch.int16)[:, 0],
    ],
    "parameters": parameters,
    "strided": strided,
    "strides of ranks": strides_of_ranks,
    "views in one memory": views_in_one_memory,
    "overlapping": overlapping,
    "listed twice": listed_twice,
    "multiple views of a parameter": lambda rank: [
        *nn.Parameter(torch.randn(30)).split(7),
        *nn.Parameter(torch.randn(4, 4)).unbind(),
    ],
    "conjugates and negatives": conjugates_and_negatives,
    "special numbers": special_numbers,
}
EACH = pytest.mark.parametrize("build", CASES.values(), ids=CASES)


@EACH
@pytest.mark.parametrize("world_size", sweep(WORLD_SIZES, lambda size: size in (1, 3)))
def test_all_ranks_get_the_bits_of_the_source(build, world_size):
    for src in range(world_size):
        check(world_size, build, src)


@pytest.mark.parametrize(
    "buffer_bytes", sweep([1, 64, 300, 10_000, DEFAULT_BUFFER_BYTES], lambda size: size in (64, 300))
)
def test_any_buffer_does(buffer_bytes):
    for build in CASES.values():
        check(2, build, 1, buffer_bytes)


def test_a_strided_tensor_is_cut_anywhere():
    for elements in range(1, 26):
        made = check(2, lambda rank: [torch.randn(4, 2, 3).permute(2, 0, 1)], 0, 4 * elements)
        assert len(made) == -(-24 // elements)


def test_the_same_on_real_gloo():
    for outcomes in on_real_gloo(*(partial(broadcast, build=build, src=1) for build in CASES.values())):
        assert_equal_to_source(outcomes, 1)


# --- calls ------------------------------------------------------------------------------------------------------------


@rows(
    ("sizes", "elements"),
    [
        ([1000] * 4, [4000]),
        ([100] * 500, [4096] * 12 + [848]),
        ([4096], [4096]),
        ([4095, 1], [4096]),
        ([4095, 2], [4096, 1]),
        ([2048, 2048, 2048], [4096, 2048]),
        ([1, 3 * 4096, 1], [4096, 4096, 4096, 2]),
        ([10_000, 10_000], [4096, 4096, 4096, 4096, 3616]),
        ([0, 0, 5, 0], [5]),
        ([0, 0], []),
    ],
)
def test_calls_are_full(sizes, elements):
    made = check(2, lambda rank: floats(*sizes), 0, 4 * 4096)
    assert sorted(made, reverse=True) == [("float32", count) for count in sorted(elements, reverse=True)]
    assert len(made) == -(-sum(sizes) // 4096)


@pytest.mark.parametrize(
    ("build", "buffer_bytes", "expected"),
    [
        pytest.param(
            lambda rank: [torch.randn(100) if index % 2 else torch.randn(50).double() for index in range(40)],
            1024,
            [("float64", n) for n in (*[128] * 7, 104)] + [("float32", n) for n in (*[256] * 7, 208)],
            id="each dtype has calls of its own",
        ),
        pytest.param(
            lambda rank: [torch.ones(10, dtype=torch.int16) * rank],
            8,
            [("uint8", n) for n in (8, 8, 4)],
            id="a dtype that backends refuse travels as bytes",
        ),
        pytest.param(lambda rank: floats(5), 1, [("float32", 1)] * 5, id="at least one element"),
        pytest.param(lambda rank: floats(5), 11, [("float32", n) for n in (2, 2, 1)], id="whole elements"),
    ],
)
def test_calls_of_each_dtype(build, buffer_bytes, expected):
    assert check(2, build, 0, buffer_bytes) == expected


def test_the_calls_do_not_depend_on_strides():
    result = simulate(broadcast, 4, args=(strides_of_ranks,))
    assert calls(result, 0) == calls(result, 1) == calls(result, 3)


def test_the_default_buffer():
    megabytes = 10 * 1024 * 1024 // 4

    def program(rank):
        tensors = [torch.full((megabytes // 8,), float(rank)) for _ in range(9)]
        broadcast_coalesced(tensors, 1)
        return all(bool((tensor == 1).all()) for tensor in tensors)

    result = simulate(program, 2)
    assert list(result.returns) == [True, True]
    assert calls(result) == [("float32", megabytes), ("float32", megabytes // 8)]


def test_alone_in_the_group_nothing_is_sent():
    assert check(1, CASES["small and large"], 0) == []


def test_two_calls_are_under_way(monkeypatch):
    plain = dist.broadcast
    under_way = [0, 0]
    most = [0, 0]

    class Noted:
        def __init__(self, work):
            self._work = work

        def wait(self):
            self._work.wait()
            under_way[dist.get_rank()] -= 1

    def noting(*args, **kwargs):
        rank = dist.get_rank()
        under_way[rank] += 1
        most[rank] = max(most[rank], under_way[rank])
        return Noted(plain(*args, **kwargs))

    monkeypatch.setattr(dist, "broadcast", noting)
    for sizes in ([5] * 40, [16] * 10, [40, 3, 20, 7]):
        under_way, most = [0, 0], [0, 0]
        simulate(broadcast, 2, args=(lambda rank, sizes=sizes: floats(*sizes),)).raise_for_verdict()
        assert (under_way, most) == ([0, 0], [2, 2])


def test_a_subgroup_counts_its_own_ranks():
    def program(rank):
        group = dist.new_group([3, 1])
        tensors = [torch.full((20,), float(rank)), torch.tensor(rank)]
        if rank in (1, 3):
            broadcast_coalesced(tensors, 1, group, buffer_bytes=64)
        return [tensor.flatten()[-1].item() for tensor in tensors]

    assert list(returned(program, 4)) == [[0, 0], [3, 3], [2, 2], [3, 3]]


# --- memory -----------------------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """The sizes in bytes of the memory that operations took, apart from what was there before."""

    def __init__(self, known):
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.sizes = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, list | tuple) else [results]:
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in self._known:
                self.sizes[result.untyped_storage().data_ptr()] = result.untyped_storage().nbytes()
        return results


@pytest.mark.parametrize("case", ["small", "small and large", "strided", "strides of ranks", "large", "parameters"])
@pytest.mark.parametrize("buffer_bytes", [16, 64])
def test_two_buffers_are_all_the_memory(monkeypatch, case, buffer_bytes):
    class Done:
        def wait(self):
            pass

    def program(rank):
        tensors = [tensor for tensor in CASES[case](rank) if tensor.dtype is torch.float32]
        with Allocations(tensors) as allocations:
            broadcast_coalesced(tensors, 0, buffer_bytes=buffer_bytes)
        return list(allocations.sizes.values())

    # The simulated group takes memory of its own; what is sent does not matter here.
    monkeypatch.setattr(dist, "broadcast", lambda *args, **kwargs: Done())
    for sizes in returned(program, 2):
        assert len(sizes) <= 2
        assert all(size <= buffer_bytes for size in sizes)


def test_large_tensors_travel_in_place(monkeypatch):
    plain = dist.broadcast
    in_place = []

    def noting(tensor, *args, **kwargs):
        in_place.append(any(tensor.data_ptr() in range(*memory) for memory in memories))
        return plain(tensor, *args, **kwargs)

    def memory_of(tensor):
        return tensor.data_ptr(), tensor.data_ptr() + 4 * tensor.numel()

    def program(rank):
        tensors = floats(64, 3, 32, 50, 5)
        memories.extend(memory_of(tensor) for tensor in tensors)
        kept.extend(tensors)
        broadcast_coalesced(tensors, 0, buffer_bytes=64)

    memories, kept = [], []
    monkeypatch.setattr(dist, "broadcast", noting)
    simulate(program, 2).raise_for_verdict()
    # Per rank 64 = 4 x 16, 32 = 2 x 16 and 50 = 3 x 16 + 2; the rest, 3 + 2 + 5, is packed.
    assert (in_place.count(True), in_place.count(False)) == (2 * 9, 2 * 1)


# --- autograd ---------------------------------------------------------------------------------------------------------


def change_what_a_graph_saved(rank, size):
    weight = torch.full((size,), float(rank), requires_grad=True)
    loss = (weight * weight).sum()
    broadcast_coalesced([weight, *floats(1)], 0, buffer_bytes=64)
    if rank == 0:  # it sent, and its tensor is as it was
        loss.backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@pytest.mark.parametrize("size", [3, 32], ids=["packed", "in-place"])
def test_a_graph_that_saved_a_tensor_notices_that_it_changed(size):
    program = partial(change_what_a_graph_saved, size=size)
    simulate(program, 2).raise_for_verdict()
    assert list(on_real_gloo(program)) == [[None, None]]


# --- bad input --------------------------------------------------------------------------------------------------------


def refused(tensors, src=0, world_size=2, **options):
    """The text of the error that all ranks raise before any call."""

    def program(rank):
        with pytest.raises(UsageError) as caught:
            broadcast_coalesced(tensors, src, **options)
        return str(caught.value)

    result = simulate(program, world_size)
    result.raise_for_verdict()
    assert calls(result) == []
    texts = set(result.returns)
    assert len(texts) == 1
    (text,) = texts
    assert "\n" not in text
    return text


@rows("buffer_bytes", [0, -1, 1.5, None, True, "10"])
def test_a_bad_buffer(buffer_bytes):
    text = refused(floats(3), buffer_bytes=buffer_bytes)
    assert text == f"buffer_bytes is {buffer_bytes!r}: give a whole number of bytes, at least 1"


@rows("src", [-1, 2, 0.0, None, True])
def test_a_bad_source(src):
    text = refused(floats(3), src)
    assert text == f"src is {src!r}: give a rank of the group, 0 to 1 (not one of the world)"


@rows(
    ("tensor", "text"),
    [
        (3.0, "tensors[1] is a float: give tensors only"),
        (None, "tensors[1] is a NoneType: give tensors only"),
        (
            torch.eye(2).to_sparse(),
            "tensors[1] has the layout torch.sparse_coo: give dense tensors, such as its values()",
        ),
        (
            torch.empty(2, device="meta"),
            "tensors[1] is on the meta device: give it memory first, as Module.to_empty does",
        ),
        (
            torch.zeros(1).expand(4),
            "tensors[1] is expanded (shape (4,), strides (0,)): "
            "give its contiguous() copy, or the tensor before expand",
        ),
    ],
    ids=["float", "none", "sparse", "meta", "expanded"],
)
@rows("world_size", [1, 2])
def test_what_cannot_be_sent(tensor, text, world_size):
    assert refused([torch.zeros(2), tensor, torch.zeros(1)], world_size=world_size) == text


def test_a_tensor_instead_of_a_list():
    assert refused(torch.zeros(2)) == "tensors is a single tensor: give a list of tensors"


def test_a_group_of_others():
    def program(rank):
        group = dist.new_group([0])
        if rank == 1:
            broadcast_coalesced(floats(3), 0, group)

    result = simulate(program, 2)
    assert list(result.errors) == [1]
    assert str(result.errors[1]) == "group is one without rank 1: only the group's own ranks may call"


# --- GPU --------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@EACH
def test_both_devices_in_one_list(build):
    def on_both(rank):
        tensors = build(rank)
        return [each for tensor in tensors for each in (tensor, tensor.detach().to("cuda"))]

    assert_equal_to_source(returned(broadcast, 3, args=(on_both, 1)), 1)
