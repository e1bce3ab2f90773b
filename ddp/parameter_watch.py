"""Detects, before a forward, that the model's parameters changed since the buckets were laid out.

If a parameter is frozen, unfrozen, replaced, added or removed after construction, its gradient would silently be left
out of the reduction, or waited for forever. `ParameterWatch.check_parameters` names what changed. It runs before every
forward: while nothing changed it is a few loops in C, 50 us for 400 parameters in 200 modules.

One change is allowed: all parameters frozen at once, as a GAN freezes its discriminator.

Not detected are a replaced attribute `_parameters` and the conversion of a part without any of `_SAMPLES`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import Enum
from itertools import chain
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from ddpsim.ddp.errors import ParameterChangedError
from ddpsim.ddp.text_formats import dtype_text

_SAMPLES = 16
"""The number of parameters whose dtype and device are read. A few suffice, since `module.to(...)` converts all, and 400
would double the time. The reducer finds the others when a gradient does not fit its bucket."""
_SHOWN_CHANGES = 5
_END = object()
_WAY_OUT = "construct the DistributedDataParallel anew after changing the model"
_requires_grad: Callable[[Tensor], bool] = attrgetter("requires_grad")
_dtype_and_device: Callable[[Tensor], tuple[torch.dtype, torch.device]] = attrgetter("dtype", "device")


class KnownTrainability(Enum):
    """Whether parameters require grad, as `check_parameters` found them."""

    TRAINABLE = "trainable"
    """The same parameters require grad as at construction."""
    ALL_FROZEN = "all frozen"
    """No parameter that DDP reduces requires grad now; otherwise as at construction."""


class ParameterWatch:
    """Detects changes of a module's parameters, except `ignored` ones; DDP reduces the `managed` parameters."""

    def __init__(self, module: nn.Module, managed: Mapping[str, Tensor], *, ignored: Container[str]) -> None:
        assert managed
        assert all(map(_requires_grad, managed.values()))
        self._module = module
        self._managed = dict(managed)
        self._ignored = ignored
        self._named = self._current_parameters()
        self._kinds = {name: _dtype_and_device(parameter) for name, parameter in managed.items()}
        trainable = {id(parameter): parameter for parameter in managed.values()}
        self._frozen = {name: parameter for name, parameter in self._named.items() if not parameter.requires_grad}
        frozen = {id(parameter): parameter for parameter in self._frozen.values()}
        self._watched = [*trainable.values(), *frozen.values()]
        self._as_built = [True] * len(trainable) + [False] * len(frozen)
        self._all_frozen = [False] * len(self._watched)
        self._samples = _evenly_spaced_tensors(list(trainable.values()), _SAMPLES)
        self._sample_kinds = list(map(_dtype_and_device, self._samples))
        self._record_structure()

    def check_parameters(self) -> KnownTrainability:
        """Raise ParameterChangedError, which names the changed parameters, if any changed since construction."""
        flags = list(map(_requires_grad, self._watched))
        is_as_built = flags == self._as_built
        if (
            (is_as_built or flags == self._all_frozen)
            and list(map(_dtype_and_device, self._samples)) == self._sample_kinds
            and all(map(is_, self._members, chain.from_iterable(self._live)))
        ):
            return KnownTrainability.TRAINABLE if is_as_built else KnownTrainability.ALL_FROZEN
        return self._check_by_name()

    def _check_by_name(self) -> KnownTrainability:
        """Find changed parameters by comparing all names, which is slow; accept changes such as a new activation."""
        is_all_frozen = not any(map(_requires_grad, self._managed.values()))
        changes = list(self._describe_changes(is_all_frozen))
        if changes:
            rest = len(changes) - _SHOWN_CHANGES
            shown = changes[:_SHOWN_CHANGES] + ([f"{rest} more such changes"] if rest > 0 else [])
            raise ParameterChangedError(f"parameters changed after construction: {', '.join(shown)}; {_WAY_OUT}")
        self._record_structure()
        return KnownTrainability.ALL_FROZEN if is_all_frozen else KnownTrainability.TRAINABLE

    def _record_structure(self) -> None:
        """Record all modules' parameters and submodules, and how to read them again; a marker shows added members."""
        modules = list(self._module.modules())
        self._live = [_members_of_module(module, kind) for kind in ("_parameters", "_modules") for module in modules]
        self._live.append((_END,))
        self._members = list(chain.from_iterable(self._live))

    def _current_parameters(self) -> dict[str, Tensor]:
        # Unbound, since some modules override the method with fewer arguments.
        named = nn.Module.named_parameters(self._module, remove_duplicate=False)
        return {name: parameter for name, parameter in named if name not in self._ignored}

    def _describe_changes(self, is_all_frozen: bool) -> Iterator[str]:
        now = self._current_parameters()
        for name, parameter in self._named.items():
            if name not in now:
                yield f"{name} was removed"
            elif now[name] is not parameter:
                yield f"{name} was replaced by another parameter"
        yield from (f"{name} was added" for name in now if name not in self._named)
        if not is_all_frozen:
            yield from (f"{name} was frozen" for name, tensor in self._managed.items() if not tensor.requires_grad)
        yield from (f"{name} was unfrozen" for name, parameter in self._frozen.items() if parameter.requires_grad)
        for name, parameter in self._managed.items():
            if _dtype_and_device(parameter) != self._kinds[name]:
                before, after = _format_kind(*self._kinds[name]), _format_kind(*_dtype_and_device(parameter))
                yield f"{name} was converted from {before} to {after}"


class _CopyingMembers:
    """Reads the parameters or submodules of a C++ or scripted module, which returns a new copy on each request."""

    def __init__(self, module: nn.Module, kind: str) -> None:
        self._module = module
        self._kind = kind

    def __iter__(self) -> Iterator[object]:
        return iter(getattr(self._module, self._kind).values())


def _members_of_module(module: nn.Module, kind: str) -> Iterable[object]:
    """Return an iterable over the module's parameters or submodules; each iteration reads them anew."""
    members = vars(module).get(kind) if isinstance(module, nn.Module) else None
    return members.values() if isinstance(members, dict) else _CopyingMembers(module, kind)


def _evenly_spaced_tensors(tensors: list[Tensor], count: int) -> list[Tensor]:
    if len(tensors) <= count:
        return tensors
    return [tensors[round(index * (len(tensors) - 1) / (count - 1))] for index in range(count)]


def _format_kind(dtype: torch.dtype, device: torch.device) -> str:
    return f"{dtype_text(dtype)} on {device}"
