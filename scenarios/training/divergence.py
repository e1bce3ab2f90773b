"""Make a finding if ranks do not hold the numbers that training on one process gives."""

from collections.abc import Sequence

import torch

from ddpsim import Code, Finding, Result, Trace
from ddpsim.scenarios.training.reference import TensorDifference, TrainingReference, find_first_differences
from ddpsim.scenarios.training.snapshot import Snapshot
from ddpsim.simulator.calls import Phase, Site
from ddpsim.simulator.diagnosis.explain import TableRow, format_table
from ddpsim.simulator.diagnosis.replica_divergence import ReferenceDeviation, advise_deviation
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.wording import LabelledLine, rank_list


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
    factor = float(actual.dot(wanted) / wanted.dot(wanted))
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
