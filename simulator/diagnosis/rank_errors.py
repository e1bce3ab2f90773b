"""What a rank's own program raised, as a finding.

Known errors are told by words of their text or, for those of an engine, by the name of their type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.explain import minority, of_many, shortened
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import Line, listed, rank_list, ranks_by

_OTHER_COUNT = "DDP expects same model across all ranks"
_OTHER_SHAPE = "of the same param in process"
_NO_MEMBER = "is not part of group"
_RAN_OUT = "exhausted all inputs"
_REACHED_BARRIER = "successfully reached monitoredBarrier, but received errors"
_OTHERS_RAN_OUT = "at least one rank that exhausted inputs"

LOST = "RankLost"
"""In the place of an error's type for a rank whose process is gone; the message says what became of it."""

_BY_WORDS = (
    (f"{LOST}: ended by os._exit(", Cause.EXITED),
    ("this is not compatible with static_graph", Cause.GRAPH_CHANGED),
    ("Your training graph has changed in this iteration", Cause.GRAPH_CHANGED),
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
    (_NO_MEMBER, Cause.GROUP_RANK_AS_ROOT),
    ("trying to initialize the default process group twice", Cause.INITIALISED_TWICE),
    (_RAN_OUT, Cause.THROWN_BY_JOIN),
    (_OTHERS_RAN_OUT, Cause.THROWN_BY_JOIN),
    ("(throw_on_early_termination)", Cause.THROWN_BY_JOIN),
    ("needs what only its root has", Cause.ROOT_HAS_JOINED),
)
_BELOW = (
    ("must match the size of tensor", r"\.backward\(.*\n  File ", Cause.RAISED_IN_HOOK),
    # The same by torch up to 2.14 and from 2.15 on.
    ("Expected a proper Tensor but got None", r"\b(join|Join)\(.*\n\S", Cause.NO_GRADIENT_IN_JOIN),
    ("!bucket.lengths.empty() INTERNAL ASSERT FAILED", r"\b(join|Join)\(.*\n\S", Cause.NO_GRADIENT_IN_JOIN),
)
"""What words stand for where the user's line that is given here led to them."""

_BY_TYPE = {
    "InjectedCrashError": Cause.FAULT_INJECTED,
    "ReplicaMismatchError": Cause.MODELS_DIFFER,
    "ParameterChangedError": Cause.PARAMETERS_CHANGED,
    "OpenBackwardError": Cause.UNUSED_PARAMETERS,
    "BypassedBackwardError": Cause.BACKWARD_NOT_ANNOUNCED,
    "JoinError": Cause.JOIN_BROKEN,
    LOST: Cause.PROCESS_ENDED,
}

FROZEN = " (frozen now)"
"""What stands after the name of a parameter that got no gradient and requires none any more."""

_RANKS = r"\branks? (\d+(?:(?:, | and )\d+)*)"
_FAULTS = {
    "ReplicaMismatchError": _RANKS + r" ha(?:s|ve)\b",
    "OpenBackwardError": r"(?<!missing) on " + _RANKS,
    "JoinError": _RANKS + r"(?: left it by|,? (?:which )?ran out of input)",
}
"""How the text of an engine's error, which many ranks raise, names those it finds fault with."""


class FailedBarrier(NamedTuple):
    """A monitored_barrier that ended in an error on each rank that came to it."""

    call: str
    """`monitored_barrier #2`."""
    limit: str
    """`300 ms`."""
    missing: tuple[int, ...]
    """The ranks that had not come to it by then; none if its time-out left no time at all."""
    whereabouts: tuple[str, ...] = ()
    """A line for each of those."""


class MissingKeys(NamedTuple):
    """Keys of a store that nobody had set when a wait for them, and for others perhaps, timed out."""

    keys: tuple[str, ...]


Reason = FailedBarrier | MissingKeys
"""What the simulator knows of an error that it raises itself, besides its text, which is torch's."""


def kind(error: str) -> str:
    """What is the same in the errors of ranks that raise for one reason. `error` is type and message in one line."""
    if _NO_MEMBER in error:
        return error.partition(_NO_MEMBER)[0]  # a group's text differs between its members
    return next((words for words in (_OTHER_COUNT, _OTHER_SHAPE, _RAN_OUT, _REACHED_BARRIER) if words in error), error)


def done_by(error: str, longest: int = 72) -> str:
    """What a rank did, in words: `raised KeyError: 'a'`, or `was killed by SIGSEGV`. `error` as for `kind`."""
    type_name, _, message = error.partition(": ")
    return message if type_name == LOST else f"raised {shortened(error, longest)}"


def unused_indices(message: str) -> tuple[int, ...]:
    """Which parameters got no gradient, by index, from the whole text of torch's error; () if it tells none."""
    found = re.search(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)", message)
    return tuple(map(int, found[1].split())) if found else ()


