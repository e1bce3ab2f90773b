"""Makes the document of an exploration: outcomes, the first failing execution, and a passing one to compare."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ddpsim.reports.document import Difference, Document, Exploration, Outcome, Run, ScheduleChoice
from ddpsim.reports.making.result_document import environment, events_left_out, run_of
from ddpsim.reports.printable import VERBS
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.exploration.divergence_point import DivergencePoint
from ddpsim.simulator.exploration.exploration import Exploration as Explored
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transcript import TakenChoice, event_text
from ddpsim.simulator.wording import rank_list

_MOST_BEFORE = 200
"""The number of rows of choices kept before the first choice that differs."""


def document_of_exploration(
    explored: Explored,
    *,
    name: str = "",
    how: str = "",
    is_expected: bool | None = None,
    conclusion: str = "",
    parting: DivergencePoint | None = None,
) -> Document:
    """Return the document of an exploration and two of its runs; `parting` is their first choice that differs."""
    runs: list[Run] = []

    def add(result: Result | None, which: str) -> int | None:
        if result is None:
            return None
        runs.append(run_of(result, name=f"{name or explored.program}, {which}", how=how))
        return len(runs) - 1

    failing = add(explored.first_failure, "the first execution that failed")
    passing = add(explored.first_pass, "an execution that passed" if parting else "the first execution that passed")
    difference = None
    if explored.first_failure is not None and explored.first_pass is not None:
        difference = difference_of(explored.first_failure.trace, explored.first_pass.trace, parting)
    exploration = Exploration(
        program=name or explored.program,
        verdict=explored.verdict,
        executions=explored.executions,
        is_complete=explored.complete,
        extent=explored.extent,
        outcomes=tuple(Outcome(text, count) for text, count in explored.outcomes.most_common()),
        seconds=explored.seconds,
        failing=failing,
        passing=passing,
        difference=difference,
        is_expected=is_expected,
        conclusion=conclusion,
    )
    return Document(exploration.program, tuple(runs), exploration, environment())


def difference_of(failing: Trace, passing: Trace, parting: DivergencePoint | None = None) -> Difference | None:
    """Return the first event that differs in two traces, with the choice that led to it; None if all are equal."""
    pairs = zip(failing, passing, strict=False)
    shared = next((i for i, (one, other) in enumerate(pairs) if one.line() != other.line()), None)
    if shared is None:
        if len(failing) == len(passing):
            return None
        shared = min(len(failing), len(passing))
    sides = [
        f"{which}: {_event_description(trace, shared)}" for which, trace in (("failing", failing), ("passing", passing))
    ]
    found = Difference(_event_index(failing, shared), _event_index(passing, shared), "; ".join(sides))
    if parting is None:
        return found
    number = len(parting.before) + 1
    choices = _choice_row([(number, parting.failing)]), _choice_row([(number, parting.passing)])
    return replace(found, choices=choices, before=tuple(_choice_rows(parting.before))[-_MOST_BEFORE:])


def _choice_rows(choices: Sequence[TakenChoice]) -> Iterator[ScheduleChoice]:
    """Yield a row for each choice of the scheduler; consecutive choices that took the default share a row."""
    for is_default, same in groupby(enumerate(choices, start=1), key=lambda each: each[1].taken == 0):
        numbered = list(same)
        yield from [_choice_row(numbered)] if is_default else (_choice_row([each]) for each in numbered)


def _choice_row(numbered: Sequence[tuple[int, TakenChoice]]) -> ScheduleChoice:
    (first, choice), (last, _) = numbered[0], numbered[-1]
    if first != last:
        return ScheduleChoice(first, last, choice.point.number, "the default each time")
    others = [choice.point.who(option) for option in choice.options if option != choice.chosen_number]
    ranks = sorted(who.rank for who in others if not who.thread)
    names = [*([rank_list(ranks)] if ranks else []), *(str(who) for who in others if who.thread)]
    return ScheduleChoice(first, last, choice.point.number, choice.choice_text, ", ".join(names))


def _event_index(trace: Trace, index: int) -> int | None:
    """Return the index of an event in the document's run; None if the document leaves the event out."""
    first = events_left_out(trace)
    return index - first if first <= index < len(trace) else None


def _event_description(trace: Trace, index: int) -> str:
    if index >= len(trace):
        return "its end"
    event = trace.events[index]
    return " ".join(filter(None, [str(RankOrThread(event.rank, event.thread)), VERBS[event.kind], event_text(event)]))
