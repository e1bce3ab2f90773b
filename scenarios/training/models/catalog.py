"""All networks by name, and functions that build a network from its name, options and a seed."""

import inspect
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch.nn import init
from torch.overrides import TorchFunctionMode

from ddpsim import UsageError
from ddpsim.scenarios.names import suggest_nearest_name
from ddpsim.scenarios.training.models import dense
from ddpsim.scenarios.training.models.images import Conv, Resnet
from ddpsim.scenarios.training.models.network import Network
from ddpsim.scenarios.training.models.normalized import BatchNorm, SyncBatchNormalized
from ddpsim.scenarios.training.models.tokens import Embedding, Shared, Transformer

NETWORKS: Mapping[str, type[Network]] = MappingProxyType(
    {
        "batch_norm": BatchNorm,
        "branches": dense.Branches,
        "conv": Conv,
        "discriminator": dense.GanDiscriminator,
        "early_exit": dense.EarlyExit,
        "embedding": Embedding,
        "generator": dense.GanGenerator,
        "linear": dense.Linear,
        "mixed_dtypes": dense.MixedDtypes,
        "mlp": dense.Mlp,
        "resnet": Resnet,
        "shared": Shared,
        "sync_batch_norm": SyncBatchNormalized,
        "transformer": Transformer,
    }
)
"""The classes of all networks, by their names in scenarios."""

_LARGEST = 65_536
"""The largest number that an option of a network may have."""
_DEEPEST = 512
"""The largest number of layers in a network. Deeper networks would take seconds to build."""
_MOST_NUMBERS = 100_000_000
"""The largest number of parameters in a network, and of values in a sample, because every rank keeps its own copy."""
_LARGEST_SEED = 2**63 - 1


class NetworkOptionError(UsageError):
    """An option of a network has an unknown name, or an invalid value."""

    def __init__(self, network: str, option: str, problem: str) -> None:
        super().__init__(f"network {network!r}: {option} {problem}")
        self.option = option
        self.problem = problem


def make_network(
    name: str,
    options: Mapping[str, object] = MappingProxyType({}),
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """Build the network called `name` on the CPU. Its initial values depend only on the seed and the options.

    The values are drawn in float32 and then cast, so a float64 network starts from the same numbers. The caller's
    random generators and defaults are unchanged. Raises UsageError for an unknown name or option, or an invalid value.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST_SEED:
        raise UsageError(f"seed is {seed!r}, expected a whole number from 0 to {_LARGEST_SEED}: leave it out for 0")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"dtype is {dtype!r}, expected one with a floating point: leave it out for torch.float32")
    values = _check_options(name, options)
    with _seed_generator(seed), _ParameterLimit(name):
        network = _build_network(name, values)
    network.cast_to_dtype(dtype)
    return network


def make_meta_network(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Network:
    """Build the network called `name` without values, on the device "meta", at no cost. Raises UsageError."""
    values = _check_options(name, options)
    with torch.device("meta"), _ParameterLimit(name), _SkipInitialization():
        return _build_network(name, values)


def _build_network(name: str, values: Mapping[str, Any]) -> Network:
    try:
        network = NETWORKS[name](**values)
    except _NetworkTooLargeError:
        raise
    except UsageError as error:
        option, _, problem = str(error).partition(" ")  # all these messages begin with the option
        raise NetworkOptionError(name, option, problem) from None
    if math.prod(network.row) > _MOST_NUMBERS:
        raise _NetworkTooLargeError(
            f"network {name!r}: a sample has {math.prod(network.row)} numbers, expected {_MOST_NUMBERS} at most: "
            "make it smaller"
        )
    return network


class _ParameterLimit(TorchFunctionMode):
    """A block that refuses a network with too many parameters before the network allocates them."""

    def __init__(self, network: str) -> None:
        super().__init__()
        self._network = network
        self._count = 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.empty:  # layers allocate parameters with it
            sizes = args[0] if isinstance(args[0], Sequence) else args
            self._count += math.prod(sizes)
            if self._count > _MOST_NUMBERS:
                raise _NetworkTooLargeError(
                    f"network {self._network!r} has {self._count} parameters or more, expected {_MOST_NUMBERS} at "
                    "most: make it smaller"
                )
        return func(*args, **(kwargs or {}))


class _SkipInitialization(TorchFunctionMode):
    """A block in which initial values are not drawn: "meta" tensors have no values, and drawing imports a compiler."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (init.normal_, init.uniform_, init.kaiming_uniform_):
            return given["tensor"]
        return args[0] if func in (torch.Tensor.normal_, torch.Tensor.uniform_) else func(*args, **given)


class _NetworkTooLargeError(UsageError):
    """A network is too large for the memory."""


@contextmanager
def _seed_generator(seed: int) -> Iterator[None]:
    """In this block, draw from a generator with this seed, in float32 and on the CPU; then restore the caller's."""
    default_dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, because that seeds the generators of all devices.
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default_dtype)


def _check_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Check the options of a network, and return them as its constructor expects them."""
    if not isinstance(name, str) or name not in NETWORKS:
        raise UsageError(f"network is {name!r}, expected one of {_names_text(name, NETWORKS)}")
    parameters = inspect.signature(NETWORKS[name], eval_str=True).parameters
    values = {}
    for key, value in options.items():
        if key not in parameters:
            raise NetworkOptionError(name, key, f"is no option, expected one of {_names_text(key, parameters)}")
        kind, expected = _DEPTH if key == "depth" else _KINDS[parameters[key].annotation]
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            default = parameters[key].default
            problem = f"is {value!r}, expected {expected}: leave it out for {default!r}"
            raise NetworkOptionError(name, key, problem) from None
        values[key] = tuple(value) if isinstance(value, list) else value
    return values


def _names_text(name: str, names: Iterable[str]) -> str:
    advice = suggest_nearest_name(str(name), names)
    return ", ".join(names) + (f": {advice}" if advice else "")


_Size = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_DEPTH = (Annotated[int, Meta(ge=1, le=_DEEPEST)], f"a whole number from 1 to {_DEEPEST}")
_KINDS: Mapping[object, tuple[Any, str]] = MappingProxyType(
    {
        int: (_Size, f"a whole number from 1 to {_LARGEST}"),
        tuple[int, ...]: (
            Annotated[tuple[_Size, ...], Meta(max_length=_DEEPEST - 1)],
            f"a list of whole numbers from 1 to {_LARGEST}",
        ),
        float: (_Number, "a number"),
        bool: (bool, "true or false"),
        str: (str, "a string"),
    }
)
"""By the type annotation of an option: a check of the option's value, and a text on which values are valid."""
