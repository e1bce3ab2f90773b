"""Which parameters can get a gradient from what a forward returned.

Two steps, both of which look and change nothing: `find_tensors` takes the tensors out of whatever the forward returned,
and `reached_parameters` walks the autograd graph from them down to the parameters. Both are iterative, so no nesting
and no depth of the graph is too much for them; the walk takes some 200 us for 1,000 nodes.

The walk goes through views, in-place operations, custom autograd functions and non-reentrant checkpoints like through
anything else. It tells what CAN get a gradient: a loss that leaves out an output reaches less than the outputs do. What
it cannot see is a graph that a backward makes for itself. The reentrant checkpoint (`use_reentrant=True`) is of that
kind: its forward runs without grad, its one node leads to its tensor arguments only, and its backward runs the forward
again, with a backward of its own, so that parameters used only inside look unused and get a gradient nevertheless.
torch's engine takes those for unused, and fails when their gradients come ("Expected to mark a variable ready only
once"); so there the checkpoint has to be non-reentrant, or `find_unused_parameters` off.
`Reached.has_reentrant_checkpoint` lets the engine say so.
"""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree
from torch.utils.checkpoint import CheckpointFunction

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""Types of which there may be many, and that hold no tensor."""
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CLOSED = (nn.Module, torch.optim.Optimizer, Node, type, types.ModuleType, Enum, *_FUNCTIONS)
"""What is not walked into: owners of parameters (having a module is not using it), functions, classes, modules."""
_CHECKPOINT: type = CheckpointFunction._backward_cls


# The tensors in an output.


def find_tensors(output: object) -> Iterator[Tensor]:
    """Every tensor in `output`, each once, in the order in which it stands there.

    It looks into lists, tuples, sets and deques, keys and values of mappings, the attributes of objects with `__dict__`
    or `__slots__` (dataclasses among them), nodes registered with torch's pytree, and an RRef of this process. It does
    not look into modules, optimizers, functions and classes, runs no property, and consumes no iterator."""
    # Objects, not only their ids: one that was made on the way would leave its id to the next.
    seen: dict[int, object] = {}
    stack = [output]
    while stack:
        item = stack.pop()
        if type(item) in _ATOMS or id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, Tensor):
            yield item
        elif not isinstance(item, _CLOSED):
            stack.extend(reversed(list(_parts(item))))


def _parts(item: object) -> Iterable[object]:
    """What the object holds directly."""
    if type(item) in _pytree.SUPPORTED_NODES and not isinstance(item, (Mapping, *_COLLECTIONS)):
        return _pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)[0]
    if _is_remote_reference(item):
        return (item.local_value(),) if item.is_owner() else ()
    return chain(_members(item), getattr(item, "__dict__", {}).values(), _slots(item))


def _members(item: object) -> Iterable[object]:
    """Of a collection. A sequence of somebody's own class is met by its attributes: to index it may run anything."""
    if isinstance(item, Mapping):
        return chain.from_iterable(item.items())
    return item if isinstance(item, _COLLECTIONS) else ()


def _slots(item: object) -> Iterator[object]:
    """The values of the object's slots that are set."""
    for base in type(item).__mro__:
        if "__slots__" not in vars(base):
            continue
        for member in vars(base).values():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield member.__get__(item)
                except AttributeError:
                    continue


def _is_remote_reference(item: Any) -> TypeGuard[Any]:
    """Whether it is an RRef. There are none unless torch has its module for them."""
    rpc = sys.modules.get("torch.distributed.rpc")
    return isinstance(item, getattr(rpc, "RRef", ()))


# The parameters behind tensors.


class Reached(NamedTuple):
    """What a walk of the graph found."""

    parameters: set[int]
    """Of which a gradient can come, by index."""
    has_reentrant_checkpoint: bool
    """The walk met one, so parameters may be used inside it that are not in `parameters`."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a forward returned, as far as the reducer is concerned."""

    tensors: Sequence[Tensor]
    reached: frozenset[int] | None
    """Indices of the parameters that the tensors depend on; None if it cannot be told."""
    accumulators: Sequence[Node] = ()
    """The nodes of the graph that bring these parameters' gradients."""


def accumulators_of(parameters: Sequence[Tensor]) -> dict[Node, int]:
    """For each parameter the node that accumulates its gradient, with the parameter's index.

    The parameters require grad. Keep the dictionary: the node of a parameter, and the Python object that stands for it,
    are the same ones only as long as somebody holds them. A parameter moved to another type of device gets a new node.
    """
    return {get_gradient_edge(parameter).node: index for index, parameter in enumerate(parameters)}


def reached_parameters(tensors: Iterable[Tensor], accumulators: Mapping[Node, int]) -> Reached:
    """Which of the parameters in `accumulators` the tensors depend on. A tensor that is a parameter reaches itself."""
    visited = _graph(tensors)
    visited_types = set(map(type, visited))
    parameters = {accumulators[node] for node in accumulators.keys() & visited}
    return Reached(parameters, _CHECKPOINT in visited_types)


def _graph(tensors: Iterable[Tensor]) -> set[Node | None]:
    """All nodes behind the tensors, and None, which stands for an input without gradient.

    The set holds the Python objects that stand for the nodes; so they stay the same ones, and identity is enough.
    """
    stack: list[Node] = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    visited: set[Node | None] = {None, *stack}
    push, pop, visit = stack.append, stack.pop, visited.add
    while stack:
        for node, _ in pop().next_functions:
            if node not in visited:
                visit(node)
                push(node)  # type: ignore[arg-type]  # None was visited from the start
    return visited
