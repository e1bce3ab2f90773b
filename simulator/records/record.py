"""What a rank's record says, whatever form it came in: the calls that it made, as the simulator's own values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.calls import Call
from ddpsim.simulator.errors import UsageError


class RecordError(UsageError):
    """A file that is no record that can be read; the text says what was found, and what was expected."""


class Progress(Enum):
    """How far a call had come when the record was written."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    UNKNOWN = "unknown"
    """The record does not say."""


class RecordedCall(NamedTuple):
    """A call that a rank made."""

    call: Call
    """Collectives are numbered as the record numbers them, from 0 on; messages in the order in which they stand."""
    progress: Progress


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The record of one rank."""

    rank: int
    source: str
    """The file it was read from."""
    form: str
    """Such as "flight recorder 2.10"."""
    calls: tuple[RecordedCall, ...]
    """In the order in which the rank made them."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The global ranks of the groups that the record describes, in group-rank order."""
    lost: int = 0
    """How many calls came before the first that the record still has."""
    not_recorded: int = 0
    """How many calls the rank made meanwhile that the recorder does not record: messages, on gloo."""
    is_in_one_group: bool = False
    """The record shows that the rank is in no group but the default one."""
    lacks: tuple[str, ...] = ()
    """What a record of this form has not, so that it is not compared: "reduction", "root", "splits"."""
