"""Finds the send or receive that caused a deadlock: the call that breaks a pattern which all other ranks' calls follow.

The rank that waits for a message that never comes seldom made the mistake. But all ranks run one program, so their
calls follow patterns. A call that breaks one is the likely cause; if two ranks break equally many, neither is named.

    peer    all other calls of the line name one rank, or the same neighbour; or one peer always follows another
    tag     the same for tags, as they are or counted from the line's first call
    order   a line follows a line that it follows nowhere else, on any rank that reaches the same lines
    partner a rank waits for a returned rank to which it has no other message, while another rank waits for it
    count   a rank made one call more, or one less, than each returned rank that reached the same lines; or one send or
            receive more at a line, which no rank answers
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, pairwise
from operator import methodcaller
from typing import Any, NamedTuple

from ddpsim.simulator.calls import ANY_SOURCE, Call, Site
from ddpsim.simulator.diagnosis.advice import Advice, Cause
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankState, Snapshot
from ddpsim.simulator.wording import LabelledLine, ranks_by_value, values_by_key

_LEAST_CALLS_OF_PATTERN = 2
"""The least number of equal other calls that make a pattern."""

_NEIGHBOUR, _PEER, _TAG, _COUNTED_TAG = _KINDS = range(4)


class MessageOutlier(NamedTuple):
    """A call that breaks a pattern which all others follow."""

    call: Call
    lines: list[LabelledLine]
    """Two lines of a report: the cause and what to try."""
    weight: int = 1


_LineOf = tuple[Site, str]
"""A line of the program, and whether it sends or receives there."""


class _Message(NamedTuple):
    """A send or receive, with its values that may follow a pattern, by kind: neighbour, peer, tag, counted tag."""

    call: Call
    values: tuple[int, ...]

    @property
    def line(self) -> _LineOf:
        """The program's line of the call, with the operation: a batch sends and receives at one line."""
        return self.call.site, self.call.operation

    def line_and_value(self, kind: int) -> tuple[_LineOf, int]:
        return self.line, self.values[kind]


_Table = Mapping[int, Sequence[_Message]]
"""The sends and receives of each rank, in order."""
_Pairs = Counter[tuple[Hashable, Hashable]]
"""How often one value followed another value."""


def find_message_outlier(snapshot: Snapshot, involved: Collection[int]) -> MessageOutlier | None:
    """Return the first pattern-breaking call of the rank that breaks the most patterns, if that rank is `involved`."""
    made = _messages_by_rank(snapshot)
    returned = {each.rank for each in snapshot.ranks if each.state is RankState.RETURNED}
    found = chain(
        _outliers_at_lines(made, snapshot),
        _outliers_after_previous_call(made),
        _outliers_in_line_order(made),
        _outliers_in_call_count(made, returned),
        _outliers_in_count_at_lines(made, returned, snapshot),
        _outliers_without_partner(made, returned, snapshot),
    )
    odd = values_by_key((each.call.rank, each) for each in found)
    weights = Counter({rank: sum(each.weight for each in own) for rank, own in odd.items()}).most_common(2)
    is_tie = len(weights) > 1 and weights[0][1] == weights[1][1]
    if not weights or is_tie or weights[0][0] not in involved:
        return None
    return odd[weights[0][0]][0]


def _messages_by_rank(snapshot: Snapshot) -> dict[int, list[_Message]]:
    size = len(snapshot.ranks)
    made: dict[int, list[_Message]] = {}
    counts: Counter[tuple[int, _LineOf]] = Counter()
    for call in snapshot.issued:
        # All messages of a pipeline's stage come from one line, and follow no common pattern.
        if call.peer is None or call.peer == ANY_SOURCE or not call.origin.is_of_program:
            continue
        line = call.site, call.operation
        number = counts[call.rank, line]
        counts[call.rank, line] += 1
        values = ((call.peer - call.rank) % size, call.peer, call.tag, call.tag - number)
        made.setdefault(call.rank, []).append(_Message(call, values))
    return made


