"""Verification at construction: do all ranks hold the same model, by name, and the same settings?

The engine lays its buckets out from the parameters' order, shapes, strides and dtypes, so ranks that differ in one of
them would sum one parameter's gradient into another's, or hang. torch compares counts, shapes and strides only; here
names, dtypes, `requires_grad`, buffers and the engine's settings count as well.

`describe`, `digest` and `explain` are pure. `verify_replicas` is the thin exchange around them: while the ranks agree
it makes one all_reduce of 64 bytes, in a world of any size. Only when they do not are the descriptions themselves sent,
each distinct one once, and every rank raises the same text.

Values are not compared (the state is broadcast after this), nor devices (each rank has its own), nor the strides of
buffers.

A rank whose module or arguments cannot be wrapped at all takes part with that instead (`verify_problem`), so that the
others do not wait for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
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


class Entry(NamedTuple):
    """What must agree about one parameter or buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    """Of a dense parameter; empty otherwise."""
    requires_grad: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Description:
    """What must agree about one rank's model and settings."""

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    settings: tuple[tuple[str, str], ...]
    """Names with the `repr` of their values, sorted by name."""
    problem: str = ""
    """Why this rank's module cannot be wrapped as asked; then the rest is left out."""

    def encode(self) -> bytes:
        """The canonical bytes: equal for equal descriptions, on every machine."""
        return json.dumps([self.parameters, self.buffers, self.settings, self.problem], separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> Description:
        """The inverse of `encode`."""
        return Description(*msgspec.json.decode(data, type=_Fields))


_Fields = tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[tuple[str, str], ...], str]
"""Of a description, as they travel."""


class Version(NamedTuple):
    """One distinct description and the ranks that have it, ascending."""

    ranks: tuple[int, ...]
    description: Description


