"""What each operation of a program takes: how many shapes, whether a reduction, whether a root.

Complex dtypes are left out: torch's Python layer hands some operations' complex tensors over as pairs of reals, so that
what meets is another signature than what the program says.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Shapes(Enum):
    """How many shapes a call has."""

    NONE = "none"
    ONE = "one"
    SEVERAL = "one or more"
    PER_MEMBER = "one for each member of the group"
    IN_AND_OUT = "two: what is sent, what is received"


class Operation(NamedTuple):
    """What calls of an operation have."""

    shapes: Shapes
    reduces: bool = False
    has_root: bool = False


OPERATIONS: dict[str, Operation] = {
    "all_reduce": Operation(Shapes.ONE, reduces=True),
    "all_reduce_coalesced": Operation(Shapes.SEVERAL, reduces=True),
    "broadcast": Operation(Shapes.ONE, has_root=True),
    "reduce": Operation(Shapes.ONE, reduces=True, has_root=True),
    "all_gather": Operation(Shapes.ONE),
    "all_gather_coalesced": Operation(Shapes.SEVERAL),
    "all_gather_into_tensor": Operation(Shapes.ONE),
    "gather": Operation(Shapes.ONE, has_root=True),
    "scatter": Operation(Shapes.ONE, has_root=True),
    "reduce_scatter": Operation(Shapes.PER_MEMBER, reduces=True),
    "reduce_scatter_tensor": Operation(Shapes.ONE, reduces=True),
    "all_to_all": Operation(Shapes.PER_MEMBER),
    "all_to_all_single": Operation(Shapes.IN_AND_OUT),
    "barrier": Operation(Shapes.NONE),
    "send": Operation(Shapes.ONE),
    "recv": Operation(Shapes.ONE),
}
"""By name, as torch.distributed spells it; the shapes are those of a `Signature`."""

FRACTIONAL = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int32", "int64", "int8", "uint8")
DTYPES = (*FRACTIONAL, *WHOLE, "bool")

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reductions_of(dtype: str) -> tuple[str, ...]:
    """The reductions that backends do on a dtype."""
    if dtype in FRACTIONAL:
        return REDUCTIONS[:5]
    return tuple(reduction for reduction in REDUCTIONS if reduction != "AVG")
