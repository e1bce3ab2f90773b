"""Whether two recorded trainings are the same, and the first tensor in which they are not: a value with its text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np

from ddpsim.simulator.comparing.comparison import TOLD, Answer, Row, StepComparer, StepComparison, StepSides
from ddpsim.simulator.comparing.explanation import OWN, describe_difference
from ddpsim.simulator.comparing.records import UNNAMED, Kind, RecordedStep, read_steps
from ddpsim.simulator.wording import LabelledLine, count_with_noun, join_names, rank_list

_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Comparison:
    """A training on several ranks held against the same training on fewer."""

    answer: Answer
    line: str
    """What was compared, or the first difference, or why it is not known."""
    program: str = ""
    against: str = ""
    """What the reference was, such as "1 rank"."""
    lines: tuple[LabelledLine, ...] = ()
    """The cause of the first difference, the program's calls in its step, what to do, and what follows from it."""
    notes: tuple[str, ...] = ()
    step: int | None = None
    """The number of the step that differs, from 0."""
    first: Row | None = None
    rows: Sequence[Row] = field(default=(), repr=False)
    """The tensors of the last step that was compared."""

    @property
    def is_same(self) -> bool:
        """True if everything was compared, and is equal."""
        return self.answer is Answer.SAME

    def __str__(self) -> str:
        head = f"{self.answer.value.upper()}  {self.program}, against {self.against}"
        label = {Answer.SAME: "same", Answer.DIFFERENT: "first", Answer.UNKNOWN: "why"}[self.answer]
        lines = [LabelledLine(label, self.line), *self.lines, *(LabelledLine("note", each) for each in self.notes)]
        return "\n".join([head, *map(str, lines), *(self._table() if self.answer is Answer.DIFFERENT else ())])

    def _table(self) -> Iterator[str]:
        """Yield the table of the step: of each tensor the rank on which it differs most."""
        worst: dict[tuple[Kind, str], Row] = {}
        for row in self.rows:
            key = row.kind, row.name
            if key not in worst or row.difference > worst[key].difference:
                worst[key] = row
        width = max((len(row.kind.value) + len(row.name) + 1 for row in worst.values()), default=0)
        yield f"\n     {'tensor':<{width}}  rank  difference   rounding"
        for row in list(worst.values())[:_MOST_ROWS]:
            is_first = self.first is not None and (row.kind, row.name) == (self.first.kind, self.first.name)
            mark = ">" if is_first else {Answer.SAME: " ", Answer.DIFFERENT: "x", Answer.UNKNOWN: "?"}[row.answer]
            name = f"{row.kind.value} {row.name}"
            yield f"   {mark} {name:<{width}}  {row.rank:>4}  {row.difference:>10.1e}  {row.tolerance:>9.1e}"
        if len(worst) > _MOST_ROWS:
            yield f"     ... {len(worst) - _MOST_ROWS} more"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        return {
            "answer": self.answer.value,
            "line": self.line,
            "program": self.program,
            "against": self.against,
            "step": self.step,
            "first": None if self.first is None else _row_as_json(self.first),
            **{each.label: each.text for each in self.lines},
            "notes": list(self.notes),
            "rows": [_row_as_json(row) for row in self.rows],
        }


def _row_as_json(row: Row) -> dict[str, Any]:
    return {**row._asdict(), "kind": row.kind.value, "answer": row.answer.value}


