"""Findings for exceptions of a rank's program, and for calls that ranks made while an exception ended their program.

Known errors are recognised by words of their text or, for the simulator's own errors, by the name of their type.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.explain import (
    put_verb_in_plural,
    ranks_outside_largest,
    shorten_text,
    summarized_finding,
)
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, join_names, rank_list, ranks_by_value

_OTHER_COUNT = "DDP expects same model across all ranks"
_OTHER_SHAPE = "of the same param in process"
_NO_MEMBER = "is not part of group"
_RAN_OUT = "exhausted all inputs"
_REACHED_BARRIER = "successfully reached monitoredBarrier, but received errors"
_OTHERS_RAN_OUT = "at least one rank that exhausted inputs"

SERVER_ENDED = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
OLD_ADDRESS = "connectFullMesh failed: the store still has"
OF_ATTEMPT = "of an earlier group or attempt"

LOST = "RankLost"
"""Stands for an error's type if the rank's process has ended; the message says how the process ended."""

_BY_WORDS = (
    (f"{LOST}: ended by os._exit(", Cause.EXITED),
    ("Your training graph has changed in this iteration", Cause.GRAPH_CHANGED),
    ("this is not compatible with static_graph", Cause.UNUSED_IN_STATIC_GRAPH),
    ("Expected to have finished reduction in the prior iteration", Cause.UNUSED_PARAMETERS),
    ("Expected to mark a variable ready only once", Cause.READY_TWICE),
    ("more gradients in this backward than expected", Cause.READY_TWICE),
    ("expect_autograd_hooks_", Cause.BACKWARD_NOT_ANNOUNCED),
    ("has been modified by an inplace operation", Cause.BUFFERS_OVERWRITTEN),
    ("does not require grad and does not have a grad_fn", Cause.LOSS_DETACHED),
    ("doesn't have any parameters that require a gradient", Cause.NOTHING_TO_TRAIN),
    (_OTHER_COUNT, Cause.MODELS_DIFFER),
    (_OTHER_SHAPE, Cause.MODELS_DIFFER),
    ("Expected more than 1 value per channel when training", Cause.TOO_SMALL_A_BATCH),
    ("numel() == 0", Cause.TOO_SMALL_A_BATCH),
    ("of 0 elements", Cause.TOO_SMALL_A_BATCH),
    ("Default process group has not been initialized", Cause.GROUP_GONE),
    ("The client socket has timed out after", Cause.NO_STORE_THERE),
    (SERVER_ENDED, Cause.STORE_SERVER_ENDED),
    ("DistNetworkError: Broken pipe", Cause.STORE_SERVER_ENDED),
    (OF_ATTEMPT, Cause.ADDRESSES_OF_ATTEMPT),
    (OLD_ADDRESS, Cause.OLD_ADDRESSES),
    ("No module named 'triton", Cause.TRITON_MISSING),
    (_NO_MEMBER, Cause.GROUP_RANK_AS_ROOT),
    ("trying to initialize the default process group twice", Cause.INITIALISED_TWICE),
    ("Duplicate GPU detected", Cause.ONE_GPU_FOR_TWO),
    ("No backend type associated with device type cpu", Cause.TENSOR_NOT_ON_GPU),
    ("SyncBatchNorm layers only work with GPU modules", Cause.SYNC_BATCH_NORM_ON_CPU),
    ("SyncBatchNorm expected input tensor to be on GPU", Cause.SYNC_BATCH_NORM_ON_CPU),
    (_RAN_OUT, Cause.THROWN_BY_JOIN),
    (_OTHERS_RAN_OUT, Cause.THROWN_BY_JOIN),
    ("(throw_on_early_termination)", Cause.THROWN_BY_JOIN),
    ("needs what only its root has", Cause.ROOT_HAS_JOINED),
)
_BELOW = (
    (_NO_MEMBER, r"\.backward\(.*\n\S", Cause.GROUP_RANK_IN_BACKWARD),
    ("must match the size of tensor", r"\.backward\(.*\n  File ", Cause.RAISED_IN_HOOK),
    # The same by torch up to 2.14 and from 2.15 on.
    ("Expected a proper Tensor but got None", r"\b(join|Join)\(.*\n\S", Cause.NO_GRADIENT_IN_JOIN),
    ("!bucket.lengths.empty() INTERNAL ASSERT FAILED", r"\b(join|Join)\(.*\n\S", Cause.NO_GRADIENT_IN_JOIN),
)
"""Causes of errors, by words of the error and a pattern of the user's line in the traceback."""

