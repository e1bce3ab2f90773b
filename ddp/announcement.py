"""What ranks tell each other inside a join, as rows of integers; and what follows from all ranks' rows. Pure.

Every rank fills one row of a matrix and an all_reduce adds them up, so that everybody has every row: who takes part,
and what those who do are about to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice, takewhile

from ddpsim.ddp.wording import ranks_text


class Kind(IntEnum):
    """What a rank is about to do; the first number of its row."""

    JOINED = 0
    """Nothing: it ran out of input, and shadows the others."""
    FAILED = 1
    """It leaves the join by an exception."""
    FORWARD = 2
    """A forward of a wrapped model begins."""
    BUCKET = 3
    USED_MAP = 4
    REBUILD = 5
    COLLECTIVE = 6
    """A collective that is not the reducer's: of the model, of the loop, of the buffers."""
    UNSHADOWED = 7
    """A collective that joined ranks cannot take part in."""
    END = 8
    """The iteration is over, as far as the wrapped model is concerned."""


class Forward(IntEnum):
    """What kind of forward; the ranks that have input have to agree on it."""

    SYNCHRONIZED = 0
    """Its gradients are to be reduced."""
    LOCAL = 1
    """It runs under no_sync."""
    EVALUATION = 2
    """No gradients: under no_grad, or all parameters are frozen."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """One rank's row."""

    kind: Kind
    engine: int = 0
    """Which of the wrapped models of the join."""
    number: int = 0
    """A value of `Forward`, or the number of a bucket."""
    samples: int = 0
    """How many samples a forward has here; ranks may differ in this."""
    details: tuple[int, ...] = ()
    """Of a collective: what is needed to take part in it (neutral.py); of an unshadowed one: the index of its name."""

    def encode(self, width: int) -> list[int]:
        """`width` numbers; details that do not fit are left out, and their count is not."""
        row = [self.kind, self.engine, self.number, self.samples, len(self.details), *self.details]
        return row[:width] + [0] * (width - len(row))

    @classmethod
    def decode(cls, row: Sequence[int]) -> Announcement:
        """From a row that all details fit into."""
        kind, engine, number, samples, length = row[:NARROW]
        return cls(Kind(kind), engine, number, samples, tuple(row[NARROW : NARROW + length]))


NARROW = 5
"""A row without details: enough while nobody has joined."""
WIDE = 64


def width_needed(rows: Sequence[Sequence[int]]) -> int:
    """How wide all ranks' rows have to be for all their details."""
    return NARROW + max(row[NARROW - 1] for row in rows)


@dataclass(frozen=True, slots=True)
class Round:
    """What all ranks' rows say together; ranks are numbers within the group."""

    present: tuple[int, ...]
    """Ranks with input."""
    failed: tuple[int, ...]
    samples: tuple[int, ...]
    """By rank."""
    call: Announcement | None
    """What the ranks present are about to do; None if nobody is present, or they disagree."""
    disagreement: str | None
    """Which ranks are about to do what, if they differ."""


def read_round(
    rows: Sequence[Announcement], *, members: Sequence[int], describe: Callable[[Sequence[int]], str] = str
) -> Round:
    """Read all ranks' rows, in rank order.

    For texts: `members` are the ranks' numbers in the world, and `describe` has the words for a collective's details.
    """
    present = tuple(rank for rank, row in enumerate(rows) if row.kind not in (Kind.JOINED, Kind.FAILED))
    ranks_by_text: dict[str, list[int]] = {}
    for rank in present:
        ranks_by_text.setdefault(_compared(rows[rank], describe), []).append(members[rank])
    agreed = len(ranks_by_text) == 1
    return Round(
        present,
        tuple(rank for rank, row in enumerate(rows) if row.kind is Kind.FAILED),
        tuple(row.samples for row in rows),
        rows[present[0]] if agreed else None,
        None if agreed or not present else "; ".join(f"{ranks_text(r)}: {text}" for text, r in ranks_by_text.items()),
    )


def expected_next(log: Sequence[Announcement]) -> list[Announcement] | None:
    """What will follow up to the next forward, if it goes as before; None if the log does not tell.

    All earlier points count where the calls since the last forward were the same. If it went on in different ways
    there, those count that have one more call before that in common, and so on until they agree.
    """
    recent = latest_forward(log)
    starts = [index for index, call in enumerate(log) if call.kind is Kind.FORWARD]
    ends = [start + len(recent) for start in starts[:-1] if list(log[start : start + len(recent)]) == recent]
    pasts = {end: _common_past(log, end) for end in ends}
    for length in range(len(recent), len(log)):
        ends = [end for end in ends if pasts[end] >= length]
        followings = [_up_to_forward(log, end) for end in ends]
        if not followings:
            return None
        if all(following == followings[0] for following in followings):
            return followings[0]
    return None


def _up_to_forward(log: Sequence[Announcement], start: int) -> list[Announcement]:
    return list(takewhile(lambda call: call.kind is not Kind.FORWARD, islice(log, start, None)))


def latest_forward(log: Sequence[Announcement]) -> list[Announcement]:
    """The last forward, and what was called since."""
    starts = [index for index, call in enumerate(log) if call.kind is Kind.FORWARD]
    return list(log)[starts[-1] :] if starts else []


def _common_past(log: Sequence[Announcement], end: int) -> int:
    """How many calls before `end` are the same as those at the end of the log."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(log[:end]), reversed(log), strict=False))
    return sum(1 for _ in same)


def _compared(row: Announcement, describe: Callable[[Sequence[int]], str]) -> str:
    """What has to be the same on all ranks, in words."""
    model = f" of model {row.engine}" if row.engine else ""
    if row.kind is Kind.FORWARD:
        words = {
            Forward.SYNCHRONIZED: "a forward that synchronizes gradients",
            Forward.LOCAL: "a forward inside no_sync",
            Forward.EVALUATION: "a forward without gradients",
        }
        return words[Forward(row.number)] + model
    if row.kind is Kind.BUCKET:
        return f"reduces bucket {row.number}{model}"
    if row.kind is Kind.COLLECTIVE:
        return f"calls {describe(row.details)}"
    words_by_kind = {
        Kind.USED_MAP: "reduces the map of used parameters",
        Kind.REBUILD: "agrees on the order of the buckets",
        Kind.UNSHADOWED: "calls what joined ranks cannot take part in",
        Kind.END: "ends its iteration",
    }
    return words_by_kind[row.kind] + model
