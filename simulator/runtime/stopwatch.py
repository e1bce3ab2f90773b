"""The clock of the limits of wall time: it stands still while somebody looks into a rank with a debugger."""

from __future__ import annotations

from time import monotonic  # by its name: a rank may stop it, whose `time.monotonic` is virtual


class Stopwatch:
    """Wall-clock seconds since it was made, without those in which it stood still."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._stopped_at: float | None = None
        self._depth = 0

    def now(self) -> float:
        """The seconds that have gone by."""
        return (monotonic() if self._stopped_at is None else self._stopped_at) - self._began

    def stop(self) -> None:
        """Stand still, until `go_on` has been called as often as this."""
        self._depth += 1
        if self._depth == 1:
            self._stopped_at = monotonic()

    def go_on(self) -> None:
        """Go on from where it stands."""
        self._depth -= 1
        if self._depth == 0 and self._stopped_at is not None:
            self._began += monotonic() - self._stopped_at
            self._stopped_at = None
