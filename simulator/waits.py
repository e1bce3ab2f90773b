"""What a rank waits for, as a frozen value: what diagnosis reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.calls import NOWHERE, Call, Site


class CallWait(NamedTuple):
    """A rank waits for its calls: for one of them, which is what a plain `wait` is, or for any of several."""

    calls: tuple[Call, ...]
    site: Site = NOWHERE


@dataclass(frozen=True, slots=True)
class StoreWait:
    """A rank waits until another rank has set keys of the store."""

    keys: tuple[str, ...]
    site: Site = NOWHERE


@dataclass(frozen=True, slots=True)
class ClockWait:
    """A rank sleeps in virtual time."""

    seconds: float
    site: Site = NOWHERE


Wait = CallWait | StoreWait | ClockWait
