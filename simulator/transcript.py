"""A readable list of the steps of a run: its events and scheduling choices, made after the run from its record."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Call
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RankOrThread
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import ranges_text

_MOST_NAMES = 4
"""The largest number of a bucket's parameters that are listed."""
_WIDEST_OPTIONS = 16
"""The largest number of characters for the options of a choice. Options that need more are replaced by their count."""
_NARROW = 3
"""The largest number of options that are listed one by one, in the order in which the default considers them."""
_ENDS = (EventKind.RETURN, EventKind.RAISE)


class TakenChoice(NamedTuple):
    """A choice point of a run (a place where the scheduler chose), and the option that it chose."""

    point: ChoicePoint
    options: tuple[int, ...]
    taken: int

    @property
    def chosen_number(self) -> int:
        """Return the number of the chosen rank or thread."""
        return self.options[self.taken]

    @property
    def next_rank_or_thread(self) -> RankOrThread:
        """Return the rank or thread that acts next: the one chosen to run, or the one that receives a message."""
        return self.point.who(self.chosen_number if self.point.kind is ChoiceKind.RANK else self.point.rank)

    @property
    def choice_text(self) -> str:
        """Return the choice in words: which rank runs next, or whose message a rank receives."""
        if self.point.kind is ChoiceKind.SOURCE:
            return f"{self.next_rank_or_thread} receives from rank {self.chosen_number}"
        goes_on = self.next_rank_or_thread == self.point.who(self.point.rank)
        return f"{self.next_rank_or_thread} {'goes on' if goes_on else 'runs'}"

    def __str__(self) -> str:
        """Return the choice as `0 > 2 of 0 1 2`: after rank 0, rank 2 runs next; or `0 < 2 of 1 2`: rank 0 receives
        from rank 2."""
        sign = ">" if self.point.kind is ChoiceKind.RANK else "<"
        return f"{self.point.rank} {sign} {self.chosen_number} of {_options_text(self.options)}"


class TranscriptLine(NamedTuple):
    """One line of the list: an event of a rank, and the choice just before the event."""

    number: int
    """The number of choice points before the line."""
    time: float
    """Virtual seconds since the start."""
    rank: int
    thread: str
    """The name of the thread; "" for the thread that runs the rank's program."""
    kind: str
    """The kind of the event; "" for a choice that no event follows."""
    text: str
    choice: TakenChoice | None


def transcript_of(trace: Trace, choices: Sequence[TakenChoice] = ()) -> list[TranscriptLine]:
    """Return the events of a run, each with the choice just before it; a choice without an event has its own line."""
    steps: list[TranscriptLine] = []
    time, waiting = 0.0, None
    for item in _events_and_choices(trace, choices):
        if isinstance(item, TakenChoice):
            steps += _line_of_choice(waiting, time)
            waiting = item
            continue
        if waiting is not None and not _is_followed_by(waiting, item):
            steps += _line_of_choice(waiting, time)
            waiting = None
        time = item.time
        what = item.kind.value, event_text(item)
        steps.append(TranscriptLine(item.choice_points, item.time, item.rank, item.thread, *what, waiting))
        waiting = None
    return [*steps, *_line_of_choice(waiting, time)]


def transcript_lines(steps: Sequence[TranscriptLine]) -> list[str]:
    """Return the steps of a run as lines in columns. The first line has the names of the columns."""
    if not steps:
        return []
    choices = ["" if step.choice is None else str(step.choice) for step in steps]
    width = max(map(len, ["choice", *choices]))
    digits = max(len("rank"), len(str(max(step.rank for step in steps))))
    names = max(len(_quoted_thread(step.thread)) for step in steps)
    lines = [f"  {'step':>6}  {'time':>8}  {'choice':<{width}}  {'rank':>{digits}}{'':<{names}}  what"]
    for step, choice in zip(steps, choices, strict=True):
        what = f"{step.kind:<6}  {step.text}" if step.kind else "goes on"
        lines.append(
            f"  {step.number:>6}  {step.time:>6.4g} s  {choice:<{width}}  {step.rank:>{digits}}"
            f"{_quoted_thread(step.thread):<{names}}  {what}".rstrip()
        )
    return lines


def _quoted_thread(thread: str) -> str:
    return f' "{thread}"' if thread else ""


def event_text(event: Event) -> str:
    """Return an event's details besides rank and kind: the call with its line and its origin, or the event's text."""
    return event.text if event.call is None else "  ".join(filter(None, [*texts_of_call(event.call), event.text]))


def texts_of_call(call: Call) -> tuple[str, str, str]:
    """Return the text of a call, its line, and its origin; "" for the origin if the user's program made the call."""
    site = "" if call.site == NOWHERE else str(call.site)
    if call.origin.is_of_program:
        return str(call), site, ""
    names = call.origin.parameters[:_MOST_NAMES] + ("...",) * (len(call.origin.parameters) > _MOST_NAMES)
    return str(call), site, f"{call.origin} ({', '.join(names)})" if names else str(call.origin)


def _options_text(options: Sequence[int]) -> str:
    if len(options) <= _NARROW:
        return " ".join(map(str, options))
    text = ranges_text(options)
    return text if len(text) <= _WIDEST_OPTIONS else f"{len(options)} ranks"


def _is_followed_by(choice: TakenChoice, event: Event) -> bool:
    """Return True if an event is the first after a choice, of the rank chosen to run or of the receiving rank."""
    return event.choice_points == choice.point.number and _rank_or_thread_of(event) == choice.next_rank_or_thread


def _rank_or_thread_of(event: Event) -> RankOrThread:
    return RankOrThread(event.rank, event.thread)


def _line_of_choice(choice: TakenChoice | None, time: float) -> list[TranscriptLine]:
    if choice is None:
        return []
    return [TranscriptLine(choice.point.number, time, *choice.next_rank_or_thread, "", "", choice)]


def _events_and_choices(trace: Trace, choices: Sequence[TakenChoice]) -> Iterator[Event | TakenChoice]:
    """Yield the events and choices of a run in order. A choice precedes the events of its step, with two exceptions.

    If the rank that ran before has just ended, the choice follows that event. The choice of a sender follows the event
    of the receive.
    """
    events = trace.events
    at = 0
    for choice in choices:
        now = choice.point.number
        while at < len(events) and events[at].choice_points < now:
            yield events[at]
            at += 1
        end = at
        while end < len(events) and events[end].choice_points == now and not _precedes_choice(choice, events[end]):
            end += 1
        if end < len(events) and _precedes_choice(choice, events[end]):
            yield from events[at : end + 1]
            at = end + 1
        yield choice
    yield from events[at:]


def _precedes_choice(choice: TakenChoice, event: Event) -> bool:
    point = choice.point
    if _rank_or_thread_of(event) != point.who(point.rank) or event.choice_points != point.number:
        return False
    if point.kind is ChoiceKind.SOURCE:
        return event.kind is EventKind.ISSUE
    return event.kind in _ENDS and point.rank not in choice.options
