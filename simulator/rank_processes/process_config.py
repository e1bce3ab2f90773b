"""The configuration that the process of a rank receives when it begins."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.choices import RankSeeds
from ddpsim.simulator.comparing.records import Recording
from ddpsim.simulator.debugging.breakpoints import AllBreakpoints
from ddpsim.simulator.faults import Strike
from ddpsim.simulator.hosts import RankHost
from ddpsim.simulator.rank_processes.channel import MessageChannel
from ddpsim.simulator.rank_processes.parcels import SharedArena
from ddpsim.simulator.rank_processes.private_disks import Disks
from ddpsim.simulator.rank_processes.rank_files import RankFiles
from ddpsim.simulator.virtual_gpus.announcement import FirstUseAnnouncement


class ProcessConfig(NamedTuple):
    """The configuration that all ranks of an execution share."""

    coordinator: int
    """The process id of the coordinator."""
    world_size: int
    program: Callable[[int], Any]
    is_program: bool
    """True if ranks start as under torchrun, and their program makes the process groups itself."""
    announcement: FirstUseAnnouncement
    is_observed: bool = False
    """True if the run is explored, so that each step reports what it reads and writes."""
    checks_replicas: bool = False
    gpus: int | None = None
    """The number of virtual GPUs; None to create them only when a program asks for a GPU that the machine lacks."""
    makes_groups: bool = False
    """True if each rank has its default group before its program starts."""
    is_speculative: bool = False
    """True if ranks may compute before they have the baton, which is the right to run."""
    is_launched: bool = False
    """True if the program starts its ranks itself, so that the environment variables of torchrun are not set."""
    external_processes: str = ""
    """The address of the socket to which other processes report that they make a process group."""
    is_forked_by_program: bool = False
    """True if the program has forked its ranks, so that they keep its settings."""
    start: RankSeeds = RankSeeds(is_alike=True)
    preload: tuple[str, ...] = ()
    poisons: bool = False
    """True if output buffers are filled with NaN until their call is waited for."""
    semantics: BackendSemantics = GLOO
    follows_paths: bool = False
    """True if the lines that ranks run are recorded."""
    recording: Recording | None = None
    """What ranks record of their training, to compare it with another run."""
    has_equal_clocks: bool = False
    began: int = 0  # the second from which `datetime.now` counts
    diary: str = ""
    """The folder in which each rank keeps a diary of its operations; "" for none."""
    strikes: tuple[Strike, ...] = ()
    restarts: int = 0
    """How often the ranks have been started again so far."""
    disks: tuple[Disks, ...] = ()
    """The private disks of each host; () if there are none."""
    debugs_rank: int | None = None
    """The rank whose program a debugger stops at the first line."""
    breakpoints: AllBreakpoints = AllBreakpoints()


def fields_for_launched_rank(config: ProcessConfig) -> dict[str, Any]:
    """Return the fields that are sent to a rank of a launcher; it has inherited the others by its fork."""
    values = config._asdict()
    del values["program"], values["announcement"], values["is_forked_by_program"]
    return values


class RankConfig(NamedTuple):
    """The configuration of one rank."""

    rank: int
    common: ProcessConfig
    channel: MessageChannel
    arena: SharedArena
    files: RankFiles

    @property
    def host(self) -> RankHost:
        """The place of the rank."""
        start = self.common.start
        return RankHost(self.rank, self.common.world_size, start.nodes, self.common.restarts, start.max_restarts)

    @property
    def disks(self) -> Disks:
        """The private disks of the rank's host."""
        return self.common.disks[self.host.number] if self.common.disks else {}
