"""Which ranks are connected, on a backend whose ranks connect at the first call that they make together.

If a rank ends with an unfinished call, the call does not arrive at ranks that it is not connected to.
See pytorch/gloo#520, where the surviving rank waits forever.
"""

from collections.abc import Sequence

from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.kernel.tasks import RankRecord
from ddpsim.simulator.matching.slots import PendingCollectives, UnmatchedMessages


class RankConnections:
    """The connections between the ranks of one run. Two ranks connect at the first call that they make together."""

    def __init__(self, slots: PendingCollectives, messages: UnmatchedMessages) -> None:
        self._slots = slots
        self._messages = messages
        self.left_behind: list[Call] = []
        """Unfinished calls of ended ranks that never arrive at the others, to which the rank was not connected."""
        self._groups: set[str] = set()
        """Groups whose ranks are all connected."""
        self._pairs: set[tuple[str, frozenset[int]]] = set()

    def record_connections(self, calls: Sequence[Call]) -> None:
        """Record that the ranks of matched calls are now connected to each other."""
        if calls[0].peer is None:
            self._groups.add(calls[0].group)
        else:
            self._pairs.add((calls[0].group, frozenset(call.rank for call in calls)))

    def rank_ended(self, rank: RankRecord) -> None:
        """Remove an ended rank's unfinished calls from groups where no other rank is connected to that rank."""
        for issued in rank.open.values():
            call = issued.call
            if self._is_connected(call):
                continue
            self.left_behind.append(call)
            if call.peer is None:
                self._slots.remove_call(call)
            else:
                self._messages.remove_call(call)

    def _is_connected(self, call: Call) -> bool:
        is_of_pair = call.peer is not None and (call.group, frozenset((call.rank, call.peer))) in self._pairs
        return call.group in self._groups or is_of_pair or call.peer == ANY_SOURCE
