"""Where a rank stands in a join: the states and the one transition function, as stage.py has them for a reducer."""

from __future__ import annotations

from enum import Enum


class JoinState(Enum):
    """What this rank does about the collectives of the others, and they about its own."""

    COMPLETE = "complete"
    """Everybody has input, or (inside torch's Join) no iteration is under way: calls are logged, and told to nobody."""
    ANNOUNCING = "announcing"
    """This rank has input, and another has joined: each call is told before it is made."""
    JOINING = "joining"
    """This rank ran out of input, and its next row is the first to say so."""
    FOLLOWING = "following"
    """This rank ran out of input, and makes the calls of those that have some."""
    LEAVING = "leaving"
    """This rank leaves by an exception, and its models make the calls that the others still wait for."""
    RETRACING = "retracing"
    """It leaves, too, and has made calls for the others that its log of earlier iterations showed."""
    LEFT = "left"
    """Another rank left by an exception: the join is over on all ranks, and they may be at different steps."""
    ENDED = "ended"
    """Another error has ended the join, on all ranks alike."""


class JoinEvent(Enum):
    """What moves a rank on."""

    SOMEBODY_JOINED = "somebody joined"
    RAN_OUT = "ran out"
    ROW_TOLD = "row told"
    """All ranks have this one's row."""
    ITERATION_SHADOWED = "iteration shadowed"
    """torch's Join asks this rank to follow the others through an iteration."""
    ITERATION_ENDED = "iteration ended"
    RAISED = "raised"
    LOG_FOLLOWED = "log followed"
    RANK_LEFT = "rank left"
    DISAGREED = "disagreed"
    """All ranks see in a round that they cannot go on together."""


_WITH_INPUT = (JoinState.COMPLETE, JoinState.ANNOUNCING)
_WITHOUT_INPUT = (JoinState.JOINING, JoinState.FOLLOWING)

_NEXT: dict[tuple[JoinState, JoinEvent], JoinState] = {
    (JoinState.JOINING, JoinEvent.ROW_TOLD): JoinState.FOLLOWING,
    (JoinState.ANNOUNCING, JoinEvent.ITERATION_ENDED): JoinState.COMPLETE,
    (JoinState.LEAVING, JoinEvent.LOG_FOLLOWED): JoinState.RETRACING,
    (JoinState.RETRACING, JoinEvent.LOG_FOLLOWED): JoinState.RETRACING,
    (JoinState.FOLLOWING, JoinEvent.SOMEBODY_JOINED): JoinState.FOLLOWING,
    (JoinState.FOLLOWING, JoinEvent.ITERATION_SHADOWED): JoinState.FOLLOWING,
    (JoinState.FOLLOWING, JoinEvent.ITERATION_ENDED): JoinState.FOLLOWING,
    **{(state, JoinEvent.SOMEBODY_JOINED): JoinState.ANNOUNCING for state in _WITH_INPUT},
    **{(state, JoinEvent.RAN_OUT): JoinState.JOINING for state in _WITH_INPUT},
    **{(state, JoinEvent.ITERATION_SHADOWED): JoinState.FOLLOWING for state in _WITH_INPUT},
    **{(state, JoinEvent.RAISED): JoinState.LEAVING for state in _WITH_INPUT},
    **{(state, JoinEvent.RANK_LEFT): JoinState.LEFT for state in (*_WITH_INPUT, *_WITHOUT_INPUT)},
    **{(state, JoinEvent.DISAGREED): JoinState.ENDED for state in (*_WITH_INPUT, *_WITHOUT_INPUT)},
}


def follows(state: JoinState, event: JoinEvent) -> JoinState | None:
    """The state after `event`, or None where it must not happen, as an announcement after the end."""
    return _NEXT.get((state, event))
