"""Hazards: facts that ranks report while they run, and the findings about them.

A hazard passed here, and may hang or give wrong numbers under other backend semantics. The rank that detects a fact
sends a `Noticed` to the kernel, as a request without an answer: by a call if ranks are threads, by a message if they
are processes. At the end of the run, the functions of `HAZARDS` make findings of these facts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.diagnosis.advice import Cause
from ddpsim.simulator.diagnosis.digraph import Digraph
from ddpsim.simulator.diagnosis.explain import (
    TableRow,
    finding_lines,
    format_call_table,
    format_table,
    put_verb_in_plural,
    ranks_outside_largest,
    sites_culprits_first,
    summarized_finding,
)
from ddpsim.simulator.operations import CREATING
from ddpsim.simulator.verdict import Code, Finding
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value, values_by_key

Slot = tuple[str, int]
"""A group, and the number of a collective among the group's collectives."""

_ADDING = ("SUM", "AVG")

MOST_NAMED = 256
"""The most tensors of one line whose names are looked up; a look-up takes as long as half a call."""


class TensorName(NamedTuple):
    """The name that a tensor has on a rank."""

    text: str
    is_sure: bool
    """True if the tensor belongs to a module or an optimizer."""
    is_word: bool = False
    """True if the name is only a string beside the tensor: a loop variable or an argument."""
    alias: str = ""
    """Another name of the tensor, in the same dictionary, if it was named before and the rank has not changed it."""


NamedCall = tuple[Call, TensorName]


class NoticedKind(Enum):
    """The kinds of facts that a rank reports for hazards."""

    REPLICA = "tensors of a replica, or how far its wrapper is"
    """A replica's values. The fact is no hazard by itself: check="replicas" compares the values of all ranks."""
    UNWAITED = "a rank returned and had not waited for a call"
    CHANGED = "the owner of a call changed its tensors before the wait"
    SHARED = "a call shares memory with another one in flight, and one of them writes it"
    OUTPUTS_SHARED = "outputs of one call share memory"
    READ = "the owner of a call read its tensors before the wait, or tensors that the call leaves undefined"
    DROPPED = "the result of a call is in a copy that nobody holds"
    NAMED = "the name of a call's tensor in the rank's program"
    OUTSIDE = "a rank passed a group in which it is not; no hazard by itself"
    LINES_MEET = "calls from different lines met"
    PATH = "the lines that a rank ran before a call"
    FILE = "a file that a rank writes anew, removes or reads; no hazard by itself"
    GRADIENTS = "a rank computed gradients; no hazard by itself"


class Noticed(NamedTuple):
    """A fact that a rank reports to the kernel (the simulator's scheduler). Reporting changes nothing for any rank."""

    kind: NoticedKind
    calls: tuple[Call, ...] = ()
    detail: Any = None
    """For kind READ: the line that reads, or where the value appeared, such as `what the program returned`. For
    DROPPED: of what it is a copy. For NAMED: a `TensorName`. For OUTSIDE: an `OutsideCall`. For REPLICA: a
    `ReplicaFact`. For PATH: the rank and the steps. For FILE: the file, and whether it is written. For GRADIENTS: the
    rank."""


class WatchedRun(NamedTuple):
    """The facts and calls of an execution, in which hazards are searched."""

    noticed: Sequence[Noticed]
    issued: Sequence[tuple[Call, int]]
    """Each call, in order of issue, with the number of the thread that made the call."""
    have_returned: bool
    """True if the programs of all ranks returned. If not, there are worse findings."""

    def calls_by_line(self, kind: NoticedKind) -> list[list[Call]]:
        """Return the first call of each fact of one kind, grouped by line of the program and operation."""
        calls = dict.fromkeys(noticed.calls[0] for noticed in self.noticed if noticed.kind is kind)
        return list(values_by_key(((call.site, call.operation), call) for call in calls).values())


def find_hazards(run: WatchedRun) -> tuple[Finding, ...]:
    """Return all hazards of an execution."""
    return tuple(finding for find in HAZARDS for finding in find(run))


def _groups_in_other_order(run: WatchedRun) -> Iterable[Finding]:
    found = find_group_order(run.issued) if run.have_returned else None
    return () if found is None else (found,)


