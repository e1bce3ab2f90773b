"""A program as a value: for each rank the calls it issues and the works it waits for, in order.

    Program(
        world_size=2,
        groups=(),
        ranks=(
            (Issue("a", "all_reduce", shapes=((4,),), dtype="float32", reduction="SUM"), Wait("a")),
            (Issue("a", "all_reduce", shapes=((4,),), dtype="float32", reduction="SUM"), Wait("a")),
        ),
    )

Nothing here calls torch: a program can be drawn, changed, checked, saved and compared as it stands. What its tensors
hold follows from rank and name of the call (scenarios/ranks/calls.py), so that a value is all there is to
keep.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddpsim.simulator.calls import Shape, Site

DEFAULT = "default"
"""The group of all ranks."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group besides the default one. All ranks create the groups, in their order, before the first step."""

    name: str
    ranks: tuple[int, ...]
    """Global ranks, in group-rank order."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Issue a call, asynchronously; a synchronous one is followed by its `Wait`."""

    name: str
    """Unique within its rank; the same on all ranks for calls that belong together, as what they send follows from it.
    """
    operation: str
    """As torch.distributed spells it; see `Signature.operation`."""
    group: str = DEFAULT
    shapes: tuple[Shape, ...] = ()
    """As in `Signature.shapes`."""
    dtype: str | None = None
    reduction: str | None = None
    root: int | None = None
    """Global rank."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    peer: int | None = None
    """Global rank of the other side of a `send` or `recv`; `ANY_SOURCE` for whoever sends."""
    tag: int = 0
    at: str = ""
    """The line of another program that it stands for, as in "train.py:14 in step"; "" for none."""

    @property
    def site(self) -> Site | None:
        """That line."""
        found = _PLACE.fullmatch(self.at)
        return None if found is None else Site(found["path"], int(found["line"]), found["function"] or "")


_PLACE = re.compile(r"(?P<path>.+):(?P<line>[1-9]\d{0,8})(?: in (?P<function>.*))?")


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the call of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Return:
    """Return early."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Raise an `InjectedCrashError` that says `CRASH`."""


CRASH = "a crash that is a step of the program"


Step = Issue | Wait | Return | Crash


@dataclass(frozen=True, slots=True)
class Program:
    """A program: the groups, and the steps of every rank."""

    world_size: int
    groups: tuple[Group, ...]
    ranks: tuple[tuple[Step, ...], ...]
    """The steps of each rank."""


FRACTIONAL = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int32", "int64", "int8", "uint8")
DTYPES = (*FRACTIONAL, *WHOLE, "bool")

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def reductions_of(dtype: str) -> tuple[str, ...]:
    """The reductions that backends do on a dtype."""
    if dtype in FRACTIONAL:
        return REDUCTIONS[:5]
    return tuple(reduction for reduction in REDUCTIONS if reduction != "AVG")
