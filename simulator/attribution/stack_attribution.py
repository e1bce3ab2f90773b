"""The facts about a call that its stack gives, gathered frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from ddpsim.simulator.calls import Part, Phase


class Reading:
    """What the stack has said about a call so far, from the innermost frame outwards.

    A call says two or three of these, so the others stay the class's.
    """

    def __init__(self, operation: str) -> None:
        self.operation = operation
        """Of the call."""

    phase: Phase | None = None
    owner: Any = None
    """The DDP instance, or whatever object stands for a wrapper."""
    innermost: FrameType | None = None
    """The frame that told the phase; its `self` is the owner if no frame further out tells better."""
    reducer: Any = None
    """The Reducer that calls from C++, if it is known."""
    bucket: int | None = None
    has_joined: Any = None
    """The join context that makes this call for a rank that ran out of input."""
    joining: Any = None
    """The members of the join in which this call says, as the first, that the rank ran out of input."""
    ends_join: bool = False
    continues: Any = None
    """The pending call whose completion led to this one."""
    told: dict[str, Any] | None = None
    """What an engine says itself."""
    is_hooks: bool = False
    """A communication hook makes the call."""
    part: Part | None = None
    """What of torch's other parallelism makes the call; the innermost frame that knows tells."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters that such a part moves."""
    stepped: Any = None
    """A parameter by whose updates the steps of the part are counted, or an optimizer by its own."""
    step: int | None = None
    """The step of the part, where torch counts it."""
    graph: FrameType | None = None
    """The innermost graph that torch's compiler has made."""
    is_complete: bool = False
    """The frames further out have nothing to add."""


Reader = Callable[[Reading, FrameType], None]
