"""Races between messages for receives from any source.

Whether a message or its receive comes first is the same: the two meet once both are there. So they are in no race. But
what a receive met is in a race with what it could have met in its place, in either of two ways:

- The receive might have come later, when the other message was there, too. So it is in a race with that one, where
  that comes after the message which it met, or was not among those of which it chose.
- The message might have come later, when the receive had met the other one. So the two messages are in a race, where
  the receive was there first; and also where it was not, if its rank went on without waiting for it, since what the
  rank did then may have led to the other message. A receive that is waited for at once might as well have come when
  the other message was there.

Messages of one sender overtake each other nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from ddpsim.simulator.accesses import Object
from ddpsim.simulator.exploration.steps import Clock, Race, Step, knows
from ddpsim.simulator.kernel.observer import CallName


class Match(NamedTuple):
    """A message that met a receive from any source, and the steps that issued them."""

    send: Step
    receive: Step

    @property
    def was_posted(self) -> bool:
        """The receive was there first."""
        return self.receive.position < self.send.position


class MessageRaces:
    """The matches of a run, and the races that hang on what is known of them only later."""

    def __init__(self) -> None:
        self._steps: dict[CallName, Step] = {}
        """Of messages, and of receives from any source, the steps that issued them."""
        self._channels: dict[CallName, Object] = {}
        """Of receives from any source."""
        self._matches: dict[Object, dict[CallName, Match]] = {}
        """By channel and receive, but for those that were waited for at once."""
        self._unless_waited_for: dict[CallName, list[Race]] = {}
        """By receive: races of the message that it met, if its rank went on without waiting for it."""

    def issued(self, name: CallName, step: Step, channel: Object, *, is_wild: bool) -> None:
        """A step issued a message, or a receive; a wild one is from any source."""
        self._steps[name] = step
        if is_wild:
            self._channels[name] = channel

    def met(self, send: CallName, receive: CallName) -> None:
        """A message and a receive met."""
        if (channel := self._channels.get(receive)) is not None:
            self._matches.setdefault(channel, {})[receive] = Match(self._steps[send], self._steps[receive])

    def waited_for(self, name: CallName, rank: int, number: int) -> None:
        """A rank, in its step of this number so far, has seen that its call is complete."""
        matches = self._matches.get(self._channels.get(name, ()), {})
        match = matches.get(name)  # none if it was waited for before
        if match and not match.was_posted and (match.receive.rank, match.receive.number) == (rank, number):
            del matches[name]
            self._unless_waited_for.pop(name, None)

    def comes(self, channel: Object, step: Step, clock: Clock) -> list[Race]:
        """A message comes, in a step whose rank knew this: its races with receives that were posted before."""
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
        """At the end of a run: the races with messages whose receives were not waited for at once."""
        return chain.from_iterable(self._unless_waited_for.values())
