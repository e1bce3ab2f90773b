"""Finds the uses of `join()` in a trace: when each rank ran out of input, which collectives it shadowed (made only so
that the other ranks can continue), and whose model was kept.

A note in the trace precedes the first call that a rank without input makes. Such a call shadows a collective if a rank
with input makes the same collective. A rank's other calls in a join are no shadows: those by which all ranks learn that
none has input, those that follow, and those without a partner when the run ended.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpsim.simulator.calls import Call, Origin, Phase
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.trace import Trace
from ddpsim.simulator.wording import LabelledLine, rank_list, ranks_by_value

Slot = tuple[str, int]
"""The key of a collective: its group, and its number within the group."""

_SINGULARS = {Phase.USER.value: "of the user's program"}
_PLURALS = {
    **_SINGULARS,
    Phase.BUCKET.value: "buckets",
    Phase.USED_MAP.value: "used maps",
    Phase.REBUILD.value: "rebuilds",
}
_JOINED = re.compile(r"joined(?: at step (\d+))?")


def joined_note_text(step: int | None) -> str:
    """Return the text of the note that a rank ran out of input. `step` is None for a join without models."""
    return "joined" if step is None else f"joined at step {step}"


@dataclass(frozen=True, slots=True)
class JoinedRank:
    """One rank in a join, from the point where it ran out of input."""

    rank: int
    step: int | None
    """The number of synchronising forwards that its model had made before, see Note [Step of joining] in
    attribution/origins.py; None without a model."""
    shadowed: tuple[tuple[str, int], ...] = ()
    """How many collectives of each phase ("bucket", "user") the rank made only for others, the largest number first."""

    @property
    def calls(self) -> int:
        """Return how many collectives the rank made only so that other ranks could continue."""
        return sum(count for _, count in self.shadowed)


@dataclass(frozen=True, slots=True)
class JoinSummary:
    """The ranks in one use of `join()`, as far as the run reached its end."""

    group: str
    ranks: tuple[JoinedRank, ...]
    """The ranks in the order in which they ran out of input; by rank where several did so together."""
    authoritative: int | None = None
    """The rank whose model all ranks receive at the end: the last that ran out of input. None if the run ended earlier,
    or if the join has no models."""

    @property
    def lines(self) -> tuple[LabelledLine, ...]:
        """Return a line for each rank; ranks with equal lines share one. The last to run out of input come last."""
        ranks_by_end = ranks_by_value((joined.rank, (joined.step, joined.shadowed)) for joined in self.ranks)
        return tuple(
            LabelledLine("join", f"{rank_list(ranks)} {self._end_text(ranks, step, shadowed)}")
            for (step, shadowed), ranks in ranks_by_end.items()
        )

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    def _end_text(self, ranks: list[int], step: int | None, shadowed: tuple[tuple[str, int], ...]) -> str:
        if shadowed:
            return f"{joined_note_text(step)}, shadowed {_shadowed_text(shadowed, each=len(ranks) > 1)}"
        if self.authoritative is None:
            return joined_note_text(step)
        model = "its model" if ranks == [self.authoritative] else f"the model of rank {self.authoritative}"
        return f"{'was' if len(ranks) == 1 else 'were'} the last to join, at step {step}: {model} is kept"


def find_joins(trace: Trace) -> tuple[JoinSummary, ...]:
    """Return the uses of `join()` in a run, by group and then in order. Ranks without a call in a join are left out."""
    stays = _find_joined_calls(trace)
    if not stays:
        return ()
    calls = [event.call for event in trace if event.kind is EventKind.ISSUE and event.call is not None]
    with_input = {(c.group, c.sequence): c.origin for c in calls if not (c.origin.shadow or c.is_point_to_point)}
    return tuple(_summarize_join(together, with_input) for together in _group_by_join(stays))


@dataclass(slots=True)
class _JoinedCalls:
    """The calls that a rank makes in a join after it has run out of input."""

    rank: int
    step: int | None
    calls: list[Call] = field(default_factory=list)
    is_over: bool = False
    """True if the rank has made a call that is no shadow (made only for ranks with input)."""
    root: int | None = None
    """The rank whose model was kept."""

    @property
    def first_collective(self) -> Slot:
        """Return the group and number of the rank's first collective in the join."""
        return self.calls[0].group, self.calls[0].sequence

    def add_if_in_join(self, call: Call) -> bool:
        """Add a call if it belongs to the join; return whether it does.

        The last calls of a join are no shadows: with them ranks agree whose model to keep (join control), and get it.
        """
        if call.origin.shadow and not self.is_over:
            if not call.is_point_to_point:  # messages have separate numbers, and shadow nothing
                self.calls.append(call)
            return True
        self.is_over = True
        if call.origin.phase is Phase.STATE_BROADCAST:
            self.root = call.signature.root
        return call.origin.phase is Phase.JOIN_CONTROL

    def is_in_join_at(self, slot: Slot) -> bool:
        """Return True if the rank was still in the join at this collective, which must not precede its first one."""
        group, sequence = slot
        own = [call.sequence for call in self.calls if call.group == group]
        return group == self.first_collective[0] and (not self.is_over or sequence <= own[-1])


def _find_joined_calls(trace: Trace) -> list[_JoinedCalls]:
    stays: list[_JoinedCalls] = []
    current: dict[int, _JoinedCalls] = {}
    for event in trace:
        if event.kind is EventKind.NOTE and (found := _JOINED.fullmatch(event.text)):
            if event.rank in current:
                current[event.rank].is_over = True
            current[event.rank] = _JoinedCalls(event.rank, None if found[1] is None else int(found[1]))
            stays.append(current[event.rank])
        elif event.kind is EventKind.ISSUE and event.rank in current:
            assert event.call is not None
            if not current[event.rank].add_if_in_join(event.call):
                del current[event.rank]
    return [stay for stay in stays if stay.calls]


def _group_by_join(stays: list[_JoinedCalls]) -> list[list[_JoinedCalls]]:
    """Group the ranks' calls by use of `join()`.

    A rank is in the same use as others if it runs out of input before the first of them has left the join.
    """
    joins: list[list[_JoinedCalls]] = []
    for stay in sorted(stays, key=lambda stay: (stay.first_collective, stay.rank)):
        if joins and joins[-1][0].is_in_join_at(stay.first_collective):
            joins[-1].append(stay)
        else:
            joins.append([stay])
    return joins


def _summarize_join(stays: list[_JoinedCalls], with_input: Mapping[Slot, Origin]) -> JoinSummary:
    root = next((stay.root for stay in stays if stay.root is not None), None)
    ranks = tuple(JoinedRank(stay.rank, stay.step, _count_shadowed_calls(stay, with_input)) for stay in stays)
    return JoinSummary(stays[0].first_collective[0], ranks, root)


def _count_shadowed_calls(stay: _JoinedCalls, with_input: Mapping[Slot, Origin]) -> tuple[tuple[str, int], ...]:
    pairs = [(call.origin, with_input.get((call.group, call.sequence))) for call in stay.calls]
    counts = Counter(met.phase.value for own, met in pairs if met is not None and own.matches_origin(met))
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _shadowed_text(shadowed: tuple[tuple[str, int], ...], *, each: bool) -> str:
    calls = sum(count for _, count in shadowed)
    what = ", ".join(f"{count} {(_SINGULARS if count == 1 else _PLURALS).get(name, name)}" for name, count in shadowed)
    return f"{calls} call{'s' if calls > 1 else ''}{' each' if each else ''} ({what})"