_BY_TYPE = {
    "InjectedCrashError": Cause.FAULT_INJECTED,
    "ReplicaMismatchError": Cause.MODELS_DIFFER,
    "ParameterChangedError": Cause.PARAMETERS_CHANGED,
    "OpenBackwardError": Cause.UNUSED_PARAMETERS,
    "BypassedBackwardError": Cause.BACKWARD_NOT_ANNOUNCED,
    "JoinError": Cause.JOIN_BROKEN,
    LOST: Cause.PROCESS_ENDED,
}

FROZEN, REPLACED = " (frozen now)", " (replaced since)"
"""Suffixes of the name of a parameter that got no gradient: it no longer requires one, or another has its place."""

_RANKS = r"\branks? (\d+(?:(?:, | and )\d+)*)"
_FAULTS = {
    "ReplicaMismatchError": _RANKS + r" ha(?:s|ve)\b",
    "OpenBackwardError": r"(?<!missing) on " + _RANKS,
    "JoinError": _RANKS + r"(?: left it by|,? (?:which )?ran out of input)",
}
"""By error type: the pattern of the ranks at fault in the error's text, since other ranks may raise the error, too."""


class FailedBarrier(NamedTuple):
    """A call that raised on every rank that made it, because others did not: a monitored_barrier, or a time-out."""

    call: str
    """The call as text: `monitored_barrier #2`."""
    limit: str
    """The barrier's timeout as text: `300 ms`."""
    missing: tuple[int, ...]
    """The ranks that had not reached the barrier in time; empty if its timeout was zero."""
    whereabouts: tuple[str, ...] = ()
    """A line of text for each missing rank: where the rank was."""


class MissingKeys(NamedTuple):
    """The store keys that no rank had set when a wait for these keys timed out."""

    keys: tuple[str, ...]


class ClosedConnection(NamedTuple):
    """A rank closed its connections to the others of a group."""

    rank: int
    how: str
    """What the rank did, as a verb: `gave up barrier #0 after 8000 ms`."""
    is_tried: bool = False
    """True if the error only tries whether the program catches it: otherwise the deadlock is reported."""


class NeedsGpu(NamedTuple):
    """Something that only a GPU runs."""

    fact: str
    """Says what needs it, as in `the kernel add_kernel of triton needs a GPU`."""


KnownErrorFacts = FailedBarrier | MissingKeys | ClosedConnection | NeedsGpu
"""Facts about an error that the simulator raises in place of torch, with torch's text."""


def error_kind(error: str) -> str:
    """Return the part of an error's text that is equal on all ranks. `error` is the type and message in one line."""
    if _NO_MEMBER in error:
        return error.partition(_NO_MEMBER)[0]  # groups of other ranks have other names
    return next((words for words in (_OTHER_COUNT, _OTHER_SHAPE, _RAN_OUT, _REACHED_BARRIER) if words in error), error)


def error_as_verb(error: str, longest: int = 72) -> str:
    """Return an error (type and message in one line) as a verb: `raised KeyError: 'a'`, `was killed by SIGSEGV`."""
    type_name, _, message = error.partition(": ")
    return message if type_name == LOST else f"raised {shorten_text(error, longest)}"


def unused_parameter_indices(message: str) -> tuple[int, ...]:
    """Return the indices of parameters without gradient, from torch's error text; () if it lists none."""
    found = re.search(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)", message)
    return tuple(map(int, found[1].split())) if found else ()


