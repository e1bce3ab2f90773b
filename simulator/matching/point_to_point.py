"""Point-to-point: sends and receives meet by source, destination and tag, in the order they were issued.

A message goes to the first posted receive that accepts it, whether that receive names the source or takes any
(as in the MPI standard, section 3.5, "order"). Which of several senders a receive from any source takes is a choice,
so `candidates` only lists them and `pair` is told.
"""

from __future__ import annotations

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import ANY_SOURCE, Call

_Channel = tuple[str, int, int]
"""Group, destination and tag."""


def channel_of(call: Call) -> Object:
    """Return a key that is equal for messages and receives that may meet."""
    destination = call.peer if call.operation == "send" else call.rank
    assert destination is not None
    return ("channel", call.group, destination, call.tag)


class PointToPointTable:
    """Sends and receives that have not met yet."""

    __slots__ = ("_receives", "_sends")

    def __init__(self) -> None:
        self._sends: dict[_Channel, list[Call]] = {}
        self._receives: dict[_Channel, list[Call]] = {}

    def post_send(self, send: Call) -> Call | None:
        """Return the receive that takes this message; None if the message has to wait for one."""
        assert send.peer is not None
        channel = (send.group, send.peer, send.tag)
        for receive in self._receives.get(channel, ()):
            if receive.peer in (ANY_SOURCE, send.rank):
                self._receives[channel].remove(receive)
                return receive
        self._sends.setdefault(channel, []).append(send)
        return None

    def candidates(self, receive: Call) -> list[Call]:
        """The waiting messages a receive may take: the oldest of each source it accepts, by source."""
        oldest: dict[int, Call] = {}
        for send in self._sends.get((receive.group, receive.rank, receive.tag), ()):
            if receive.peer in (ANY_SOURCE, send.rank):
                oldest.setdefault(send.rank, send)
        return [oldest[rank] for rank in sorted(oldest)]

    def take(self, send: Call) -> None:
        """Remove a waiting message that a receive has chosen."""
        assert send.peer is not None
        self._sends[send.group, send.peer, send.tag].remove(send)

    def post_receive(self, receive: Call) -> None:
        """Let a receive without a candidate wait."""
        self._receives.setdefault((receive.group, receive.rank, receive.tag), []).append(receive)

    def withdraw(self, call: Call) -> None:
        """Remove a waiting send or receive; a receive from any source stays."""
        destination = call.peer if call.operation == "send" else call.rank
        assert destination is not None
        table = self._sends if call.operation == "send" else self._receives
        waiting = table.get((call.group, destination, call.tag), [])
        if call in waiting:
            waiting.remove(call)

    def open_calls(self) -> list[Call]:
        """Every send and receive that waits, by channel and then in order of issue."""
        waiting = [*self._sends.values(), *self._receives.values()]
        return [call for calls in waiting for call in calls]
