"""Collectives: the slots where calls with one group and sequence meet."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.calls import Call


class Slot:
    """The calls of one group that carry one sequence number, at most one of each member."""

    __slots__ = ("calls", "group", "members", "sequence")

    def __init__(self, group: str, sequence: int, members: tuple[int, ...]) -> None:
        self.group = group
        self.sequence = sequence
        self.members = members
        self.calls: dict[int, Call] = {}
        """By rank, in order of arrival."""

    @property
    def is_full(self) -> bool:
        """True once every member has arrived."""
        return len(self.calls) == len(self.members)

    @property
    def arrived(self) -> tuple[int, ...]:
        """The members that are here, by rank."""
        return tuple(sorted(self.calls))

    @property
    def missing(self) -> tuple[int, ...]:
        """The members that are not here, by rank."""
        return tuple(sorted(rank for rank in self.members if rank not in self.calls))


class SlotTable:
    """The open slots of an execution."""

    __slots__ = ("_members", "_open")

    def __init__(self) -> None:
        self._members: dict[str, tuple[int, ...]] = {}
        self._open: dict[tuple[str, int], Slot] = {}

    def declare(self, group: str, members: tuple[int, ...]) -> None:
        """Make a group known. The first declaration stands; a rank that disagrees is found when calls are compared."""
        self._members.setdefault(group, members)

    def members(self, group: str) -> tuple[int, ...]:
        """The global ranks of a group, in group-rank order."""
        return self._members[group]

    def arrive(self, call: Call) -> Slot:
        """Put a call into its slot; a slot that is full then is closed and no longer in the table."""
        key = (call.group, call.sequence)
        slot = self._open.get(key)
        if slot is None:
            slot = self._open[key] = Slot(call.group, call.sequence, self._members[call.group])
        assert call.rank not in slot.calls, f"rank {call.rank} arrives twice in {key}"
        slot.calls[call.rank] = call
        if len(slot.calls) == len(slot.members):
            del self._open[key]
        return slot

    def slot_of(self, call: Call) -> Slot | None:
        """The open slot a call waits in; None once it was full."""
        slot = self._open.get((call.group, call.sequence))
        return slot if slot is not None and slot.calls.get(call.rank) == call else None

    def open_slots(self) -> Iterator[Slot]:
        """The slots that are not full, in the order they were opened."""
        return iter(self._open.values())
