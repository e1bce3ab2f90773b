"""Compare the values on ranks with the correct values, within the error that rounding explains.

Note [Tolerance]. The tolerance is measured: the oracle (training on one process) runs in float32 and in float64, and
the difference is the rounding that this training shows in float32. For another dtype the tolerance is scaled by how
much coarser or finer the dtype is. If a hook compresses gradients, the difference between the oracle with and without
the hook is added, taken from the tensor that changes most. If the reference comes from a function of the scenario
instead, the largest element of all tensors of the same kind replaces the measurement: a single tensor may be small
because its terms nearly cancel, while its rounding is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ddpsim import Code, Finding, Result, Trace, UsageError
from ddpsim.scenarios.training import oracle
from ddpsim.scenarios.training.snapshot import History, Snapshot, Tensors
from ddpsim.scenarios.training.training import Training
from ddpsim.simulator.calls import Phase, Site
from ddpsim.simulator.diagnosis.explain import TableRow, format_table
from ddpsim.simulator.diagnosis.replica_divergence import ReferenceDeviation, advise_deviation
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.model_tensors import distances, fitted_factor, region_of
from ddpsim.simulator.wording import LabelledLine, rank_list

_ROUNDINGS = 64
"""The tolerance as a multiple of the oracle's rounding, and of one operation on the largest element."""
_COMPRESSIONS = 8
"""The tolerance as a multiple of the effect of compression on the oracle."""

_KINDS = (
    (Code.DIVERGENCE_GRADIENTS, "gradients"),
    (Code.DIVERGENCE_PARAMETERS, "parameters"),
    (Code.DIVERGENCE_BUFFERS, "buffers"),
)
"""The kinds of tensors in the order of their computation: the first that differs is nearest to the cause."""


@dataclass(frozen=True, slots=True)
class RoundingHistory:
    """The history of a rank as the oracle computes it in several precisions, see Note [Tolerance]."""

    coarse: History
    fine: History
    uncompressed: History


@dataclass(frozen=True, slots=True)
class TrainingReference:
    """The correct history of each rank, and what is needed to compute the tolerance."""

    histories: tuple[History, ...]
    rounding: tuple[RoundingHistory, ...] = ()
    """The histories in several precisions, for each rank; () if rounding was not measured."""
    dtype: torch.dtype = torch.float64
    """The coarsest dtype that the computation uses. The dtype of each tensor counts, too."""


class TensorDifference(NamedTuple):
    """A tensor of a rank with wrong values."""

    rank: int
    code: Code
    name: str
    iteration: int | None
    found: str
    expected: str
    actual: Tensor | None
    wanted: Tensor | None
    allowed: float
    """The largest error that the tolerance allows in the tensor."""


def reference_by_oracle(training: Training, world_size: int) -> TrainingReference:
    """Return the oracle's histories of a declared training. Raises UsageError if it has no defined result."""
    coarse, fine = (
        oracle.train_plainly(replace(training, dtype=dtype), world_size) for dtype in (torch.float32, torch.float64)
    )
    plain = fine
    if training.communication_hook is not None or training.mixed_precision is not None:
        exact = replace(training, dtype=torch.float64, communication_hook=None, mixed_precision=None)
        plain = oracle.train_plainly(exact, world_size)
    rounding = (RoundingHistory(*each) for each in zip(coarse, fine, plain, strict=True))
    own = coarse if training.dtype is torch.float32 else fine
    return TrainingReference(own, tuple(rounding), training.dtype)


def find_first_differences(reference: TrainingReference, returns: Sequence[object]) -> list[TensorDifference]:
    """Return the differences at the first point in time that has any, of the kind nearest to the cause.

    `returns` has a snapshot or a history of each rank; UsageError is raised for anything else. Iterations are compared
    in order, and in each of them gradients before parameters before buffers.
    """
    histories = [_check_history(rank, returned) for rank, returned in enumerate(returns)]
    longest = max(reference.histories, key=len)
    for moment in longest:
        for code, kind in _KINDS:
            found = [
                each
                for rank, own in enumerate(histories)
                for each in _find_differences(rank, own, reference, moment.iteration, code, kind)
            ]
            if not found and code is Code.DIVERGENCE_PARAMETERS:
                found = list(_uncovered_parameters(histories, moment))
            if found:
                return found
    return []


def _check_history(rank: int, returned: object) -> History:
    history = returned if isinstance(returned, tuple) else (returned,)
    if not all(isinstance(moment, Snapshot) for moment in history):
        raise UsageError(
            f"rank {rank} returned {type(returned).__name__}, expected a Snapshot, or a tuple of them, as there is a "
            "reference to compare with: end the program with `return snapshot(model)`"
        )
    return history


