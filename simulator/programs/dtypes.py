"""What calls of a program may hold: dtypes and reductions.

Complex dtypes are left out: torch's Python layer hands some operations' complex tensors over as pairs of reals, so that
what meets is another signature than what the program says.
"""

from __future__ import annotations

FRACTIONAL = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int32", "int64", "int8", "uint8")
DTYPES = (*FRACTIONAL, *WHOLE, "bool")

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reductions_of(dtype: str) -> tuple[str, ...]:
    """The reductions that backends do on a dtype."""
    if dtype in FRACTIONAL:
        return REDUCTIONS[:5]
    return tuple(reduction for reduction in REDUCTIONS if reduction != "AVG")
