"""The options of a run, each once: a field here is a keyword of `simulate`, `replay`, `explore` and `shrink`, and of a
scenario; its `Option` says what it is on the console, in a marker of pytest, in a TOML file and in a replay line.

CONTRIBUTING has a section, "An option of a run". Nothing here needs torch: `ddpsim --help` shows what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ddpsim.simulator.backend_semantics import BACKENDS, GLOO, BackendSemantics
from ddpsim.simulator.choices import Start
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.policies.named import listed

if TYPE_CHECKING:
    from ddpsim.simulator.verdict import Finding

REPLICAS, REPLICAS_IF_ANY = CHECKS = ("replicas", "replicas-if-any")
"""What may be compared besides: with the first, a run in which there is nothing to compare is unknown."""

NOTHING = "none"
"""What the console and TOML files say where Python says None."""


class Option(NamedTuple):
    """What a field is outside Python, where its name and its default are the same."""

    help: str = ""
    """The line of `--help`; "" for what is no option of the console."""
    default: str = ""
    """What the console does without it, where that has to be said."""
    metavar: str | None = None
    flag: str = ""
    """Where it is not the name of the field."""
    not_of: tuple[str, ...] = ()
    """The commands of programs that do not take it."""
    takes_several_in: str = ""
    """The command that takes several values, with commas between."""
    choices: tuple[str, ...] = ()
    """The texts that it may be; () for what is no choice."""
    has_none: bool = False
    """On the console, and in TOML files, it may be "none", which is None."""
    is_in_marker: bool = True
    is_in_toml: bool = True
    is_replayed: bool = True
    """False for what a replay line need not say: the token has it, or it comes to the same."""

    def flag_of(self, name: str) -> str:
        """As it is written on the console."""
        return self.flag or f"--{name.replace('_', '-')}"


def _option(default: Any, option: Option) -> Any:
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is said of how a program runs, whoever says it."""

    args: tuple[Any, ...] = _option((), Option(is_in_marker=False, is_in_toml=False))
    """What it is called with, after its rank."""
    isolation: str | None = _option(
        None,
        Option(
            "What a rank is: thread or process.",
            "a process for a program, else a thread",
            choices=("thread", "process"),
        ),
    )
    """What a rank is; None for what goes with the program."""
    gpus: int | None = _option(
        None,
        Option(
            "Virtual GPUs for ranks that are processes.", "one per rank, if a program asks where there is none", "N"
        ),
    )
    """How many virtual GPUs there are, for ranks that are processes."""
    alike: bool = _option(
        False,
        Option(
            "Start all ranks with the same seeds, where they start unlike, as under torchrun.",
            not_of=("replay", "debug"),
            is_in_marker=False,
            is_replayed=False,
        ),
    )
    """Ranks start with the same seeds."""
    preload: tuple[str, ...] = _option(
        (),
        Option(
            "Load a module once, before the ranks of a program are forked; may be given again.",
            metavar="MODULE",
            is_in_marker=False,
        ),
    )
    """Modules that are loaded before the ranks of a program are forked."""
    one_at_a_time: bool = _option(
        False,
        Option(
            "Let ranks that are processes compute in turns, not at the same time.",
            not_of=("debug",),
            is_in_toml=False,
            is_replayed=False,
        ),
    )
    """Ranks that are processes compute one at a time, too."""
    backend_semantics: str = _option(
        GLOO.name,
        Option(
            f"The backend whose rules calls meet by: {listed(BACKENDS)}.",
            GLOO.name,
            "NAME",
            takes_several_in="run",
            choices=tuple(BACKENDS),
        ),
    )
    """The backend by whose rules calls meet."""
    faults: tuple[Fault, ...] = _option(
        (),
        Option(
            "What goes wrong besides, as crash:rank=1,before_call=3, early_return:... or delay:...,seconds=2; may be "
            "given again.",
            metavar="KIND:rank=R,before_call=N",
            flag="--fault",
            is_in_toml=False,  # faults are tables there
        ),
    )
    """What goes wrong besides, and where."""
    check: str | None = _option(
        None,
        Option(
            f"What is compared besides: {REPLICAS}, of which there must be some; {REPLICAS_IF_ANY}; or {NOTHING}.",
            REPLICAS_IF_ANY,
            choices=CHECKS,
            has_none=True,
        ),
    )
    """What is compared besides."""
    poison: bool | None = _option(
        None,
        Option(
            "Let the tensors of a call that is not waited for hold NaN, or about the largest number of their type.",
            "yes in explore and fuzz",
        ),
    )
    """Tensors of calls in flight hold NaN, or about the largest number of their type; None for yes where many
    schedules are tried, and else no."""
    name: str | None = _option(None, Option(is_in_marker=False, is_in_toml=False))
    """What the program is called in reports and replay tokens; None for its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(RunOptions):
    """The checked options of the runs of a program, and what follows from them."""

    transport: str = _option("memory", Option(choices=("memory", "gloo"), is_in_toml=False))
    """How bytes move."""
    identity: str
    """What the program is called in replay tokens, with its world size."""
    has_processes: bool
    """Ranks are processes, not threads."""
    start: Start | None
    """How the ranks start; None for a function's that start alike."""

    @property
    def semantics(self) -> BackendSemantics:
        """The rules by which calls meet."""
        return BACKENDS[self.backend_semantics]


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {each.name: each.metadata["option"] for each in fields(RunPlan) if "option" in each.metadata}
)
"""All, by name."""

DEFAULTS: Mapping[str, Any] = MappingProxyType({each.name: each.default for each in fields(RunPlan)})


class ReplayKeywords(TypedDict, total=False):
    """The options of a run that `simulate`, `explore`, `replay` and `shrink` take as keywords."""

    args: Sequence[Any]
    isolation: str | None
    gpus: int | None
    preload: Sequence[str]
    one_at_a_time: bool
    backend_semantics: str
    faults: Sequence[Fault]
    check: str | None
    poison: bool | None
    name: str | None
    transport: str


class RunKeywords(ReplayKeywords, total=False):
    """Those of `simulate` and `explore`: how ranks start is in a schedule that is replayed."""

    alike: bool


class Ran(NamedTuple):
    """What came of the ranks of a run."""

    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    errors: dict[int, BaseException]
    has_poisoned: bool
    """It made a difference that `poison` was on."""