def ranks_out_of_input(errors: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks whose error says that the rank itself ran out of input."""
    return tuple(sorted(rank for rank, error in errors.items() if _RAN_OUT in error))


def rank_error_finding(
    errors: Mapping[int, str],
    site: Site | None,
    traceback_text: str,
    unused: Mapping[int, Sequence[str]],
    out_of_input: tuple[int, ...] = (),
    poisoned: Sequence[Call] = (),
    reason: KnownErrorFacts | None = None,
    *,
    is_leaving: bool = False,
) -> Finding:
    """Return the finding for equal exceptions that ranks raised at one line.

    `errors` has type and message by rank; `unused` are parameters without gradient. `out_of_input` are the ranks at
    fault if others only report that some rank ran out of input. `poisoned` are calls of these ranks in flight: the
    simulator filled their tensors with NaN or the largest number. `is_leaving`: the exception had not left the program
    when the run ended.
    """
    error = next(iter(errors.values()))
    culprits = out_of_input if out_of_input and _OTHERS_RAN_OUT in error else _ranks_at_fault(errors)
    if isinstance(reason, FailedBarrier):
        culprits = reason.missing or culprits
    elif isinstance(reason, ClosedConnection):
        culprits = (reason.rank,)
    first, *others = _lines_by_kind(errors)
    summary = first + (f" at {site}" if site else "")
    lines: list[str | LabelledLine] = ["  " + line for line in (*traceback_text.rstrip().splitlines(), *others)]
    cause = _find_cause(error, unused, traceback_text)
    early = poisoned if cause is None and reason is None else ()
    cause = Cause.RAISED_AND_STILL_THERE if cause is None and is_leaving else cause
    if reason is not None:
        lines += _advise_reason(reason, rank_list(culprits))
    else:
        lines += _advise_error(error, rank_list(culprits), unused, cause, early)
    sites = dict.fromkeys([*([site] if site else ()), *(call.site for call in early)])
    return summarized_finding(Code.RANK_ERROR, culprits, summary, lines, sites=tuple(sites))


def launcher_error_finding(error: str, site: Site | None, traceback_text: str) -> Finding:
    """Return the finding for an exception of the program that starts the ranks; no rank raised it."""
    summary = f"the program that starts the ranks {error_as_verb(error, 200)}" + (f" at {site}" if site else "")
    lines = [f"  {line}" for line in traceback_text.rstrip().splitlines()]
    sites, advice = (site,) if site else (), Cause.LAUNCHER_RAISED.lines()
    return summarized_finding(Code.RANK_ERROR, (), summary, lines, advice, sites=sites)


def _lines_by_kind(errors: Mapping[int, str]) -> list[str]:
    lines = []
    for ranks in ranks_by_value((rank, error_kind(error)) for rank, error in errors.items()).values():
        what = error_as_verb(errors[ranks[0]], 200)
        if len({errors[rank] for rank in ranks}) > 1:
            what += f" (the words of rank {ranks[0]})"
        lines.append(f"{rank_list(ranks)} {put_verb_in_plural(what) if len(ranks) > 1 else what}")
    return lines


def _ranks_at_fault(errors: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks at fault: those that the error's text names, or else all that raised it."""
    counts = {rank: found[1] for rank, error in errors.items() if (found := re.search(r"has (\d+) params", error))}
    if len(counts) == len(errors):
        return ranks_outside_largest(ranks_by_value(counts.items()).values())
    type_name, _, message = next(iter(errors.values())).partition(": ")
    lists = re.findall(_FAULTS[type_name], message) if type_name in _FAULTS else []
    return tuple(sorted({int(rank) for text in lists for rank in re.findall(r"\d+", text)} or errors))


def _find_cause(error: str, unused: Mapping[int, Sequence[str]], traceback_text: str) -> Advice[...] | None:
    """Return the cause of an error whose text or type is known; None for other errors."""
    type_name, _, message = error.partition(": ")
    cause = next((cause for words, cause in _BY_WORDS if words in error), _BY_TYPE.get(type_name))
    if cause is None and type_name == "UsageError" and ": " in message:
        return Cause.CALL_REFUSED
    names = [name for own in unused.values() for name in own]
    if cause is Cause.UNUSED_PARAMETERS and names and all(name.endswith((FROZEN, REPLACED)) for name in names):
        return Cause.PARAMETERS_CHANGED
    below = (each for words, path, each in _BELOW if words in error and re.search(path, traceback_text))
    return next(below, cause)


def _advise_error(
    error: str, who: str, unused: Mapping[int, Sequence[str]], cause: Advice[...] | None, early: Sequence[Call]
) -> list[LabelledLine]:
    message = error.partition(": ")[2]
    if cause is Cause.CALL_REFUSED:
        return Cause.CALL_REFUSED.lines(fact=message.rpartition(": ")[2])
    if early:
        calls = dict.fromkeys(f"{call.title} ({call.site})" for call in early)
        is_undefined = all(call.leaves_undefined for call in early)
        poisoned = Cause.RAISED_OVER_UNDEFINED if is_undefined else Cause.RAISED_IN_FLIGHT
        return poisoned.lines(who=who, operation=join_names(list(calls)))
    found = re.search(r"no gradient came for (.+? on ranks? \d+(?:, \d+)*)", message)
    parameters = _unused_parameters_text(unused) or (found[1] if found else "some parameters")
    return (cause or Cause.RAISED).lines(who=who, parameters=parameters)


def _advise_reason(reason: KnownErrorFacts, who: str) -> list[str | LabelledLine]:
    if isinstance(reason, MissingKeys):
        return [*Cause.KEYS_NOT_IN_TIME.lines(who=who, fact=join_names(list(map(repr, reason.keys))))]
    if isinstance(reason, NeedsGpu):
        return [*Cause.NEEDS_GPU.lines(fact=reason.fact)]
    if isinstance(reason, ClosedConnection):
        return [*Cause.CONNECTION_CLOSED.lines(who=who, fact=reason.how)]
    if reason.missing:
        advice = Cause.BARRIER_MISSED.lines(who=who, operation=reason.call, fact=reason.limit)
        return ["  when the time was over:", *reason.whereabouts, *advice]
    return [*Cause.BARRIER_WITHOUT_TIME.lines(who=who, operation=reason.call)]


def _unused_parameters_text(unused: Mapping[int, Sequence[str]]) -> str:
    """Return the unused parameters as text: `a.weight, a.bias`, or with ranks if the ranks differ."""
    ranks = ranks_by_value((rank, join_names(names)) for rank, names in sorted(unused.items()))
    if len(ranks) == 1:
        return next(iter(ranks))
    return " and ".join(f"{names} on {rank_list(who)}" for names, who in ranks.items())


# --- calls made while an exception unwound, in `finally` for example --------------------------------------------------

MAY_FOLLOW = ("mismatch.", Code.DEADLOCK_CYCLE.value, Code.DEADLOCK_MISSING_RANK.value)
"""Codes of findings that may follow from an exception or uneven data; a deadlock on a dead rank names the exception."""


def mark_consequences(findings: Sequence[Finding], errors: Mapping[int, str]) -> list[Finding]:
    """Return the findings; one says so if an exception in `errors` was ending the program of ranks that cause it."""
    return [_make_consequence(finding, errors) if _is_consequence(finding, errors) else finding for finding in findings]


def _is_consequence(finding: Finding, errors: Collection[int]) -> bool:
    """Return True if the finding is caused by calls that ranks made while an exception ended their program."""
    if not errors or not finding.code.value.startswith(MAY_FOLLOW):
        return False
    callers = {call.rank for call in finding.calls}
    if finding.code.value.startswith("mismatch."):
        return not callers.isdisjoint(errors) and not callers.issubset(errors)
    return not set(finding.ranks).isdisjoint(errors) or (bool(callers) and callers.issubset(errors))


def _make_consequence(finding: Finding, errors: Mapping[int, str]) -> Finding:
    ranks = tuple(sorted({*(call.rank for call in finding.calls), *finding.ranks} & errors.keys()))
    calls = dict.fromkeys(call.title for call in finding.calls if call.rank in ranks)
    kinds = join_names(list(dict.fromkeys(error_as_verb(errors[rank]).partition(":")[0] for rank in ranks)))
    advice = Cause.CALLS_ON_ITS_WAY_OUT.lines(who=rank_list(ranks), operation=" and ".join(calls), fact=kinds)
    kept = [line for line in finding.lines if not (isinstance(line, LabelledLine) and line.label in {"cause", "try"})]
    return dataclasses.replace(finding, ranks=ranks, lines=(*kept, *advice))
