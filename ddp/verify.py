"""Verifies at construction that all ranks have the same model, by name, and the same settings.

Buckets follow from the parameters' order, shapes, strides and dtypes. If ranks differ in them, gradients of different
parameters are summed, or ranks hang. torch compares counts, shapes and strides only.

While the ranks agree, there is one all_reduce of 64 bytes. Otherwise each distinct description is sent once, and every
rank raises the same text. A rank whose module cannot be wrapped takes part with the reason (`verify_problem`), so the
others do not wait for it. Values, devices and strides of buffers are not compared.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from ddpsim.ddp.errors import ReplicaMismatchError, UsageError
from ddpsim.ddp.text_formats import dtype_text

SHOWN_DIFFERENCES = 5
SHOWN_VERSIONS = 4
_WAY_OUT = "build the same model, in the same order and with the same settings, on every rank before wrapping it"


class TensorEntry(NamedTuple):
    """What must be equal on all ranks about one parameter or buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    """The strides of a dense parameter; otherwise empty."""
    requires_grad: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


class ModelDescription(NamedTuple):
    """What must be equal about the ranks' models and settings."""

    parameters: tuple[TensorEntry, ...]
    buffers: tuple[TensorEntry, ...]
    settings: tuple[tuple[str, str], ...]
    """The names of settings with the `repr` of their values, sorted by name."""
    problem: str = ""
    """The reason why this rank's module cannot be wrapped; the other fields are empty then."""

    def encode(self) -> bytes:
        """Return the description as bytes, which are equal for equal descriptions on every machine."""
        return json.dumps(self, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "ModelDescription":
        """Return the description from the bytes that `encode` returned."""
        return msgspec.json.decode(data, type=ModelDescription)


class DistinctDescription(NamedTuple):
    """One version of the model's description, and the ranks that have it, in ascending order."""

    ranks: tuple[int, ...]
    description: ModelDescription


def verify_replicas(
    parameters: Sequence[tuple[str, Tensor]],
    buffers: Sequence[tuple[str, Tensor]],
    settings: Mapping[str, object],
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Raise ReplicaMismatchError on every rank of `group`, with one text, unless all ranks gave the same.

    Every rank must call it. Settings are compared by `repr`, so it must not contain an address.
    """
    versions = _compare_with_ranks(describe_model(parameters, buffers, settings), group, device)
    if versions:
        raise ReplicaMismatchError(explain_differences(versions))


def verify_problem(problem: UsageError, group: dist.ProcessGroup, device: torch.device) -> NoReturn:
    """Report that this rank's module cannot be wrapped; raise the other ranks' error, or `problem` if all have one."""
    versions = _compare_with_ranks(ModelDescription((), (), (), str(problem)), group, device)
    if all(version.description.problem for version in versions):
        raise problem
    raise ReplicaMismatchError(explain_differences(versions)) from problem


def describe_model(
    parameters: Iterable[tuple[str, Tensor]], buffers: Iterable[tuple[str, Tensor]], settings: Mapping[str, object]
) -> ModelDescription:
    """Return the description of a model from its parameters, buffers and settings."""
    return ModelDescription(
        tuple(_make_entry(name, p, p.stride() if p.layout is torch.strided else ()) for name, p in parameters),
        tuple(_make_entry(name, buffer, ()) for name, buffer in buffers),
        tuple(sorted((name, repr(value)) for name, value in settings.items())),
    )


def _make_entry(name: str, tensor: Tensor, strides: tuple[int, ...]) -> TensorEntry:
    return TensorEntry(name, dtype_text(tensor.dtype), tuple(tensor.shape), strides, tensor.requires_grad)


def _compare_with_ranks(
    description: ModelDescription, group: dist.ProcessGroup, device: torch.device
) -> list[DistinctDescription]:
    if group.size() == 1:
        return []
    encoded = description.encode()
    own = hashlib.sha256(encoded).digest()
    return [] if _all_equal(own, group, device) else _exchange_descriptions(encoded, own, group, device)


def _all_equal(own: bytes, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether all ranks gave the same bytes: then the maxima of a byte and its complement have the sum 255."""
    both = _tensor_of_bytes(own + bytes(255 - byte for byte in own), device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    largest = both.tolist()
    return all(high + rest == 255 for high, rest in zip(largest[: len(own)], largest[len(own) :], strict=True))


def _exchange_descriptions(
    encoded: bytes, own: bytes, group: dist.ProcessGroup, device: torch.device
) -> list[DistinctDescription]:
    """Return the distinct descriptions of the ranks' models, at most SHOWN_VERSIONS, the most frequent first."""
    holders: dict[bytes, list[int]] = {}
    for rank, header in enumerate(_gather_bytes(own + len(encoded).to_bytes(8, "little"), group, device)):
        holders.setdefault(header, []).append(rank)
    global_ranks = dist.get_process_group_ranks(group)
    versions = []
    for header, ranks in sorted(holders.items(), key=lambda item: (-len(item[1]), item[1]))[:SHOWN_VERSIONS]:
        size = int.from_bytes(header[len(own) :], "little")
        data = _tensor_of_bytes(encoded if group.rank() == ranks[0] else bytes(size), device)
        dist.broadcast(data, group=group, group_src=ranks[0])
        named = tuple(sorted(global_ranks[rank] for rank in ranks))
        versions.append(DistinctDescription(named, ModelDescription.decode(bytes(data.tolist()))))
    return versions


def _gather_bytes(own: bytes, group: dist.ProcessGroup, device: torch.device) -> list[bytes]:
    """Return the bytes of each rank by an all_reduce, which needs less memory than an all_gather."""
    rows = torch.zeros(group.size(), len(own), dtype=torch.uint8, device=device)
    rows[group.rank()] = _tensor_of_bytes(own, device)
    dist.all_reduce(rows, group=group)
    return [bytes(row) for row in rows.tolist()]


def _tensor_of_bytes(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def explain_differences(versions: Sequence[DistinctDescription]) -> str:
    """Return a line that compares each version of the model with the most frequent (on a tie, the lowest rank's)."""
    common, *others = sorted(versions, key=lambda version: (-len(version.ranks), version.ranks))
    is_clear = len(others) == 1 and len(common.ranks) > len(others[0].ranks)
    them = "the others have" if is_clear else _ranks_as_subject(common.ranks)
    parts: list[str] = []
    for other in others:
        parts += _describe_differences(other.description, common.description, _ranks_as_subject(other.ranks), them)
    shown = parts[:SHOWN_DIFFERENCES]
    if len(parts) > len(shown):
        shown.append(f"and {len(parts) - len(shown)} more")
    return f"the ranks' models or settings differ: {'; '.join(shown)}; {_WAY_OUT}"


def _ranks_as_subject(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more have"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} have"


def _describe_differences(own: ModelDescription, common: ModelDescription, we: str, they: str) -> Iterator[str]:
    """Yield each difference as a clause; `we` are the ranks with `own`, and `they` are the ranks with `common`."""
    if own.problem or common.problem:
        yield f"{we} {_describe_problem(own)}, {they} {_describe_problem(common)}"
        return
    mine, theirs = dict(own.settings), dict(common.settings)
    for name in sorted(mine | theirs):
        if mine.get(name) != theirs.get(name):
            yield f"{we} {_describe_setting(name, mine)}, {they} {_describe_setting(name, theirs)}"
    yield from _entry_differences("parameter", own.parameters, common.parameters, we, they)
    yield from _entry_differences("buffer", own.buffers, common.buffers, we, they)


def _describe_problem(description: ModelDescription) -> str:
    return f"what cannot be wrapped ({description.problem})" if description.problem else "what can be wrapped"


def _describe_setting(name: str, settings: Mapping[str, str]) -> str:
    return f"{name}={settings[name]}" if name in settings else f"no setting {name}"


def _entry_differences(
    kind: str, own: Sequence[TensorEntry], common: Sequence[TensorEntry], we: str, they: str
) -> Iterator[str]:
    mine, theirs = {entry.name: entry for entry in own}, {entry.name: entry for entry in common}
    renamed: set[str] = set()
    for index, (ours, other) in enumerate(zip(own, common, strict=False)):
        if ours.name not in theirs and other.name not in mine:
            yield f"{we} {ours} at index {index} of the {kind}s, {they} {other}"
            renamed |= {ours.name, other.name}
    for entry in own:
        if entry.name not in theirs and entry.name not in renamed:
            yield f"{we} the {kind} {entry}, {they} none of that name"
    for entry in common:
        if entry.name not in mine and entry.name not in renamed:
            yield f"{we} no {kind} {entry.name}, {they} {entry}"
    for entry in own:
        if entry.name in theirs and entry != theirs[entry.name]:
            yield _describe_attribute_difference(entry, theirs[entry.name], we, they)
    yield from islice(_order_differences(kind, own, common, we, they), 1)


def _describe_attribute_difference(ours: TensorEntry, other: TensorEntry, we: str, they: str) -> str:
    if (ours.dtype, ours.shape) != (other.dtype, other.shape):
        return f"{we} {ours}, {they} {other.dtype}{list(other.shape)}"
    if ours.requires_grad != other.requires_grad:
        words = {True: "requiring grad", False: "frozen"}
        return f"{we} {ours} {words[ours.requires_grad]}, {they} it {words[other.requires_grad]}"
    return f"{we} {ours} with strides {list(ours.strides)}, {they} {list(other.strides)}"


def _order_differences(
    kind: str, own: Sequence[TensorEntry], common: Sequence[TensorEntry], we: str, they: str
) -> Iterator[str]:
    """Yield the positions at which two lists have their common names in different order."""
    both = {entry.name for entry in own} & {entry.name for entry in common}
    mine = [(index, entry) for index, entry in enumerate(own) if entry.name in both]
    theirs = [entry for entry in common if entry.name in both]
    for (index, ours), other in zip(mine, theirs, strict=True):
        if ours.name != other.name:
            yield f"{we} {ours} at index {index} of the {kind}s, {they} {other}"
