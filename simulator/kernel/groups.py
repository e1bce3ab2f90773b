"""Process groups: their names, their ranks, and which of their barriers were given up."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.deadlock import lines_of_ranks
from ddpsim.simulator.kernel.requests import (
    AskGivenUpBarrier,
    AskWhereabouts,
    DeclareGroup,
    DestroyGroup,
    GiveUpBarrier,
    NameGroup,
)
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.tasks import Task


class GroupRecords:
    """The process groups of one execution."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._labels: dict[tuple[str, int], str] = {}
        """The group's label, by torch's name and the number of groups that had this name before."""
        self._taken: dict[str, int] = {}
        """By label, the number of groups that asked for it: groups of a second mesh may have the names of the first."""
        self._given_up: dict[tuple[str, int], tuple[int, ...]] = {}
        """The ranks that were missing at an abandoned barrier, by group and sequence number."""

    def on_name_group(self, me: Task, request: NameGroup) -> str:
        """Handle a `NameGroup` request: return the group's label, which is unique in the run."""
        key = (request.name, request.made)
        if key not in self._labels:
            taken = self._taken[request.proposed] = self._taken.get(request.proposed, 0) + 1
            self._labels[key] = request.proposed if taken == 1 else f"{request.proposed} #{taken}"
        return self._labels[key]

    def on_declare(self, me: Task, request: DeclareGroup) -> None:
        """Handle a `DeclareGroup` request: record the group's members."""
        self._run.slots.declare_group(request.group, request.members)
        if request.is_beside_streams and self._run.streams is not None:
            self._run.streams.exempt_group(request.group)

    def on_destroy(self, me: Task, request: DestroyGroup) -> None:
        """Handle a `DestroyGroup` request: record the line at which the rank destroyed the group."""
        me.rank.destroyed.setdefault(request.group, request.site)

    def on_give_up(self, me: Task, request: GiveUpBarrier) -> None:
        """Handle a `GiveUpBarrier` request: record the ranks for which a barrier was abandoned."""
        self._given_up[request.group, request.sequence] = request.missing

    def on_given_up(self, me: Task, request: AskGivenUpBarrier) -> tuple[int, ...]:
        """Handle a `AskGivenUpBarrier` request: return the ranks for which a barrier was abandoned."""
        return self._given_up.get((request.group, request.sequence), ())

    def on_whereabouts(self, me: Task, request: AskWhereabouts) -> tuple[str, ...]:
        """Handle a `AskWhereabouts` request: return lines that say where ranks are."""
        return lines_of_ranks(self._run.snapshot(), request.ranks)
