"""Picks the cause (from `advice/`) of calls that do not agree, by what made the calls.

A call is the user's own, a DDP wrapper's in one of its phases, or a shadow: `join()` makes it for a joined rank.

    some are FSDP2's or similar   parallel_causes.py
    some are shadows              calls that join does not cover
    all are wrappers' calls       construction, order of wrappers, hooks, then buckets and steps
    wrappers' and the user's      construction, a missing bucket, a layer, a forward, then loops
    all are the user's            groups and splits, functions, lines, then a line's arguments

Certain causes are tried before likely ones.
"""

from collections.abc import Mapping, Sequence
from math import prod

from ddpsim.simulator.calls import NOWHERE, Call, Phase
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.explain import operations_text, ranks_text, sites_text, values_with_ranks_text
from ddpsim.simulator.diagnosis.parallel_causes import advise_message, advise_parallel_calls
from ddpsim.simulator.matching.agreement import compared_values
from ddpsim.simulator.operations import OPERATIONS, RootRole
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import LabelledLine, join_names, rank_list, ranks_by_value

FIELDS = {
    Code.MISMATCH_OPERATION: "operation",
    Code.MISMATCH_SHAPE: "shape",
    Code.MISMATCH_DTYPE: "dtype",
    Code.MISMATCH_REDUCTION: "reduction",
    Code.MISMATCH_ROOT: "root",
    Code.MISMATCH_SPLITS: "split sizes",
    Code.MISMATCH_GROUP: "members of the group",
    Code.MISMATCH_ORIGIN: "origin",
}

WRAPPING = frozenset({Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST})
"""Phases of a DDP wrapper's construction. A `join` ends with a state broadcast, too."""

_BY_FIELD = {Code.MISMATCH_REDUCTION: Cause.OTHER_REDUCTION, Code.MISMATCH_DTYPE: Cause.OTHER_DTYPE}

_REDUCING = frozenset({Phase.BUCKET, Phase.USED_MAP})

_WITHOUT_HOOK = frozenset({Phase.USED_MAP, Phase.REBUILD, Phase.BUFFERS})
"""The phases that follow a DDP wrapper's buckets: a rank whose hook made no call goes on to these."""


def advise_mismatch(
    calls: Sequence[Call], code: Code, culprits: tuple[int, ...], names: Mapping[Call, str]
) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for matched calls of one collective whose arguments differ.

    `names` are the program's names of the calls' tensors, where they are known.
    """
    if any(call.origin.shadow for call in calls):
        return _advise_calls_of_joined_ranks(calls)
    if parts := advise_parallel_calls(calls, code, _culprits_text(calls, code, culprits)):
        return parts
    users = [call for call in calls if call.origin.phase is Phase.USER]
    if not users:
        return _advise_calls_of_wrappers(calls, code, culprits)
    if wrappers := [call for call in calls if call.origin.phase is not Phase.USER]:
        return _advise_user_and_wrapper_calls(users, wrappers)
    tensors = ranks_by_value((call.rank, names.get(call, "")) for call in calls)
    is_one_line = len({call.site[:2] for call in calls}) == 1
    if code in (Code.MISMATCH_SHAPE, Code.MISMATCH_DTYPE) and is_one_line and len(tensors) > 1 and "" not in tensors:
        return Cause.OTHER_TENSOR.lines(fact=values_with_ranks_text(tensors))
    return _advise_calls_of_users(calls, code, _culprits_text(calls, code, culprits))


def advise_message_mismatch(send: Call, receive: Call, code: Code) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for a message and the receive that takes it, if they differ."""
    if send.ignored_tag != receive.ignored_tag:
        return Cause.TAGS_IGNORED.lines()
    if message := advise_message(send, receive, code):
        return message
    if code is Code.MISMATCH_ORIGIN:
        return Cause.PAIRED_BY_ORDER.lines()
    return Cause.OTHER_MESSAGE.lines(fact=FIELDS[code])


