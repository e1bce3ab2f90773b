"""The trace: the ordered events of one execution, from which verdict, report, digest and replay derive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.simulator.events import Event


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one execution, in order."""

    events: tuple[Event, ...] = ()

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def digest(self) -> str:
        """32 hex digits that are equal exactly if the events are; no path, id, hash() or wall time enters."""
        digest = hashlib.blake2b(digest_size=16)
        for event in self.events:
            digest.update(event.line().encode())
            digest.update(b"\n")
        return digest.hexdigest()
