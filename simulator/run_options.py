"""The one table of the options of a run: each field of `RunOptions` is a keyword of `simulate`, `replay`, `explore`,
`shrink` and of scenarios; its `OptionForms` defines it for the console, pytest markers, TOML files and replay lines.

See the section "An option of a run" in CONTRIBUTING. This module needs no torch, so `ddpsim --help` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ddpsim.simulator.backend_semantics import BACKENDS, GLOO, BackendSemantics
from ddpsim.simulator.choices import RankSeeds
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.hosts import LAUNCHERS, TORCHRUN
from ddpsim.simulator.policies.named import join_names

if TYPE_CHECKING:
    from ddpsim.simulator.comparing.records import Recording
    from ddpsim.simulator.verdict import Finding

REPLICAS, REPLICAS_IF_ANY, REFERENCE = CHECKS = ("replicas", "replicas-if-any", "reference")
"""The values of the option `check`. With "replicas", a run without replicas to compare is unknown."""

NOTHING = "none"
"""The word for None on the console and in TOML files."""


class OptionForms(NamedTuple):
    """How an option of a run appears on the console, in pytest markers, in TOML files and in replay lines."""

    help: str = ""
    """The help text for `--help`; "" if the option does not exist on the console."""
    default: str = ""
    """The default value as `--help` shows it; "" to show none."""
    metavar: str | None = None
    flag: str = ""
    """The console flag, if it is not the field's name with dashes."""
    not_of: tuple[str, ...] = ()
    """The commands that do not have the option, though they have the other options of a run."""
    takes_several_in: str = ""
    """The command in which the option accepts several values, separated by commas."""
    choices: tuple[str, ...] = ()
    """The values that the option may have; () for any value."""
    has_none: bool = False
    """True if the value "none" on the console and in TOML files means None."""
    is_in_marker: bool = True
    is_in_toml: bool = True
    is_replayed: bool = True
    """False if a replay line can omit the option: the token contains its value, or it does not change the result."""

    def console_flag(self, name: str) -> str:
        """Return the option's flag on the console, such as `--backend-semantics`."""
        return self.flag or f"--{name.replace('_', '-')}"