def _culprits_text(calls: Sequence[Call], code: Code, culprits: tuple[int, ...]) -> str:
    """Return the ranks at fault, as the subject of a sentence such as "... passed another root"."""
    if len(culprits) < len(calls):
        return rank_list(culprits)
    return "each rank" if len(set(compared_values(calls, code))) == len(calls) else "some ranks"


# --- the user's calls -------------------------------------------------------------------------------------------------


def _advise_calls_of_users(calls: Sequence[Call], code: Code, who: str) -> list[LabelledLine]:
    if code is Code.MISMATCH_GROUP:
        return Cause.OTHER_MEMBERS.lines(who=who)
    if code is Code.MISMATCH_SPLITS:
        return Cause.OTHER_SPLITS.lines(who=who)
    if code is not Code.MISMATCH_OPERATION and len({call.site.function for call in calls}) > 1:
        return Cause.OTHER_FUNCTION.lines(who=who)
    if code is Code.MISMATCH_OPERATION or any(call.site[:2] != calls[0].site[:2] for call in calls):
        return Cause.OTHER_BRANCH.lines(who=who)
    return _cause_of_unequal_argument(calls, code).lines(who, FIELDS[code])


def _cause_of_unequal_argument(calls: Sequence[Call], code: Code) -> Advice[[str, str]]:
    """Return the cause if one line passes different arguments on some ranks; a job's records may have no lines."""
    if calls[0].site == NOWHERE and code in (Code.MISMATCH_SHAPE, Code.MISMATCH_DTYPE):
        return Cause.OTHER_WITHOUT_LINES
    operation = OPERATIONS.get(calls[0].operation)  # records of real jobs may have operations that are unknown here
    if code is Code.MISMATCH_ROOT:
        return Cause.OTHER_DESTINATION if operation and operation.root is RootRole.DESTINATION else Cause.OTHER_ROOT
    if code in _BY_FIELD:
        return _BY_FIELD[code]
    if code is Code.MISMATCH_SHAPE and operation is not None and operation.gathers:
        return Cause.OTHER_SHAPE_GATHERED
    if code is Code.MISMATCH_SHAPE and len({tuple(map(prod, call.signature.shapes)) for call in calls}) == 1:
        return Cause.OTHER_LAYOUT
    return Cause.OTHER_ARGUMENT