def judge_records(
    folders: Sequence[Path],
    sizes: tuple[int, int],
    calls: Mapping[int, Sequence[str]],
    *,
    rounding: float,
    has_hook: bool = False,
) -> Comparison:
    """Compare what the ranks, the reference and its twin recorded, step by step, until the first difference.

    `calls` are the calls that the program made in each step, and `rounding` that of the coarsest type they sent.
    `has_hook`: gradients went through a communication hook of DDP, which may change them.
    """
    counts = sizes[0], sizes[1], sizes[1]
    runs = [_steps_of_run(folder, count) for folder, count in zip(folders, counts, strict=True)]
    comparer, notes, number = StepComparer(rounding), dict[str, None](), 0
    compared: StepComparison | None = None
    ends = None
    own_steps: Comparison | None = None
    for number, found in enumerate(zip_longest(*runs)):
        if any(steps is None or None in steps for steps in found):
            ends = _unequal_ends(number, found, sizes)
            break
        sides = StepSides(*(cast(Sequence[RecordedStep], steps) for steps in found))
        if not all(step.is_whole for steps in sides for step in steps):
            break
        notes |= dict.fromkeys(note.name for steps in sides[:2] for step in steps for note in step.of_kind(Kind.NOTE))
        compared = comparer.compare_step(sides)
        if own_steps is not None:
            if any(row.kind is Kind.OUTPUT and row.answer is not Answer.SAME for row in compared.rows):
                return own_steps
            line = (
                f"{own_steps.line} on each rank, and the outputs of step {number} are the same: parameters are averaged"
            )
            return replace(own_steps, answer=Answer.UNKNOWN, line=line, lines=())
        if (other := _other_start(comparer, sides)) is not None:
            return Comparison(Answer.DIFFERENT, other, notes=tuple(notes), step=number, rows=compared.rows)
        if (unlike := _unlike_twin(number, sides)) is not None:
            return Comparison(Answer.UNKNOWN, unlike, notes=tuple(notes), step=number, rows=compared.rows)
        if compared.answer is not Answer.SAME:
            found_step = _different_step(number, compared, sides, comparer, calls.get(number, ()), tuple(notes))
            if found_step.answer is Answer.DIFFERENT and has_hook and found_step.first and not found_step.first.factor:
                line = f"{found_step.line}; gradients went through a communication hook, which may change them"
                return replace(found_step, answer=Answer.UNKNOWN, line=line, lines=())
            if any(OWN in each.text for each in found_step.lines):
                own_steps = found_step  # the next step shows whether ranks average parameters instead
                continue
            return found_step
    else:
        number += compared is not None
    if own_steps is not None:
        return own_steps
    if compared is None:
        line = "no optimizer of torch stepped a model that ran in training, so there is nothing to compare"
        return Comparison(Answer.UNKNOWN, ends or line, notes=tuple(notes))
    missing = comparer.alignment.missing
    if ends or missing:
        lines = [f"{count_with_noun(number, 'step')} are the same, but " + ends] if ends else []
        return Comparison(
            Answer.UNKNOWN, "; ".join([*lines, *_missing_lines(missing)]), notes=tuple(notes), rows=compared.rows
        )
    if UNNAMED in notes:
        return Comparison(
            Answer.UNKNOWN, "not all that is trained was compared", notes=tuple(notes), rows=compared.rows
        )
    total = number + sum(1 for _ in runs[0])
    of = f" of {total}, the others were not recorded" if total > number else ""
    kinds = {kind: len({row.name for row in compared.rows if row.kind is kind}) for kind in Kind}
    what = [
        count_with_noun(kinds[kind], text)
        for kind, text in ((Kind.OUTPUT, "output"), (Kind.GRADIENT, "gradient"), (Kind.PARAMETER, "parameter"))
        if kinds[kind]
    ]
    line = f"{count_with_noun(number, 'step')}{of}, in each {join_names(what)}"
    return Comparison(Answer.SAME, line, notes=tuple(notes), rows=compared.rows)


def _steps_of_run(folder: Path, size: int) -> Iterator[tuple[RecordedStep | None, ...]]:
    return zip_longest(*(read_steps(folder, rank) for rank in range(size)))


def _unequal_ends(number: int, found: Sequence[Any], sizes: tuple[int, int]) -> str:
    if found[0] is not None and None in found[0]:
        done = rank_list(rank for rank, step in enumerate(found[0]) if step is None)
        return f"{done} made {count_with_noun(number, 'step')}, and other ranks more"
    who = [count_with_noun(size, "rank") for size in sizes]
    less, more = (who[0], who[1]) if found[0] is None else (who[1], who[0])
    return f"{less} made {count_with_noun(number, 'step')}, and {more} more"


