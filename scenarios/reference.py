"""References: what ranks should return, by plain single-process training, and the finding where they do not.

Note [Tolerance]. How far rounding may carry a training off is not guessed: the oracle runs in float32 and in float64,
and what lies between the two is how much rounding this very training shows in float32; in another dtype it is as much
more or less as that is coarser or finer. Where the numbers come from a function of the scenario's own instead, the
magnitude of the largest element of all tensors of the same kind stands for that: one tensor alone may be small because
what it adds up nearly cancels, and its rounding is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scenarios import oracle
from scenarios.snapshot import History, Snapshot
from scenarios.training import Training
from simulator import Code, Finding, Result, Trace
from simulator.calls import Phase, Site
from simulator.diagnosis.explain import rank_list, table
from simulator.diagnosis.reference_causes import Deviation, advise
from simulator.events import EventKind

_ROUNDINGS = 64
"""So many times the rounding of the oracle, and of one operation on the largest element, may a training show."""

_KINDS = (
    (Code.DIVERGENCE_GRADIENTS, "gradients"),
    (Code.DIVERGENCE_PARAMETERS, "parameters"),
    (Code.DIVERGENCE_BUFFERS, "buffers"),
)
"""In the order in which a training computes them: what differs first is nearest to the cause."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What each rank should return."""

    histories: tuple[History, ...]
    rounding: tuple[tuple[History, History], ...] = ()
    """By rank, the same in float32 and in float64, see Note [Tolerance]."""
    precision: torch.dtype | None = None
    """The coarsest dtype that numbers went through; None for each tensor's own."""


class _Difference(NamedTuple):
    rank: int
    code: Code
    name: str
    iteration: int | None
    found: str
    expected: str
    actual: Tensor | None
    wanted: Tensor | None
    allowed: float
    """How far they may be apart."""


def by_oracle(training: Training, world_size: int) -> Reference:
    """What the oracle says of a declared training. Raises UsageError if it has nothing to say."""
    coarse, fine = (
        oracle.train(replace(training, dtype=dtype), world_size) for dtype in (torch.float32, torch.float64)
    )
    own = {torch.float32: coarse, torch.float64: fine}.get(training.dtype) or oracle.train(training, world_size)
    precision = oracle.dtype_of(training.communication_hook) or training.dtype
    return Reference(own, tuple(zip(coarse, fine, strict=True)), precision)


def divergence_from(reference: Reference | Snapshot, result: Result) -> Finding | None:
    """The finding for the first moment at which ranks do not hold what they should; None if all do.

    A snapshot is what every rank should return. Moments are compared in the order of iterations, and at each of them
    gradients before parameters before buffers.
    """
    if isinstance(reference, Snapshot):
        reference = Reference(((reference,),) * result.world_size)
    returned = [value if isinstance(value, tuple) else (value,) for value in result.returns]
    for iteration in _iterations(reference.histories):
        for code, kind in _KINDS:
            found = [
                each
                for rank, own in enumerate(returned)
                for each in _differences(rank, own, reference, iteration, code, kind)
            ]
            if found:
                return _finding(found, result)
    return None


def _iterations(histories: Sequence[History]) -> Iterator[int | None]:
    """The moments of the longest history; each is known by its iteration, the last one by None."""
    longest = max(histories, key=len)
    return (moment.iteration for moment in longest)


def _differences(
    rank: int, returned: History, reference: Reference, iteration: int | None, code: Code, kind: str
) -> Iterator[_Difference]:
    """The tensors of one kind in which a rank differs after an iteration."""
    index = next((i for i, moment in enumerate(reference.histories[rank]) if moment.iteration == iteration), None)
    if index is None:
        return  # a rank without that iteration
    actual = getattr(returned[index], kind)
    for name, wanted in getattr(reference.histories[rank][index], kind).items():
        allowed = _allowed(reference, rank, index, kind, name, wanted)
        own = actual.get(name)
        if (sides := _sides(own, wanted, allowed)) is not None:
            yield _Difference(rank, code, name, iteration, *sides, own, wanted, allowed)