def find_group_order(issued: Sequence[tuple[Call, int]]) -> Finding | None:
    """Return the finding for two groups that some ranks use in different orders; None if there are no such groups.

    `issued` are all calls of a run, in order of issue, with the numbers of the threads that made them: the order of
    calls of several threads is not fixed. The successive calls of a thread are edges between collectives; different
    orders form a cycle. The search takes time linear in the number of calls.
    """
    if len({call.group for call, _ in issued}) < 2:
        return None
    # Group creation uses the store.
    ordered = [pair for pair in issued if not pair[0].is_point_to_point and pair[0].operation not in CREATING]
    by_thread = values_by_key((thread, call) for call, thread in ordered)
    tangled = _collectives_on_cycles([[(c.group, c.sequence) for c in calls] for calls in by_thread.values()])
    left = {t: [c for c in calls if (c.group, c.sequence) in tangled] for t, calls in sorted(by_thread.items())}
    return _first_group_inversion({thread: calls for thread, calls in left.items() if calls}) if tangled else None


def _unwaited_work(run: WatchedRun) -> Iterable[Finding]:
    for calls in run.calls_by_line(NoticedKind.UNWAITED):
        is_hooks = all(call.origin.by_hook for call in calls)
        cause = Cause.HOOK_DID_NOT_WAIT if is_hooks else Cause.NEVER_WAITED_FOR
        fact = f"{_calls_text(calls)} never waited for"
        yield _finding_at_line(Code.HAZARD_UNWAITED_WORK, calls, fact, cause.lines())


def _tensors_in_flight(run: WatchedRun) -> Iterable[Finding]:
    for calls in run.calls_by_line(NoticedKind.CHANGED):
        fact = f"a tensor of {_calls_text(calls)} was changed by its owner before the wait"
        yield _finding_at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.CHANGED_IN_FLIGHT.lines())
    for calls in run.calls_by_line(NoticedKind.SHARED):
        fact = f"{_calls_text(calls)} and a call in flight share memory, and one writes it"
        yield _finding_at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.SHARED_IN_FLIGHT.lines())
    for calls in run.calls_by_line(NoticedKind.OUTPUTS_SHARED):
        fact = f"outputs of {_calls_text(calls)} share memory"
        yield _finding_at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, Cause.OUTPUTS_SHARED.lines())


def _tensors_read(run: WatchedRun) -> Iterable[Finding]:
    reads = [each for each in run.noticed if each.kind is NoticedKind.READ]
    shown = {each.calls[0]: each.detail for each in sorted(reads, key=lambda each: isinstance(each.detail, str))}
    for calls in run.calls_by_line(NoticedKind.READ):
        where = shown[calls[0]]
        if calls[0].leaves_undefined:
            fact = f"the tensor of {_calls_text(calls)}, whose sum is on rank {calls[0].signature.root} only, was read"
            yield _finding_at_line(Code.HAZARD_UNDEFINED_RESULT, calls, fact, Cause.READ_UNDEFINED.lines(fact=where))
        else:
            fact = f"a tensor of {_calls_text(calls)} was read by its owner before the wait"
            cause = Cause.READ_AT if isinstance(where, Site) else Cause.READ_IN_FLIGHT
            yield _finding_at_line(Code.HAZARD_TENSOR_IN_FLIGHT, calls, fact, cause.lines(fact=str(where)))


def _results_dropped(run: WatchedRun) -> Iterable[Finding]:
    sources = {each.calls[0]: each.detail for each in run.noticed if each.kind is NoticedKind.DROPPED}
    for calls in run.calls_by_line(NoticedKind.DROPPED):
        fact = f"the result of {_calls_text(calls)} is in a copy of {sources[calls[0]]}, which nobody holds"
        yield _finding_at_line(Code.HAZARD_DROPPED_RESULT, calls, fact, Cause.DROPPED_RESULT.lines())


