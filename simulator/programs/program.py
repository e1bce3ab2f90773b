"""A program as a value: for each rank the calls it issues and the works it waits for, in order.

    Program(
        world_size=2,
        groups=(),
        ranks=(
            (Issue("a", "all_reduce", shapes=((4,),), dtype="float32", reduction="SUM"), Wait("a")),
            (Issue("a", "all_reduce", shapes=((4,),), dtype="float32", reduction="SUM"), Wait("a")),
        ),
    )

Nothing here calls torch: a program can be drawn, changed, checked, saved and compared as a value. The contents of its
tensors follow from the rank and the name of the call (scenarios/ranks/interpreter.py).
"""

import re
from dataclasses import dataclass

from ddpsim.simulator.calls import Shape, Site, Splits

DEFAULT = "default"
"""The name of the default group, which has all ranks."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that is not the default one. All ranks create the groups in order before their first steps."""

    name: str
    ranks: tuple[int, ...]
    """The members' global ranks, in group-rank order."""


@dataclass(frozen=True, slots=True)
class Issue:
    """The step that issues a call with async_op=True; a synchronous call is an `Issue` and then its `Wait`."""

    name: str
    """The call's name: unique on its rank, and the same on all ranks for calls that belong together."""
    operation: str
    """The name of the operation in torch.distributed; see `Signature.operation`."""
    group: str = DEFAULT
    shapes: tuple[Shape, ...] = ()
    """The shapes of the call's tensors, as in `Signature.shapes`."""
    dtype: str | None = None
    reduction: str | None = None
    root: int | None = None
    """The global rank of the root."""
    splits: Splits | None = None
    peer: int | None = None
    """The global rank of the other side of a `send` or `recv`; `ANY_SOURCE` to receive from any rank."""
    tag: int = 0
    at: str = ""
    """The line of a real program that the call represents, as in "train.py:14 in step"; "" for none."""

    @property
    def parsed_site(self) -> Site | None:
        """The line in `at`, parsed; None if `at` is empty."""
        found = _PLACE.fullmatch(self.at)
        return None if found is None else Site(found["path"], int(found["line"]), found["function"] or "")


_PLACE = re.compile(r"(?P<path>.+):(?P<line>[1-9]\d{0,8})(?: in (?P<function>.*))?")


@dataclass(frozen=True, slots=True)
class Wait:
    """The step that waits for the call of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Return:
    """The step in which a rank returns before the end of its program."""


@dataclass(frozen=True, slots=True)
class CrashStep:
    """The step in which a rank raises an `InjectedCrashError` with the text `CRASH`."""


CRASH = "a crash that is a step of the program"


Step = Issue | Wait | Return | CrashStep


@dataclass(frozen=True, slots=True)
class Program:
    """A program: the groups, and the steps of every rank."""

    world_size: int
    groups: tuple[Group, ...]
    ranks: tuple[tuple[Step, ...], ...]


FRACTIONAL = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FRACTIONAL, "int32", "int64", "int8", "uint8", "bool")
"""The dtypes that calls can have. No complex ones: torch passes them to some operations as pairs of real numbers."""

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reductions_of_dtype(dtype: str) -> tuple[str, ...]:
    """Return the reductions that backends support for a dtype."""
    if dtype in FRACTIONAL:
        return REDUCTIONS[:5]
    return tuple(reduction for reduction in REDUCTIONS if reduction != "AVG")
