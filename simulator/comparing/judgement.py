"""Whether two recorded trainings are the same, and the first tensor in which they are not: a value with its text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np

from ddpsim.simulator.comparing.alignment import OTHER_START
from ddpsim.simulator.comparing.comparison import TOLD, Answer, Row, StepComparer, StepComparison, StepSides
from ddpsim.simulator.comparing.explanation import OWN, describe_difference, named
from ddpsim.simulator.comparing.records import ALL_COPIES, COPIES, UNNAMED, Kind, RecordedStep, read_steps
from ddpsim.simulator.wording import LabelledLine, count_with_noun, join_names, rank_list

_MOST_ROWS = 40
_LABELS = {Answer.SAME: "same", Answer.DIFFERENT: "first", Answer.UNKNOWN: "why"}
_MARKS = {Answer.SAME: " ", Answer.DIFFERENT: "x", Answer.UNKNOWN: "?"}


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
    history: Sequence[Sequence[Row]] = field(default=(), repr=False)
    """For each step that was compared, of each tensor the row of the rank on which it differs most."""

    @property
    def is_same(self) -> bool:
        """True if everything was compared, and is equal."""
        return self.answer is Answer.SAME

    def __str__(self) -> str:
        head = f"{self.answer.value.upper()}  {self.program}, against {self.against}"
        notes = [LabelledLine("note", each) for each in self.notes]
        lines = [head, *map(str, [LabelledLine(_LABELS[self.answer], self.line), *self.lines, *notes])]
        return "\n".join([*lines, *(self._table() if self.answer is Answer.DIFFERENT else ())])

    def _table(self) -> Iterator[str]:
        """Yield the table of the step: of each tensor the rank on which it differs most."""
        rows = _worst_rows(self.rows)[:_MOST_ROWS]
        width = max((len(f"{row.kind.value} {row.name}") for row in rows), default=0)
        yield f"\n     {'tensor':<{width}}  rank  difference   rounding"
        for row in rows:
            name = f"{row.kind.value} {row.name}"
            is_first = self.first is not None and (row.kind, row.name) == (self.first.kind, self.first.name)
            mark = ">" if is_first else _MARKS[row.answer]
            yield f"   {mark} {name:<{width}}  {row.rank:>4}  {row.difference:>10.1e}  {row.tolerance:>9.1e}"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        rows, *history = (
            [{**row._asdict(), "kind": row.kind.value, "answer": row.answer.value} for row in step]
            for step in (self.rows, *self.history)
        )
        first = None if self.first is None else rows[self.rows.index(self.first)]
        said = {"answer": self.answer.value, "line": self.line, **{each.label: each.text for each in self.lines}}
        of = {"program": self.program, "against": self.against, "notes": list(self.notes)}
        return {**said, **of, "step": self.step, "first": first, "rows": rows, "history": history}


def _worst_rows(rows: Sequence[Row]) -> list[Row]:
    """Return of each tensor the row of the rank on which it differs most, in the order of the tensors."""
    worst = {(row.kind, row.name): row for row in sorted(rows, key=lambda row: row.difference)}
    return [worst[key] for key in dict.fromkeys((row.kind, row.name) for row in rows)]


def judge_records(
    folders: Sequence[Path],
    sizes: tuple[int, int],
    calls: Mapping[int, Sequence[str]],
    *,
    rounding: float,
    is_exact: bool = False,
    has_hook: bool = False,
) -> Comparison:
    """Compare what the ranks, the reference and its twin recorded, step by step, until the first difference.

    `calls` are the calls that the program made in each step, and `rounding` that of the coarsest type they sent.
    `is_exact`: tensors that differ by rounding differ.
    `has_hook`: gradients went through a communication hook of DDP, which may change them.
    """
    runs = [
        zip_longest(*(read_steps(folder, rank) for rank in range(size)))
        for folder, size in zip(folders, (*sizes, sizes[1]), strict=True)
    ]
    comparer, notes, number = StepComparer(rounding, is_exact=is_exact), dict[str, None](), 0
    history: list[Sequence[Row]] = []
    found = Comparison(
        Answer.UNKNOWN, "no optimizer of torch stepped a model that ran in training: nothing is compared"
    )
    ends, left_out = "", 0
    for number, steps_of_runs in enumerate(zip_longest(*runs)):
        if any(steps is None or None in steps for steps in steps_of_runs):
            ends = _unequal_ends(number, steps_of_runs[0], sizes)
            break
        sides = StepSides(*(cast(Sequence[RecordedStep], steps) for steps in steps_of_runs))
        if not all(step.is_whole for steps in sides for step in steps):
            left_out = 1
            ends = "" if number else "the first step was not recorded whole: a rank records at most 4 GiB of it"
            break
        notes |= dict.fromkeys(note.name for steps in sides[:2] for step in steps for note in step.of_kind(Kind.NOTE))
        compared = comparer.compare_step(sides)
        shared = " and ".join(rank_list(group) for group in compared.groups if len(group) > 1)
        same = f"each of {sizes[0]} ranks gets" if compared.has_equal_ranks else f"{shared} get"
        notes |= {f"{same} the same samples": None} if shared else {}
        if found.answer is Answer.DIFFERENT:  # the step before, in which each rank had its own gradients
            if compared.is_all_same(Kind.OUTPUT):
                line = (
                    f"{found.line} on each rank, and the outputs of step {number} are the same: parameters are averaged"
                )
                found = replace(found, answer=Answer.UNKNOWN, line=line, lines=())
            return found
        found = _judge_step(number, compared, sides, comparer, calls.get(number, ()))
        history.append(_worst_rows(compared.rows))
        found = replace(found, notes=tuple(notes), step=number, rows=compared.rows, history=history)
        if found.answer is Answer.DIFFERENT and has_hook and found.first and not found.first.factor:
            line = f"{found.line}; gradients went through a communication hook, which may change them"
            return replace(found, answer=Answer.UNKNOWN, line=line, lines=())
        if not found.is_same and not any(OWN in each.text for each in found.lines):
            return found
    else:
        number += found.step is not None
    if not found.is_same:
        return replace(found, line=ends) if ends and found.step is None else found
    return _judge_same_steps(found, number, number + left_out + sum(1 for _ in runs[0]), ends, comparer)


def _judge_same_steps(found: Comparison, number: int, total: int, ends: str, comparer: StepComparer) -> Comparison:
    """Judge a training of `total` steps of which the first `number` are the same: "not known" if something is missing.

    `ends` says why no more steps were compared, if that is no end of the training.
    """
    problems = [f"{_so_many(number)}, but {ends}"] if ends else []
    problems += [*_missing_lines(comparer.alignment.missing)]
    names = join_names(list(comparer.unstepped), 4)
    unstepped = [f"compared only on the ranks that have a gradient: {names}"] if names else []
    problems += unstepped if number == 1 else []  # what the others get from these ranks shows in the next step
    is_written = any(row.kind is Kind.WRITTEN for step in found.history for row in step)
    is_unnamed = UNNAMED in found.notes or (COPIES in found.notes and not is_written)
    problems += ["not all that is trained was compared"] if is_unnamed else []
    copies = list(dict.fromkeys(name for _, name in comparer.alignment.missing_copies))
    is_measured = all(any(row.name == ALL_COPIES for row in step) for step in found.history)
    problems += [f"gradients of {join_names(copies, 4)} were not compared"] if copies and not is_measured else []
    if problems:
        return replace(found, answer=Answer.UNKNOWN, line="; ".join(problems), step=None)
    of = f" of {total}, the others were not recorded" if total > number else ""
    counts = [
        (len({row.name for row in found.history[0] if row.kind is kind} - {ALL_COPIES}), kind)
        for kind in (Kind.OUTPUT, Kind.GRADIENT, Kind.PARAMETER, Kind.WRITTEN)
    ]
    what = join_names([count_with_noun(count, kind.value) for count, kind in counts if count])
    exactly = ", bit for bit" if comparer.is_exact else ""
    line, said = f"{count_with_noun(number, 'step')}{of}, in each {what}{exactly}", [*found.notes, *unstepped]
    if copies:
        said.append(f"of {join_names(copies, 4)} only the norm of all gradients is compared")
    return replace(found, line=line, notes=tuple(said), step=None)


def _so_many(number: int) -> str:
    return f"{count_with_noun(number, 'step')} {'is' if number == 1 else 'are'} the same"


def _unequal_ends(number: int, ranks: Any, sizes: tuple[int, int]) -> str:
    steps = count_with_noun(number, "step")
    if ranks is not None and None in ranks:
        return (
            f"{rank_list(rank for rank, step in enumerate(ranks) if step is None)} made {steps}, and other ranks more"
        )
    less, more = (count_with_noun(size, "rank") for size in (sizes if ranks is None else sizes[::-1]))
    line = f"{less} made {steps}, and {more} more: if the world size decides that, give the reference arguments"
    return f"{line} by --against that make as many"


def _missing_lines(missing: Mapping[tuple[int, str], str]) -> Iterator[str]:
    for reason in dict.fromkeys(missing.values()):
        those = [key for key, own in missing.items() if own == reason]
        names = join_names(list(dict.fromkeys(name for _, name in those)), 4)
        yield f"not compared on {rank_list({rank for rank, _ in those})}: {names}, which {reason}"


def _other_start(comparer: StepComparer, sides: StepSides) -> str:
    """Return a line on a replica that starts with other values than rank 0, and whose gradient is reduced; else ""."""
    shapes = [{each.name: each.value.shape for each in step.of_kind(Kind.START)} for step in sides.ranks]
    for rank, name in comparer.alignment.missing:
        if shapes[rank] != shapes[0]:
            continue  # another model
        steps = sides.ranks[rank], sides.ranks[0]
        own, first = ({each.name: each.value for each in step.of_kind(Kind.GRADIENT)} for step in steps)
        places = comparer.alignment.places
        equal = [key for key in own if key in first and np.array_equal(own[key], first[key])]
        moving = [key for key in equal if own[key].any()]
        is_replica = (0, name) in places and (rank, name) not in places and name in equal
        if is_replica and (name in moving or (moving and equal == list(own))):
            return f"{name} starts on rank {rank} with other values than on rank 0, and their gradients are the same"
    return ""


def _judge_step(
    number: int, compared: StepComparison, sides: StepSides, comparer: StepComparer, calls: Sequence[str]
) -> Comparison:
    """Return the answer for one step."""
    samples = [[[each.value for each in step.of_kind(Kind.SAMPLES)] for step in steps] for steps in sides]
    if other := _other_start(comparer, sides):
        advice = LabelledLine("do", "send it from one rank to the others before the first step")
        return Comparison(Answer.DIFFERENT, f"step {number}: {other}", lines=(advice,))
    again = [each for own in samples[1] for each in own if each]
    if again and not any(each.totals for each in again):  # what a model computes from others differs, too
        line = f"the reference is not the same when it runs again: other samples at step {number}"
        return Comparison(Answer.UNKNOWN, line)
    if others := {key: why for key, why in comparer.alignment.missing.items() if why == OTHER_START}:
        return Comparison(Answer.UNKNOWN, "; ".join(_missing_lines(others)))  # what differs may follow from it
    if compared.answer is Answer.SAME:
        return Comparison(Answer.SAME, "")
    placed = {place.name for place in comparer.alignment.places.values()}
    starts = dict.fromkeys(each.name for step in sides.reference for each in step.of_kind(Kind.START))
    absent = [name for name in starts if name not in placed and not comparer.alignment.missing]
    if absent:
        line = f"no rank starts with what the reference has as {join_names(absent, 4)}"
        return Comparison(Answer.UNKNOWN, line)
    if compared.answer is Answer.DIFFERENT:
        row, line, texts = describe_difference(compared, sides, comparer.alignment, calls)
        lines = tuple(LabelledLine(label, text) for label, text in texts.items() if text)
        return Comparison(Answer.DIFFERENT, f"step {number}: {line}", lines=lines, first=row)
    vague = [row for row in compared.rows if row.kind in TOLD and row.answer is not Answer.SAME]
    if not compared.has_same_samples:
        seen = [len({s for step in steps for each in step if each for s in each.rows}) for steps in samples]
        line = f"the reference saw other samples: {seen[1]} for {seen[0]}; if ranks draw their own, it cannot"
    elif compared.has_other_rate:
        of_rate = next(row for row in vague if row.kind is Kind.RATE)
        by = "another one" if of_rate.factor is None else f"x {of_rate.factor:.4g}"
        rate = f"the learning rate of {of_rate.name} is {by}"
        rate += ", and all gradients are the same" if compared.is_all_same(Kind.GRADIENT) else ""
        line = f"{rate}: if the program reads it from the world size, give the reference its own by --against"
    elif compared.draws:
        line = f"the training draws random numbers before {compared.draws}, which the reference draws otherwise"
    elif vague:
        line = f"{named(vague[0].kind, vague[0].name)} differs by {100 * vague[0].difference:.3g} %, too near to the "
        line += f"{100 * vague[0].tolerance:.3g} % that rounding may make"
    else:
        line = "; ".join(_missing_lines(comparer.alignment.missing)) or "nothing was compared"
    return Comparison(Answer.UNKNOWN, f"{_so_many(number) + ', but ' if number else ''}at step {number} {line}")
