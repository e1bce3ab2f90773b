"""The function `agree`: ranks pass a value that decides a branch; if the values differ, a finding names the branch."""

import hashlib
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from ddpsim.simulator.errors import UsageError

_T = TypeVar("_T")

_LONGEST = 120
"""The most characters of a value that are shown."""


def agree(name: str, value: _T) -> _T:
    """Assert that `value` is the same on all ranks, and return it: `if agree("stop", loss < 0.1): break`.

    In a simulation, the k-th call of a name on one rank is compared with the k-th call of that name on each other rank
    of the world. If two differ, the run ends with the finding `mismatch.value`. No rank waits and nothing is
    communicated, so the schedule does not change; a rank that makes fewer calls is not reported. Outside of a
    simulation it does nothing.

    Values are numbers, strings, bytes, None, members of enumerations, tensors and arrays, and collections of these. 1,
    1.0 and True are equal, as are two NaN. Raises UsageError in a simulation for anything else.
    """
    tell(name, value)
    return value


def tell(name: str, value: object) -> None:
    """The function to which `agree` passes its arguments; a simulation replaces it with its own function."""


def text_of_value(value: object) -> str:
    """Return a text for a value, equal for equal values. Raise UsageError for a type that `agree` does not allow."""
    text = _value_text(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _value_text(value: Any) -> str:
    if value is None or isinstance(value, (str, bytes)):
        return repr(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return _number_text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_value_text(key)}: {_value_text(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_value_text, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    if isinstance(value, complex):
        return f"{_number_text(value.real)} + {_number_text(value.imag)}j"
    if callable(getattr(value, "tolist", None)):  # a tensor, an array, or a number of one
        return _value_text(value.tolist())
    raise UsageError(
        f"agree got a value of type {type(value).__name__}, expected numbers, strings, None, tensors, or lists, sets "
        "and mappings of these: pass one of these instead"
    )


def _number_text(value: float) -> str:
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return repr(float(value))
    return repr(int(value))
