"""The rules by which backends differ: a program may pass on one backend and hang on another.

Each backend has the strictest rules that it may follow: a program that passes under them passes on it, and one that
hangs under them can hang on it. Sources: `gloo` torch/csrc/distributed/c10d/ProcessGroupGloo.cpp; `nccl` NCCL's user
guide, "Point-to-point communication", "Group calls" and "Using multiple NCCL communicators concurrently", and torch's
documentation of `batch_isend_irecv` and `send`; `in-order` meta-pytorch/torchcomms#2885 and #2992; `eager-send` the MPI
standard, section 3.4: a standard send may be buffered; `lazy-connect` pytorch/gloo#520.
"""

from collections.abc import Mapping
from typing import NamedTuple


class BackendSemantics(NamedTuple):
    """The rules by which a backend matches calls and blocks ranks."""

    name: str
    calls_in_order: bool = False
    """A rank's calls run on one stream, also of different groups. Each starts when the previous one is complete."""
    batch_is_unit: bool = False
    """The messages of a `batch_isend_irecv` start together, whatever their order in the list."""
    sends_eagerly: bool = False
    """A send is complete once the message is copied, even without a receive."""
    connects_lazily: bool = False
    """Ranks connect at their first common call, so neither of the two may have ended before this call."""
    ignores_tags: bool = False
    """Messages between two ranks are matched in the order of issue, whatever their tags."""

    @property
    def is_like_gloo(self) -> bool:
        """Return True if calls of several ranks are matched as on gloo."""
        return not self.calls_in_order and not self.connects_lazily


GLOO = BackendSemantics("gloo")

BACKENDS: Mapping[str, BackendSemantics] = {
    each.name: each
    for each in (
        GLOO,
        BackendSemantics("nccl", calls_in_order=True, batch_is_unit=True, ignores_tags=True),
        BackendSemantics("in-order", calls_in_order=True),
        BackendSemantics("eager-send", sends_eagerly=True),
        BackendSemantics("lazy-connect", connects_lazily=True),
    )
}
