"""Hooks that a program registers on a group, since torch 2.14. They are called around each call as torch's operators
call them (torch/csrc/distributed/c10d/Ops.cpp), with as much as the operators know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch._C import _distributed_c10d

_c10d: Any = _distributed_c10d

HAS_HOOKS = hasattr(_c10d, "NanCheckHook")
"""True since torch 2.14."""

_OTHER_NAMES = {"RECV_ANY_SOURCE": "RECV", "GATHER_INTO_TENSOR": "GATHER"}
"""torch's names of calls in hooks, where these are not those of the operators."""


class CallHooks:
    """The hooks of one group, by their numbers, in whose order they are called."""

    def __init__(self) -> None:
        self.before: dict[int, Callable[[Any], object]] = {}
        self.after: dict[int, Callable[[Any], object]] = {}
        self._called = 0

    def call_ahead(self, operator: str, tensors: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Call the hooks before a call of torch's operator: with its tensors, outputs first, and its arguments by name.
        Return what the hooks after the call are told."""
        name = operator.strip("_").upper()
        common = {
            "name": getattr(_c10d.HookOpName, _OTHER_NAMES.get(name, name)),
            "op_id": self._called,
            "async_op": bool(values.get("async_op", True)),
        }
        self._called += 1
        outputs = len(tensors) == 2 or name.startswith("RECV")
        arguments = _filled("PreHookArgs", common)
        arguments.root = next((values[key] for key in ("root_rank", "dst", "src") if key in values), -1)
        arguments.input_tensors, arguments.output_tensors = _flat(tensors[outputs:]), _flat(tensors[:outputs])
        for _, hook in sorted(self.before.items()):
            hook(arguments)
        return common

    def call_afterwards(self, common: Mapping[str, Any], work: Any) -> None:
        """Call the hooks after a call, which has been issued."""
        for _, hook in sorted(self.after.items()):
            hook(_filled("PostHookArgs", {**common, "work": work}))

    def check_for_nan(self, rank: int) -> SimpleNamespace:
        """Raise from now on where a call sends NaN. Return a handle that ends this."""

        def check(arguments: Any) -> None:
            if arguments.name.name in ("BROADCAST", "SCATTER") and arguments.root != rank:
                return
            if any(tensor.is_floating_point() and tensor.isnan().any() for tensor in arguments.input_tensors):
                raise RuntimeError("NaN found in input tensor.")

        number = min(self.before, default=0) - 1
        self.before[number] = check
        return SimpleNamespace(remove=lambda: self.before.pop(number, None))


def _filled(name: str, values: Mapping[str, Any]) -> Any:
    arguments = getattr(_c10d, name)()
    for key, value in values.items():
        setattr(arguments, key, value)
    return arguments


def _flat(values: Any) -> list[Any]:
    return [each for value in values for each in (_flat(value) if isinstance(value, (list, tuple)) else [value])]
