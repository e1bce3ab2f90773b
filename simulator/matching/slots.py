"""Collectives: the slots where calls with one group and sequence meet."""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import Call


def call_object(call: Call) -> Object:
    """Return the object that a call's polls and contributions access; for messages, the whole group (partners vary)."""
    return ("call", call.group, "messages" if call.is_point_to_point else call.sequence)


def order_object(call: Call) -> Object:
    """Return the object that threads of a rank access by calls whose order decides which calls they meet."""
    if not call.is_point_to_point:
        return ("order", call.rank, call.group)
    to = () if call.operation == "recv" or call.peer is None else (call.peer,)
    return ("order", call.rank, call.group, call.operation, call.tag, *to)


class Slot:
    """The calls of one group that carry one sequence number, at most one of each member."""

    __slots__ = ("calls", "group", "is_full", "members", "onlookers", "sequence")

    def __init__(self, group: str, sequence: int, members: tuple[int, ...]) -> None:
        self.group = group
        self.sequence = sequence
        self.members = members
        self.calls: dict[int, Call] = {}
        """By rank, in order of arrival."""
        self.onlookers: dict[int, Call] = {}
        """Calls of ranks that heard of a new group and take themselves for no member of it; they wait for nobody."""
        self.is_full = False
        """Every member has arrived."""

    @property
    def arrived(self) -> tuple[int, ...]:
        """The members that have arrived, by rank."""
        return tuple(sorted(self.calls))

    @property
    def missing(self) -> tuple[int, ...]:
        """The members that have not arrived, by rank."""
        return tuple(sorted(rank for rank in self.members if rank not in self.calls))


class SlotTable:
    """The open slots of an execution."""

    __slots__ = ("_created", "_members", "_open")

    def __init__(self) -> None:
        self._members: dict[str, tuple[int, ...]] = {}
        self._open: dict[tuple[str, int], Slot] = {}
        self._created: dict[str, Slot] = {}
        """Where the ranks meet that create a group, by its name; kept, for those that come late with other members."""

    def declare(self, group: str, members: tuple[int, ...]) -> None:
        """Make a group known. The first declaration stands; a rank that disagrees is found when calls are compared."""
        self._members.setdefault(group, members)

    def members(self, group: str) -> tuple[int, ...]:
        """The global ranks of a group, in group-rank order."""
        return self._members[group]

    def arrive(self, call: Call) -> Slot:
        """Put a call into its slot; a slot that is full then is closed and no longer in the table."""
        if call.signature.members is not None:
            return self._arrive_to_create(call)
        key = (call.group, call.sequence)
        slot = self._open.get(key)
        if slot is None:
            slot = self._open[key] = Slot(call.group, call.sequence, self._members[call.group])
        assert call.rank not in slot.calls, f"rank {call.rank} arrives twice in {key}"
        slot.calls[call.rank] = call
        if len(slot.calls) == len(slot.members):
            slot.is_full = True
            del self._open[key]
        return slot

    def _arrive_to_create(self, call: Call) -> Slot:
        """Note [Who creates a group].

        Each rank brings its own list of members, so who has to come is everybody whom an arrived member names. If the
        lists are the same, that is the group; if not, the slot is full once all of them are there, and the lists are
        compared. A rank that names other members after the slot was full finds it full again, with itself in it.
        """
        assert call.signature.members is not None
        key = (call.group, call.sequence)
        slot = self._created.get(call.group)
        if slot is None or slot.sequence != call.sequence:
            slot = self._created[call.group] = self._open[key] = Slot(call.group, call.sequence, ())
        if call.rank not in call.signature.members:
            slot.onlookers[call.rank] = call
        else:
            slot.calls[call.rank] = call
        if call.signature.members != slot.members:
            _name_members(slot)
        if slot.is_full:
            slot.members = slot.arrived
        elif slot.members and len(slot.calls) == len(slot.members):
            slot.is_full = True
            self._open.pop(key, None)
        return slot

    def withdraw(self, call: Call) -> None:
        """Remove a waiting call from its slot."""
        slot = self.slot_of(call)
        if slot is not None:
            del slot.calls[call.rank]

    def slot_of(self, call: Call) -> Slot | None:
        """Return the open slot in which a call waits; None once the slot was full."""
        slot = self._open.get((call.group, call.sequence))
        return slot if slot is not None and slot.calls.get(call.rank) == call else None

    def open_slots(self) -> Iterator[Slot]:
        """The slots that are not full, in the order they were opened; taken at once, as ranks may go on meanwhile."""
        return iter(tuple(self._open.values()))


def _name_members(slot: Slot) -> None:
    """Expect everybody whom a member names; an onlooker among them has arrived, with another list."""
    lists = {call.signature.members: None for call in slot.calls.values()}
    if len(lists) == 1:
        (only,) = lists
        assert only is not None
        slot.members = only
    else:
        slot.members = tuple(sorted({rank for members in lists for rank in members or ()}))
    for rank in [rank for rank in slot.onlookers if rank in slot.members]:
        slot.calls[rank] = slot.onlookers.pop(rank)
