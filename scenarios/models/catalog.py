"""All networks by name, and how one is built from its name, options and a seed."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import torch

from scenarios.models.dense import Discriminator, Generator, Linear, MixedDtypes, Mlp
from scenarios.models.images import Conv, Resnet
from scenarios.models.network import Network
from scenarios.models.normalized import BatchNorm, SyncBatchNormalized
from scenarios.models.partial import Branches, EarlyExit
from scenarios.models.tokens import Embedding, Shared, Transformer
from simulator import UsageError

NETWORKS: Mapping[str, type[Network]] = MappingProxyType(
    {
        "batch_norm": BatchNorm,
        "branches": Branches,
        "conv": Conv,
        "discriminator": Discriminator,
        "early_exit": EarlyExit,
        "embedding": Embedding,
        "generator": Generator,
        "linear": Linear,
        "mixed_dtypes": MixedDtypes,
        "mlp": Mlp,
        "resnet": Resnet,
        "shared": Shared,
        "sync_batch_norm": SyncBatchNormalized,
        "transformer": Transformer,
    }
)
"""The networks, by the name that scenarios call them."""

_LARGEST = 65_536
"""No width or depth is larger: it would be a mistake, and fill the memory."""
_LARGEST_SEED = 2**63 - 1


def make(
    name: str,
    options: Mapping[str, object] = MappingProxyType({}),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """The network called `name`, on the CPU; its initial values depend on the seed and the options only.

    They are drawn in float32 and then cast: in float64 it starts from the same numbers. No generator and no default of
    the caller is changed. Raises UsageError for a name, an option or a value that there is not.
    """
    if not isinstance(name, str) or name not in NETWORKS:
        raise UsageError(f"network is {name!r}, expected one of {_one_of(name, NETWORKS)}")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"seed is {seed!r}, expected a whole number from 0 to {_LARGEST_SEED}: leave it out for 0")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"dtype is {dtype!r}, expected one with a floating point: leave it out for torch.float32")
    values = _checked(name, options)
    with _seeded(seed):
        try:
            network = NETWORKS[name](**values)
        except UsageError as error:
            raise UsageError(f"network {name!r}: {error}") from None
    network.cast(dtype)
    return network


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a generator with this seed, in float32 and on the CPU; give back the caller's own afterwards."""
    default_dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would seed the generators of all devices.
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default_dtype)


def _checked(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """The options of a network, as its constructor takes them."""
    parameters = inspect.signature(NETWORKS[name], eval_str=True).parameters
    values = {}
    for key, value in options.items():
        if key not in parameters:
            raise UsageError(f"network {name!r} has no option {key!r}, expected one of {_one_of(key, parameters)}")
        kind = _KINDS[parameters[key].annotation]
        if not kind.allows(value):
            default = parameters[key].default
            raise UsageError(
                f"network {name!r}: {key} is {value!r}, expected {kind.expected}: leave it out for {default!r}"
            )
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


def _one_of(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(str(name), list(names), n=1)
    return ", ".join(names) + (f": did you mean {nearest[0]!r}?" if nearest else "")


class _Kind(NamedTuple):
    """What an option may be."""

    allows: Callable[[object], bool]
    expected: str


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST


def _are_sizes(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_size, value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf


_KINDS: Mapping[object, _Kind] = MappingProxyType(
    {
        int: _Kind(_is_size, f"a whole number from 1 to {_LARGEST}"),
        tuple[int, ...]: _Kind(_are_sizes, f"a list of whole numbers from 1 to {_LARGEST}"),
        float: _Kind(_is_number, "a number"),
        bool: _Kind(lambda value: isinstance(value, bool), "true or false"),
        str: _Kind(lambda value: isinstance(value, str), "a string"),
    }
)
"""By the annotation of the constructor's parameter."""