def _outliers_at_lines(made: _Table, snapshot: Snapshot) -> Iterator[MessageOutlier]:
    """Yield waiting calls whose peer or tag differs from those of all other calls from their line."""
    size = len(snapshot.ranks)
    for ranks in _messages_by_line(made).values():
        calls = [each for own in ranks.values() for each in own]
        counts = [Counter(each.values[kind] for each in calls) for kind in _KINDS]
        found = _find_single_value(calls, counts, (_PEER, _NEIGHBOUR))
        if found is not None and found.call in snapshot.open_calls_by_call and not _is_ring_closing(found.call, calls):
            usual = counts[found.kind].most_common(1)[0][0]
            peer = usual if found.kind == _PEER else (found.call.rank + usual) % size
            yield _make_outlier(Cause.ODD_PEER, found.call, f"rank {found.call.peer}", f"rank {peer}")
        found = _find_single_value(calls, counts, (_TAG, _COUNTED_TAG))
        if found is not None and found.call in snapshot.open_calls_by_call:
            tag = counts[found.kind].most_common(1)[0][0] + found.call.tag - found.value
            yield _make_outlier(Cause.ODD_TAG, found.call, f"tag {found.call.tag}", f"tag {tag}")


class _SingleValue(NamedTuple):
    call: Call
    kind: int
    value: int


def _find_single_value(calls: list[_Message], counts: list[Counter[int]], kinds: Iterable[int]) -> _SingleValue | None:
    """Return the one call whose value differs from all others; None if several do, or if all agree in one kind."""
    found = []
    for kind in kinds:
        own = counts[kind]
        if len(own) == 1:
            return None
        if len(own) == 2 and min(own.values()) == 1 and max(own.values()) >= _LEAST_CALLS_OF_PATTERN:
            each = next(each for each in calls if own[each.values[kind]] == 1)
            found.append(_SingleValue(each.call, kind, each.values[kind]))
    return found[0] if found and all(each.call is found[0].call for each in found) else None


def _is_ring_closing(call: Call, calls: Iterable[_Message]) -> bool:
    """Return True if the call links the last and the first rank of a ring."""
    ranks = [other.call.rank for other in calls]
    return (call.rank, call.peer) in {(max(ranks), min(ranks)), (min(ranks), max(ranks))}


def _outliers_after_previous_call(made: _Table) -> Iterator[MessageOutlier]:
    """Yield calls whose peer or tag never else follows that of the previous call, while another value does."""
    lines = _count_pairs(made.values(), lambda each: each.line)
    pairs = [_count_pairs(made.values(), methodcaller("line_and_value", kind)) for kind in _KINDS]
    starts = [_sum_pairs(each, 0) for each in pairs]

    def is_new(kind: int, before: _Message, call: _Message) -> bool:
        start, end = before.line_and_value(kind), call.line_and_value(kind)
        return pairs[kind][start, end] == 1 and starts[kind][start] > _LEAST_CALLS_OF_PATTERN

    for own in made.values():
        for before, each in pairwise(own):
            if lines[before.line, each.line] == 1:
                continue
            if is_new(_NEIGHBOUR, before, each) and is_new(_PEER, before, each):
                yield _follower_outlier("rank", _PEER, before, each, pairs[_PEER])
            if is_new(_TAG, before, each) and is_new(_COUNTED_TAG, before, each):
                yield _follower_outlier("tag", _TAG, before, each, pairs[_TAG])


def _outliers_in_line_order(made: _Table) -> Iterator[MessageOutlier]:
    """Yield calls from a line that follows the rank's previous line nowhere else."""
    for ranks in _ranks_by_lines(made):
        pairs = _count_pairs([made[rank] for rank in ranks], lambda each: each.line)
        starts, ends = _sum_pairs(pairs, 0), _sum_pairs(pairs, 1)
        for rank in ranks:
            for before, each in pairwise(made[rank]):
                is_new = pairs[before.line, each.line] == 1
                if is_new and starts[before.line] > _LEAST_CALLS_OF_PATTERN and ends[each.line] > 1:
                    usual = _values_that_followed(pairs, before.line)[0][0]
                    yield _make_outlier(Cause.ODD_ORDER, each.call, str(before.call.site), str(usual))


