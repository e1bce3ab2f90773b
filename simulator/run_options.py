"""What all runs of a program have alike, and what comes of the ranks of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.choices import Start
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.rank_processes.program import Program
from ddpsim.simulator.verdict import Finding


class RunOptions(NamedTuple):
    """What is the same for all runs of a program."""

    identity: str
    """What the program is called in replay tokens."""
    args: Sequence[Any] = ()
    transport: str = "memory"
    faults: Sequence[Fault] = ()
    check: str | None = None
    name: str | None = None
    gpus: int | None = None
    """Virtual ones, for ranks that are processes."""
    one_at_a_time: bool = False
    """Ranks that are processes compute one at a time, too."""
    isolation: str | None = None
    """None for what goes with the program: a process for a `Program`, a thread for a function."""
    start: Start | None = None
    """How the ranks start; None for a function's that start alike."""
    preload: tuple[str, ...] = ()
    """Modules that are loaded before its ranks are forked."""
    poison: bool = False
    """Tensors of calls in flight hold what shows."""
    semantics: BackendSemantics = GLOO
    """By whose rules calls meet."""

    def isolation_of(self, program: Callable[..., Any]) -> str:
        """What a rank is."""
        return self.isolation or ("process" if isinstance(program, Program) else "thread")


class RunKeywords(TypedDict, total=False):
    """What `simulate`, `replay` and `explore` take alike, by name, for those who hand it on to several of them."""

    args: Sequence[Any]
    transport: str
    faults: Sequence[Fault]
    check: str | None
    poison: bool
    name: str | None
    isolation: str | None
    gpus: int | None
    preload: Sequence[str]
    one_at_a_time: bool
    backend_semantics: str


class Ran(NamedTuple):
    """What came of the ranks of a run."""

    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    errors: dict[int, BaseException]
    has_poisoned: bool
    """It made a difference that `poison` was on."""