def _snapshot_index(history: History, iteration: int | None) -> int | None:
    """Return the index in a history of the snapshot after an iteration; None if the history has no such snapshot."""
    return next((index for index, moment in enumerate(history) if moment.iteration == iteration), None)


def _find_differences(
    rank: int, returned: History, reference: TrainingReference, iteration: int | None, code: Code, kind: str
) -> Iterator[TensorDifference]:
    """Yield the tensors of one kind whose values on a rank are wrong after an iteration."""
    index = _snapshot_index(reference.histories[rank], iteration)
    if index is None:
        return  # a rank without that iteration
    expected: Tensors = getattr(reference.histories[rank][index], kind)
    own = _snapshot_index(returned, iteration)
    actual: Tensors = {} if own is None else getattr(returned[own], kind)
    compressed = _compression_effect(reference, rank, index, kind)
    offsets = None if own is None else returned[own].offsets
    for name, whole in expected.items():  # the reference may lack some tensors
        found = actual.get(name)
        if offsets is not None and name not in actual:
            continue  # another rank's part
        wanted = whole if offsets is None else _part_of_tensor(whole, found, offsets.get(name))
        allowed = _allowed_error(reference, rank, index, kind, name, whole, compressed)
        if (sides := _different_values(found, wanted, allowed)) is not None:
            yield TensorDifference(rank, code, name, iteration, *sides, found, wanted, allowed)


def _part_of_tensor(whole: Tensor | None, found: Tensor | None, offset: tuple[int, ...] | None) -> Tensor | None:
    if whole is None or found is None or offset is None:
        return whole
    return whole[region_of(offset, found.shape)]


def _uncovered_parameters(histories: Sequence[History], expected: Snapshot) -> Iterator[TensorDifference]:
    """Yield the parameters that have elements which no rank holds."""
    moments = [
        history[index] for history in histories if (index := _snapshot_index(history, expected.iteration)) is not None
    ]
    if len(moments) < len(histories) or any(each.offsets is None for each in moments):
        return
    for name, whole in expected.parameters.items():
        assert whole is not None
        is_held = torch.zeros(whole.shape, dtype=torch.bool)
        for moment in moments:
            own = moment.parameters.get(name)
            if own is not None:
                part = _part_of_tensor(is_held, own, (moment.offsets or {}).get(name))
                assert part is not None
                part.fill_(True)
        if not is_held.all():
            for rank in range(len(histories)):
                left = f"{int(is_held.sum())} of {is_held.numel()} elements on all ranks together"
                yield TensorDifference(
                    rank, Code.DIVERGENCE_PARAMETERS, name, expected.iteration, left, "all", None, whole, 0.0
                )


def _allowed_error(
    reference: TrainingReference, rank: int, index: int, kind: str, name: str, wanted: Tensor | None, compressed: float
) -> float:
    """Return the largest error that is allowed in a tensor, see Note [Tolerance]."""
    if wanted is None or not wanted.is_floating_point():
        return 0.0
    step = max(torch.finfo(wanted.dtype).eps, torch.finfo(reference.dtype).eps)
    if not reference.rounding:
        tensors = [each for each in getattr(reference.histories[rank][index], kind).values() if each is not None]
        return _ROUNDINGS * step * max(_largest_magnitude(each) for each in tensors if each.is_floating_point())
    rounding = reference.rounding[rank]
    coarse, fine = (getattr(history[index], kind) for history in (rounding.coarse, rounding.fine))
    own = step / torch.finfo(torch.float32).eps
    rounded = step * _largest_magnitude(wanted) + own * _largest_magnitude(coarse[name].double() - fine[name].double())
    return _ROUNDINGS * rounded + _COMPRESSIONS * compressed


def _compression_effect(reference: TrainingReference, rank: int, index: int, kind: str) -> float:
    """Return the largest effect of compression on any tensor of a kind; on a single one it may be small by chance."""
    if not reference.rounding or reference.rounding[rank].uncompressed is reference.rounding[rank].fine:
        return 0.0
    rounding = reference.rounding[rank]
    fine, uncompressed = (getattr(history[index], kind) for history in (rounding.fine, rounding.uncompressed))
    pairs = [(tensor, uncompressed[name]) for name, tensor in fine.items()]
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    return max((_largest_magnitude(one.double() - other.double()) for one, other in both), default=0.0)


