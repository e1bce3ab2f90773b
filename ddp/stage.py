"""Where a reducer stands between a forward and the end of its backward: the states and the one transition function."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """What the next gradient means."""

    IDLE = "idle"
    """No forward through the wrapper waits for its backward: a gradient bypasses it."""
    LOCAL = "local"
    """The last forward ran under no_sync: gradients are kept, not reduced."""
    EXPECTING = "expecting"
    """A forward has announced gradients; none has come yet."""
    REDUCING = "reducing"
    """Gradients are coming, and buckets are reduced as they fill."""


class Event(Enum):
    """What moves a reducer on."""

    FORWARD = "forward"
    LOCAL_FORWARD = "local forward"
    GRADIENT = "gradient"
    ALL_REDUCED = "all reduced"
    GIVEN_UP = "given up"


_NEXT: dict[tuple[Stage, Event], Stage] = {
    (Stage.IDLE, Event.FORWARD): Stage.EXPECTING,
    (Stage.IDLE, Event.LOCAL_FORWARD): Stage.LOCAL,
    (Stage.LOCAL, Event.FORWARD): Stage.EXPECTING,
    (Stage.LOCAL, Event.LOCAL_FORWARD): Stage.LOCAL,
    (Stage.EXPECTING, Event.FORWARD): Stage.EXPECTING,
    (Stage.EXPECTING, Event.GRADIENT): Stage.REDUCING,
    (Stage.REDUCING, Event.ALL_REDUCED): Stage.IDLE,
    **{(stage, Event.GIVEN_UP): Stage.IDLE for stage in Stage},
}


def follows(stage: Stage, event: Event) -> Stage | None:
    """The stage after `event`, or None where it must not happen, as a forward while reducing.

    Only a backward's first gradient is an event, and only one that was announced.
    """
    return _NEXT.get((stage, event))