def _tags_ignored(run: WatchedRun) -> Iterable[Finding]:
    """Yield a finding for the first message of each pair of ranks that reached the wrong receive, if tags are ignored.

    Only if both sides used the same tags equally often, in different orders. Otherwise the tags may have no meaning, as
    the backend that the program was written for ignores them.
    """
    issued = [call for call, _ in run.issued] if run.have_returned else []
    if not any(call.ignored_tag for call in issued):
        return ()
    sends, receives = _with_ignored_tags(issued, "send"), _with_ignored_tags(issued, "recv")
    pairs = [_first_wrong_message(sends[way], receives[way]) for way in sends.keys() & receives.keys()]
    return map(_wrong_message_finding, sorted(filter(None, pairs), key=lambda pair: issued.index(pair[0])))


def _names_in_other_order(run: WatchedRun) -> Iterable[Finding]:
    lines: dict[tuple[str, Site], dict[int, list[NamedCall]]] = {}
    for kind, calls, name in run.noticed if run.have_returned else ():
        if kind is NoticedKind.NAMED:
            (call,) = calls
            lines.setdefault((call.group, call.site), {}).setdefault(call.rank, []).append((call, name))
    return filter(None, map(_exchanged_names_finding, lines.values()))


def _different_lines_matched(run: WatchedRun) -> Iterable[Finding]:
    met: dict[frozenset[Site], Sequence[Call]] = {}
    for each in run.noticed:
        if each.kind is NoticedKind.LINES_MEET:
            met.setdefault(frozenset(call.site for call in each.calls), each.calls)
    return map(_call_site_finding, met.values())


HAZARDS: tuple[Callable[[WatchedRun], Iterable[Finding]], ...] = (
    _groups_in_other_order,
    _unwaited_work,
    _tensors_in_flight,
    _tensors_read,
    _results_dropped,
    _tags_ignored,
    _names_in_other_order,
    _different_lines_matched,
)
"""The functions that find hazards; their findings are reported in this order."""


def _call_site_finding(calls: Sequence[Call]) -> Finding:
    """Return the finding for matched calls that come from different lines of the user's program."""
    sides = ranks_by_value((call.rank, call.site) for call in calls)
    culprits = ranks_outside_largest(sides.values())
    summary = f"{calls[0].operation} calls at {' and '.join(map(str, sides))} are matched"
    lines = finding_lines(Code.HAZARD_CALL_SITE, format_call_table(calls), Cause.LINES_MEET.lines())
    sites = sites_culprits_first(calls, culprits)
    return Finding(Code.HAZARD_CALL_SITE, culprits, summary, lines, sites, calls=tuple(calls))


def _collectives_on_cycles(orders: Iterable[Sequence[Slot]]) -> set[Slot]:
    """Return the collectives on cycles of the order of calls, or on a path from one cycle to another."""
    edges = dict.fromkeys(edge for slots in orders for edge in pairwise(slots))  # of many ranks nearly all are the same
    graph = Digraph(edges)
    tangled = [slot for knot in graph.strong_components() for slot in knot]
    return graph.ancestors_of(tangled).keys() & graph.descendants_of(tangled).keys()


def _first_group_inversion(left: dict[int, list[Call]]) -> Finding:
    """Return the finding for the first two groups that ranks use in different orders, or for a cycle of more groups."""
    groups_of = {rank: sorted({call.group for call in calls}) for rank, calls in left.items()}
    pairs = ((rank, pair) for rank, groups in groups_of.items() for pair in combinations(groups, 2))
    for pair, ranks in ranks_by_value(pairs).items():
        orders = {rank: [call for call in left[rank] if call.group in pair] for rank in ranks}
        met = enumerate(zip(*orders.values(), strict=False))
        start = next((index for index, calls in met if len({(c.group, c.sequence) for c in calls}) > 1), None)
        if start is not None:
            return _group_order_finding(pair, orders.values(), start)
    return _group_order_finding(sorted(set().union(*groups_of.values())), left.values(), 0)


def _call_and_next_group(calls: Sequence[Call], start: int) -> tuple[Call, Call]:
    """Return a call of a rank and the rank's next call on another group."""
    first = calls[start]
    return first, next((call for call in calls[start:] if call.group != first.group), calls[-1])


