"""The reducer's states: every pair of a stage and an event."""

from __future__ import annotations

from itertools import product

from ddpsim.ddp.backward_progress import Event, Stage, follows
from tests.kit.rows import rows

IDLE, LOCAL, EXPECTING, REDUCING = Stage

TABLE = {
    IDLE: {Event.FORWARD: EXPECTING, Event.LOCAL_FORWARD: LOCAL, Event.GIVEN_UP: IDLE},
    LOCAL: {Event.FORWARD: EXPECTING, Event.LOCAL_FORWARD: LOCAL, Event.GIVEN_UP: IDLE},
    EXPECTING: {
        Event.FORWARD: EXPECTING,
        Event.GRADIENT: REDUCING,
        Event.GIVEN_UP: IDLE,
    },
    REDUCING: {Event.ALL_REDUCED: IDLE, Event.GIVEN_UP: IDLE},
}


@rows(("stage", "event"), list(product(Stage, Event)), ids=lambda value: value.value)
def test_every_pair(stage, event):
    assert follows(stage, event) is TABLE[stage].get(event)


def test_every_stage_can_be_left_and_reached():
    reached = {following for stage in Stage for event in Event if (following := follows(stage, event)) is not stage}
    assert reached == {None, *Stage}
