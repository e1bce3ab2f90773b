"""The reducer's states: every pair of a stage and an event."""

from __future__ import annotations

from itertools import product

from ddpsim.ddp.backward_progress import Stage, StageEvent, next_stage
from tests.kit.rows import rows

IDLE, LOCAL, EXPECTING, REDUCING = Stage

TABLE = {
    IDLE: {StageEvent.FORWARD: EXPECTING, StageEvent.LOCAL_FORWARD: LOCAL, StageEvent.GIVEN_UP: IDLE},
    LOCAL: {StageEvent.FORWARD: EXPECTING, StageEvent.LOCAL_FORWARD: LOCAL, StageEvent.GIVEN_UP: IDLE},
    EXPECTING: {
        StageEvent.FORWARD: EXPECTING,
        StageEvent.GRADIENT: REDUCING,
        StageEvent.GIVEN_UP: IDLE,
    },
    REDUCING: {StageEvent.ALL_REDUCED: IDLE, StageEvent.GIVEN_UP: IDLE},
}


@rows(("stage", "event"), list(product(Stage, StageEvent)), ids=lambda value: value.value)
def test_every_pair(stage, event):
    assert next_stage(stage, event) is TABLE[stage].get(event)


def test_every_stage_can_be_left_and_reached():
    reached = {
        following for stage in Stage for event in StageEvent if (following := next_stage(stage, event)) is not stage
    }
    assert reached == {None, *Stage}
