"""The values that the process of a rank receives when it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.choices import Start
from ddpsim.simulator.debugging.breakpoints import Breakpoints
from ddpsim.simulator.rank_processes.channel import Channel
from ddpsim.simulator.rank_processes.parcels import Arena
from ddpsim.simulator.rank_processes.rank_files import Files
from ddpsim.simulator.virtual_gpus.announcement import Announcement


class ProcessConfig(NamedTuple):
    """The values that all ranks of an execution have in common."""

    coordinator: int
    """Its process."""
    world_size: int
    program: Callable[[int], Any]
    is_observed: bool
    """Somebody explores, and wants to know what each step touches."""
    checks_replicas: bool
    is_program: bool
    """Ranks begin as torchrun begins them, and make their groups themselves."""
    announcement: Announcement
    gpus: int | None = None
    """Virtual ones; None for those that a program asks for on a machine that has none."""
    is_speculative: bool = False
    """Ranks may compute before they have the baton."""
    is_launched: bool = False
    """The program has started its ranks itself, or is going to where nothing says that torchrun has."""
    external_processes: str = ""
    """The socket on which a process that is no rank reports that it makes a group (`ExternalProcesses.address`)."""
    is_forked_by_program: bool = False
    """It has forked them, so that they begin as it stood then."""
    start: Start = Start(is_alike=True)
    preload: tuple[str, ...] = ()
    """Modules that are loaded before ranks of a program are forked."""
    poisons: bool = False
    """Tensors of calls in flight hold what shows."""
    semantics: BackendSemantics = GLOO
    debugs_rank: int | None = None
    """Whose program is to stop at its first line."""
    breakpoints: Breakpoints = Breakpoints()
    """Those of earlier runs."""


def sent(config: ProcessConfig) -> dict[str, Any]:
    """What a rank that runs already has to know of them; it has the rest by having been forked."""
    values = config._asdict()
    del values["program"], values["announcement"], values["is_forked_by_program"]
    return values


class RankConfig(NamedTuple):
    """The configuration of one rank."""

    rank: int
    common: ProcessConfig
    channel: Channel
    arena: Arena
    files: Files