def _option(default: Any, *forms: Any, **more: Any) -> Any:
    return field(default=default, metadata={"option": OptionForms(*forms, **more)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run, as the user gave them. The help text in its `OptionForms` describes each option."""

    args: tuple[Any, ...] = _option((), is_in_marker=False, is_in_toml=False)
    """The arguments of the program after its rank."""
    isolation: str | None = _option(
        None,
        "What each rank runs as: thread or process.",
        "process for a program, else thread",
        choices=("thread", "process"),
    )
    gpus: int | None = _option(
        None,
        "Number of virtual GPUs, on each host, for ranks that are processes.",
        "one per rank, if the program asks and the machine has none",
        "N",
    )
    nnodes: int = _option(
        1,
        "Number of hosts of a program's ranks, each with its own name, clock and GPUs.",
        "1",
        "N",
        is_in_marker=False,
    )
    launcher: str = _option(
        TORCHRUN,
        f"The launcher whose environment variables a program gets: {join_names(LAUNCHERS)}.",
        TORCHRUN,
        choices=tuple(LAUNCHERS),
        is_in_marker=False,
    )
    max_restarts: int = _option(
        0,
        "How often the ranks of a program are started again after one has failed, as by torchrun.",
        "0",
        "K",
        not_of=("explore", "crash"),
        is_in_marker=False,
    )
    private_disk: tuple[str, ...] = _option(
        (),
        "A folder of which each host has its own copy; may be repeated.",
        metavar="DIR",
        is_in_marker=False,
    )
    alike: bool = _option(
        False,
        "Start all ranks with the same clocks, random and hash seeds, not with different ones as torchrun does.",
        not_of=("replay", "debug"),
        is_in_marker=False,
        is_replayed=False,
    )
    preload: tuple[str, ...] = _option(
        (),
        "Import a module once, before the ranks of a program are forked; may be repeated.",
        metavar="MODULE",
        is_in_marker=False,
    )
    one_at_a_time: bool = _option(
        False,
        "Let ranks that are processes compute one after another, not at the same time.",
        not_of=("debug",),
        is_in_toml=False,
        is_replayed=False,
    )
    backend_semantics: str = _option(
        GLOO.name,
        f"The backend whose matching and blocking rules apply to calls: {join_names(BACKENDS)}.",
        GLOO.name,
        "NAME",
        takes_several_in="run",
        choices=tuple(BACKENDS),
    )
    faults: tuple[Fault, ...] = _option(
        (),
        "Inject a fault: crash:rank=1,before_call=3, early_return:... or delay:...,seconds=2; may be repeated.",
        metavar="KIND:rank=R,before_call=N",
        flag="--fault",
        not_of=("crash",),
        is_in_toml=False,  # faults are tables there
    )
    check: str | None = _option(
        None,
        f"Compare model replicas across ranks: {REPLICAS} (unknown without any), {REPLICAS_IF_ANY} or {NOTHING}; or "
        f"{REFERENCE}: the training with that of one rank.",
        REPLICAS_IF_ANY,
        not_of=("compare",),
        choices=CHECKS,
        has_none=True,
    )
    poison: bool | None = _option(
        None,
        "Fill output buffers with NaN (or the type's largest value) until the call is waited for.",
        "yes in explore and fuzz",
    )
    default_group: bool = _option(True, is_in_toml=False)
    """False if each rank makes its default group itself, as programs always do."""
    name: str | None = _option(None, is_in_marker=False, is_in_toml=False)
    """The program's name in reports and replay tokens; None for its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(RunOptions):
    """The options of a run after they were checked, and values derived from them."""

    transport: str = _option("memory", choices=("memory", "gloo"), is_in_toml=False)
    """The transport, which moves the bytes: simulated memory, or torch's gloo."""
    identity: str
    """The program's name and world size, by which replay tokens recognise the program."""
    has_processes: bool
    """True if ranks are processes; False if they are threads."""
    start: RankSeeds | None
    """The seeds with which ranks start; None for a function whose ranks have equal seeds."""
    diary: str = ""
    """The folder in which ranks that are processes keep diaries of their operations; "" for none."""
    follows_paths: bool = False
    """True if the lines that ranks run are recorded, to find where their paths part (`diagnosis/partings.py`)."""
    has_reference: bool = False
    """True if each run is held against one rank, for the option `check`, which then is None."""
    recording: Recording | None = None
    """What ranks record of their training, to compare it with another run; None to record nothing."""

    @property
    def has_equal_clocks(self) -> bool:
        """True if the clocks of all ranks are equal."""
        return self.start is not None and self.start.is_alike

    @property
    def semantics(self) -> BackendSemantics:
        """The rules by which calls match and block on the backend."""
        return BACKENDS[self.backend_semantics]


OPTIONS: Mapping[str, OptionForms] = {each.name: each.metadata["option"] for each in fields(RunPlan) if each.metadata}

DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(RunPlan)}


class ReplayKeywords(TypedDict, total=False):
    """The options of a run that `simulate`, `explore`, `replay` and `shrink` accept as keywords."""

    args: Sequence[Any]
    isolation: str | None
    gpus: int | None
    nnodes: int
    launcher: str
    max_restarts: int
    private_disk: Sequence[str]
    preload: Sequence[str]
    one_at_a_time: bool
    backend_semantics: str
    faults: Sequence[Fault]
    check: str | None
    poison: bool | None
    default_group: bool
    name: str | None
    transport: str


class RunKeywords(ReplayKeywords, total=False):
    """The keywords of `simulate` and `explore`; a replay has no `alike`, because its schedule contains the seeds."""

    alike: bool


class RanksOutcome(NamedTuple):
    """What the ranks of a run returned and raised, for the result of the run."""

    findings: tuple[Finding, ...]
    returns: tuple[Any, ...]
    errors: dict[int, BaseException]
    has_poisoned: bool
    """True if option `poison` filled a buffer. Then a replay needs this option, too."""
