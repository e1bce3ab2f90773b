"""In what backends differ, for programs that pass on one and hang on another.

Each is a named set of rules, the strictest that the backend may follow: what passes under these passes on it, and what
hangs under them can hang there. Sources: `gloo` torch/csrc/distributed/c10d/ProcessGroupGloo.cpp; `nccl` NCCL's user
guide, "Point-to-point communication", "Group calls" and "Using multiple NCCL communicators concurrently", and torch's
documentation of `batch_isend_irecv` and `send`; `in-order` meta-pytorch/torchcomms#2885 and #2992; `eager-send` the MPI
standard, section 3.4: a standard send may be buffered; `lazy-connect` pytorch/gloo#520.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class BackendSemantics(NamedTuple):
    """The rules of a backend."""

    name: str
    calls_in_order: bool = False
    """A rank's calls, whatever their groups, run on one stream: each starts once the one before is complete."""
    batch_is_unit: bool = False
    """The messages of a `batch_isend_irecv` start together, in whatever order they stand in it."""
    sends_eagerly: bool = False
    """A send is complete once the message is copied, be there a receive or not."""
    connects_lazily: bool = False
    """Ranks connect at the first call that they make together, so all of them have to be there still."""

    ignores_tags: bool = False
    """Messages between two ranks meet in the order of issue, whatever their tags."""

    @property
    def is_like_gloo(self) -> bool:
        """True if calls of several ranks meet as on gloo."""
        return not self.calls_in_order and not self.connects_lazily


GLOO = BackendSemantics("gloo")

BACKENDS: Mapping[str, BackendSemantics] = MappingProxyType(
    {
        each.name: each
        for each in (
            GLOO,
            BackendSemantics("nccl", calls_in_order=True, batch_is_unit=True, ignores_tags=True),
            BackendSemantics("in-order", calls_in_order=True),
            BackendSemantics("eager-send", sends_eagerly=True),
            BackendSemantics("lazy-connect", connects_lazily=True),
        )
    }
)
"""By name."""