def _allowed(reference: Reference, rank: int, index: int, kind: str, name: str, wanted: Tensor | None) -> float:
    """How far a tensor may be off, see Note [Tolerance]."""
    if wanted is None or not wanted.is_floating_point():
        return 0.0
    step = torch.finfo(reference.precision or wanted.dtype).eps
    if not reference.rounding:
        tensors = getattr(reference.histories[rank][index], kind).values()
        return _ROUNDINGS * step * max(_largest(each) for each in tensors if _is_float(each))
    coarse, fine = (getattr(history[index], kind)[name] for history in reference.rounding[rank])
    own = torch.finfo(wanted.dtype).eps / torch.finfo(torch.float32).eps
    return _ROUNDINGS * (step * _largest(wanted) + own * _largest(coarse.double() - fine.double()))


def _sides(actual: Tensor | None, wanted: Tensor | None, allowed: float) -> tuple[str, str] | None:
    """What is there and what should be, where they differ most; None if they agree."""
    if actual is None or wanted is None:
        return None if actual is wanted else (_text(actual), _text(wanted))
    if actual.shape != wanted.shape:
        return f"shape {list(actual.shape)}", f"shape {list(wanted.shape)}"
    apart = (actual.double() - wanted.double()).abs()
    apart = torch.where(torch.isnan(apart), torch.inf, apart)
    if not apart.numel() or float(apart.max()) <= allowed:
        return None
    place = int(apart.argmax())
    where = [int(i) for i in torch.unravel_index(torch.tensor(place), apart.shape)]
    return f"{actual.flatten()[place].item():.6g} at {where}", f"{wanted.flatten()[place].item():.6g}"


def _text(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"shape {list(tensor.shape)}"


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _is_float(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()


def _finding(found: Sequence[_Difference], result: Result) -> Finding:
    """The ranks that differ in what the first of them does."""
    first = found[0]
    alike = [each for each in found if each.name == first.name]
    ranks = tuple(each.rank for each in alike)
    when = "at the end" if first.iteration is None else f"after iteration {first.iteration}"
    what = f"{'the gradient of ' if first.code is Code.DIVERGENCE_GRADIENTS else ''}{first.name}"
    summary = f"{what} differs from plain training on {rank_list(ranks)} {when}"
    sites = [_site(result.trace, each.rank, first.iteration) for each in alike]
    rows = [
        (each.rank, f"{first.name} = {each.found}, expected {each.expected}", str(site or ""), "")
        for each, site in zip(alike, sites, strict=True)
    ]
    lines = [
        f"DIVERGENCE  {first.code}  {when}",
        f"  {summary}",
        *table(rows),
        *advise(_deviation(found, ranks, result), result.joins),
    ]
    return Finding(first.code, ranks, summary, "\n".join(lines), tuple(dict.fromkeys(site for site in sites if site)))


def _deviation(found: Sequence[_Difference], ranks: tuple[int, ...], result: Result) -> Deviation:
    calls = [event.call for event in result.trace if event.kind is EventKind.ISSUE and event.call is not None]
    is_by_hand = all(call.origin.phase is Phase.USER for call in calls)
    return Deviation(
        found[0].code,
        ranks,
        result.world_size,
        is_no_number=any(_is_number(each.expected) and not _is_number(each.found) for each in found),
        factor=_factor(found),
        is_by_hand=is_by_hand and any("reduce" in call.operation for call in calls),
    )


def _factor(found: Sequence[_Difference]) -> float | None:
    """What plain training's elements are multiplied by; None if that is no one number, or they are all alike."""
    pairs = [
        (each.actual.double().flatten(), each.wanted.double().flatten())
        for each in found
        if each.actual is not None and each.wanted is not None and each.actual.shape == each.wanted.shape
    ]
    if len(pairs) < len(found):
        return None
    actual, wanted = (torch.cat(side) for side in zip(*pairs, strict=True))
    factor = float(actual.dot(wanted) / wanted.dot(wanted))
    apart = (actual - factor * wanted).abs()
    is_one = bool((apart <= max(1.0, abs(factor)) * max(each.allowed for each in found)).all())
    return factor if factor and is_one and len(wanted.abs().unique()) > 1 else None


def _is_number(text: str) -> bool:
    """False for what a float that is nan or infinite reads like."""
    return not text.lstrip("-").startswith(("nan", "inf"))


def _site(trace: Trace, rank: int, iteration: int | None) -> Site | None:
    """The line of a rank's last call before the optimizer step that ends an iteration; the last call at the end."""
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
