"""The trace: the events of one run, in order."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from ddpsim.simulator.events import Event


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of one run, in order."""

    events: tuple[Event, ...] = ()

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def digest(self) -> str:
        """Return a hash of the events as 32 hex digits. It does not depend on paths, ids, hash() or wall time."""
        digest = hashlib.blake2b(digest_size=16)
        for event in self.events:
            digest.update(event.line().encode())
            digest.update(b"\n")
        return digest.hexdigest()
