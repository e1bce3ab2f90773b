"""The point at which a failing and a passing run diverge: what each run chose there, and what followed."""

from dataclasses import dataclass

from ddpsim.reports.document import Document, Event, Run, ScheduleChoice, Site
from ddpsim.reports.printable import VERBS, escape_control_characters
from ddpsim.simulator.wording import LabelledLine

_FOLLOWING = 3
"""The number of events shown after the point of divergence."""
_LAST = 4
"""The number of rows of earlier choices that a terminal shows."""
DIVERGE_HERE = "runs diverge here"
REPLICAS_DIFFER = "replicas differ"


@dataclass(frozen=True, slots=True)
class DifferenceSide:
    """What one of the two runs did where they diverge."""

    line: LabelledLine
    """The name of the run, and its first event that is not equal in the other run."""
    chosen: ScheduleChoice | None
    """The scheduler's choice that led to this event, if it is known."""
    site: Site | None
    following: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunDifference:
    """The point at which two runs diverge."""

    shared: int
    """The number of events before that point, which are equal in both runs."""
    before: str
    """The last event that is equal in both runs; "" if there is none."""
    choices: tuple[ScheduleChoice, ...]
    """The scheduler's choices that are equal in both runs; consecutive choices that took the default are one row."""
    sides: tuple[DifferenceSide, ...]
    """What the failing run did, then what the passing run did."""


def first_difference_of(document: Document) -> RunDifference | None:
    """Return where the two runs of an exploration diverge; None unless it has two runs that differ."""
    difference = document.difference
    if difference is None:
        return None
    marked = [(document.runs[index], event) for index, event in marked_events(document).items()]
    compared = zip(marked, difference.sides, difference.choices or (None, None), strict=True)
    sides = tuple(_difference_side(run, event, line, chosen) for (run, event), line, chosen in compared)
    run, index = next(((run, event) for run, event in marked if event is not None), (marked[0][0], 0))
    before = _event_text(run, run.events[index - 1]) if index else ""
    return RunDifference(index + run.events_left_out, before, difference.before, sides)


def marked_events(document: Document) -> dict[int, int | None]:
    """Return the event that the lanes of a run point at, by the index of the run in the document: where the runs of an
    exploration diverge, else where the replicas of a run were found to differ."""
    explored = document.exploration
    if explored is None or explored.difference is None:
        return {index: run.leading.event for index, run in enumerate(document.runs) if run.leading is not None}
    sides = ((explored.failing, explored.difference.failing), (explored.passing, explored.difference.passing))
    return {run: event for run, event in sides if run is not None}


def mark_text(document: Document) -> str:
    """Return the text for a marked event, as the lanes show it."""
    if document.difference is None:
        return REPLICAS_DIFFER
    chosen = document.difference.choices
    return f"{DIVERGE_HERE}, choice {chosen[0].first:,}" if chosen else DIVERGE_HERE


def difference_lines(document: Document) -> list[str]:
    """Return lines for a terminal that say where the two runs diverge; [] if they do not."""
    difference = document.difference
    if difference is None:
        return []
    if not difference.choices:
        return ["what differs", *(f"  {label}  {text}" for label, text in difference.sides)]
    rows = [("before", each, "") for each in difference.before[-_LAST:]]
    rows += [(side.label, each, side.text) for each, side in zip(difference.choices, difference.sides, strict=True)]
    width = max(len(_choice_numbers(each)) for _, each, _ in rows)
    first, step = difference.choices[0].first, difference.choices[0].step
    after = f", after {first - 1:,} equal choices" if first > 1 else ""
    lines = [f"what differs  choice {first:,} at step {step:,}{after}"]
    if len(difference.before) > _LAST:
        lines.append("  before   ...")
    for label, each, then in rows:
        lines.append(f"  {label:<7}  {_choice_numbers(each):<{width}}  {escape_control_characters(each.text)}")
        lines += [f"  then     {escape_control_characters(then)}"] if then else []
    *_, passing = marked_events(document)
    replay = document.runs[passing].replay
    return [*lines, f"  replay   {escape_control_characters(replay)}"] if replay else lines


def _choice_numbers(chosen: ScheduleChoice) -> str:
    return f"{chosen.first:,}" if chosen.first == chosen.last else f"{chosen.first:,} to {chosen.last:,}"


def _difference_side(run: Run, index: int | None, line: LabelledLine, chosen: ScheduleChoice | None) -> DifferenceSide:
    if index is None:
        return DifferenceSide(line, chosen, None, ())
    call = run.events[index].call
    site = None if call is None else run.calls[call].site
    following = tuple(_event_text(run, event) for event in run.events[index + 1 : index + 1 + _FOLLOWING])
    return DifferenceSide(line, chosen, None if site is None else run.sites[site], following)


def _event_text(run: Run, event: Event) -> str:
    call = None if event.call is None else run.calls[event.call]
    what = event.text if call is None else f"{call.operation} #{call.sequence}"
    return " ".join(filter(None, [str(event.who), VERBS[event.kind], what]))