def _missing_lines(missing: Mapping[tuple[int, str], str]) -> Iterator[str]:
    by_reason: dict[str, dict[str, list[int]]] = {}
    for (rank, name), reason in missing.items():
        by_reason.setdefault(reason, {}).setdefault(name, []).append(rank)
    for reason, names in by_reason.items():
        ranks = sorted({rank for each in names.values() for rank in each})
        yield f"not compared on {rank_list(ranks)}: {join_names(list(names), 4)}, which {reason}"


def _other_start(comparer: StepComparer, sides: StepSides) -> str | None:
    """Return a line on replicas that start with other values than rank 0, although their gradients are reduced."""
    places = comparer.alignment.places
    for rank, name in comparer.alignment.missing:
        here, there = sides.ranks[rank], sides.ranks[0]
        values = [step.array(Kind.GRADIENT, name) for step in (here, there)]
        starts = [step.array(Kind.START, name) for step in (here, there)]
        if (0, name) in places and None not in (*map(_shape, values), *map(_shape, starts)):
            is_replica = _shape(starts[0]) == _shape(starts[1]) and np.any(values[0] != 0)
            if is_replica and np.array_equal(values[0], values[1]):  # type: ignore[arg-type]
                apart = f"{name} starts on rank {rank} with other values than on rank 0"
                return f"step 0: {apart}, and one gradient moves both"
    return None


def _shape(value: Any) -> Any:
    return None if value is None else value.shape


def _unlike_twin(number: int, sides: StepSides) -> str | None:
    """Return a line if the reference did not see the same samples twice."""
    for one, other in zip(sides.reference, sides.twin, strict=True):
        seen = [[each.value for each in step.of_kind(Kind.SAMPLES)] for step in (one, other)]
        if seen[0][:1] != seen[1][:1]:
            return f"the reference is not the same when it runs again: other samples at step {number}"
    return None


def _different_step(
    number: int,
    compared: StepComparison,
    sides: StepSides,
    comparer: StepComparer,
    calls: Sequence[str],
    notes: tuple[str, ...],
) -> Comparison:
    if compared.answer is Answer.DIFFERENT:
        found = describe_difference(number, compared, sides, comparer.alignment, calls)
        texts = {"cause": found.cause, "calls": join_names(calls), "do": found.advice, "then": found.follows}
        lines = tuple(LabelledLine(label, text) for label, text in texts.items() if text)
        return Comparison(
            Answer.DIFFERENT, found.line, lines=lines, notes=notes, step=number, first=found.row, rows=compared.rows
        )
    before = f"{count_with_noun(number, 'step')} {'is' if number == 1 else 'are'} the same, but at step {number} "
    before = before if number else "at step 0 "
    if not compared.rows:
        line = "no parameter was recorded"
    elif not compared.has_same_samples:
        counts = [
            len({s for x in steps for each in x.of_kind(Kind.SAMPLES) for s in each.value or ()}) for steps in sides
        ]
        line = f"the reference saw other samples: {counts[1]} for {counts[0]}; if ranks draw their own, one rank cannot"
    elif compared.has_other_rate:
        rate = next(row for row in compared.rows if row.kind is Kind.RATE and row.answer is Answer.DIFFERENT)
        line = f"the learning rate of {rate.name} is x {1 + rate.difference:.4g}, and all gradients are the same: "
        line += "if the program reads it from the world size, give the reference its own by --against"
    elif compared.draws:
        line = f"the training draws random numbers before {compared.draws}, which one rank draws otherwise"
    else:
        vague = [row for row in compared.rows if row.kind in TOLD and row.answer is Answer.UNKNOWN]
        line = (
            f"{vague[0].kind.value} of {vague[0].name} differs by little more than rounding"
            if vague
            else ("; ".join(_missing_lines(comparer.alignment.missing)) or "nothing was compared")
        )
    return Comparison(Answer.UNKNOWN, before + line, notes=notes, step=number, rows=compared.rows)