def verify_replicas(
    parameters: Sequence[tuple[str, Tensor]],
    buffers: Sequence[tuple[str, Tensor]],
    settings: Mapping[str, object],
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Raise ReplicaMismatchError on every rank of `group`, with one text, unless all of them gave the same.

    Every rank has to call it. `device` is where the group's backend takes tensors. Settings are compared by `repr`, so
    that of a value must not hold an address. The ranks named in the text are global ones.
    """
    versions = _versions(describe(parameters, buffers, settings), group, device)
    if versions:
        raise ReplicaMismatchError(explain(versions))


def verify_problem(problem: UsageError, group: dist.ProcessGroup, device: torch.device) -> NoReturn:
    """What a rank calls that has nothing to verify, because of `problem`: the others wait for it.

    Raise ReplicaMismatchError, as they do; or `problem` itself, if it is like that on all ranks.
    """
    versions = _versions(Description((), (), (), str(problem)), group, device)
    if all(version.description.problem for version in versions):
        raise problem
    raise ReplicaMismatchError(explain(versions)) from problem


# What a rank has, as a value.


def describe(
    parameters: Iterable[tuple[str, Tensor]], buffers: Iterable[tuple[str, Tensor]], settings: Mapping[str, object]
) -> Description:
    """What must agree, in the order given; settings are sorted."""
    return Description(
        tuple(Entry(name, *_kind(tensor), _strides(tensor), tensor.requires_grad) for name, tensor in parameters),
        tuple(Entry(name, *_kind(tensor), (), tensor.requires_grad) for name, tensor in buffers),
        tuple(sorted((name, repr(value)) for name, value in settings.items())),
    )


def digest(encoded: bytes) -> bytes:
    """32 bytes that stand for an encoded description."""
    return hashlib.sha256(encoded).digest()


def _kind(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return dtype_text(tensor.dtype), tuple(tensor.shape)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else ()


# The exchange.


def _versions(description: Description, group: dist.ProcessGroup, device: torch.device) -> list[Version]:
    """The distinct descriptions in the group, as `_exchange` has them; none if there is one only."""
    if group.size() == 1:
        return []
    encoded = description.encode()
    own = digest(encoded)
    return [] if _all_equal(own, group, device) else _exchange(encoded, own, group, device)


def _all_equal(own: bytes, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all ranks gave the same bytes; on all of them the same answer.

    The largest of each byte and the largest of its complement add up to 255 exactly where the smallest is the largest.
    """
    both = _tensor(own + bytes(255 - byte for byte in own), device)
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    largest = both.tolist()
    return all(
        high + complement == 255 for high, complement in zip(largest[: len(own)], largest[len(own) :], strict=True)
    )


def _exchange(encoded: bytes, own: bytes, group: dist.ProcessGroup, device: torch.device) -> list[Version]:
    """The distinct descriptions in the group, up to SHOWN_VERSIONS, those of the most ranks first.

    One rank sends for all that have the same, so that a large world does not send a model's worth of names per rank.
    """
    holders: dict[bytes, list[int]] = {}
    for rank, header in enumerate(_gather(own + len(encoded).to_bytes(8, "little"), group, device)):
        holders.setdefault(header, []).append(rank)
    global_ranks = dist.get_process_group_ranks(group)
    versions = []
    for header, ranks in sorted(holders.items(), key=lambda item: (-len(item[1]), item[1]))[:SHOWN_VERSIONS]:
        size = int.from_bytes(header[len(own) :], "little")
        data = _tensor(encoded if group.rank() == ranks[0] else bytes(size), device)
        dist.broadcast(data, group=group, group_src=ranks[0])
        named = tuple(sorted(global_ranks[rank] for rank in ranks))
        versions.append(Version(named, Description.decode(bytes(data.tolist()))))
    return versions


def _gather(own: bytes, group: dist.ProcessGroup, device: torch.device) -> list[bytes]:
    """What each rank gave, in the order of ranks; all give equally many bytes.

    Each fills its row, and the sum has them all: one tensor a rank, where an all_gather takes one for each pair.
    """
    rows = torch.zeros(group.size(), len(own), dtype=torch.uint8, device=device)
    rows[group.rank()] = _tensor(own, device)
    dist.all_reduce(rows, group=group)
    return [bytes(row) for row in rows.tolist()]


def _tensor(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


# The text.


def explain(versions: Sequence[Version]) -> str:
    """Say how the versions differ from what most ranks have (on a tie, from what the lowest rank has).

    One line, the first few differences, and what to do; it depends on the versions only, so all ranks say the same.
    """
    common, *others = sorted(versions, key=lambda version: (-len(version.ranks), version.ranks))
    is_clear = len(others) == 1 and len(common.ranks) > len(others[0].ranks)
    them = "the others have" if is_clear else _having(common.ranks)
    parts = list(
        chain.from_iterable(
            _differences(other.description, common.description, _having(other.ranks), them) for other in others
        )
    )
    shown = parts[:SHOWN_DIFFERENCES]
    if len(parts) > len(shown):
        shown.append(f"and {len(parts) - len(shown)} more")
    return f"the ranks' models or settings differ: {'; '.join(shown)}; {_WAY_OUT}"


def _having(ranks: tuple[int, ...]) -> str:
    """The ranks as the subject of a sentence, with its verb."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more have"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} have"


def _differences(own: Description, common: Description, we: str, they: str) -> Iterator[str]:
    """Each difference as a clause; `we` have `own`, and `they` have what is `common`."""
    if own.problem or common.problem:
        yield f"{we} {_wrappable(own)}, {they} {_wrappable(common)}"
        return
    mine, theirs = dict(own.settings), dict(common.settings)
    for name in sorted(mine | theirs):
        if mine.get(name) != theirs.get(name):
            yield f"{we} {_setting(name, mine)}, {they} {_setting(name, theirs)}"
    yield from _entry_differences("parameter", own.parameters, common.parameters, we, they)
    yield from _entry_differences("buffer", own.buffers, common.buffers, we, they)


def _wrappable(description: Description) -> str:
    return f"what cannot be wrapped ({description.problem})" if description.problem else "what can be wrapped"


def _setting(name: str, settings: Mapping[str, str]) -> str:
    return f"{name}={settings[name]}" if name in settings else f"no setting {name}"


def _entry_differences(kind: str, own: Sequence[Entry], common: Sequence[Entry], we: str, they: str) -> Iterator[str]:
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
            yield _attribute_difference(entry, theirs[entry.name], we, they)
    yield from islice(_order_differences(kind, own, common, we, they), 1)


def _attribute_difference(ours: Entry, other: Entry, we: str, they: str) -> str:
    if (ours.dtype, ours.shape) != (other.dtype, other.shape):
        return f"{we} {ours}, {they} {other.dtype}{list(other.shape)}"
    if ours.requires_grad != other.requires_grad:
        words = {True: "requiring grad", False: "frozen"}
        return f"{we} {ours} {words[ours.requires_grad]}, {they} it {words[other.requires_grad]}"
    return f"{we} {ours} with strides {list(ours.strides)}, {they} {list(other.strides)}"


def _order_differences(kind: str, own: Sequence[Entry], common: Sequence[Entry], we: str, they: str) -> Iterator[str]:
    """The points at which the names that both have come in another order."""
    both = {entry.name for entry in own} & {entry.name for entry in common}
    mine = [(index, entry) for index, entry in enumerate(own) if entry.name in both]
    theirs = [entry for entry in common if entry.name in both]
    for (index, ours), other in zip(mine, theirs, strict=True):
        if ours.name != other.name:
            yield f"{we} {ours} at index {index} of the {kind}s, {they} {other}"
