"""Finds the parameters that can get a gradient from the output of a forward.

`find_tensors` finds the tensors in the output. `reached_parameters` searches the autograd graph from them to the
parameters. Both are iterative, so depth does not matter; 1,000 nodes take about 200 us.

The search finds the parameters that CAN get a gradient: a loss that omits an output reaches fewer. It cannot see a
graph that a backward makes, as the reentrant checkpoint (`use_reentrant=True`) does: parameters that are used only
inside look unused, and get a gradient nevertheless. `ReachedParameters.has_reentrant_checkpoint` reports this. torch's
engine fails then ("Expected to mark a variable ready only once").
"""

import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import _pytree
from torch.utils.checkpoint import CheckpointFunction

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""Frequent types whose values contain no tensor."""
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CLOSED = (nn.Module, torch.optim.Optimizer, Node, type, types.ModuleType, Enum, *_FUNCTIONS)
"""Types that are not searched: owners of parameters (having a module is not using it), functions, classes, modules."""
_CHECKPOINT: type = CheckpointFunction._backward_cls


def find_tensors(output: object) -> Iterator[Tensor]:
    """Yield every tensor in `output` once, in order.

    It searches lists, tuples, sets and deques, keys and values of mappings, attributes in `__dict__` and `__slots__`,
    nodes registered with torch's pytree, and a local RRef. It does not search modules, optimizers, functions and
    classes, runs no property, and consumes no iterator.
    """
    # Keeps the objects, since the id of a temporary object may be used again.
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
            stack.extend(reversed(list(_objects_directly_in(item))))


def _objects_directly_in(item: Any) -> Iterable[object]:
    """Return the objects that `item` contains directly."""
    if type(item) in _pytree.SUPPORTED_NODES and not isinstance(item, (Mapping, *_COLLECTIONS)):
        return _pytree.SUPPORTED_NODES[type(item)].flatten_fn(item)[0]
    rref: Any = getattr(sys.modules.get("torch.distributed.rpc"), "RRef", ())  # missing unless torch has rpc
    if isinstance(item, rref):
        return (item.local_value(),) if item.is_owner() else ()
    pairs = item.items() if isinstance(item, Mapping) else ()
    items = item if isinstance(item, _COLLECTIONS) else ()  # not a user's sequence: to index it may run code
    return chain(chain.from_iterable(pairs), items, getattr(item, "__dict__", {}).values(), _values_of_slots(item))


def _values_of_slots(item: object) -> Iterator[object]:
    """Yield the values of the attributes in an object's `__slots__` that are set."""
    for base in type(item).__mro__:
        if "__slots__" not in vars(base):
            continue
        for member in vars(base).values():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield member.__get__(item)
                except AttributeError:
                    continue


@dataclass(frozen=True, slots=True)
class ForwardOutputs:
    """What the reducer needs to know about a forward's output."""

    tensors: Sequence[Tensor]
    reached: frozenset[int] | None
    """Indices of the parameters on which the output's tensors depend; None if unknown."""
    accumulators: Sequence[Node] = ()
    """The autograd nodes that accumulate the gradients of these parameters."""


class ReachedParameters(NamedTuple):
    """The result of a search of the autograd graph."""

    parameters: set[int]
    """Indices of the parameters that can get a gradient."""
    has_reentrant_checkpoint: bool
    """Whether the graph has a reentrant checkpoint, which may use parameters that are not in `parameters`."""


def accumulators_of(parameters: Sequence[Tensor]) -> dict[Node, int]:
    """Return the autograd node that accumulates each parameter's gradient, with the parameter's index.

    All parameters must require grad. Keep the dictionary: nodes stay the same only while something holds them.
    """
    return {get_gradient_edge(parameter).node: index for index, parameter in enumerate(parameters)}


def reached_parameters(tensors: Iterable[Tensor], accumulators: Mapping[Node, int]) -> ReachedParameters:
    """Return the parameters in `accumulators` on which the tensors depend; a parameter depends on itself."""
    # All autograd nodes that computed the tensors, and None. Holding the Python objects keeps their identity.
    stack: list[Node] = [get_gradient_edge(tensor).node for tensor in tensors if tensor.requires_grad]
    visited: set[Node | None] = {None, *stack}
    push, pop, visit = stack.append, stack.pop, visited.add
    while stack:
        for node, _ in pop().next_functions:
            if node not in visited:
                visit(node)
                push(node)  # type: ignore[arg-type]  # None was visited from the start
    parameters = {accumulators[node] for node in accumulators.keys() & visited}
    return ReachedParameters(parameters, _CHECKPOINT in set(map(type, visited)))