def _group_order_finding(groups: Sequence[str], orders: Iterable[Sequence[Call]], start: int) -> Finding:
    """Return the finding for groups used in different orders; each rank's call at `start` and a later one show them."""
    pairs = [_call_and_next_group(calls, start) for calls in orders]
    firsts = ranks_by_value((first.rank, first.group) for first, _ in pairs)
    # In a cycle of more than two groups, each rank has an order of its own.
    culprits = ranks_outside_largest(firsts.values() if len(groups) == 2 else [{first.rank for first, _ in pairs}])
    names = ", ".join(f'"{group}"' for group in groups)
    summary = f"ranks use groups {names} in different orders"
    rows = [
        TableRow(
            first.rank,
            f"{_call_text(first)}, then {_call_text(then)}",
            ", ".join(dict.fromkeys([str(first.site), str(then.site)])),
            coordinates=first.coordinates,
        )
        for first, then in pairs
    ]
    lines = finding_lines(Code.HAZARD_GROUP_ORDER, format_table(rows), Cause.GROUP_ORDER.lines(fact=names))
    ordered = sorted(pairs, key=lambda pair: (pair[0].rank not in culprits, pair[0].rank))
    calls = tuple(call for pair in ordered for call in pair)
    sites = tuple(dict.fromkeys(call.site for call in calls))
    return Finding(Code.HAZARD_GROUP_ORDER, culprits, summary, lines, sites, calls=calls)


def _call_text(call: Call) -> str:
    return f'{call.title} on "{call.group}"'


def _finding_at_line(code: Code, calls: Sequence[Call], fact: str, advice: Iterable[LabelledLine]) -> Finding:
    """Return the finding for calls from one line of the program; its table has the first call of each rank."""
    firsts = {call.rank: call for call in reversed(calls)}
    ranks = tuple(sorted(firsts))
    rows = format_call_table(firsts[rank] for rank in ranks)
    summary = f"{rank_list(ranks)}: {fact} ({calls[0].site})"
    return summarized_finding(code, ranks, summary, rows, advice, sites=(calls[0].site,), calls=calls)


def _calls_text(calls: Sequence[Call]) -> str:
    return calls[0].title if len(calls) == 1 else f"{len(calls)} calls of {calls[0].operation}"


# --- tags that the backend ignores ------------------------------------------------------------------------------------


def _with_ignored_tags(issued: Sequence[Call], operation: str) -> dict[tuple[str, int, int], list[Call]]:
    """Return the messages by group, sender and receiver, in order, if at least one of them has an ignored tag."""
    ways: dict[tuple[str, int, int], list[Call]] = {}
    for call in issued:
        if call.peer is not None and call.peer != ANY_SOURCE and call.operation == operation:
            ends = (call.rank, call.peer) if operation == "send" else (call.peer, call.rank)
            ways.setdefault((call.group, *ends), []).append(call)
    return {way: calls for way, calls in ways.items() if any(call.ignored_tag for call in calls)}


def _first_wrong_message(sent: Sequence[Call], received: Sequence[Call]) -> tuple[Call, Call] | None:
    """Return the first message and its receive whose tags differ; None if the sides use different sets of tags."""
    if sorted(call.ignored_tag for call in sent) != sorted(call.ignored_tag for call in received):
        return None
    pairs = zip(sent, received, strict=True)
    return next(((send, receive) for send, receive in pairs if send.ignored_tag != receive.ignored_tag), None)


def _wrong_message_finding(pair: tuple[Call, Call]) -> Finding:
    send, receive = pair
    culprits = tuple(sorted({send.rank, receive.rank}))
    summary = (
        f"send #{send.sequence} with tag {send.ignored_tag} on rank {send.rank} is matched with recv "
        f'#{receive.sequence} with tag {receive.ignored_tag} on rank {receive.rank}, group "{send.group}"'
    )
    parts = format_call_table(pair), Cause.TAGS_IGNORED.lines()
    sites = sites_culprits_first(pair, culprits)
    return summarized_finding(Code.MISMATCH_ORIGIN, culprits, summary, *parts, sites=sites, calls=pair)


# --- collectives that combine tensors of different names: ranks loop over them in different orders --------------------


