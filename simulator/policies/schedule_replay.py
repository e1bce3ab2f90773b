"""Policies that follow given choices: `GuidedPolicy` adapts them, `ReplayPolicy` finds where a run diverges from them.

A run that diverges continues to its end, with each choice modulo the number of options. So the error can show what the
ranks did next. A strict replay raises that error; a lenient replay returns the run's result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RankSeeds, Schedule, choices_text
from ddpsim.simulator.diagnosis.explain import TableRow, format_table, shorten_text
from ddpsim.simulator.errors import ReplayDivergedError
from ddpsim.simulator.events import Event, EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transcript import TakenChoice, texts_of_call, transcript_lines, transcript_of


class GuidedPolicy:
    """Policy that takes given choices, each modulo the number of options, then the default; it never raises. It is for
    choices that were recorded from another version of the program, or drawn without knowing the program."""

    def __init__(self, choices: Sequence[int], start: RankSeeds | None = None) -> None:
        self._choices = choices
        self.start = start
        """The way in which rank processes start (such as fork); None for the program's default."""
        self._next = 0

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the next given choice, modulo the number of options."""
        if self._next >= len(self._choices):
            return 0
        choice = self._choices[self._next]
        self._next += 1
        return choice % len(options)


_STEPS_BEFORE = 5
"""How many steps before a divergence the error shows."""
_CHANGED = "the program or its input has changed since the recording"


@dataclass(frozen=True, slots=True)
class ReplayDivergence:
    """The first recorded choice that the run does not offer: there the run diverges from the recording."""

    number: int
    """How many recorded choices the run repeated before the divergence."""
    choices: tuple[int, ...]
    """The recorded choices from the divergence on."""
    point: ChoicePoint | None
    """The choice point that the run had reached; None if it had ended."""
    options: tuple[int, ...] = ()
    """The options at that choice point; () if the run had ended."""

    @property
    def summary_text(self) -> str:
        """The divergence in one line of text."""
        point = self.point
        if point is None:
            return (
                f"replay diverged: the run ended after {self.number} choice{'s' * (self.number != 1)}, but the "
                f"schedule has {len(self.choices)} more: {_CHANGED}"
            )
        return (
            f"replay diverged at step {point.number}: choice {self.number} of the schedule ({_QUESTIONS[point.kind]}) "
            f"takes option {self.choices[0]}, but only {len(self.options)} are open: {_CHANGED}"
        )


_QUESTIONS = {ChoiceKind.RANK: "which rank runs next", ChoiceKind.SOURCE: "whose message a receive takes"}


class ReplayPolicy:
    """Policy that repeats recorded choices in order, then takes 0 (zeros at the end are not recorded)."""

    def __init__(self, schedule: Schedule, *, keeps_choices: bool = False) -> None:
        self._recorded = schedule.choices
        self.start = schedule.start
        """The way in which rank processes started in the recorded execution."""
        self._keeps_choices = keeps_choices
        """True if each choice's options are recorded, too: with a thousand ranks, they may be a thousand."""
        self.choices: list[TakenChoice] = []
        """All choices with their options, if these are recorded."""
        self.made = 0
        """The number of choices made so far."""
        self._divergence: ReplayDivergence | None = None

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the next recorded choice, modulo the number of options."""
        recorded = self._recorded[self.made] if self.made < len(self._recorded) else 0
        taken = recorded % len(options)
        if recorded != taken and self._divergence is None:
            self._divergence = ReplayDivergence(self.made, self._recorded[self.made :], point, tuple(options))
        if self._keeps_choices:
            self.choices.append(TakenChoice(point, tuple(options), taken))
        self.made += 1
        return taken

    @property
    def divergence(self) -> ReplayDivergence | None:
        """Where the run, which has ended, diverged from the recording; None if it followed the recording to its end."""
        if self._divergence is None and self.made < len(self._recorded):
            return ReplayDivergence(self.made, self._recorded[self.made :], None)
        return self._divergence

    def check_divergence(self, trace: Trace) -> None:
        """Raise ReplayDivergedError if the run with this trace diverged from the recording."""
        if (found := self.divergence) is not None:
            raise divergence_error(found, trace, self.choices)


def divergence_error(divergence: ReplayDivergence, trace: Trace, choices: Sequence[TakenChoice]) -> ReplayDivergedError:
    """Return the error for a divergence: its text shows the recorded choice, the options, and the steps before."""
    before = transcript_of(*steps_until_divergence(divergence, trace, choices))[-_STEPS_BEFORE:]
    lines = [divergence.summary_text, f"  recorded   {_recorded_choices_text(divergence)}"]
    if divergence.point is not None:
        lines += _with_title("open now", _rank_table(divergence, trace, is_open=True))
        lines += _with_title("not open", _rank_table(divergence, trace, is_open=False))
    lines += _with_title("before", transcript_lines(before))
    point = divergence.point
    return ReplayDivergedError(
        "\n".join(lines),
        choice=divergence.number,
        choice_points=point.number if point is not None else trace.events[-1].choice_points if trace.events else 0,
        rank=None if point is None else point.rank,
        answer=divergence.choices[0],
        options=divergence.options,
    )


def steps_until_divergence(
    divergence: ReplayDivergence, trace: Trace, choices: Sequence[TakenChoice]
) -> tuple[Trace, Sequence[TakenChoice]]:
    """Return the events and choices of a run up to the divergence."""
    return Trace(trace.events[: _count_events_before(divergence, trace)]), choices[: divergence.number]


def _count_events_before(divergence: ReplayDivergence, trace: Trace) -> int:
    point = divergence.point
    if point is None:
        return len(trace)
    for index, event in enumerate(trace):
        is_later = event.choice_points > point.number
        if is_later or (
            event.choice_points == point.number and not _is_before_choice(event, point, divergence.options)
        ):
            return index
    return len(trace)


def _is_before_choice(event: Event, point: ChoicePoint, options: Sequence[int]) -> bool:
    """Return whether an event, in the same step as the choice, came before the choice. Ranks among the options have
    done nothing in this step yet, except the rank whose receive chooses a message."""
    if point.kind is ChoiceKind.SOURCE:
        return event.kind is not EventKind.MATCH or event.rank != point.rank
    return event.rank not in options


def _recorded_choices_text(divergence: ReplayDivergence) -> str:
    first, *others = divergence.choices
    if divergence.point is None:
        return f"continues with {shorten_text(choices_text(divergence.choices))}"
    more = f", and continues with {shorten_text(choices_text(others))}" if any(others) else ""
    return f"takes option {first}, so {first + 1} or more were open{more}"


def _with_title(title: str, lines: list[str]) -> list[str]:
    return [f"  {title if number == 0 else '':<9}{line}" for number, line in enumerate(lines)]


def _rank_table(divergence: ReplayDivergence, trace: Trace, *, is_open: bool) -> list[str]:
    """Return a table row for each rank that is an option at the divergence; for the others if `is_open` is false."""
    point = divergence.point
    assert point is not None
    end = _count_events_before(divergence, trace)
    ranks = {event.rank for event in trace} | set(divergence.options)
    chosen = [rank for rank in sorted(ranks) if (rank in divergence.options) == is_open]
    before = {event.rank: event for event in trace.events[:end]}
    after = {event.rank: event for event in reversed(trace.events[end:])}
    if point.kind is ChoiceKind.SOURCE and is_open:
        calls = [(event, event.call) for event in trace.events[:end] if event.kind is EventKind.ISSUE]
        before |= {event.rank: event for event, call in calls if call is not None and call.peer == point.rank}
        after = {}
    rows = [_rank_row(rank, before.get(rank), after.get(rank) if is_open else None) for rank in chosen]
    return format_table(rows) if rows else []


def _rank_row(rank: int, before: Event | None, after: Event | None) -> TableRow:
    """Return a rank's row: its next action (or wait, or last action), the program line, and the call's origin."""
    event, words = (before, _DID) if after is None else (after, _DOES_NEXT)
    if event is None:
        return TableRow(rank, "has done nothing yet")
    if event.call is None:
        return TableRow(rank, f"{words[event.kind]} {event.text}".rstrip())
    call, site, origin = texts_of_call(event.call)
    return TableRow(rank, f"{words[event.kind]} {call}", site, origin)


_DID = {kind: f"last: {kind.value}" for kind in EventKind} | {
    EventKind.WAIT: "waits in",
    EventKind.RETURN: "has returned",
    EventKind.RAISE: "has raised",
}
_DOES_NEXT = {kind: f"next: {kind.value}" for kind in EventKind} | {EventKind.DONE: "next: continues after"}
