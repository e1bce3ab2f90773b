"""Mismatches: calls that met and do not agree, with every rank's side."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.calls import Call, Phase
from simulator.diagnosis.explain import heading, indent, rank_list, table
from simulator.matching import agreement
from simulator.verdict import Code, Finding

_FIELDS = {
    Code.MISMATCH_OPERATION: "operation",
    Code.MISMATCH_SHAPE: "shape",
    Code.MISMATCH_DTYPE: "dtype",
    Code.MISMATCH_REDUCTION: "reduction",
    Code.MISMATCH_ROOT: "root",
    Code.MISMATCH_SPLITS: "split sizes",
    Code.MISMATCH_GROUP: "members of the group",
    Code.MISMATCH_ORIGIN: "origin",
}


def mismatch(calls: Sequence[Call], code: Code, step: int, *, complete: bool = True) -> Finding:
    """The finding for calls that met in one slot, or as message and receive, and differ in the field of `code`."""
    culprits = agreement.minority(calls, code)
    field = _FIELDS[code]
    first = calls[0]
    where = f'#{first.sequence} on group "{first.group}"'
    summary = f"calls {where} differ in {field}: " + _sides(calls, code)
    rows = [(call.rank, str(call), str(call.site), _origin_text(call, code)) for call in calls]
    lines = [heading("MISMATCH", code, step), *table(rows)]
    if not complete:
        lines.append(indent("note", "not every member of the group has arrived"))
    lines.append(indent("cause", _cause(calls, code, culprits)))
    lines.append(indent("try", _remedy(calls, code)))
    ordered = sorted(calls, key=lambda call: (call.rank not in culprits, call.rank))
    return Finding(code, culprits, summary, "\n".join(lines), tuple(dict.fromkeys(call.site for call in ordered)))


def pair_mismatch(send: Call, receive: Call, code: Code, step: int) -> Finding:
    """The finding for a message and the receive that takes it."""
    finding = mismatch((send, receive), code, step)
    return Finding(finding.code, tuple(sorted({send.rank, receive.rank})), finding.summary, finding.text, finding.sites)


def _sides(calls: Sequence[Call], code: Code) -> str:
    ranks: dict[str, list[int]] = {}
    for call in calls:
        ranks.setdefault(_side(call, code), []).append(call.rank)
    return " against ".join(f"{side} on {rank_list(who)}" for side, who in ranks.items())


def _side(call: Call, code: Code) -> str:
    signature = call.signature
    if code is Code.MISMATCH_OPERATION:
        return signature.operation
    if code is Code.MISMATCH_REDUCTION:
        return str(signature.reduction)
    if code is Code.MISMATCH_ROOT:
        return f"root {signature.root}"
    if code is Code.MISMATCH_DTYPE:
        return str(signature.dtype)
    if code is Code.MISMATCH_ORIGIN:
        return _origin_text(call, code)
    return str(signature)


def _origin_text(call: Call, code: Code) -> str:
    origin = call.origin
    if origin.phase is Phase.USER and code is not Code.MISMATCH_ORIGIN:
        return ""
    names = f" ({', '.join(origin.parameters)})" if origin.parameters and len(origin.parameters) <= 6 else ""
    return str(origin) + names


def _cause(calls: Sequence[Call], code: Code, culprits: tuple[int, ...]) -> str:
    ahead = _ahead(calls) if code is Code.MISMATCH_ORIGIN else ()
    if ahead:
        return (
            f"{rank_list(ahead)} made more synchronising forwards than the others before this reduction: a backward "
            "was left out, and gradients of different steps are averaged, which no backend would notice; or a forward "
            "was made that no backward is meant to follow, which does no harm"
        )
    if code is Code.MISMATCH_ORIGIN:
        return (
            "backends pair calls by order and size, not by meaning: these calls move each other's data, and no backend "
            "would notice"
        )
    everybody = len(culprits) == len(calls)
    who = "the ranks" if everybody else rank_list(culprits)
    if code is Code.MISMATCH_OPERATION:
        return f"{who} took another branch, or made one call more or fewer, so different calls meet"
    if code is Code.MISMATCH_GROUP:
        return f"{who} named other members for the same group"
    if code is Code.MISMATCH_SPLITS:
        return f"what {who} send or expect does not fit what the others expect or send"
    return f"{who} passed another {_FIELDS[code]} to the same call"


def _ahead(calls: Sequence[Call]) -> tuple[int, ...]:
    """The ranks with the higher step, if the calls are one wrapper's same reduction and differ in nothing but the step.

    A skipped backward and an extra forward give the same calls up to here, so nothing tells them apart.
    """
    reductions = {origin._replace(step=None, parameters=()) for origin in (call.origin for call in calls)}
    steps = [call.origin.step for call in calls]
    known = [step for step in steps if step is not None]
    is_reduction = calls[0].origin.phase in (Phase.BUCKET, Phase.USED_MAP)
    if not is_reduction or len(reductions) > 1 or len(known) < len(steps) or min(known) == max(known):
        return ()
    return tuple(call.rank for call in calls if call.origin.step != min(known))


def _remedy(calls: Sequence[Call], code: Code) -> str:
    if code is Code.MISMATCH_ORIGIN and _ahead(calls):
        return (
            "let all ranks skip together, by an all_reduce(MIN) of a flag; make a forward that is meant to be extra "
            "under torch.no_grad(), or through model.module"
        )
    if code in (Code.MISMATCH_OPERATION, Code.MISMATCH_ORIGIN):
        return "let every rank of the group make the same calls in the same order"
    if code is Code.MISMATCH_GROUP:
        return "let every rank create the same groups, with the same members, in the same order"
    if code is Code.MISMATCH_SPLITS:
        return "let input split j of rank i be output split i of rank j, for instance by exchanging the sizes first"
    return f"pass the same {_FIELDS[code]} on every rank of the group"
