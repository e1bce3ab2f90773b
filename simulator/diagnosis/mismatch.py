"""Findings about matched calls with different arguments (a row for each rank), and about values passed to `agree()`."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ddpsim.simulator.calls import Call, Site
from ddpsim.simulator.diagnosis import explain
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.mismatch_causes import FIELDS, advise_message_mismatch, advise_mismatch
from ddpsim.simulator.diagnosis.uneven import calls_made_again, loop_counts
from ddpsim.simulator.matching import agreement
from ddpsim.simulator.matching.slots import PendingCollectives
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, ranks_by_value


def mismatch_finding(
    calls: Sequence[Call],
    code: Code,
    step: int | None,
    *,
    complete: bool = True,
    issued: Sequence[Call] = (),
    names: Mapping[Call, str] = MappingProxyType({}),
) -> Finding:
    """Return the finding for matched calls of a collective whose arguments differ; `code` names the argument.

    `complete` is False if some ranks have not made their call; `issued` are all calls of the run, and `names` the
    names of their tensors in the program.
    """
    culprits = agreement.ranks_that_differ(calls, code)
    absent = {rank for call in calls for rank in call.signature.members or ()}.difference(call.rank for call in calls)
    is_complete = complete and not absent
    lines = [] if is_complete else [LabelledLine("note", "not every member of the group has arrived")]
    _, advice = calls_made_again(calls, issued) or ((), advise_mismatch(calls, code, culprits, names))
    lines += [*loop_counts(calls, issued), *_tie_note(calls, code), *advice]
    return _make_finding(calls, code, step, culprits, lines)


def find_early_mismatches(
    slots: PendingCollectives, step: int, issued: Sequence[Call], names: Mapping[Call, str] = MappingProxyType({})
) -> Iterator[tuple[list[Call], Finding]]:
    """Yield each group's first calls whose arguments differ while other ranks' calls are missing, with the finding.

    Splits are not compared: that needs the calls of all members. Later calls may differ only because of the first.
    """
    groups = set[str]()
    for slot in slots.list_pending():
        calls = list(slot.calls.values())
        code = agreement.first_differing_field(calls) if len(calls) > 1 else None
        if code is not None and code is not Code.MISMATCH_SPLITS and calls[0].group not in groups:
            groups.add(calls[0].group)
            yield calls, mismatch_finding(calls, code, step, complete=False, issued=issued, names=names)


def message_mismatch_finding(
    send: Call, receive: Call, code: Code, step: int | None, *, issued: Sequence[Call] = ()
) -> Finding:
    """Return the finding for a message and the receive that takes it; either rank may be wrong."""
    culprits, calls = tuple(sorted({send.rank, receive.rank})), (send, receive)
    _, advice = calls_made_again(calls, issued) or ((), advise_message_mismatch(send, receive, code))
    return _make_finding(calls, code, step, culprits, advice)


def _make_finding(
    calls: Sequence[Call], code: Code, step: int | None, culprits: tuple[int, ...], end: Sequence[LabelledLine]
) -> Finding:
    where = f'#{calls[0].sequence} on group "{calls[0].group}"'
    sides = explain.values_with_ranks_text(_ranks_by_field(calls, code))
    rows = [explain.TableRow(c.rank, str(c), c.location, _origin_text(c, code), c.thread, c.coordinates) for c in calls]
    lines = explain.finding_lines(code, explain.format_table(rows), end, step=step)
    summary = f"calls {where} differ in {FIELDS[code]}: {sides}"
    return Finding(code, culprits, summary, lines, explain.sites_culprits_first(calls, culprits), calls=tuple(calls))


def _tie_note(calls: Sequence[Call], code: Code) -> list[LabelledLine]:
    """Return a note if the calls have two values on equally many ranks, at least two ranks each; [] if not."""
    sizes = [len(ranks) for ranks in _ranks_by_field(calls, code).values()]
    if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] < 2:
        return []
    return [LabelledLine("note", f"a tie, {sizes[0]} ranks against {sizes[1]}: either may be wrong")]


def _ranks_by_field(calls: Sequence[Call], code: Code) -> dict[str, list[int]]:
    return ranks_by_value((call.rank, _differing_field_text(call, code)) for call in calls)


def _differing_field_text(call: Call, code: Code) -> str:
    if code is Code.MISMATCH_ORIGIN:
        return _origin_text(call, code)
    texts = {
        Code.MISMATCH_OPERATION: call.operation,
        Code.MISMATCH_REDUCTION: str(call.signature.reduction),
        Code.MISMATCH_ROOT: f"root {call.signature.root}",
        Code.MISMATCH_DTYPE: str(call.signature.dtype),
    }
    return texts.get(code, str(call.signature))


def _origin_text(call: Call, code: Code) -> str:
    origin = call.origin
    if origin.is_of_program and code is not Code.MISMATCH_ORIGIN:
        return ""
    names = f" ({', '.join(origin.parameters)})" if origin.parameters and len(origin.parameters) <= 6 else ""
    return origin.text_in_findings() + names


class AgreedValue(NamedTuple):
    """The value that one rank passed to `agree()`."""

    rank: int
    value: str
    """The value as text: equal values have equal texts."""
    site: Site


def agreed_values_finding(name: str, number: int, said: Sequence[AgreedValue], step: int) -> Finding:
    """Return the finding for call `number` of `agree(name)`, given the values that the ranks passed."""
    said = sorted(said)
    sides = ranks_by_value((each.rank, each.value) for each in said)
    culprits = explain.ranks_outside_largest(sides.values())
    summary = f"agree({name!r}) #{number}: {explain.values_with_ranks_text(sides)}"
    rows = [explain.TableRow(each.rank, f"{name} = {each.value}", str(each.site)) for each in said]
    lines = explain.finding_lines(
        Code.MISMATCH_VALUE, explain.format_table(rows), Cause.VALUES_DIFFER.lines(fact=name), step=step
    )
    ordered = sorted(said, key=lambda each: (each.rank not in culprits, each.rank))
    sites = tuple(dict.fromkeys(each.site for each in ordered))
    return Finding(Code.MISMATCH_VALUE, culprits, summary, lines, sites)
