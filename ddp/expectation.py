"""Which gradients a backward is expected to bring, and what to say of one that is not: texts for errors."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from enum import Enum

from torch import Tensor
from torch.autograd.graph import Node


class Graph(Enum):
    """What is known about the graph of a forward."""

    ALL_USED = "all used"
    """Every parameter gets a gradient in every backward."""
    SEARCHED = "searched"
    """The graph is walked from the outputs: `find_unused_parameters`."""
    STATIC = "static"
    """The first backward shows how often each parameter gets a gradient, and it stays so: `static_graph`."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward returned, as far as the reducer is concerned."""

    tensors: Sequence[Tensor]
    reached: frozenset[int] | None
    """Indices of the parameters that the tensors depend on; None if it cannot be told."""
    accumulators: Sequence[Node] = ()
    """The nodes of the graph that bring these parameters' gradients."""


def describe_surplus(name: str, index: int, graph: Graph, learned: Container[int]) -> str:
    """A gradient that is one too many; `learned` are the parameters that get one in a static graph."""
    if graph is not Graph.STATIC:
        return f"{name} got {_NOT_SEARCHED if graph is Graph.SEARCHED else _CAME_AGAIN}"
    return f"{name} got {_MORE_THAN_LEARNED if index in learned else _NOT_LEARNED}"


def describe_bypassed(name: str) -> str:
    """A gradient without a forward."""
    return (
        f"a gradient of {name} came, but no forward through the DistributedDataParallel waits for its backward, so "
        "nobody would reduce it: the inner module was called past the wrapper, or backward ran a second time through "
        "one graph, or of two losses of one forward the first of two backwards ended the reduction: add the losses and "
        "call backward once. Call the wrapper for each backward, or do this under its no_sync()"
    )


_CAME_AGAIN = (
    "more gradients in this backward than expected: a reentrant checkpoint that runs twice, or two backwards through "
    "one forward. Use static_graph=True if the graph is always the same, or checkpoint with use_reentrant=False"
)
_NOT_SEARCHED = (
    "a gradient that was not expected in this backward: its second one, or the graph walked from the forward's outputs "
    "did not show it. Use static_graph=True for parameters used in several reentrant checkpoints; return all tensors "
    "that the loss depends on"
)
_NOT_LEARNED = (
    "a gradient, but none in the first backward, and static_graph=True takes that for the rule: leave it out if the "
    "graph changes"
)
_MORE_THAN_LEARNED = (
    "more gradients in this backward than in the first, and static_graph=True takes that for the rule: leave it out if "
    "the graph changes"
)
