"""A rank's states in a join: every pair of a state and an event."""

from __future__ import annotations

from itertools import product

from ddpsim.ddp.join_protocol import JoinEvent, JoinState, next_join_state
from tests.kit.rows import rows

COMPLETE, ANNOUNCING, JOINING, FOLLOWING, LEAVING, RETRACING, LEFT, ENDED = JoinState
JOINED, RAN_OUT, TOLD, SHADOWED, OVER, RAISED, LOG, RANK_LEFT, DISAGREED = JoinEvent

ERRORS = {RANK_LEFT: LEFT, DISAGREED: ENDED}
TABLE = {
    COMPLETE: {JOINED: ANNOUNCING, RAN_OUT: JOINING, SHADOWED: FOLLOWING, RAISED: LEAVING, **ERRORS},
    ANNOUNCING: {
        JOINED: ANNOUNCING,
        RAN_OUT: JOINING,
        SHADOWED: FOLLOWING,
        OVER: COMPLETE,
        RAISED: LEAVING,
        **ERRORS,
    },
    JOINING: {TOLD: FOLLOWING, **ERRORS},
    FOLLOWING: {JOINED: FOLLOWING, SHADOWED: FOLLOWING, OVER: FOLLOWING, **ERRORS},
    LEAVING: {LOG: RETRACING},
    RETRACING: {LOG: RETRACING},
    LEFT: {},
    ENDED: {},
}


@rows(("state", "event"), list(product(JoinState, JoinEvent)), ids=lambda value: value.value)
def test_every_pair(state, event):
    assert next_join_state(state, event) is TABLE[state].get(event)


def test_every_state_can_be_reached():
    reached = {next_join_state(state, event) for state in JoinState for event in JoinEvent}
    assert reached == {None, *JoinState}
