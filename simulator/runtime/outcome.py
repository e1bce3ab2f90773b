"""Turns the exceptions of ranks into findings."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis import rank_errors
from ddpsim.simulator.errors import error_line, error_message
from ddpsim.simulator.runtime.call_sites import format_user_traceback, site_of_error
from ddpsim.simulator.verdict import Finding
from ddpsim.simulator.wording import ranks_by_value

NameParameters = Callable[[int, Sequence[int]], Sequence[str]]
"""A function that takes a rank and indices of parameters in its DDP wrapper, and returns their names; () if unknown."""


class RaisedError(NamedTuple):
    """The description of an exception that a rank raised."""

    line: str
    """Type and message, in one line."""
    site: Site | None
    traceback: str
    unused: tuple[str, ...]
    """The parameters that got no gradient, according to the message."""
    poisoned: tuple[Call, ...] = ()
    """The rank's calls that it has not waited for, whose outputs hold poison (values that show early reads)."""
    reason: rank_errors.KnownErrorFacts | None = None
    is_told: bool = False
    """True if a finding of its own tells of it, as of a mismatch under TORCH_DISTRIBUTED_DEBUG=DETAIL."""


def describe_error(
    rank: int, error: BaseException, name_parameters: NameParameters | None = None, poisoned: Sequence[Call] = ()
) -> RaisedError:
    """Describe an exception of a rank."""
    unused = tuple(_unused_parameters(rank, error, name_parameters))
    reason = getattr(error, "reason", None) or _what_needs_gpu(error)
    return RaisedError(
        error_line(error),
        site_of_error(error),
        format_user_traceback(error),
        unused,
        tuple(poisoned),
        reason if isinstance(reason, rank_errors.KnownErrorFacts) else None,
        getattr(error, "is_told", False) is True,
    )


def _what_needs_gpu(error: BaseException) -> rank_errors.NeedsGpu | None:
    """Return what an error says, in words of triton or torch, that it needs a GPU or its toolkit; None for others."""
    message = error_message(error)
    is_built = message.startswith("CUDA_HOME environment variable is not set")
    if not is_built and not re.search(r"^0 active drivers|^libcuda\.so cannot found", message):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    places = [(str(frame.f_globals.get("__name__")), frame) for frame in frames]
    if is_built:
        names = (frame.f_locals.get("name") for module, frame in places if module == "torch.utils.cpp_extension")
        name = next(filter(None, names), "of CUDA sources")
        return rank_errors.NeedsGpu(f"the extension {name} needs the toolkit of a GPU (CUDA_HOME) to be built")
    runners = [frame.f_locals.get("self") for module, frame in places if module.startswith("triton.runtime.")]
    kernel = next(filter(None, (getattr(each, "__name__", None) for each in runners)), None)
    return rank_errors.NeedsGpu(f"{'triton' if kernel is None else f'the kernel {kernel} of triton'} needs a GPU")


def findings_of_errors(raised: Mapping[int, RaisedError], leaving: Mapping[int, RaisedError]) -> list[Finding]:
    """Return the findings on exceptions, in the order raised. Those that are `leaving` had not left the program when
    the run ended.

    Equal errors at the same line of several ranks are one finding. Errors that blame other ranks come last, as those
    ranks may have raised errors of their own.
    """
    errors = {**raised, **leaving}
    lines = {rank: error.line for rank, error in errors.items()}
    alike = ranks_by_value((rank, _merge_key(error)) for rank, error in errors.items() if not error.is_told)
    found = [
        rank_errors.rank_error_finding(
            {rank: lines[rank] for rank in ranks},
            errors[ranks[0]].site,
            errors[ranks[0]].traceback,
            {rank: errors[rank].unused for rank in ranks if errors[rank].unused},
            rank_errors.ranks_out_of_input(lines),
            [call for rank in ranks for call in errors[rank].poisoned],
            errors[ranks[0]].reason,
            is_leaving=ranks[0] in leaving,
        )
        for ranks in alike.values()
    ]
    raisers = zip(alike.values(), found, strict=True)
    return [each for _, each in sorted(raisers, key=lambda pair: _blames_other_ranks(errors[pair[0][0]], *pair))]


def _merge_key(error: RaisedError) -> object:
    """Return a key that is equal for errors that make one finding, as all errors of one failed barrier do."""
    if isinstance(error.reason, rank_errors.FailedBarrier) and error.reason.missing:
        return error.reason._replace(whereabouts=()), error.site
    return rank_errors.error_kind(error.line), error.site


def _blames_other_ranks(error: RaisedError, ranks: Sequence[int], finding: Finding) -> bool:
    return isinstance(error.reason, rank_errors.FailedBarrier) or set(ranks).isdisjoint(finding.ranks)


def _unused_parameters(rank: int, error: BaseException, name_parameters: NameParameters | None) -> Sequence[str]:
    """Return the parameters that got no gradient according to DDP's error: names, or indices if names are unknown."""
    indices = rank_errors.unused_parameter_indices(error_message(error))
    names = name_parameters(rank, indices) if indices and name_parameters else ()
    return names or [f"parameter {index}" for index in indices]
