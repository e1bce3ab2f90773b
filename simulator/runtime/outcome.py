"""What ranks raised, turned into findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.rank_errors import (
    FailedBarrier,
    MissingKeys,
    Reason,
    kind,
    ran_out,
    rank_error,
    unused_indices,
)
from ddpsim.simulator.runtime.call_sites import site_of_error, traceback_text
from ddpsim.simulator.verdict import Finding

NameParameters = Callable[[int, Sequence[int]], Sequence[str]]
"""The names of a rank's parameters, by their indices in its wrapper; () if they cannot be told."""


class Raised(NamedTuple):
    """What a rank raised, as words."""

    line: str
    """Type and message, in one line."""
    site: Site | None
    traceback: str
    unused: tuple[str, ...]
    """The parameters that it says got no gradient."""
    poisoned: tuple[Call, ...] = ()
    """The rank's calls whose results it could not have yet, and that hold what shows."""
    reason: Reason | None = None
    """What is known of it besides."""


def told(
    rank: int, error: BaseException, name_parameters: NameParameters | None = None, poisoned: Sequence[Call] = ()
) -> Raised:
    """What an error of a rank tells."""
    unused = tuple(_unused(rank, error, name_parameters))
    reason = getattr(error, "reason", None)
    return Raised(
        one_line(error),
        site_of_error(error),
        traceback_text(error),
        unused,
        tuple(poisoned),
        reason if isinstance(reason, (FailedBarrier, MissingKeys)) else None,
    )


def raised(errors: Mapping[int, Raised]) -> list[Finding]:
    """What ranks raised, in the order they did; the same error at the same line once for all.

    What finds fault with other ranks comes after the rest, which those ranks may have raised themselves.
    """
    lines = {rank: error.line for rank, error in errors.items()}
    alike: dict[object, list[int]] = {}
    for rank, error in errors.items():
        alike.setdefault(_what_is_alike(error), []).append(rank)
    found = [
        rank_error(
            {rank: lines[rank] for rank in ranks},
            errors[ranks[0]].site,
            errors[ranks[0]].traceback,
            {rank: errors[rank].unused for rank in ranks if errors[rank].unused},
            ran_out(lines),
            [call for rank in ranks for call in errors[rank].poisoned],
            errors[ranks[0]].reason,
        )
        for ranks in alike.values()
    ]
    raisers = zip(alike.values(), found, strict=True)
    return [each for _, each in sorted(raisers, key=lambda pair: _is_of_others(errors[pair[0][0]], *pair))]


def _what_is_alike(error: Raised) -> object:
    """What errors have in common that are told together: of one barrier that failed, whatever gloo tells each rank."""
    if isinstance(error.reason, FailedBarrier) and error.reason.missing:
        return error.reason._replace(whereabouts=()), error.site
    return kind(error.line), error.site


def _is_of_others(error: Raised, ranks: Sequence[int], finding: Finding) -> bool:
    return isinstance(error.reason, FailedBarrier) or set(ranks).isdisjoint(finding.ranks)


def _unused(rank: int, error: BaseException, name_parameters: NameParameters | None) -> Sequence[str]:
    """The parameters that an error says got no gradient: by name, or by index where names cannot be told."""
    indices = unused_indices(_message(error))
    names = name_parameters(rank, indices) if indices and name_parameters else ()
    return names or [f"parameter {index}" for index in indices]


def one_line(error: BaseException) -> str:
    """Type and message of an exception."""
    message = _message(error).split("\n", 1)[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _message(error: BaseException) -> str:
    try:
        return str(error).strip()
    except (Exception, SystemExit):  # the message is the user's code, too
        return "<its message cannot be printed>"
