"""Process groups: their names, their ranks, and the monitored_barriers given up because ranks were missing."""

from ddpsim.simulator.kernel import requests as ask
from ddpsim.simulator.kernel.run import RunState
from ddpsim.simulator.kernel.tasks import Task
from ddpsim.simulator.kernel.time_outs import TimeOuts


class GroupRecords:
    """All process groups of one run, with their labels, which name the groups in findings."""

    def __init__(self, run: RunState, time_outs: TimeOuts) -> None:
        self._run = run
        self._time_outs = time_outs
        self._labels: dict[tuple[str, int], str] = {}
        """Each group's label, by the place in a store where its members meet and how many groups have met there."""
        self._taken: dict[str, int] = {}
        """How many groups proposed each label: device meshes may propose the same one, and then get a number."""
        self.given_up: dict[tuple[str, int], tuple[int, ...]] = {}
        """The ranks that were missing when a monitored_barrier was given up, by group and the barrier's number."""

    def on_name_group(self, me: Task, request: ask.NameGroup) -> str:
        """Answer a rank's `NameGroup` request: return the group's label: its name in findings, unique in the run."""
        key = (request.name, request.made)
        if key not in self._labels:
            taken = self._taken[request.proposed] = self._taken.get(request.proposed, 0) + 1
            self._labels[key] = request.proposed if taken == 1 else f"{request.proposed} #{taken}"
        return self._labels[key]

    def on_declare_group(self, me: Task, request: ask.DeclareGroup) -> None:
        """Answer a rank's `DeclareGroup` request: record the group's members."""
        self._run.slots.declare_group(request.group, request.members)
        if request.is_compared:
            self._run.compared.add((me.rank_number, request.group))
        if request.is_beside_streams and self._run.streams is not None:
            self._run.streams.exempt_group(request.group)

    def on_destroy_group(self, me: Task, request: ask.DestroyGroup) -> None:
        """Answer a rank's `DestroyGroup` request: record the line at which the rank destroyed the group."""
        me.rank.destroyed.setdefault(request.group, request.site)

    def on_give_up_barrier(self, me: Task, request: ask.GiveUpBarrier) -> None:
        """Answer a rank's `GiveUpBarrier` request: record the ranks missing when it gave up a monitored_barrier."""
        self.given_up[request.group, request.sequence] = request.missing
        self._time_outs.close_connections(
            me.rank_number, request.group, f"gave up monitored_barrier #{request.sequence}"
        )
