"""Assigns gradients to buckets: takes sizes, returns lists of parameter indices. Pure functions without tensors.

The rule is torch's (`compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/reducer.cpp), so that both
engines use the same buckets when they are given the same order.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
FIRST_BUCKET_BYTES = MEBIBYTE
"""The cap of the first bucket. It is small, so that communication starts early in the backward."""
DEFAULT_CAP_MB = 25.0


@dataclass(frozen=True, slots=True)
class GradientSize:
    """The properties of one parameter's gradient that decide its bucket."""

    size_bytes: int
    kind: Hashable
    """Gradients of one kind (dtype and device) may share a bucket."""
    is_sparse: bool = False
    """A sparse gradient has a bucket of its own: its size is not known before the backward."""


Plan = tuple[tuple[int, ...], ...]
"""Buckets in the order of reduction; each lists its parameters' indices in the order of the flat buffer."""


@dataclass(frozen=True, slots=True)
class BucketCaps:
    """The sizes in bytes that close a bucket: for the first bucket of each kind of gradient, and for the others."""

    first_bytes: int
    bytes: int

    @classmethod
    def from_megabytes(cls, cap_mb: float) -> "BucketCaps":
        """Return the caps for `bucket_cap_mb`; the first bucket's cap is at most 1 MiB."""
        cap = int(cap_mb * MEBIBYTE)
        return cls(min(FIRST_BUCKET_BYTES, cap), cap)


def plan_buckets(order: Iterable[int], footprints: Sequence[GradientSize], caps: BucketCaps) -> Plan:
    """Pack the gradients in `order`: a bucket closes with the gradient that reaches its cap."""
    closed: list[tuple[int, ...]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    sizes: dict[Hashable, int] = {}
    limits: dict[Hashable, int] = {}
    for index in order:
        footprint = footprints[index]
        if footprint.is_sparse:
            closed.append((index,))
            continue
        kind = footprint.kind
        open_buckets.setdefault(kind, []).append(index)
        sizes[kind] = sizes.get(kind, 0) + footprint.size_bytes
        if sizes[kind] >= limits.get(kind, caps.first_bytes):
            closed.append(tuple(open_buckets.pop(kind)))
            sizes[kind], limits[kind] = 0, caps.bytes
    return (*closed, *(tuple(rest) for rest in open_buckets.values()))


def append_unseen_parameters(seen: Iterable[int], count: int) -> tuple[int, ...]:
    """Return each index once, in the order seen; indices that were not seen follow in reverse order of definition."""
    first_seen = dict.fromkeys(seen)
    return (*first_seen, *(index for index in reversed(range(count)) if index not in first_seen))
