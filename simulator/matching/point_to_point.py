"""Point-to-point: sends and receives are matched by source, destination and tag, in order of issue.

A message goes to the first posted receive that accepts it, whether that receive names the source or takes any
(as in the MPI standard, section 3.5, "order"). Which of several senders a receive from any source takes is a choice,
so `candidates` only lists them, and `take` removes the chosen one.
"""

from __future__ import annotations

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.calls import ANY_SOURCE, Call, channel_of_message


def channel_object(call: Call) -> Object:
    """Return a key that is equal for messages and receives that can be matched with each other."""
    return ("channel", *channel_of_message(call))


class UnmatchedMessages:
    """Sends and receives that have not been matched yet."""

    def __init__(self) -> None:
        self._sends: dict[tuple[str, int, int], list[Call]] = {}
        """By channel: group, destination and tag."""
        self._receives: dict[tuple[str, int, int], list[Call]] = {}

    def post_send(self, send: Call) -> Call | None:
        """Return the receive that takes this message; None if no receive is posted, so that the message waits."""
        for receive in self._receives.get(channel_of_message(send), ()):
            if receive.peer in (ANY_SOURCE, send.rank):
                self._receives[channel_of_message(send)].remove(receive)
                return receive
        self._sends.setdefault(channel_of_message(send), []).append(send)
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
