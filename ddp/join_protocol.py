"""The protocol of a join: announcements that ranks exchange, encoded as integers, and the states of a rank.

Each rank fills one row of a matrix. An all_reduce sums the matrices, so every rank has every row: which ranks have
input, and which call they are about to make. Nothing here communicates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import islice, takewhile

from ddpsim.ddp.text_formats import ranks_text


class AnnouncedKind(IntEnum):
    """What a rank is about to do. It is the first number of the rank's row in the matrix."""

    JOINED = 0
    """No call: the rank ran out of input and answers the other ranks' calls with neutral contributions."""
    FAILED = 1
    """The rank leaves the join by an exception."""
    FORWARD = 2
    """A forward of a wrapped model begins."""
    BUCKET = 3
    USED_MAP = 4
    REBUILD = 5
    COLLECTIVE = 6
    """A collective of the model, the training loop or the buffer synchronization, not of the reducer."""
    UNANSWERABLE_COLLECTIVE = 7
    """A collective that ranks without input cannot take part in."""
    END = 8
    """The wrapped model has finished the training iteration."""


class ForwardKind(IntEnum):
    """Whether a forward's gradients are reduced, kept local, or absent. It must be equal on all ranks with input."""

    SYNCHRONIZED = 0
    """The gradients of the forward will be reduced."""
    LOCAL = 1
    """The forward runs under no_sync."""
    EVALUATION = 2
    """The forward has no gradients: it runs under no_grad, or all parameters are frozen."""


@dataclass(frozen=True, slots=True)
class JoinAnnouncement:
    """One rank's announcement of its next call: one row of the matrix."""

    kind: AnnouncedKind
    engine: int = 0
    """The index of the wrapped model within the join."""
    number: int = 0
    """A value of `ForwardKind`, or a bucket's number."""
    samples: int = 0
    """The number of samples of the forward on this rank; other ranks may have other numbers."""
    details: tuple[int, ...] = ()
    """A collective's encoded arguments (collectives.py), or only its name's index if joined ranks cannot make it."""

    def encode(self, width: int) -> list[int]:
        """Encode the announcement as `width` numbers. Details that do not fit are omitted; their count is kept."""
        row = [self.kind, self.engine, self.number, self.samples, len(self.details), *self.details]
        return row[:width] + [0] * (width - len(row))

    @classmethod
    def decode(cls, row: Sequence[int]) -> "JoinAnnouncement":
        """Return the announcement from a row that has room for all details."""
        kind, engine, number, samples, length = row[:WIDTH_WITHOUT_DETAILS]
        details = tuple(row[WIDTH_WITHOUT_DETAILS : WIDTH_WITHOUT_DETAILS + length])
        return cls(AnnouncedKind(kind), engine, number, samples, details)


WIDTH_WITHOUT_DETAILS = 5
"""The width of a row without details: enough while all ranks have input."""
WIDE = 64


def needed_row_width(rows: Sequence[Sequence[int]]) -> int:
    """Return the width of a row that holds the details of every rank's announcement."""
    return WIDTH_WITHOUT_DETAILS + max(row[WIDTH_WITHOUT_DETAILS - 1] for row in rows)


@dataclass(frozen=True, slots=True)
class AnnouncementRound:
    """What all ranks announced in one round. Ranks are group ranks."""

    present: tuple[int, ...]
    """The ranks with input."""
    failed: tuple[int, ...]
    samples: tuple[int, ...]
    """The number of samples of the forward on each rank."""
    call: JoinAnnouncement | None
    """The call that all ranks with input are about to make; None if no rank has input or they disagree."""
    disagreement: str | None
    """If the announcements differ: text that says which ranks are about to make which call."""


def read_round(
    rows: Sequence[JoinAnnouncement], *, members: Sequence[int], describe: Callable[[Sequence[int]], str] = str
) -> AnnouncementRound:
    """Return the round from all ranks' rows; `members` (global ranks) and `describe` (details) are for error texts."""
    present = tuple(
        rank for rank, row in enumerate(rows) if row.kind not in (AnnouncedKind.JOINED, AnnouncedKind.FAILED)
    )
    ranks_by_text: dict[str, list[int]] = {}
    for rank in present:
        ranks_by_text.setdefault(_describe_announcement(rows[rank], describe), []).append(members[rank])
    agreed = len(ranks_by_text) == 1
    return AnnouncementRound(
        present,
        tuple(rank for rank, row in enumerate(rows) if row.kind is AnnouncedKind.FAILED),
        tuple(row.samples for row in rows),
        rows[present[0]] if agreed else None,
        None if agreed or not present else "; ".join(f"{ranks_text(r)}: {text}" for text, r in ranks_by_text.items()),
    )


def predict_calls(log: Sequence[JoinAnnouncement]) -> list[JoinAnnouncement] | None:
    """Predict the calls up to the next forward from earlier iterations; None if the log does not determine them.

    A candidate is any earlier point of the log that follows the same calls since its last forward. If the candidates
    continue differently, only those remain that share one more earlier call, until the rest agree.
    """
    recent = calls_since_latest_forward(log)
    starts = [index for index, call in enumerate(log) if call.kind is AnnouncedKind.FORWARD]
    ends = [start + len(recent) for start in starts[:-1] if list(log[start : start + len(recent)]) == recent]
    pasts = {end: _count_equal_past(log, end) for end in ends}
    for length in range(len(recent), len(log)):
        ends = [end for end in ends if pasts[end] >= length]
        followings = [
            list(takewhile(lambda call: call.kind is not AnnouncedKind.FORWARD, islice(log, end, None))) for end in ends
        ]
        if not followings:
            return None
        if all(following == followings[0] for following in followings):
            return followings[0]
    return None


