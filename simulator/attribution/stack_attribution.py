"""The facts about a call that its stack contains, gathered frame by frame."""

from collections.abc import Callable
from types import FrameType
from typing import Any

from ddpsim.simulator.calls import CallPart, Phase


class StackFacts:
    """The facts about a call that were read from its stack so far, from the innermost frame outwards. Most calls set
    only a few, so the defaults are attributes of the class."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    phase: Phase | None = None
    owner: Any = None
    """The DDP instance that makes the call, or the object that another DDP engine names as its wrapper."""
    innermost: FrameType | None = None
    """The frame that set the phase; its `self` is the `owner` unless a frame further out names another one."""
    reducer: Any = None
    """The Reducer that makes the call from C++, if it is known."""
    bucket: int | None = None
    has_joined: Any = None
    """The join context that makes this call on behalf of a rank that ran out of input."""
    joining: Any = None
    """The members of a join context; set in the first call that a rank makes after it ran out of input."""
    ends_join: bool = False
    continues: Any = None
    """The pending call whose completion led to this call."""
    declared: dict[str, Any] | None = None
    """The facts that a DDP engine other than torch's declares about the call; see phases.py."""
    is_hooks: bool = False
    part: CallPart | None = None
    """The part of another parallelism (FSDP2, pipeline, DTensor) that makes the call, by its innermost frame."""
    parameters: tuple[str, ...] = ()
    """The names of the parameters that the part (see `part`) moves."""
    stepped: Any = None
    """The optimizer whose updates count as the steps of the part (see `part`), or a parameter that it updates."""
    step: int | None = None
    """The step of the part (see `part`), if torch counts its steps."""
    is_recomputed: bool = False
    """True if torch.utils.checkpoint runs a block again, in backward."""
    graph: FrameType | None = None
    """The innermost frame of a graph that torch.compile has made."""
    is_complete: bool = False
    """True if the facts are complete, so that frames further out need not be read."""


Reader = Callable[[StackFacts, FrameType], None]
