"""A document of an exploration: its outcomes, the first execution that failed, and one that passed to compare with."""

from __future__ import annotations

from ddpsim.reports.document import Difference, Document, Exploration, Outcome, Run
from ddpsim.reports.making.result import events_left_out, run_of
from ddpsim.reports.making.versions import environment
from ddpsim.reports.printable import VERBS
from ddpsim.simulator.choices import Who
from ddpsim.simulator.exploration.exploration import Exploration as Explored
from ddpsim.simulator.result import Result
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.transcript import event_text


def document_of_exploration(
    explored: Explored, *, name: str = "", how: str = "", is_expected: bool | None = None, conclusion: str = ""
) -> Document:
    """A document with the exploration and the runs that stand for it: one that failed, one that passed."""
    runs: list[Run] = []

    def add(result: Result | None, which: str) -> int | None:
        if result is None:
            return None
        runs.append(run_of(result, name=f"{name or explored.program}, {which}", how=how))
        return len(runs) - 1

    failing = add(explored.first_failure, "the first execution that failed")
    passing = add(explored.first_pass, "the first execution that passed")
    difference = None
    if explored.first_failure is not None and explored.first_pass is not None:
        difference = difference_of(explored.first_failure.trace, explored.first_pass.trace)
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


def difference_of(failing: Trace, passing: Trace) -> Difference | None:
    """The first event that two traces do not share; None if they are equal."""
    pairs = zip(failing, passing, strict=False)
    shared = next((i for i, (one, other) in enumerate(pairs) if one.line() != other.line()), None)
    if shared is None:
        if len(failing) == len(passing):
            return None
        shared = min(len(failing), len(passing))
    sides = [f"{which}: {_text(trace, shared)}" for which, trace in (("failing", failing), ("passing", passing))]
    return Difference(_index(failing, shared), _index(passing, shared), "; ".join(sides))


def _index(trace: Trace, index: int) -> int | None:
    """The index of an event in the run of a document; None if it is not there."""
    first = events_left_out(trace)
    return index - first if first <= index < len(trace) else None


def _text(trace: Trace, index: int) -> str:
    if index >= len(trace):
        return "its end"
    event = trace.events[index]
    return " ".join(filter(None, [str(Who(event.rank, event.thread)), VERBS[event.kind], event_text(event)]))
