"""Words for the first tensor that differs: which one, on which ranks, by which factor, and what that says of the
reductions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ddpsim.simulator.comparing.alignment import Alignment, whole_tensor
from ddpsim.simulator.comparing.comparison import TOLD, Answer, Row, StepComparison, StepSides
from ddpsim.simulator.comparing.records import ALL_COPIES, Kind
from ddpsim.simulator.wording import join_names, rank_list

OWN = "each rank has its own"
_CLOSE = 1e-3
"""How near a factor is to the number that it is named after."""


def first_row(step: StepComparison) -> Row:
    """Return the row where the difference of a step begins: a decisive one, or what led to it.

    An output counts from which on all outputs of its rank differ, because what comes equal out of a model was right
    inside. Outputs and losses count only if gradients differ. If most gradients are multiplied by one number, as by a
    clip that follows, the difference is that of another one.
    """
    apart = [row for row in step.rows if row.answer is Answer.DIFFERENT]
    decisive = next(row for row in apart if row.kind in TOLD)
    if decisive.kind is not Kind.GRADIENT:
        return decisive
    inputs = [row for row in step.rows if row.kind is Kind.INPUT]
    outputs = [row for row in step.rows if row.kind is Kind.OUTPUT]
    equal = {row.rank: i for i, row in enumerate(outputs) if row.answer is Answer.SAME}
    before = [
        row for i, row in enumerate(outputs) if row.answer is Answer.DIFFERENT and i > equal.get(row.rank, -1)
    ] + [row for kind in (Kind.LOSS, Kind.UNCLIPPED, Kind.NORM) for row in apart if row.kind is kind]
    shared, gradients = _shared_factors(step), [row for row in apart if row.kind is Kind.GRADIENT]
    others = [row for row in gradients if row.rank in shared and not _is_near(row.factor, shared[row.rank])]
    return next(iter([*inputs, *before, *others]), decisive)


def _shared_factors(step: StepComparison) -> dict[int, float]:
    """Return, by rank, the number by which most gradients are multiplied that differ, if some are not."""
    by_rank: dict[int, list[float | None]] = {}
    for row in step.rows:
        if row.kind is Kind.GRADIENT and row.answer is not Answer.SAME:
            by_rank.setdefault(row.rank, []).append(row.factor)
    found = {}
    for rank, factors in by_rank.items():
        counts = [sum(_is_near(other, one) for other in factors) for one in factors]
        most = factors[counts.index(max(counts))]
        if most is not None and len(factors) > max(counts) > len(factors) / 2:
            found[rank] = most
    return found


def describe_difference(
    step: StepComparison, sides: StepSides, alignment: Alignment, calls: Sequence[str]
) -> tuple[Row, str, dict[str, str]]:
    """Return the first row of a step that differs, its line, and what there is to say of it by label.

    `calls` are those that the program made in the step.
    """
    row, size = first_row(step), len(sides.ranks)
    rows = [each for each in step.rows if each.kind is row.kind and each.answer is Answer.DIFFERENT]
    same = [each for each in rows if each.name == row.name]
    factor = row.factor if all(_is_near(each.factor, row.factor) for each in same) else None
    shared = _shared_factors(step).get(row.rank) if row.kind is Kind.GRADIENT else None
    if shared is not None and factor is not None:
        factor /= shared
    what, ranks = named(row.kind, row.name), ranks_of(row, step.rows, size)
    if row.kind is Kind.LOSS:
        what = "the mean of the ranks' losses"
        gradients = [each for each in step.rows if each.kind is Kind.GRADIENT and each.answer is Answer.DIFFERENT]
        factor = factor if all(_is_near(each.factor, factor, 0.01) for each in gradients) else None
    elif row.kind is Kind.METRIC:
        what = f"what ranks reduce in evaluation at {row.name}"
    elif row.kind is Kind.INPUT:
        what = f"input {row.name} of the model"
    elif len(ranks) < size:
        what += f" on {rank_list(ranks)}"
    by = f"is x {_factor_text(factor, size, row.tolerance)}" if factor else "is zero"
    by = f"differs by {100 * row.difference:.3g} %" if factor is None or row.kind is Kind.METRIC else by
    by = "is not that of the reference" if row.kind is Kind.INPUT else by
    by = "is not zero, as on the reference" if row.tolerance > 1 and factor is None else by
    by += f", where others on rank {row.rank} are x {shared:.5g}" if shared is not None else ""
    cause, advice = _cause(row, step, factor, sides, alignment, calls)
    names: dict[Kind, dict[str, None]] = {}
    outputs = [each for each in step.rows[: step.rows.index(row)] if each.kind is Kind.OUTPUT]  # they may be partial
    for each in step.rows:
        if each.answer is Answer.DIFFERENT and each[:2] != row[:2] and each not in outputs:
            names.setdefault(each.kind, {})[each.name] = None
    follows = "; ".join(named(kind, join_names(list(those), 3)) for kind, those in names.items())
    return row, f"{what} {by}", {"cause": cause, "calls": join_names(calls), "do": advice, "then": follows}


def ranks_of(row: Row, rows: Sequence[Row], size: int) -> list[int]:
    """Return the ranks on which the tensor of a row differs; all of them if it is made of what each has."""
    is_of_all = row.kind in (Kind.LOSS, Kind.METRIC) or row.name == ALL_COPIES
    unlike = {each.rank for each in rows if each.answer is Answer.DIFFERENT and each[:2] == row[:2]}
    return list(range(size)) if is_of_all else sorted(unlike)


def named(kind: Kind, name: str) -> str:
    """Return a tensor, or a line with a number, in words."""
    between = {Kind.STATE: " ", Kind.NORM: " at ", Kind.METRIC: " at "}.get(kind, " of ")
    return f"{kind.value}{between}{name}" if kind is not Kind.LOSS else "loss"


def _cause(
    row: Row, step: StepComparison, factor: float | None, sides: StepSides, alignment: Alignment, calls: Sequence[str]
) -> tuple[str, str]:
    """Return what is known of the cause, and what to do; "" for what is not known."""
    size, near = len(sides.ranks), max(_CLOSE, row.tolerance)
    rows = [each for each in step.rows if each.kind is row.kind and each.answer is Answer.DIFFERENT]
    if row.kind is Kind.INPUT:
        what = "its first input is the same; this one holds numbers in order, such as positions"
        return what, "count them from the beginning of the whole, not of the rank's part"
    if row.kind is Kind.METRIC:
        what = "parameters and samples are the same, but neither the sum nor the mean of the ranks' numbers is the"
        return f"{what} reference's: as of a mean of means, or of samples counted twice", "reduce sums and counts"
    if row.kind is Kind.EVALUATED:
        is_same = step.is_all_same(Kind.PARAMETER)
        return "the trained parameters are the same, but not the average of them" if is_same else "", ""
    if row.kind is Kind.BUFFER:
        is_same = step.is_all_same(Kind.GRADIENT)
        return "the gradients of the step are the same" * is_same, "reduce what it is made of over the ranks" * is_same
    if row.kind is Kind.OUTPUT:
        before = step.rows[: step.rows.index(row)]
        is_same = all(each.answer is Answer.SAME for each in before) and any(each.rank == row.rank for each in before)
        return f"its samples are the same{', and so are the outputs before it' if is_same else ''}", ""
    if row.kind is Kind.LOSS and factor is not None:
        gradients = {each.answer for each in step.rows if each.kind is Kind.GRADIENT}
        is_by_size = any(_is_near(factor, number, near * number) for number in (size, 1 / size))
        if is_by_size and gradients == {Answer.DIFFERENT} and step.is_all_same(Kind.OUTPUT):
            return "the outputs are the same, but the loss is scaled by the number of ranks, and so all gradients", ""
        return "", ""
    if row.kind is Kind.LOSS:
        return _cause_of_loss(row, step, sides), ""
    if row.kind is Kind.NORM:
        if not step.is_all_same(Kind.UNCLIPPED):
            return "", ""
        what = "the gradients before clipping are the same"
        return what, "clip by the norm of the whole gradient, each part counted once"
    if row.kind not in (Kind.GRADIENT, Kind.UNCLIPPED):
        return "the gradients of the step are the same" if step.is_all_same(Kind.GRADIENT) else "", ""
    has_place = (row.rank, row.name) in alignment.places
    if has_place and (own := _own_gradients(row, sides, alignment)):
        return own
    if factor is None and has_place:
        of_parts = _cause_of_factors_by_rank(rows) or _mixed_parts(row, sides, alignment)
        return of_parts or _gradients_before(row, step), ""
    if factor and any(each.startswith(("all_reduce", "reduce")) for each in calls):
        if _is_near(factor, size, near * size):
            return f"as if it were not divided by {size}, the number of ranks", "average instead of adding"
        for number, times in ((size, "one division"), (size * size, "two divisions")):
            if _is_near(factor * number, 1.0, near):
                return f"as if it were divided by {size}, the number of ranks, once more", f"leave out {times}"
    if factor and len({each.name for each in rows}) > 1 and all(_is_near(each.factor, factor) for each in rows):
        what = "gradients were clipped, or scaled, by another number than on the reference"
        parts = round(float(factor**-2.0))
        if 1 < parts <= size * size and _is_near(float(parts) ** -0.5, factor):
            what += f", as by a norm whose square counts each part {parts} times"
        return what, ""
    return _gradients_before(row, step), ""


def _gradients_before(row: Row, step: StepComparison) -> str:
    """Return what is known of the gradients that backward gives before this one; "" if there are none."""
    rows = step.rows[: step.rows.index(row)]
    before = [each for each in rows if each.kind is row.kind and each.name != row.name]
    names = list(dict.fromkeys(each.name for each in reversed(before)))
    is_same = bool(names) and all(each.answer is Answer.SAME for each in before)
    return f"the gradients that backward gives before it are the same: {join_names(names, 3)}" if is_same else ""


def _cause_of_loss(row: Row, step: StepComparison, sides: StepSides) -> str:
    has_same_outputs = step.is_all_same(Kind.OUTPUT)
    what = "the outputs are the same, and " if has_same_outputs else ""
    if step.has_equal_ranks:
        return f"{what}each rank gets all samples, but has not the loss of one rank"
    what += "the ranks' losses do not add up to that of all samples"
    counts = {sum(len(each.value.rows) for each in own.of_kind(Kind.SAMPLES) if each.value) for own in sides.ranks}
    if row.name in step.earlier_losses and len(counts) == 1:
        return f"{what}, which they do in steps before: {_FROM_STEPS}"
    return f"{what}, {_OWN_PART}" if has_same_outputs else what


_FROM_STEPS = "as of a value that each rank keeps between steps for itself, or of a number that grows with the ranks"
_OWN_PART = (
    "as where each divides by its own count, compares its own samples only, or scales a term by the number of ranks"
)


def _cause_of_factors_by_rank(rows: Sequence[Row]) -> str:
    """Return the cause if each rank has multiplied all its gradients by a number of its own; else ""."""
    by_rank: dict[int, list[float | None]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(row.factor)
    if any(not all(_is_near(each, own[0]) for each in own) for own in by_rank.values()):
        return ""
    numbers = [f"{own[0]:.3g} on rank {rank}" for rank, own in by_rank.items()]
    what = "on each rank all gradients are multiplied by one number, as by a clip to the rank's own norm"
    return f"{what}: {join_names(numbers, 4)}"


def _mixed_parts(row: Row, sides: StepSides, alignment: Alignment) -> str:
    """Return the cause if ranks that hold different parts of a tensor have one gradient; else ""."""
    name = alignment.places[row.rank, row.name].name
    held = [(rank, own, place) for (rank, own), place in alignment.places.items() if place.name == name]
    found = [sides.ranks[rank].array(row.kind, own) for rank, own, _ in held]
    values = [each for each in found if each is not None]
    has_parts = len({str(place.region) for *_, place in held}) > 1 and len(values) == len(held)
    if not has_parts or not all(np.array_equal(each, values[0]) for each in values):
        return ""
    return f"{rank_list({rank for rank, *_ in held})} have one gradient, but hold different parts of the parameter"


def _own_gradients(row: Row, sides: StepSides, alignment: Alignment) -> tuple[str, str] | None:
    """Return the cause if replicas hold different gradients that together are that of one rank."""
    place = alignment.places[row.rank, row.name]
    whole = whole_tensor(sides.reference, row.kind, place.name)
    values: dict[int, Any] = {
        rank: value
        for (rank, name), each in alignment.places.items()
        if each == place and (value := sides.ranks[rank].array(row.kind, name)) is not None
    }
    if whole is None:
        return None
    one, bound = place.cut(whole), _CLOSE * float(np.linalg.norm(place.cut(whole)))
    clusters: dict[int, list[int]] = {}
    for rank, value in values.items():
        near = (first for first in clusters if np.linalg.norm(values[first] - value) <= bound)
        clusters.setdefault(next(near, rank), []).append(rank)
    if len(clusters) < 2 or any(np.linalg.norm(values[first] - one) <= bound for first in clusters):
        return None  # ranks agree, or some are right
    total = np.sum([values[first] for first in clusters], axis=0)
    for what, combined in (("mean", total / len(clusters)), ("sum", total)):
        if np.linalg.norm(combined - one) <= bound:
            advice = f"reduce it over {rank_list(values)}"
            if len(clusters) == len(values):
                advice += f" before the {'clip' if row.kind is Kind.UNCLIPPED else 'step'}"
                if what == "mean":
                    advice += "; if ranks average parameters later, as in local SGD, it is another algorithm"
                return f"{OWN}, and their {what} is the reference's", advice
            groups = " and ".join(map(rank_list, clusters.values()))
            return f"{groups} have one each, and the {what} of these is the reference's", f"{advice}, not within these"
    return None


def _factor_text(factor: float, size: int, near: float) -> str:
    digits = 4 if abs(factor - 1) > 1e-3 else 7
    known = (text for value, text in _numbers(size) if _is_near(factor, value, near * value))
    return next(known, f"{factor:.{digits}g}")


def _numbers(size: int) -> Iterator[tuple[float, str]]:
    """Yield numbers that a factor may be, and their texts."""
    for number in (size, 2, 3, 4, 8, size * size):
        yield from ((number, f"{number}"), (1 / number, f"1/{number}"))
    yield from ((size**0.5, f"sqrt({size})"), (size**-0.5, f"1/sqrt({size})"))


def _is_near(value: float | None, other: float | None, bound: float = 0.0) -> bool:
    if value is None or other is None:
        return False
    return abs(value - other) <= max(bound, _CLOSE * abs(other), 1e-6)
