"""A run step by step: its events and choices as lines to read, made from what was recorded once the run is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Call
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Who
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import numbers

_MOST_NAMES = 4
"""More parameters of a bucket than this are not told."""
_WIDEST_OPTIONS = 16
"""Options that take more room than this are only counted."""
_NARROW = 3
"""So many options, or fewer, are told one by one, in the order in which the default looks at them."""
_ENDS = (EventKind.RETURN, EventKind.RAISE)


class Choice(NamedTuple):
    """A choice that a run offered, and the answer it got."""

    point: ChoicePoint
    options: tuple[int, ...]
    taken: int

    @property
    def chosen(self) -> int:
        """The number of the rank or thread that was taken."""
        return self.options[self.taken]

    @property
    def leads_to(self) -> Who:
        """Who does something next: the one that runs, or the one that receives."""
        return self.point.who(self.chosen if self.point.kind is ChoiceKind.RANK else self.point.rank)

    @property
    def text(self) -> str:
        """What it means: who runs next, or whose message is taken."""
        if self.point.kind is ChoiceKind.SOURCE:
            return f"{self.leads_to} receives from rank {self.chosen}"
        goes_on = self.leads_to == self.point.who(self.point.rank)
        return f"{self.leads_to} {'goes on' if goes_on else 'runs'}"

    def __str__(self) -> str:
        """`0 > 2 of 0 1 2`: where rank 0 stood, rank 2 runs next; `0 < 2 of 1 2`: rank 0 receives from rank 2."""
        sign = ">" if self.point.kind is ChoiceKind.RANK else "<"
        return f"{self.point.rank} {sign} {self.chosen} of {_options_text(self.options)}"


class Line(NamedTuple):
    """One line: what a rank did, and the choice that led there."""

    number: int
    """How many choice points came before."""
    time: float
    """Virtual seconds since the start."""
    rank: int
    thread: str
    """Its name, if it is not the one that runs the rank's program."""
    kind: str
    """What kind of event it is; "" where a choice led to nothing that is told."""
    text: str
    choice: Choice | None


def transcript_of(trace: Trace, choices: Sequence[Choice] = ()) -> list[Line]:
    """The events of a run in order, each with the choice just before it; a choice that nothing follows stands alone."""
    steps: list[Line] = []
    time, waiting = 0.0, None
    for item in _in_order(trace, choices):
        if isinstance(item, Choice):
            steps += _alone(waiting, time)
            waiting = item
            continue
        if waiting is not None and not _leads_to(waiting, item):
            steps += _alone(waiting, time)
            waiting = None
        time = item.time
        steps.append(
            Line(item.choice_points, item.time, item.rank, item.thread, item.kind.value, event_text(item), waiting)
        )
        waiting = None
    return [*steps, *_alone(waiting, time)]


def transcript_lines(steps: Sequence[Line]) -> list[str]:
    """The steps as lines in columns, the names of the columns first."""
    if not steps:
        return []
    choices = ["" if step.choice is None else str(step.choice) for step in steps]
    width = max(map(len, ["choice", *choices]))
    digits = max(len("rank"), len(str(max(step.rank for step in steps))))
    names = max(len(_quoted(step.thread)) for step in steps)
    lines = [f"  {'step':>6}  {'time':>8}  {'choice':<{width}}  {'rank':>{digits}}{'':<{names}}  what"]
    for step, choice in zip(steps, choices, strict=True):
        what = f"{step.kind:<6}  {step.text}" if step.kind else "goes on"
        lines.append(
            f"  {step.number:>6}  {step.time:>6.4g} s  {choice:<{width}}  {step.rank:>{digits}}"
            f"{_quoted(step.thread):<{names}}  {what}".rstrip()
        )
    return lines


def _quoted(thread: str) -> str:
    return f' "{thread}"' if thread else ""


def event_text(event: Event) -> str:
    """What an event tells beside rank and kind: the call with its line and what it belongs to, or its text."""
    return event.text if event.call is None else "  ".join(filter(None, [*call_texts(event.call), event.text]))


def call_texts(call: Call) -> tuple[str, str, str]:
    """A call, its line, and what it belongs to if that is not the user's program."""
    site = "" if call.site == NOWHERE else str(call.site)
    if call.origin.is_programs:
        return str(call), site, ""
    names = call.origin.parameters[:_MOST_NAMES] + ("...",) * (len(call.origin.parameters) > _MOST_NAMES)
    return str(call), site, f"{call.origin} ({', '.join(names)})" if names else str(call.origin)


def _options_text(options: Sequence[int]) -> str:
    if len(options) <= _NARROW:
        return " ".join(map(str, options))
    text = numbers(options)
    return text if len(text) <= _WIDEST_OPTIONS else f"{len(options)} ranks"


def _leads_to(choice: Choice, event: Event) -> bool:
    """True if an event is what came of a choice: of the rank that runs next, or of the one that receives."""
    return event.choice_points == choice.point.number and _who(event) == choice.leads_to


def _who(event: Event) -> Who:
    return Who(event.rank, event.thread)


def _alone(choice: Choice | None, time: float) -> list[Line]:
    if choice is None:
        return []
    return [Line(choice.point.number, time, *choice.leads_to, "", "", choice)]


def _in_order(trace: Trace, choices: Sequence[Choice]) -> Iterator[Event | Choice]:
    """Events and choices as they came; a choice stands before the events of its step, with two exceptions.

    Where its rank has just ended, it comes after that; and whose message a receive takes, after the receive.
    """
    events = trace.events
    at = 0
    for choice in choices:
        now = choice.point.number
        while at < len(events) and events[at].choice_points < now:
            yield events[at]
            at += 1
        end = at
        while end < len(events) and events[end].choice_points == now and not _is_just_before(choice, events[end]):
            end += 1
        if end < len(events) and _is_just_before(choice, events[end]):
            yield from events[at : end + 1]
            at = end + 1
        yield choice
    yield from events[at:]


def _is_just_before(choice: Choice, event: Event) -> bool:
    point = choice.point
    if _who(event) != point.who(point.rank) or event.choice_points != point.number:
        return False
    if point.kind is ChoiceKind.SOURCE:
        return event.kind is EventKind.ISSUE
    return event.kind in _ENDS and point.rank not in choice.options
