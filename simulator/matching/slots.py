"""The calls that wait to be matched.

Calls of a group that have the same number belong together, in one `PendingCollective`. Sends and receives are matched
by source, destination and tag, in order of issue: a message goes to the first posted receive that accepts it, whether
that receive names the source or takes any (as in the MPI standard, section 3.5, "order"). Which of several senders a
receive from any source takes is a choice, so `waiting_sends` only lists them, and `remove_send` removes the chosen one.
"""

from collections.abc import Iterator

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import ANY_SOURCE, Call, channel_of_message


def call_object(call: Call) -> Object:
    """Return the object that a call's polls and contributions access: its collective, or all messages of the group."""
    return ("call", call.group, "messages" if call.is_point_to_point else call.sequence)


def channel_object(call: Call) -> Object:
    """Return a key that is equal for messages and receives that can be matched with each other."""
    return ("channel", *channel_of_message(call))


def order_object(call: Call) -> Object:
    """Return the object that stands for the order of a rank's calls, which decides what calls are matched."""
    if not call.is_point_to_point:
        return ("order", call.rank, call.group)
    to = () if call.operation == "recv" or call.peer is None else (call.peer,)
    return ("order", call.rank, call.group, call.operation, call.tag, *to)


def group_object(rank: int, group: str) -> Object:
    """Return the object that stands for what a rank's calls on a group need: that it is not destroyed."""
    return ("group", rank, group)


class PendingCollective:
    """The n-th collective of a group: the calls with that number, at most one of each member."""

    __slots__ = ("calls", "is_full", "members", "onlookers", "sequence")

    def __init__(self, sequence: int, members: tuple[int, ...]) -> None:
        self.sequence = sequence
        self.members = members
        self.calls: dict[int, Call] = {}
        """The calls that have arrived, by rank, in order of arrival."""
        self.onlookers: dict[int, Call] = {}
        """Calls of ranks that create a group without being its members; these calls wait for no rank."""
        self.is_full = False
        """True if every member has arrived."""

    @property
    def arrived_ranks(self) -> tuple[int, ...]:
        """The members whose calls have arrived, in order."""
        return tuple(sorted(self.calls))

    @property
    def missing(self) -> tuple[int, ...]:
        """The members whose calls have not arrived, in order."""
        return tuple(sorted(rank for rank in self.members if rank not in self.calls))


class PendingCollectives:
    """The collectives of an execution that some members have not reached yet."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[int, ...]] = {}
        self._open: dict[tuple[str, int], PendingCollective] = {}
        self._created: dict[str, PendingCollective] = {}
        """By group, the calls that create the group; kept for ranks that arrive late with another list of members."""

    def declare_group(self, group: str, members: tuple[int, ...]) -> None:
        """Add a group. Only the first declaration counts; a rank that disagrees is found when calls are compared."""
        self._members.setdefault(group, members)

    def members_of(self, group: str) -> tuple[int, ...]:
        """Return the global ranks of a group, in group-rank order."""
        return self._members[group]

    def add_call(self, call: Call) -> PendingCollective:
        """Add a call to its pending collective, and return that. A collective that is now full is no longer pending."""
        if call.signature.members is not None:
            return self._add_creating_call(call)
        key = (call.group, call.sequence)
        slot = self._open.get(key)
        if slot is None:
            slot = self._open[key] = PendingCollective(call.sequence, self._members[call.group])
        assert call.rank not in slot.calls, f"rank {call.rank} arrives twice in {key}"
        slot.calls[call.rank] = call
        if len(slot.calls) == len(slot.members):
            slot.is_full = True
            del self._open[key]
        return slot

    def _add_creating_call(self, call: Call) -> PendingCollective:
        """Add a call that creates a group, and return its collective. Note [Who creates a group].

        Each rank passes its own list of members, so the call needs every rank that an arrived member names. If the
        lists are equal, that is the group; if not, the lists are compared once all these ranks have arrived. A rank
        that arrives with other members after the collective was full finds it full again, with its own call in it.
        """
        assert call.signature.members is not None
        key = (call.group, call.sequence)
        slot = self._created.get(call.group)
        if slot is None or slot.sequence != call.sequence:
            slot = self._created[call.group] = self._open[key] = PendingCollective(call.sequence, ())
        if call.rank not in call.signature.members:
            slot.onlookers[call.rank] = call
        else:
            slot.calls[call.rank] = call
        if call.signature.members != slot.members:
            _update_members(slot)
        if slot.is_full:
            slot.members = slot.arrived_ranks
        elif slot.members and len(slot.calls) == len(slot.members):
            slot.is_full = True
            self._open.pop(key, None)
        return slot

    def remove_call(self, call: Call) -> None:
        """Remove a waiting call from its pending collective."""
        slot = self.find_collective(call)
        if slot is not None:
            del slot.calls[call.rank]

    def find_collective(self, call: Call) -> PendingCollective | None:
        """Return the pending collective in which a call waits; None if all members have arrived."""
        slot = self._open.get((call.group, call.sequence))
        return slot if slot is not None and slot.calls.get(call.rank) == call else None

    def list_pending(self) -> Iterator[PendingCollective]:
        """Return the collectives that some members have not reached, in the order of their first calls (a copy)."""
        return iter(tuple(self._open.values()))


def _update_members(slot: PendingCollective) -> None:
    """Make a collective expect every rank that a member names; onlookers among these ranks have already arrived."""
    lists = dict.fromkeys(call.signature.members or () for call in slot.calls.values())
    slot.members = next(iter(lists)) if len(lists) == 1 else tuple(sorted({rank for each in lists for rank in each}))
    for rank in [rank for rank in slot.onlookers if rank in slot.members]:
        slot.calls[rank] = slot.onlookers.pop(rank)


class UnmatchedMessages:
    """Sends and receives that have not been matched yet."""

    def __init__(self) -> None:
        self._sends: dict[tuple[str, int, int], list[Call]] = {}
        """The waiting sends, by channel: group, destination and tag."""
        self._receives: dict[tuple[str, int, int], list[Call]] = {}

    def post_send(self, send: Call) -> Call | None:
        """Return the receive that takes this message; None if no receive is posted, so that the message waits."""
        channel = channel_of_message(send)
        receives = self._receives.get(channel, [])
        for receive in receives:
            if receive.peer in (ANY_SOURCE, send.rank):
                receives.remove(receive)
                return receive
        self._sends.setdefault(channel, []).append(send)
        return None

    def waiting_sends(self, receive: Call) -> list[Call]:
        """Return the waiting messages that a receive may take: by source, the oldest of each source that fits."""
        oldest: dict[int, Call] = {}
        for send in self._sends.get(channel_of_message(receive), ()):
            if receive.peer in (ANY_SOURCE, send.rank):
                oldest.setdefault(send.rank, send)
        return [oldest[rank] for rank in sorted(oldest)]

    def remove_send(self, send: Call) -> None:
        """Remove a waiting message that a receive has chosen."""
        self._sends[channel_of_message(send)].remove(send)

    def post_receive(self, receive: Call) -> None:
        """Add a receive for which no message waits."""
        self._receives.setdefault(channel_of_message(receive), []).append(receive)

    def remove_call(self, call: Call) -> None:
        """Remove a waiting send or receive; a receive from any source stays."""
        waiting = (self._sends if call.operation == "send" else self._receives).get(channel_of_message(call), [])
        if call in waiting:
            waiting.remove(call)

    def open_calls(self) -> list[Call]:
        """Return every unmatched send and receive, by channel and then in order of issue."""
        waiting = [*self._sends.values(), *self._receives.values()]
        return [call for calls in waiting for call in calls]