def ran_out(errors: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks whose error says that they themselves ran out of input."""
    return tuple(sorted(rank for rank, error in errors.items() if _RAN_OUT in error))


def rank_error(
    errors: Mapping[int, str],
    site: Site | None,
    traceback_text: str,
    unused: Mapping[int, Sequence[str]],
    out_of_input: tuple[int, ...] = (),
    poisoned: Sequence[Call] = (),
    reason: Reason | None = None,
) -> Finding:
    """The finding for exceptions of one kind that left the program of ranks at one line.

    `errors` are their types and messages in one line each, `unused` the parameters that got no gradient, by rank, and
    `out_of_input` the ranks that are to blame where others only tell that some rank ran out of input. `poisoned` are
    those ranks' calls in flight whose tensors hold NaN, or the largest number of their type. Of a barrier that failed
    those are to blame that did not come.
    """
    error = next(iter(errors.values()))
    culprits = out_of_input if out_of_input and _OTHERS_RAN_OUT in error else _at_fault(errors)
    if isinstance(reason, FailedBarrier):
        culprits = reason.missing or culprits
    told, *others = _by_kind(errors)
    summary = told + (f" at {site}" if site else "")
    lines: list[str | Line] = [f"ERROR  {Code.RANK_ERROR}", f"  {summary}"]
    lines += ["  " + line for line in (*traceback_text.rstrip().splitlines(), *others)]
    if reason is not None:
        lines += _because(reason, rank_list(culprits))
        return Finding(Code.RANK_ERROR, culprits, summary, tuple(lines), (site,) if site else ())
    cause = _cause(error, unused, traceback_text)
    early = poisoned if cause is None else ()
    lines += _advise(error, rank_list(culprits), unused, cause, early)
    sites = dict.fromkeys([*([site] if site else ()), *(call.site for call in early)])
    return Finding(Code.RANK_ERROR, culprits, summary, tuple(lines), tuple(sites))


def _by_kind(errors: Mapping[int, str]) -> list[str]:
    """What ranks did, a line for each kind of error."""
    lines = []
    for ranks in ranks_by((rank, kind(error)) for rank, error in errors.items()).values():
        what = done_by(errors[ranks[0]], 200)
        lines.append(f"{rank_list(ranks)} {of_many(what) if len(ranks) > 1 else what}")
    return lines


def _at_fault(errors: Mapping[int, str]) -> tuple[int, ...]:
    """Those that raised, unless the text finds fault with some of them, or with others."""
    counts = {rank: found[1] for rank, error in errors.items() if (found := re.search(r"has (\d+) params", error))}
    if len(counts) == len(errors):
        return minority(ranks_by(counts.items()).values())
    type_name, _, message = next(iter(errors.values())).partition(": ")
    lists = re.findall(_FAULTS[type_name], message) if type_name in _FAULTS else []
    return tuple(sorted({int(rank) for text in lists for rank in re.findall(r"\d+", text)} or errors))


def _cause(error: str, unused: Mapping[int, Sequence[str]], traceback_text: str) -> Advice[...] | None:
    """Why it came up, of an error that is known."""
    type_name, _, message = error.partition(": ")
    cause = next((cause for words, cause in _BY_WORDS if words in error), _BY_TYPE.get(type_name))
    if cause is None and type_name == "UsageError" and ": " in message:
        return Cause.CALL_REFUSED
    names = [name for own in unused.values() for name in own]
    if cause is Cause.UNUSED_PARAMETERS and names and all(name.endswith(FROZEN) for name in names):
        return Cause.PARAMETERS_CHANGED
    return cause or next(
        (each for words, path, each in _BELOW if words in error and re.search(path, traceback_text)), None
    )


def _advise(
    error: str, who: str, unused: Mapping[int, Sequence[str]], cause: Advice[...] | None, early: Sequence[Call]
) -> list[Line]:
    message = error.partition(": ")[2]
    if cause is Cause.CALL_REFUSED:
        return Cause.CALL_REFUSED.lines(fact=message.rpartition(": ")[2])
    if early and all(call.leaves_undefined for call in early):
        calls = dict.fromkeys(f"{call.operation} #{call.sequence} ({call.site})" for call in early)
        return Cause.RAISED_OVER_UNDEFINED.lines(who=who, operation=listed(list(calls)))
    if early:
        calls = dict.fromkeys(f"{call.operation} #{call.sequence} ({call.site})" for call in early)
        return Cause.RAISED_IN_FLIGHT.lines(who=who, operation=listed(list(calls)))
    return (cause or Cause.RAISED).lines(who=who, parameters=_unused_text(unused) or _told_unused(message))


def _because(reason: Reason, who: str) -> list[str | Line]:
    if isinstance(reason, MissingKeys):
        return [*Cause.KEYS_NOT_IN_TIME.lines(who=who, fact=listed(list(map(repr, reason.keys))))]
    if reason.missing:
        advice = Cause.BARRIER_MISSED.lines(who=who, operation=reason.call, fact=reason.limit)
        return [*reason.whereabouts, *advice]
    return [*Cause.BARRIER_WITHOUT_TIME.lines(who=who, operation=reason.call)]


def _unused_text(unused: Mapping[int, Sequence[str]]) -> str:
    """`a.weight, a.bias`, or `a.weight on rank 0 and b.weight on rank 1` if it is not the same on all."""
    ranks = ranks_by((rank, listed(names)) for rank, names in sorted(unused.items()))
    if len(ranks) == 1:
        return next(iter(ranks))
    return " and ".join(f"{names} on {rank_list(who)}" for names, who in ranks.items())


def _told_unused(message: str) -> str:
    """The same, from the text of an engine's error."""
    found = re.search(r"no gradient came for (.+? on ranks? \d+(?:, \d+)*)", message)
    return found[1] if found else "some parameters"
