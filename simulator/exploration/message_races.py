"""Races between messages for receives from any source.

A message and its receive match once both were issued, in any order, so they are in no race. But the message that a
receive took is in a race with another one that it could have taken, in one of two ways:

- The receive could have come later, after the other message. So the receive is in a race with the other message if that
  came after the matched one, or was not a candidate.
- The matched message could have come later, after the receive took the other one. So the two messages are in a race if
  the receive was posted first. They also are if it was posted later, but its rank did not wait for it at once: what the
  rank did next may have caused the other message. (A receive that is waited for at once is covered by the first case.)

Messages of one sender never overtake each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.exploration.steps import Clock, Race, Step, knows
from ddpsim.simulator.policies.observer import CallName


class Match(NamedTuple):
    """The steps of a message and of the receive from any source that took it."""

    send: Step
    receive: Step

    @property
    def was_posted(self) -> bool:
        """True if the receive was issued before the message."""
        return self.receive.position < self.send.position


class MessageRaces:
    """The matches of a run, and the races that are only decided later in the run."""

    def __init__(self) -> None:
        self._steps: dict[CallName, Step] = {}
        """By call (messages, and receives from any source), the step that issued it."""
        self._channels: dict[CallName, Object] = {}
        """By receive from any source, its channel."""
        self._matches: dict[Object, dict[CallName, Match]] = {}
        """By channel and receive, the matches; without receives that were waited for at once."""
        self._unless_waited_for: dict[CallName, list[Race]] = {}
        """By receive: races of its message, which count unless its rank waits for the receive at once."""

    def issued(self, name: CallName, step: Step, channel: Object, *, is_wild: bool) -> None:
        """Note that a step issued a message or a receive; `is_wild` for a receive from any source."""
        self._steps[name] = step
        if is_wild:
            self._channels[name] = channel

    def met(self, send: CallName, receive: CallName) -> None:
        """Note that a receive took a message."""
        if (channel := self._channels.get(receive)) is not None:
            self._matches.setdefault(channel, {})[receive] = Match(self._steps[send], self._steps[receive])

    def waited_for(self, name: CallName, rank: int, number: int) -> None:
        """Note that a rank, in its step `number`, has seen its call complete."""
        matches = self._matches.get(self._channels.get(name, ()), {})
        match = matches.get(name)  # None if it was waited for before
        if match and not match.was_posted and (match.receive.rank, match.receive.number) == (rank, number):
            del matches[name]
            self._unless_waited_for.pop(name, None)

    def comes(self, channel: Object, step: Step, clock: Clock) -> list[Race]:
        """Return the races of a new message, issued in `step` by a rank with this clock, with earlier receives."""
        found = []
        for name, match in self._matches.get(channel, {}).items():
            send, receive = match
            if send.rank == step.rank:
                continue
            if not knows(clock, send.rank, send.number):
                if not match.was_posted:  # else they depend on each other (simulator/accesses.py)
                    self._unless_waited_for.setdefault(name, []).append(Race(send, step))
            elif match.was_posted and not knows(clock, receive.rank, receive.number):
                found.append(Race(receive, step))
        return found

    def left(self) -> Iterator[Race]:
        """Return, at the end of a run, the races of messages whose receives were not waited for at once."""
        return chain.from_iterable(self._unless_waited_for.values())
