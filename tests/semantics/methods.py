"""Cases of the methods of a process group itself, in every overload that torch's class has, told by its documentation.

Each is called by position and by name, with and without what may be left out. So an overload that torch adds is tried
here, on gloo and on the simulator, without a line more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from tests.semantics.case import Case

WORLD_SIZE = 2
LONG = timedelta(minutes=5)

_NO_CALLS = ("_end_coalescing", "_register_on_completion_hook", "reconfigure", "gather_single", "gather_into_tensor")
_MESSAGES = ("send", "recv", "recv_anysource")
_PARAMETER = re.compile(r"(\w+): (.*?)(?= = |$)")
_ALL, _PART = 2, 1


class Overload(NamedTuple):
    """One signature of a method: names and types of its parameters, and how many have no default."""

    method: str
    parameters: tuple[tuple[str, str], ...]
    needed: int

    def __str__(self) -> str:
        return f"{self.method}({', '.join(name for name, _ in self.parameters)})"


def cases() -> Iterator[Case]:
    for way in ("by-position", "by-name", "without-defaults"):
        yield Case(f"every-overload-{way}", WORLD_SIZE, _program(way), _expected(way))
    yield Case("messages-by-name", WORLD_SIZE, _messages, lambda rank: [7.0, 8.0])
    for reduction, total in _OF_SEVERAL.items():
        name = f"several-tensors-of-a-rank-{reduction}"
        yield Case(name, WORLD_SIZE, _several(reduction), lambda rank, total=total: _several_moved(rank, total))
    yield Case("what-a-backend-says-of-itself", WORLD_SIZE, _abilities, lambda rank: _ABILITIES)
    yield Case("what-a-group-says-of-itself", WORLD_SIZE, _words, lambda rank: ["gloo", "gloo", "gloo", rank, 2, 3])


def overloads() -> list[Overload]:
    """Of all methods that return a work, except messages."""
    found = []
    for method in sorted(dir(dist.ProcessGroup)):
        text = getattr(dist.ProcessGroup, method).__doc__ or ""
        lines = [line for line in text.splitlines() if "self:" in line and line.rstrip().endswith("c10d::Work")]
        if method not in (*_NO_CALLS, *_MESSAGES):
            found += [_overload(method, line) for line in lines]
    return found


def _overload(method: str, line: str) -> Overload:
    inner = line[line.index("(") + 1 : line.rindex(") ->")]
    parts = re.split(r", (?=\w+: )", inner)[1:]  # without `self`
    pairs = [_PARAMETER.match(part) for part in parts]
    return Overload(
        method,
        tuple((pair[1], pair[2].replace("torch._C._distributed_c10d.", "")) for pair in pairs if pair),
        sum(" = " not in part for part in parts),
    )


def _program(way: str) -> Callable[[int], object]:
    def program(rank: int) -> object:
        return {str(overload): _call(overload, rank, way) for overload in _tried(way)}

    return program


def _expected(way: str) -> Callable[[int], object]:
    return lambda rank: {str(overload): _outcome(overload, rank, way) for overload in _tried(way)}


def _tried(way: str) -> list[Overload]:
    return [each for each in overloads() if way != "without-defaults" or each.needed < len(each.parameters)]


def _call(overload: Overload, rank: int, way: str) -> object:
    values = _arguments(overload, rank)
    names = [name for name, _ in overload.parameters][: overload.needed if way == "without-defaults" else None]
    method = getattr(dist.group.WORLD, overload.method)
    given = [values[name] for name in names]
    work = method(**dict(zip(names, given, strict=True))) if way == "by-name" else method(*given)
    assert work.wait(), overload
    if _family(overload) == "barrier":
        return []
    if _family(overload) in ("gather", "reduce") and rank != 0:
        return []  # gloo leaves partial sums
    return torch.cat([each.reshape(-1) for each in _flat(given[0])])


def _outcome(overload: Overload, rank: int, way: str) -> object:
    """What the first argument of a call holds afterwards; ranks bring 1 and 2."""
    family = _family(overload)
    if family == "barrier" or (family in ("gather", "reduce") and rank != 0):
        return []
    total = 2 if way != "without-defaults" and "op" in [name for name, _ in overload.parameters] else 3
    return torch.tensor(
        {
            "allreduce": [total] * 2,
            "reduce": [total] * 2,
            "reduce_scatter": [total] * 2,
            "broadcast": [1, 1],
            "scatter": [1, 1],
            "allgather": [1, 1, 2, 2],
            "gather": [1, 1, 2, 2],
            "alltoall": [1, 1, 2, 2],
            "alltoall_base": [1, 2],
        }[family],
        dtype=torch.float32,
    )


def _family(overload: Overload) -> str:
    names = {"all_gather": "allgather", "_allgather": "allgather", "_reduce_scatter": "reduce_scatter"}
    name = overload.method.replace("all_to_all_single", "alltoall_base")
    for start in (*names, "allgather", "allreduce", "reduce_scatter", "gather"):
        if name.startswith(start):
            return names.get(start, start)
    return name


def _arguments(overload: Overload, rank: int) -> dict[str, object]:
    family = _family(overload)
    sizes = {"allgather": (_ALL, _PART), "gather": (_ALL, _PART), "alltoall": (_ALL, _ALL)}.get(family, (_PART, _ALL))
    if family in ("allreduce", "reduce", "broadcast", "alltoall_base"):
        sizes = (_PART, _PART)
    wanted = iter(sizes)
    return {name: _argument(overload, name, kind, wanted, rank) for name, kind in overload.parameters}


def _argument(overload: Overload, name: str, kind: str, sizes: Iterator[int], rank: int) -> object:
    if "Tensor" in kind:
        size = next(sizes)
        takes_lists = not any(part in overload.method for part in ("single", "tensor", "base"))
        if takes_lists and rank != 0 and (_family(overload), size) in (("gather", _ALL), ("scatter", _ALL)):
            return []
        tensors = _tensors(size, kind.count("Sequence["), rank, as_list=takes_lists and size == _ALL)
        return [[each] for each in tensors[0]] if name == "output_lists" else tensors
    if kind.endswith("Options"):
        return getattr(c10d, kind)()
    if "ReduceOp" in kind:
        return dist.ReduceOp.MAX
    if "splits" in name or "split_sizes" in name:
        return [1, 1]
    return LONG if "timedelta" in kind else 0


def _tensors(size: int, depth: int, rank: int, *, as_list: bool) -> Any:
    """One tensor, or a list of one for each rank, as deep in lists as an overload wants it."""
    value = float(rank + 1)
    if as_list:
        tensors: Any = [torch.full((2,), value) for _ in range(WORLD_SIZE)]
        depth -= 1
    else:
        tensors = torch.full((2 * size,), value)
    for _ in range(depth):
        tensors = [tensors]
    return tensors


def _flat(nested: Any) -> list[torch.Tensor]:
    return [nested] if isinstance(nested, torch.Tensor) else [leaf for each in nested for leaf in _flat(each)]


def _messages(rank: int) -> list[float]:
    group = dist.group.WORLD
    assert group is not None
    received = [torch.zeros(1), torch.zeros(1)]
    if rank == 0:
        group.send(tensors=[torch.full((1,), 7.0)], dstRank=1, tag=3).wait()
        group.send([torch.full((1,), 8.0)], 1, tag=4).wait()
        return [7.0, 8.0]
    group.recv(tensors=[received[0]], srcRank=0, tag=3).wait()
    group.recv_anysource([received[1]], 4).wait()
    return [each.item() for each in received]


_OF_SEVERAL = {"SUM": [36.0] * 2, "AVG": [18.0, 36.0], "PRODUCT": [1.0 * 3 * 11 * 21] * 2, "MAX": [21.0] * 2}
"""What an all_reduce leaves in two tensors of each of two ranks, 1 and 3, and 11 and 21; gloo divides the first one."""


def _several(reduction: str) -> Callable[[int], object]:
    def program(rank: int) -> object:
        group: Any = dist.group.WORLD
        values = [1.0, 3.0] if rank == 0 else [11.0, 21.0]

        def mine() -> list[torch.Tensor]:
            return [torch.full((2,), value) for value in values]

        reduced, alone, sent = mine(), mine()[: rank + 1], mine()
        options = c10d.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, reduction)
        group.allreduce(reduced, options).wait()
        group.allreduce(alone, c10d.AllreduceOptions()).wait()
        sparse = [torch.tensor([values[0], 0, 0]).to_sparse(), torch.tensor([0, values[1], 0]).to_sparse()]
        group.allreduce(sparse, c10d.AllreduceOptions()).wait()
        from_root = c10d.BroadcastOptions()
        from_root.rootRank, from_root.rootTensor = 1, 0
        group.broadcast(sent, from_root).wait()
        again = mine()
        from_root.rootTensor = 1
        group.broadcast(again, from_root).wait()
        gathered = [[torch.zeros(2) for _ in range(4)] for _ in range(2)]
        future = group.allgather(gathered, mine(), c10d.AllgatherOptions()).get_future()
        assert future.wait() is not None
        results = [each.to_dense()[:2] for each in (*reduced, *alone[:1], *sparse, *sent, *again)]
        return torch.stack(results), future.value()

    return program


def _several_moved(rank: int, reduced: list[float]) -> object:
    wide = [torch.full((2,), value) for value in (*reduced, 33.0)]
    wide += [torch.tensor([12.0, 24.0])] * 2 + [torch.full((2,), value) for value in (11.0, 11.0, 21.0, 21.0)]
    gathered = [torch.full((2,), value) for value in (1.0, 3.0, 11.0, 21.0)]
    return torch.stack(wide), [gathered, gathered]


def _words(rank: int) -> list[object]:
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    group.barrier().wait()
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
    issued = group._get_sequence_number_for_group() - before
    assert backend.options._timeout > timedelta(0)
    return [group.name(), group._get_backend_name(), backend.name(), group.rank(), group.size(), issued]


_ABILITIES = {
    "supports_splitting": True,
    "supports_coalescing": False,
    "supports_shrinking": False,
    "supports_time_estimate": False,
    "mem_allocator": "RuntimeError Backend gloo does not support getMemAllocator",
    "pending": "RuntimeError Only ProcessGrouppNCCL supports waitForPendingWorks, but got gloo backend.",
    "hook": "RuntimeError Only ProcessGrouppNCCL supports onCompletion hook, but got gloo backend.",
}


def _abilities(rank: int) -> dict[str, object]:
    group: Any = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    asked: dict[str, Callable[[], object]] = {
        "mem_allocator": lambda: backend.mem_allocator,
        "pending": group._wait_for_pending_works,
        "hook": lambda: group._register_on_completion_hook(print),
    }
    answers: dict[str, object] = {name: getattr(backend, name, None) for name in _ABILITIES if name not in asked}
    for name, ask in asked.items():
        try:
            answers[name] = ask()
        except RuntimeError as error:
            answers[name] = f"{type(error).__name__} {str(error).splitlines()[0]}"
    return answers
