"""The clock for the limits of wall time. It is paused while a debugger is open."""

from __future__ import annotations

from time import monotonic  # bound here: inside a rank, `time.monotonic` is virtual


class Stopwatch:
    """Counts the wall-clock seconds since it was made, without those in which it was paused."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._stopped_at: float | None = None
        self._depth = 0

    def now(self) -> float:
        """Return the seconds that have passed."""
        return (monotonic() if self._stopped_at is None else self._stopped_at) - self._began

    def stop(self) -> None:
        """Pause the clock until `go_on` has been called as often as `stop`."""
        self._depth += 1
        if self._depth == 1:
            self._stopped_at = monotonic()

    def go_on(self) -> None:
        """Undo one call of `stop`; after the last one the clock runs again."""
        self._depth -= 1
        if self._depth == 0 and self._stopped_at is not None:
            self._began += monotonic() - self._stopped_at
            self._stopped_at = None