def calls_since_latest_forward(log: Sequence[JoinAnnouncement]) -> list[JoinAnnouncement]:
    """Return the latest forward in the log and the calls after it."""
    starts = [index for index, call in enumerate(log) if call.kind is AnnouncedKind.FORWARD]
    return list(log)[starts[-1] :] if starts else []


def _count_equal_past(log: Sequence[JoinAnnouncement], end: int) -> int:
    """Return how many calls just before `end` equal those at the end of the log."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(log[:end]), reversed(log), strict=False))
    return sum(1 for _ in same)


def _describe_announcement(row: JoinAnnouncement, describe: Callable[[Sequence[int]], str]) -> str:
    """Return the part of a row that must be equal on all ranks, as text."""
    model = f" of model {row.engine}" if row.engine else ""
    if row.kind is AnnouncedKind.FORWARD:
        words = {
            ForwardKind.SYNCHRONIZED: "a forward that synchronizes gradients",
            ForwardKind.LOCAL: "a forward inside no_sync",
            ForwardKind.EVALUATION: "a forward without gradients",
        }
        return words[ForwardKind(row.number)] + model
    if row.kind is AnnouncedKind.BUCKET:
        return f"reduces bucket {row.number}{model}"
    if row.kind is AnnouncedKind.COLLECTIVE:
        return f"calls {describe(row.details)}"
    words_by_kind = {
        AnnouncedKind.USED_MAP: "reduces the map of used parameters",
        AnnouncedKind.REBUILD: "agrees on the order of the buckets",
        AnnouncedKind.UNANSWERABLE_COLLECTIVE: "calls what joined ranks cannot take part in",
        AnnouncedKind.END: "ends its iteration",
    }
    return words_by_kind[row.kind] + model


class JoinState(Enum):
    """The state of a rank in a join."""

    COMPLETE = "complete"
    """All ranks have input, or torch's Join is between iterations: calls are only logged."""
    ANNOUNCING = "announcing"
    """This rank has input and another one has joined: each call is announced before it is made."""
    JOINING = "joining"
    """This rank ran out of input and has not announced it yet."""
    FOLLOWING = "following"
    """This rank ran out of input and answers the calls of the ranks that have input."""
    LEAVING = "leaving"
    """This rank leaves by an exception; its models make the calls that the other ranks still wait for."""
    RETRACING = "retracing"
    """This rank leaves by an exception and makes the calls that its log of earlier iterations predicts."""
    LEFT = "left"
    """Another rank left by an exception: the join has ended on all ranks, and they may be at different steps."""
    ENDED = "ended"
    """Another error has ended the join on all ranks."""


class JoinEvent(Enum):
    """An event that changes the state of a rank."""

    SOMEBODY_JOINED = "somebody joined"
    RAN_OUT = "ran out"
    ROW_EXCHANGED = "row exchanged"
    """All ranks have received this rank's row."""
    ITERATION_ANSWERED = "iteration answered"
    """torch's Join asks this rank, which has no input, to answer the calls of one iteration."""
    ITERATION_ENDED = "iteration ended"
    RAISED = "raised"
    LOG_FOLLOWED = "log followed"
    RANK_LEFT = "rank left"
    DISAGREED = "disagreed"
    """The ranks have received announcements that contradict each other."""


_WITH_INPUT = (JoinState.COMPLETE, JoinState.ANNOUNCING)
_WITHOUT_INPUT = (JoinState.JOINING, JoinState.FOLLOWING)

_NEXT: dict[tuple[JoinState, JoinEvent], JoinState] = {
    (JoinState.JOINING, JoinEvent.ROW_EXCHANGED): JoinState.FOLLOWING,
    (JoinState.ANNOUNCING, JoinEvent.ITERATION_ENDED): JoinState.COMPLETE,
    (JoinState.LEAVING, JoinEvent.LOG_FOLLOWED): JoinState.RETRACING,
    (JoinState.RETRACING, JoinEvent.LOG_FOLLOWED): JoinState.RETRACING,
    (JoinState.FOLLOWING, JoinEvent.SOMEBODY_JOINED): JoinState.FOLLOWING,
    (JoinState.FOLLOWING, JoinEvent.ITERATION_ANSWERED): JoinState.FOLLOWING,
    (JoinState.FOLLOWING, JoinEvent.ITERATION_ENDED): JoinState.FOLLOWING,
    **{(state, JoinEvent.SOMEBODY_JOINED): JoinState.ANNOUNCING for state in _WITH_INPUT},
    **{(state, JoinEvent.RAN_OUT): JoinState.JOINING for state in _WITH_INPUT},
    **{(state, JoinEvent.ITERATION_ANSWERED): JoinState.FOLLOWING for state in _WITH_INPUT},
    **{(state, JoinEvent.RAISED): JoinState.LEAVING for state in _WITH_INPUT},
    **{(state, JoinEvent.RANK_LEFT): JoinState.LEFT for state in (*_WITH_INPUT, *_WITHOUT_INPUT)},
    **{(state, JoinEvent.DISAGREED): JoinState.ENDED for state in (*_WITH_INPUT, *_WITHOUT_INPUT)},
}


def next_join_state(state: JoinState, event: JoinEvent) -> JoinState | None:
    """Return a rank's state after `event`; None if the event is not allowed in this state."""
    return _NEXT.get((state, event))
