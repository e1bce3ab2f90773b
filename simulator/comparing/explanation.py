"""Words for the first tensor that differs: which one, on which ranks, by which factor, and what that says of the
reductions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ddpsim.simulator.comparing.alignment import Alignment, whole_tensor
from ddpsim.simulator.comparing.comparison import TOLD, Answer, Row, StepComparison, StepSides
from ddpsim.simulator.comparing.records import Array, Kind
from ddpsim.simulator.wording import count_with_noun, join_names, rank_list

OWN = "each rank has its own"
_CLOSE = 1e-3
"""How near a factor is to the number that it is named after."""


class Difference(NamedTuple):
    """The first tensor that differs in a step."""

    row: Row
    line: str
    cause: str
    """What is known of the cause; "" if nothing is."""
    advice: str
    follows: str
    """What else differs in the step."""


def first_row(step: StepComparison) -> Row:
    """Return the row where the difference of a step begins: a decisive one, or what led to it.

    An output counts from which on all outputs differ, because what comes equal out of a model was right inside. Outputs
    and losses count only if gradients differ.
    """
    apart = [row for row in step.rows if row.answer is Answer.DIFFERENT]
    decisive = next(row for row in apart if row.kind in TOLD)
    if decisive.kind is not Kind.GRADIENT:
        return decisive
    outputs = [row for row in step.rows if row.kind is Kind.OUTPUT]
    last_equal = {row.rank: i for i, row in enumerate(outputs) if row.answer is Answer.SAME}
    later = [row for i, row in enumerate(outputs) if row in apart and i > last_equal.get(row.rank, -1)]
    before = [row for row in apart if row.kind in (Kind.LOSS, Kind.UNCLIPPED)]
    norms = [row for row in apart if row.kind is Kind.NORM]
    return next(iter([*later, *before, *norms]), decisive)


def describe_difference(
    number: int, step: StepComparison, sides: StepSides, alignment: Alignment, calls: Sequence[str]
) -> Difference:
    """Return the words for the difference of a step; `calls` are those that the program made in it."""
    row = first_row(step)
    rows = [each for each in step.rows if each.kind is row.kind and each.answer is Answer.DIFFERENT]
    ranks = sorted({each.rank for each in rows if each.name == row.name})
    factor = row.factor if all(_is_near(each.factor, row.factor) for each in rows if each.name == row.name) else None
    size = len(sides.ranks)
    if row.kind is Kind.LOSS:
        what, where = "the mean of the ranks' losses", ""
    else:
        what = row.name if row.kind in (Kind.NORM, Kind.RATE) else f"{row.kind.value} of {row.name}"
        what = f"the norm at {row.name}" if row.kind is Kind.NORM else what
        where = f" on {rank_list(ranks)}" if len(ranks) < size else ""
    gradients = [each for each in step.rows if each.kind is Kind.GRADIENT and each.answer is Answer.DIFFERENT]
    if row.kind is Kind.LOSS and not all(_is_near(each.factor, factor, 0.01) for each in gradients):
        factor = None
    near = max(_CLOSE, row.tolerance)
    by = f"differs by {100 * row.difference:.3g} %" if factor is None else f"is x {_factor_text(factor, size, near)}"
    line = f"step {number}: {what}{where} {by}"
    cause, advice = _cause(row, rows, factor, sides, alignment, calls)
    return Difference(row, line, cause, advice, _what_follows(step, row))


def _cause(
    row: Row,
    rows: Sequence[Row],
    factor: float | None,
    sides: StepSides,
    alignment: Alignment,
    calls: Sequence[str],
) -> tuple[str, str]:
    size = len(sides.ranks)
    if row.kind is Kind.OUTPUT:
        return "its samples are the same, and so are the outputs before it", ""
    if row.kind is Kind.LOSS and factor is not None:
        return "so are all gradients: the outputs are the same, and the loss is scaled by the number of ranks", ""
    if row.kind is Kind.LOSS:
        return (
            "the outputs are the same, and the ranks' losses do not add up to that of all samples, "
            "as where each divides by its own count"
        ), "divide by the mean of the ranks' counts"
    if row.kind is Kind.NORM:
        values = [step.of_kind(Kind.NORM)[0].value for step in sides.ranks if step.of_kind(Kind.NORM)]
        one = sides.reference[0].of_kind(Kind.NORM)[0].value
        squares = float(np.sum(np.square(values)))
        if len(set(values)) > 1 and _is_near(squares**0.5, one, one * _CLOSE):
            return "each rank has the norm of its own shard", "add the squares over the ranks before the root"
        return f"the gradients are the same, and their norm is {values[0]:.6g} for {one:.6g}", (
            "clip by the norm of the whole gradient, each part counted once"
        )
    if row.kind in (Kind.GRADIENT, Kind.UNCLIPPED):
        own = _own_gradients(row, sides, alignment)
        if own:
            return own
        if factor is not None:
            near = max(_CLOSE, row.tolerance)
            has_clip = bool(sides.ranks[0].of_kind(Kind.UNCLIPPED))
            sums = any(each.startswith(("all_reduce", "reduce")) for each in calls)
            return _cause_of_factor(factor, size if sums else 0, rows, near=near, step_has_clip=has_clip)
        return _cause_of_factors_by_rank(rows), ""
    return "the gradients of the step are the same", ""


def _cause_of_factor(
    factor: float, size: int, rows: Sequence[Row], *, near: float, step_has_clip: bool
) -> tuple[str, str]:
    names = {row.name for row in rows}
    if not factor:
        return "all of it is zero", ""
    if _is_near(factor, size, near * size):
        return f"as a sum over the {size} ranks that is not averaged", "divide by the number of ranks, once"
    if _is_near(factor * size, 1.0, near):
        return f"as an average over the {size} ranks that is divided again", "leave out one of the divisions"
    if _is_near(factor * size * size, 1.0, near):
        return f"as an average over the {size} ranks that is divided twice more", "leave out these divisions"
    if len(names) > 1 and all(_is_near(row.factor, factor) for row in rows):
        what = "gradients were clipped, or scaled, by another number than on one rank"
        return what, "compare the norms by which ranks clip" if step_has_clip or factor < 1 else ""
    return "", ""


def _cause_of_factors_by_rank(rows: Sequence[Row]) -> str:
    """Return the cause if each rank has multiplied all its gradients by a number of its own; else ""."""
    by_rank: dict[int, list[float | None]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(row.factor)
    if any(len(own) < 2 or not all(_is_near(each, own[0]) for each in own) for own in by_rank.values()):
        return ""
    numbers = [f"{own[0]:.3g} on rank {rank}" for rank, own in by_rank.items()]
    what = "on each rank all gradients are multiplied by one number, as by a clip to the rank's own norm"
    return f"{what}: {join_names(numbers, 4)}"


def _own_gradients(row: Row, sides: StepSides, alignment: Alignment) -> tuple[str, str] | None:
    """Return the cause if replicas hold different gradients that together are that of one rank."""
    place = next((place for (rank, name), place in alignment.places.items() if (rank, name) == (row.rank, row.name)))
    whole = whole_tensor(sides.reference, row.kind, place.name)
    values: dict[int, Array] = {}
    for (rank, name), each in alignment.places.items():
        value = sides.ranks[rank].array(row.kind, name)
        if each.name == place.name and each.region == place.region and value is not None:
            values[rank] = value
    if whole is None or len(values) < 2:
        return None
    one, bound = place.cut(whole), _CLOSE * float(np.linalg.norm(place.cut(whole)))
    clusters: dict[bytes, list[int]] = {}
    for rank, value in values.items():
        near = (key for key, (first, *_) in clusters.items() if np.linalg.norm(values[first] - value) <= bound)
        clusters.setdefault(next(near, value.tobytes()), []).append(rank)
    if len(clusters) < 2:
        return None
    if any(np.linalg.norm(values[ranks[0]] - one) <= bound for ranks in clusters.values()):
        return None  # some ranks are right
    total = np.sum([values[ranks[0]] for ranks in clusters.values()], axis=0)
    for what, combined in (("mean", total / len(clusters)), ("sum", total)):
        if np.linalg.norm(combined - one) <= bound:
            if len(clusters) == len(values):
                before = "clip" if row.kind is Kind.UNCLIPPED else "step"
                return f"{OWN}, and their {what} is that of one rank", (
                    f"reduce it over {rank_list(values)} before the {before}; if ranks average parameters later, as in "
                    "local SGD, it is another algorithm"
                )
            groups = " and of ".join(rank_list(ranks) for ranks in clusters.values())
            return f"it is that of {groups}, and the {what} of these is that of one rank", (
                f"reduce it over {rank_list(values)}, not within these groups"
            )
    return None


def _what_follows(step: StepComparison, first: Row) -> str:
    apart: dict[Kind, dict[str, None]] = {}
    for row in step.rows:
        if row.answer is Answer.DIFFERENT and (row.kind, row.name) != (first.kind, first.name):
            apart.setdefault(row.kind, {})[row.name] = None
    return "; ".join(
        f"{count_with_noun(len(names), kind.value, _plural(kind))}: {join_names(list(names), 3)}"
        for kind, names in apart.items()
    )


def _plural(kind: Kind) -> str:
    special: Mapping[Kind, str] = {
        Kind.LOSS: "losses",
        Kind.STATE: "tensors of optimizer state",
        Kind.UNCLIPPED: "gradients before clipping",
    }
    return special.get(kind, f"{kind.value}s")


def _factor_text(factor: float, size: int, near: float) -> str:
    def known(value: float) -> bool:
        return _is_near(factor, value, near * value)

    if not factor:
        return "0"
    for number in dict.fromkeys((size, 2, 3, 4, 8, size * size)):
        if known(number):
            return str(number)
        if known(1 / number):
            return f"1/{number}"
    if known(size**0.5):
        return f"sqrt({size})"
    if known(size**-0.5):
        return f"1/sqrt({size})"
    return f"{factor:.4g}"


def _is_near(value: float | None, other: float | None, bound: float = 0.0) -> bool:
    if value is None or other is None:
        return False
    return abs(value - other) <= (bound or _CLOSE * max(abs(other), 1e-3))
