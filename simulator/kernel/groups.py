"""Process groups: their names, their ranks, and which of their barriers were given up."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.deadlock import whereabouts
from ddpsim.simulator.kernel.requests import Declare, Destroy, GivenUp, GiveUp, NameGroup, Whereabouts
from ddpsim.simulator.kernel.run import Run
from ddpsim.simulator.kernel.tasks import Task


class Groups:
    """The process groups of one execution."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._labels: dict[tuple[str, int], str] = {}
        """The group's label, by torch's name and the number of groups that had this name before."""
        self._taken: dict[str, int] = {}
        """By label, the number of groups that asked for it: groups of a second mesh may have the names of the first."""
        self._given_up: dict[tuple[str, int], tuple[int, ...]] = {}
        """The ranks that were missing at an abandoned barrier, by group and sequence number."""

    def name(self, me: Task, request: NameGroup) -> str:
        """Handle a `NameGroup` request: return the group's label, which is unique in the run."""
        key = (request.name, request.made)
        if key not in self._labels:
            taken = self._taken[request.proposed] = self._taken.get(request.proposed, 0) + 1
            self._labels[key] = request.proposed if taken == 1 else f"{request.proposed} #{taken}"
        return self._labels[key]

    def declare(self, me: Task, request: Declare) -> None:
        """Handle a `Declare` request: record the group's members."""
        self._run.slots.declare(request.group, request.members)
        if request.is_beside_streams and self._run.streams is not None:
            self._run.streams.leave_out(request.group)

    def destroy(self, me: Task, request: Destroy) -> None:
        """Handle a `Destroy` request: record the line at which the rank destroyed the group."""
        me.rank.destroyed.setdefault(request.group, request.site)

    def give_up(self, me: Task, request: GiveUp) -> None:
        """Handle a `GiveUp` request: record the ranks for which a barrier was abandoned."""
        self._given_up[request.group, request.sequence] = request.missing

    def given_up(self, me: Task, request: GivenUp) -> tuple[int, ...]:
        """Handle a `GivenUp` request: return the ranks for which a barrier was abandoned."""
        return self._given_up.get((request.group, request.sequence), ())

    def whereabouts(self, me: Task, request: Whereabouts) -> tuple[str, ...]:
        """Handle a `Whereabouts` request: return lines that say where ranks are."""
        return whereabouts(self._run.snapshot(), request.ranks)