def _different_values(actual: Tensor | None, wanted: Tensor | None, allowed: float) -> tuple[str, str] | None:
    """Return the found and the expected value at the element that differs most; None if the tensors agree."""
    if actual is None or wanted is None:
        return None if actual is wanted else (_tensor_text(actual), _tensor_text(wanted))
    if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
        return _tensor_text(actual), _tensor_text(wanted)
    apart = distances(actual, wanted)
    if not apart.numel() or float(apart.max()) <= allowed:
        return None
    index = int(apart.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(index), apart.shape)]
    return f"{actual.flatten()[index].item():.6g} at {where}", f"{wanted.flatten()[index].item():.6g}"


def _tensor_text(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _largest_magnitude(tensor: Tensor) -> float:
    """Return the largest magnitude of the tensor's finite elements; an overflow says nothing about rounding."""
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def find_divergence(reference: TrainingReference | Snapshot, result: Result) -> Finding | None:
    """Return a finding on the first point in time at which ranks hold wrong values; None if all values are right.

    If the reference is one snapshot, every rank should return it. Raises UsageError if ranks returned no snapshots.
    """
    if isinstance(reference, Snapshot):
        reference = TrainingReference(((reference,),) * result.world_size)
    found = find_first_differences(reference, result.returns)
    return _divergence_finding(found, result) if found else None


def _divergence_finding(found: Sequence[TensorDifference], result: Result) -> Finding:
    """Return a finding on all ranks that differ in the same tensor as the first of the differences."""
    first = found[0]
    alike = [each for each in found if each.name == first.name]
    ranks = tuple(each.rank for each in alike)
    when = "at the end" if first.iteration is None else f"after iteration {first.iteration}"
    what = f"{'the gradient of ' if first.code is Code.DIVERGENCE_GRADIENTS else ''}{first.name}"
    summary = f"{what} differs from plain training on {rank_list(ranks)} {when}"
    sites = [_last_call_site(result.trace, each.rank, first.iteration) for each in alike]
    rows = [
        TableRow(each.rank, f"{first.name} = {each.found}, expected {each.expected}", str(site or ""))
        for each, site in zip(alike, sites, strict=True)
    ]
    lines: list[str | LabelledLine] = [f"DIVERGENCE  {first.code}  {when}", f"  {summary}", *format_table(rows)]
    lines += advise_deviation(_describe_deviation(found, ranks, result), result.joins)
    return Finding(first.code, ranks, summary, tuple(lines), tuple(dict.fromkeys(site for site in sites if site)))


def _describe_deviation(
    found: Sequence[TensorDifference], ranks: tuple[int, ...], result: Result
) -> ReferenceDeviation:
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.call is not None]
    is_by_hand = all(call.origin.phase is Phase.USER for call in calls)
    return ReferenceDeviation(
        found[0].code,
        ranks,
        result.world_size,
        is_no_number=any(_is_finite_text(each.expected) and not _is_finite_text(each.found) for each in found),
        factor=_common_factor(found),
        is_by_hand=is_by_hand and any("reduce" in call.operation for call in calls),
    )


def _common_factor(found: Sequence[TensorDifference]) -> float | None:
    """Return the factor by which all elements differ from the reference; None if there is no common factor."""
    pairs = [
        (each.actual.double().flatten(), each.wanted.double().flatten())
        for each in found
        if each.actual is not None and each.wanted is not None and each.actual.shape == each.wanted.shape
    ]
    if len(pairs) < len(found):
        return None
    actual, wanted = (torch.cat(side) for side in zip(*pairs, strict=True))
    factor = fitted_factor(actual, wanted)
    apart = (actual - factor * wanted).abs()
    is_one = bool((apart <= max(1.0, abs(factor)) * max(each.allowed for each in found)).all())
    return factor if factor and is_one and len(wanted.abs().unique()) > 1 else None


def _is_finite_text(text: str) -> bool:
    """Return False for the text of a float that is nan or infinite."""
    return not text.lstrip("-").startswith(("nan", "inf"))


def _last_call_site(trace: Trace, rank: int, iteration: int | None) -> Site | None:
    """Return the line of a rank's last call before the optimizer step of an iteration, or if None, before the end."""
    site = None
    steps = 0
    for event in trace:
        if event.rank == rank and event.kind is EventKind.STEP:
            steps += 1
            if iteration is not None and steps > iteration:
                return site
        elif event.rank == rank and event.kind is EventKind.ISSUE and event.call is not None:
            site = event.call.site
    return site