def _advise_user_and_wrapper_calls(users: Sequence[Call], wrappers: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice for a user's own call matched with a DDP wrapper's; the smaller set of ranks is at fault."""
    if all(call.origin.phase in WRAPPING for call in wrappers):
        return Cause.WRAPPED_ALONE.lines(who=ranks_text(users))
    if left_out := advise_bucket_left_out(ranks_text(users), wrappers):
        return left_out
    if any(call.site.function == "forward" for call in users):
        side = users if len(users) < len(wrappers) else wrappers
        return Cause.COLLECTIVE_IN_FORWARD.lines(who=ranks_text(side))
    if all(call.origin.phase is Phase.BUFFERS for call in wrappers) and len(wrappers) <= len(users):
        return Cause.FORWARD_ALONE.lines(who=ranks_text(wrappers))
    if len(wrappers) < len(users):
        return Cause.STAYED_IN_LOOP.lines(who=ranks_text(wrappers), operation=operations_text(users))
    cause = Cause.DECIDED_ALONE if _are_user_calls_above_wrapper_calls(users, wrappers) else Cause.LEFT_LOOP
    return cause.lines(who=ranks_text(users), operation=operations_text(users))


def _are_user_calls_above_wrapper_calls(users: Sequence[Call], wrappers: Sequence[Call]) -> bool:
    """Return True if the user's calls precede the wrappers' in one function: then no loop of wrapper calls ended."""
    functions = [(call.site.path, call.site.function) for call in (*users, *wrappers)]
    return len(set(functions)) == 1 and max(c.site.line for c in users) < min(c.site.line for c in wrappers)


# --- calls of wrappers ------------------------------------------------------------------------------------------------


def _advise_calls_of_wrappers(calls: Sequence[Call], code: Code, culprits: tuple[int, ...]) -> list[LabelledLine]:
    """Return the advice for matched calls of DDP wrappers from different phases or training steps."""
    who = _culprits_text(calls, code, culprits)
    phases = {call.origin.phase for call in calls}
    wrapping = [call for call in calls if call.origin.phase in WRAPPING]
    if wrapping and len(wrapping) < len(calls):
        return Cause.WRAPPED_ALONE.lines(who=ranks_text(c for c in calls if c.origin.phase not in WRAPPING))
    if len({call.origin.wrapper for call in calls}) > 1:
        return Cause.WRAPPERS_MIXED.lines(who="some ranks" if len(culprits) == len(calls) else who)
    if hooks := _advise_hooks(calls, culprits, who):
        return hooks
    if wrapping:
        return Cause.MODELS_DIFFER.lines(who=who)
    if Phase.JOIN_CONTROL in phases and len(phases) > 1:
        outside = [call for call in calls if call.origin.phase is not Phase.JOIN_CONTROL]
        return Cause.JOINED_ON_SOME_RANKS.lines(who=ranks_text(outside))
    late = [call for call in calls if _is_later_bucket(call)]
    ahead = [call for call in calls if _is_of_later_step(call, late)]
    if late and len(ahead) + len(late) == len(calls) > len(late):
        return advise_bucket_left_out(ranks_text(ahead), late)
    if phases > {Phase.BUFFERS} and phases - {Phase.BUFFERS} <= _REDUCING:
        return Cause.EXTRA_FORWARD.lines(who=ranks_text(c for c in calls if c.origin.phase is Phase.BUFFERS))
    return _advise_unequal_forward_counts(calls) or _advise_calls_of_one_step(calls, phases, code, who)


def _is_later_bucket(call: Call) -> bool:
    """Return True for a bucket's call, if the bucket is not the first of its training step."""
    return call.origin.phase is Phase.BUCKET and (call.origin.bucket or 0) > 0


def advise_bucket_left_out(culprits: str, late: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice for ranks that went on while others wait in later buckets of a step; [] for other calls."""
    if not all(map(_is_later_bucket, late)):
        return []
    parameters = join_names(late[0].origin.parameters) or "its parameters"
    return Cause.BUCKET_LEFT_OUT.lines(who=culprits, parameters=parameters)


def _is_of_later_step(call: Call, late: Sequence[Call]) -> bool:
    """Return True if `call` belongs to a later training step than the bucket calls `late`."""
    steps = [other.origin.step for other in late if other.origin.step is not None]
    if call.origin.phase is Phase.BUFFERS:
        return bool(late)
    return call.origin.step is not None and bool(steps) and call.origin.step > max(steps)


def _advise_unequal_forward_counts(calls: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice if some ranks made more synchronising forwards than others; [] if not."""
    steps = {call.rank: call.origin.step for call in calls}
    known = [step for step in steps.values() if step is not None]
    if len(known) < len(steps) or min(known) == max(known):
        return []
    ahead = [call for call in calls if call.origin.step != min(known)]
    behind = [call for call in calls if call.origin.step == min(known)]
    if all(call.origin.phase in _REDUCING for call in behind):
        return Cause.SKIPPED_BACKWARD.lines(who=ranks_text(ahead))
    if all(call.origin.phase is Phase.BUFFERS for call in behind):
        return Cause.FORWARD_ALONE.lines(who=ranks_text(behind))
    return []


def _advise_calls_of_one_step(calls: Sequence[Call], phases: set[Phase], code: Code, who: str) -> list[LabelledLine]:
    if phases == {Phase.BUFFERS}:
        return Cause.BUFFERS_DIFFER.lines(who=who)
    if phases != {Phase.BUCKET}:
        return Cause.REDUCED_IN_OTHER_WAY.lines(who=who)
    if code in (Code.MISMATCH_SHAPE, Code.MISMATCH_ORIGIN):
        return Cause.UNUSED_ON_SOME_RANKS.lines(who=who)
    return Cause.HOOK_ON_SOME_RANKS.lines(who=who, fact=FIELDS[code])


# --- calls of communication hooks -------------------------------------------------------------------------------------


def _advise_hooks(calls: Sequence[Call], culprits: Sequence[int], who: str) -> list[LabelledLine]:
    """Return the cause and what to try, for calls of one wrapper that do not agree; [] if the hook is not the cause.

    A hook gets the buckets in order, each in every step. So within one step only the hook can omit a call or make one
    more; between steps, a backward may also have been omitted. Calls that a hook chains with `then` have no such order:
    they may be matched with another bucket's call although hooks are equal, and no rank is at fault.
    """
    hooked = [call for call in calls if call.origin.by_hook]
    others = [call for call in calls if call not in hooked]
    buckets = {(call.origin.bucket, call.origin.parameters) for call in calls}
    have_other_parameters = len(buckets) > len({bucket for bucket, _ in buckets})
    if not hooked or have_other_parameters or not {call.origin.phase for call in others} <= _WITHOUT_HOOK:
        return []
    if sorted(call.rank for call in others) == sorted(culprits):
        return Cause.HOOK_MADE_NO_CALL.lines(who=who, fact=sites_text(hooked))
    if not others and (one_off := _advise_extra_hook_call(calls)):
        return one_off
    if not others and len({call.origin.bucket for call in calls}) > 1 and any(c.origin.is_chained for c in calls):
        return Cause.HOOK_CHAINS_CROSS.lines(fact=sites_text(calls))
    return Cause.HOOK_CALLS_DIFFER.lines(who, sites_text([call for call in hooked if call.rank in culprits]))


def _advise_extra_hook_call(calls: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice if a hook made a call more or less, for calls of several steps; [] for calls of one step."""
    latest = max(call.origin.step or 0 for call in calls)
    ahead = [call.rank for call in calls if call.origin.step == latest]
    behind = [call.rank for call in calls if call.rank not in ahead]
    if not ahead or not behind:
        return []
    return Cause.HOOK_ONE_OFF.lines(site=sites_text(calls), ahead=rank_list(ahead), behind=rank_list(behind))


# --- calls that join makes --------------------------------------------------------------------------------------------


def _advise_calls_of_joined_ranks(calls: Sequence[Call]) -> list[LabelledLine]:
    shadows = [call for call in calls if call.origin.shadow]
    others = [call for call in calls if not call.origin.shadow]
    joined = ranks_text(shadows)
    users = [call for call in others if call.origin.phase is Phase.USER]
    if post_hooks := advise_post_hooks(calls):
        return post_hooks
    if users:
        cause = Cause.MAIN_HOOK_DIFFERS if all(map(_is_of_own_joinable, shadows)) else Cause.UNKNOWN_TO_JOIN
        return cause.lines(who=joined, operation=operations_text(users))
    if len({call.origin.wrapper for call in calls}) > 1:
        return Cause.NOT_IN_JOIN.lines(who=joined)
    return Cause.OTHER_SHARE_IN_JOIN.lines(who=joined)


def _is_of_own_joinable(call: Call) -> bool:
    """Return True for a joined rank's call that comes from a Joinable class of the user's program."""
    is_control = call.origin.phase is Phase.JOIN_CONTROL and call.origin.wrapper is None
    return is_control or (call.origin.phase is Phase.USER and call.site.function == "main_hook")


def advise_post_hooks(calls: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice if the program's own `post_hook` of a join makes the calls; [] if not."""
    if all(c.origin.shadow and c.origin.phase is Phase.USER and c.site.function == "post_hook" for c in calls):
        return Cause.POST_HOOKS_DIFFER.lines(fact=f"{operations_text(calls)} in it at {sites_text(calls)}")
    return []