def _exchanged_names_finding(named: Mapping[int, Sequence[NamedCall]]) -> Finding | None:
    """Return the finding for the calls of one line and group, if ranks used the same names in different orders.

    Different names may be intended. So all ranks must have the same names in matched calls, and equally often where the
    names may be the program's words for something else: a rank that is one tensor ahead ends one ahead, too. For words
    beside a tensor that is added up it is enough that all ranks use the unlike words of one call.
    """
    ranks = list(named.values())
    names = [[name.text for _, name in calls] for calls in ranks]
    sequences = [[call.sequence for call, _ in calls] for calls in ranks]
    if len(ranks) < 2 or any(each != sequences[0] for each in sequences) or all(each == names[0] for each in names):
        return None
    longest = length = len(names[0])
    are_sure = all(name.is_sure for calls in ranks for _, name in calls)
    if not are_sure or len(set(map(frozenset, names))) > 1:
        # All calls are compared; or only the first, if later ones have no names, without the last round.
        lengths = range(longest, longest // 2 if longest >= MOST_NAMED else longest - 1, -1)
        alike = (n for n in lengths if all(sorted(each[:n]) == sorted(names[0][:n]) for each in names))
        if not (length := next(alike, 0)):
            first = _first_crossing(ranks)
            return (
                None if first is None else _matched_names_finding([calls[first] for _, calls in sorted(named.items())])
            )
    names = [each[:length] for each in names]
    if all(each == names[0] for each in names):
        return None
    first = next(index for index, met in enumerate(zip(*names, strict=True)) if len(set(met)) > 1)
    return _matched_names_finding([calls[first] for _, calls in sorted(named.items())])


def _first_crossing(ranks: Sequence[Sequence[NamedCall]]) -> int | None:
    """Return the first call that adds up values under different words, if each of these words is used on all ranks."""
    if not all(name.is_word and call.signature.reduction in _ADDING for calls in ranks for call, name in calls):
        return None
    met = [{name.text for _, name in each} for each in zip(*ranks, strict=True)]
    shared = set.intersection(*({name.text for _, name in calls} for calls in ranks))
    return next((index for index, words in enumerate(met) if len(words) > 1 and words <= shared), None)


def _matched_names_finding(met: Sequence[NamedCall]) -> Finding:
    sides = ranks_by_value((call.rank, name.text) for call, name in met)
    culprits = ranks_outside_largest(sides.values())
    calls = [call for call, _ in met]
    code = Code.MISMATCH_ORIGIN if all(name.is_sure for _, name in met) else Code.HAZARD_TENSOR_ORDER
    names = " is matched with ".join(f"{name} of {rank_list(ranks)}" for name, ranks in sides.items())
    summary = f'{calls[0].title} on group "{calls[0].group}": {names}'
    rows = format_table([TableRow(call.rank, f"{call}  {name.text}", call.location) for call, name in met])
    sites, advice = sites_culprits_first(calls, culprits), Cause.NAMES_MEET.lines()
    return summarized_finding(code, culprits, summary, rows, advice, sites=sites, calls=calls)


# --- ranks as threads of one process ----------------------------------------------------------------------------------


class SharedState(Enum):
    """Ways in which ranks use state of their process that ranks in processes of their own would not share."""

    FOLDER = "changes the working folder"
    SIGNALS = "sets a signal handler, which Python allows the main thread of a process alone"
    PROCESSES = "starts processes, which make ranks where a rank is a process"
    ENVIRONMENT = "reads {of} while a module is imported, once for all ranks"
    LIBRARY = "{of} keeps the state of a rank in its modules"
    CACHE = "{of} caches what depends on the rank, and all ranks share the cache"


def shared_process_finding(what: SharedState, ranks: tuple[int, ...], site: Site, of: str = "") -> Finding:
    """Return the finding for one such use at one line; `of` is the environment variable or library."""
    deed = what.value.format(of=of)
    summary = f"{rank_list(ranks)} {put_verb_in_plural(deed) if len(ranks) > 1 else deed} at {site}" if ranks else deed
    sites = (site,) if ranks else ()
    return summarized_finding(Code.HAZARD_SHARED_PROCESS, ranks, summary, Cause.PROCESS_SHARED.lines(), sites=sites)
