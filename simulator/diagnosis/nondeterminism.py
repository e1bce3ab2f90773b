"""The nondeterminism finding: a program behaved differently in two runs under the same schedule."""

from itertools import zip_longest
from typing import NamedTuple

from ddpsim.simulator.calls import NOWHERE, Site
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RankOrThread
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import finding_lines
from ddpsim.simulator.events import Event
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, rank_list


class OfferedChoice(NamedTuple):
    """A choice of the scheduler in a run, with the options that it had."""

    point: ChoicePoint
    options: tuple[int, ...]

    @property
    def choice_points(self) -> int:
        """The number of the scheduler's choices before this choice."""
        return self.point.number

    @property
    def rank(self) -> int:
        """The rank whose thread ran when the choice was made."""
        return self.point.who(self.point.rank).rank

    def __str__(self) -> str:
        what = "runs next" if self.point.kind is ChoiceKind.RANK else "it receives from"
        who = [self.point.who(number) for number in self.options]  # in their order, which may be what differs
        ranks = "ranks " + ", ".join(str(each.rank) for each in who)
        names = "; ".join(map(str, who)) if any(each.thread for each in who) else ranks
        return f"{self.point.who(self.point.rank)} has a choice at step {self.choice_points}, which of {names} {what}"


_Happened = Event | OfferedChoice | None


class RecordedRun(NamedTuple):
    """The choices and the trace of a run; two runs of one schedule must have equal ones."""

    offers: tuple[OfferedChoice, ...]
    trace: Trace


def find_nondeterminism(first: RecordedRun, second: RecordedRun) -> Finding | None:
    """Return the finding for the first step in which two runs differ; None if they are equal."""
    events = zip_longest(first.trace, second.trace)
    event = next((pair for pair in events if None in pair or len({each.line() for each in pair}) > 1), None)
    offer = next((pair for pair in zip_longest(first.offers, second.offers) if pair[0] != pair[1]), None)
    if event is not None and (offer is None or _earliest_choice_point(*event) <= _earliest_choice_point(*offer)):
        return _differing_event_finding(*event)
    return None if offer is None else differing_choice_finding(*offer)


def _differing_event_finding(first: Event | None, second: Event | None) -> Finding:
    """Return the finding for an event that differs in the second run; None for an event means that run had ended."""
    one, other = _event_text(first), _event_text(second)
    if one == other and first is not None and second is not None:  # then they differ in when they happened
        one, other = (f"{one}  at step {event.choice_points}, {event.time:g} s" for event in (first, second))
    calls = [event.call for event in (first, second) if event is not None and event.call is not None]
    sites = tuple(dict.fromkeys(call.site for call in calls if call.site != NOWHERE))
    return _nondeterminism_finding(first, second, one, other, sites)


def differing_choice_finding(first: OfferedChoice | None, second: OfferedChoice | None) -> Finding:
    """Return the finding for a choice that differs in the second run; None for a choice means that run had ended."""
    one, other = (_ENDED if offer is None else str(offer) for offer in (first, second))
    return _nondeterminism_finding(first, second, one, other)


def differing_outcome_finding(first: str, again: str) -> Finding:
    """Return the finding for a run that ended in another way when another process repeated its schedule."""
    both = [str(LabelledLine("first", first)), str(LabelledLine("again", again))]
    summary = f"two runs of one schedule differ: {first}, and then {again}"
    lines = finding_lines(Code.NONDETERMINISM, both, Cause.RUNS_DIFFER.lines(who="the program"))
    return Finding(Code.NONDETERMINISM, (), summary, lines)


_ENDED = "it had ended"


def _event_text(event: Event | None) -> str:
    if event is None:
        return _ENDED
    call = event.call
    what = event.text if call is None else f"{call}  {call.site}" + (f"  {event.text}" if event.text else "")
    return f"{RankOrThread(event.rank, event.thread)}  {event.kind.value}  {what}".rstrip()


def _earliest_choice_point(*there: _Happened) -> int:
    return min(each.choice_points for each in there if each is not None)


def _nondeterminism_finding(
    first: _Happened, second: _Happened, one: str, other: str, sites: tuple[Site, ...] = ()
) -> Finding:
    ranks = sorted({each.rank for each in (first, second) if each is not None})
    choice_points = _earliest_choice_point(first, second)
    summary = f"two runs of one schedule differ from step {choice_points} on: {one}, and then {other}"
    both = [str(LabelledLine("first", one)), str(LabelledLine("again", other))]
    advice = Cause.RUNS_DIFFER.lines(who=rank_list(ranks))
    lines = finding_lines(Code.NONDETERMINISM, both, advice, step=choice_points)
    return Finding(Code.NONDETERMINISM, tuple(ranks), summary, lines, sites)
