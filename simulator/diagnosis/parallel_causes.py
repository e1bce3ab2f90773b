"""Chooses the cause of a mismatch or deadlock in calls of FSDP2, pipelines, DTensors, checkpoints and optimizers."""

from collections.abc import Sequence

from ddpsim.simulator.calls import COLLECTS_STATE, Call, Parallelism
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.explain import operations_text, ranks_text
from ddpsim.simulator.verdict import Code
from ddpsim.simulator.wording import LabelledLine, join_names


def advise_parallel_calls(calls: Sequence[Call], code: Code, who: str) -> list[LabelledLine]:
    """Return the advice (cause and what to try) for one collective's calls; [] if none is of FSDP2 and so on."""
    kinds = {parallelism_of(call) for call in calls}
    if kinds == {None}:
        return []
    if Parallelism.CHECKPOINT in kinds:
        return _advise_checkpoint(calls)
    for kind in (Parallelism.OPTIMIZER, Parallelism.NORM):
        if kind in kinds and len(kinds) > 1:
            return _advise_meeting_kinds(kind, calls)
    if others := [call for call in calls if parallelism_of(call) is None]:
        cause = Cause.UNITS_MEET_CALL if Parallelism.FSDP in kinds else Cause.DTENSOR_MEETS_CALL
        return cause.lines(who=ranks_text(others), operation=operations_text(others))
    who = "some ranks" if who == "each rank" else who
    if kinds == {Parallelism.FSDP}:
        return _advise_fsdp_units(calls, code, who)
    if len(kinds) > 1:
        return Cause.OTHER_BRANCH.lines(who=who)
    differ = len({call.origin.part and call.origin.part[:3] for call in calls}) > 1
    if kinds == {Parallelism.OPTIMIZER}:
        is_other = differ or code is Code.MISMATCH_ORIGIN
        return (Cause.OTHER_BRANCH if is_other else Cause.OPTIMIZERS_DIFFER).lines(who=who)
    if differ:
        return Cause.OTHER_REDISTRIBUTION.lines(who=who)
    if kinds == {Parallelism.DTENSOR} and code is Code.MISMATCH_SHAPE:
        return Cause.PARTS_OF_OTHER_SHAPES.lines()
    return Cause.NORM_OF_OTHERS.lines(who=who) if kinds == {Parallelism.NORM} else []


def advise_message(send: Call, receive: Call, code: Code) -> list[LabelledLine]:
    """Return the advice for a pipeline stage's message and the receive that takes it; [] for other messages."""
    sends, receives = send.origin.part, receive.origin.part
    if sends is None or receives is None or {parallelism_of(send), parallelism_of(receive)} != {Parallelism.PIPELINE}:
        return []
    if sends.matches_part(receives):
        return Cause.MICRO_BATCHES_DIFFER.lines() if code is Code.MISMATCH_SHAPE else []
    sent, expected = (f"{part.what}, {part.action}" for part in (sends, receives))
    return Cause.OTHER_STAGES_MESSAGE.lines(fact=f"{sent}, is received as {expected}")


def advise_waiting(calls: Sequence[Call], missing: str, *, is_alone: bool = False) -> list[LabelledLine]:
    """Return the advice for calls that some ranks never make; `is_alone` if the waiting ranks are at fault."""
    kinds = {parallelism_of(call) for call in calls}
    for kind, (alone, without) in _TAKE_EVERY_RANK.items():
        if kinds == {kind}:
            return (alone if is_alone else without).lines(who=missing)
    if kinds == {Parallelism.PIPELINE}:
        return Cause.STAGES_STOPPED.lines(who=missing)
    if kinds == {Parallelism.CHECKPOINT}:
        return Cause.CHECKPOINT_ALONE.lines(who=ranks_text(calls))
    return []


_TAKE_EVERY_RANK = {
    Parallelism.FSDP: (Cause.UNITS_ALONE, Cause.UNITS_WITHOUT_RANK),
    Parallelism.OPTIMIZER: (Cause.OPTIMIZER_ALONE, Cause.FEWER_OPTIMIZER_STEPS),
    Parallelism.NORM: (Cause.NORM_ALONE, Cause.NORM_WITHOUT_RANK),
}
"""For each part of torch, two causes of a deadlock: only the waiting ranks make the call, or one rank omitted it."""


def parallelism_of(call: Call) -> Parallelism | None:
    """Return the part of torch, such as FSDP2, that makes a call; None for DDP's calls and the program's own."""
    return None if call.origin.part is None else call.origin.part.parallelism


def _advise_meeting_kinds(kind: Parallelism, calls: Sequence[Call]) -> list[LabelledLine]:
    """Return the advice for calls of one kind (gradient norm or optimizer) matched with calls of other kinds."""
    if collecting := [call for call in calls if call.origin.part and call.origin.part.action == COLLECTS_STATE]:
        return Cause.STATE_ALONE.lines(who=ranks_text(collecting))
    others = [call for call in calls if parallelism_of(call) is not kind]
    cause = Cause.NORM_MEETS_CALL if kind is Parallelism.NORM else Cause.OPTIMIZER_MEETS_CALL
    return cause.lines(who=ranks_text(others), operation=operations_text(others))


def _advise_checkpoint(calls: Sequence[Call]) -> list[LabelledLine]:
    saving = [call for call in calls if parallelism_of(call) is Parallelism.CHECKPOINT]
    if any(call.thread for call in saving) and len({call.thread for call in calls}) > 1:
        return Cause.CHECKPOINT_THREAD.lines(who=ranks_text(call for call in saving if call.thread))
    if others := [call for call in calls if call not in saving]:
        return Cause.CHECKPOINT_MEETS_CALL.lines(who=ranks_text(others), operation=operations_text(others))
    return []


def _advise_fsdp_units(calls: Sequence[Call], code: Code, who: str) -> list[LabelledLine]:
    if len({call.origin.part for call in calls}) > 1:
        return Cause.UNIT_LEFT_OUT.lines(who=who)
    if code is Code.MISMATCH_ORIGIN:
        return Cause.UPDATES_DIFFER.lines(who=who)
    every = tuple(dict.fromkeys(name for call in calls for name in call.origin.parameters))
    lacking = [call for call in calls if len(call.origin.parameters) < len(every)]
    if not lacking:
        return []
    left_out = [name for name in every if any(name not in call.origin.parameters for call in lacking)]
    return Cause.UNUSED_IN_UNIT.lines(who=ranks_text(lacking), parameters=join_names(left_out))