def _outliers_in_call_count(made: _Table, returned: Set[int]) -> Iterator[MessageOutlier]:
    """Yield a call of a rank with one call more or less than each returned rank that reached the same lines."""
    for ranks in _ranks_by_lines(made):
        for rank in ranks:
            others = [len(made[each]) for each in ranks if each in returned and each != rank]
            count = len(made[rank])
            more = count - min(others, default=0)
            is_usual = len(others) >= _LEAST_CALLS_OF_PATTERN and len(set(others)) == 1
            if is_usual and more == (-1 if rank in returned else 1):
                yield _make_outlier(Cause.ODD_COUNT, made[rank][-1].call, str(count), str(others[0]), weight=2)


def _outliers_in_count_at_lines(made: _Table, returned: Set[int], snapshot: Snapshot) -> Iterator[MessageOutlier]:
    """Yield a call of a rank with one call more at a line (the ends of a pipeline reach other lines)."""
    for ranks in _messages_by_line(made).values():
        usual, times = Counter(len(own) for own in ranks.values()).most_common(1)[0]
        odd = [rank for rank, own in ranks.items() if len(own) != usual]
        if len(odd) != 1 or times < _LEAST_CALLS_OF_PATTERN or not ranks.keys() - set(odd) <= returned:
            continue
        last = ranks[odd[0]][-1].call
        if len(ranks[odd[0]]) == usual + 1 and last in snapshot.open_calls_by_call:
            yield _make_outlier(Cause.ODD_COUNT_AT_LINE, last, str(usual + 1), str(usual), weight=2)


def _outliers_without_partner(made: _Table, returned: Set[int], snapshot: Snapshot) -> Iterator[MessageOutlier]:
    """Yield the call of a rank that waits for a returned, otherwise unrelated rank while another rank waits for it."""
    talked = Counter(frozenset((each.call.rank, each.call.peer)) for own in made.values() for each in own)
    waiting = [call for slot in snapshot.open_slots for call in slot.calls if call.is_point_to_point]
    for call in waiting:
        if call.peer in returned and talked[frozenset((call.rank, call.peer))] == 1:
            fitting = (call.rank, call.group, call.tag)
            others = [each for each in waiting if (each.peer, each.group, each.tag) == fitting]
            if len(others) == 1 and others[0].operation != call.operation:
                yield _make_outlier(Cause.ODD_PARTNER, call, f"rank {call.peer}", f"rank {others[0].rank}")


def _ranks_by_lines(made: _Table) -> Iterable[list[int]]:
    """Return the ranks, grouped by the set of the program's lines that they reached."""
    return ranks_by_value((rank, frozenset(each.line for each in own)) for rank, own in made.items()).values()


def _messages_by_line(made: _Table) -> dict[_LineOf, dict[int, list[_Message]]]:
    lines: dict[_LineOf, dict[int, list[_Message]]] = {}
    for rank, own in made.items():
        for each in own:
            lines.setdefault(each.line, {}).setdefault(rank, []).append(each)
    return lines


def _count_pairs(rows: Iterable[Sequence[_Message]], of: Callable[[_Message], Hashable]) -> _Pairs:
    return Counter((of(before), of(each)) for own in rows for before, each in pairwise(own))


def _sum_pairs(pairs: _Pairs, side: int) -> Counter[Hashable]:
    return Counter(pair[side] for pair in pairs.elements())


def _values_that_followed(pairs: _Pairs, start: Hashable) -> list[Any]:
    """Return the values that followed `start`, the most frequent first."""
    return [then for (first, then), _ in pairs.most_common() if first == start]


def _follower_outlier(name: str, kind: int, before: _Message, each: _Message, pairs: _Pairs) -> MessageOutlier:
    own = each.line_and_value(kind)
    followers = _values_that_followed(pairs, before.line_and_value(kind))
    usual = [f"{name} {value}" for site, value in followers if (site, value) != own]
    fact = f"{name} {own[1]} after {name} {before.values[kind]}"
    return _make_outlier(Cause.ODD_FOLLOWER, each.call, fact, " or ".join(usual[:3]))


def _make_outlier(
    cause: Advice[[str, str, str, str, str]], call: Call, fact: str, usual: str, weight: int = 1
) -> MessageOutlier:
    """Return the outlier for a call whose value is `fact`, where other calls have `usual`."""
    return MessageOutlier(call, cause.lines(f"rank {call.rank}", call.title, str(call.site), fact, usual), weight)
