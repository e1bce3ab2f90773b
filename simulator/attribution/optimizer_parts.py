"""Parts: which step of an optimizer whose ranks communicate a call is, or that it sums the norm of gradients.

Read from torch's own frames and objects, as those in parallelism.py.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ddpsim.simulator.attribution.stack_attribution import Reader, Reading
from ddpsim.simulator.calls import COLLECTS_STATE, Parallelism, Part


class OptimizerSteps:
    """Counts the steps of one rank's optimizers."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: Any = WeakIdKeyDictionary()

    def of(self, optimizer: Optimizer) -> int:
        """The step that an optimizer is in, from 1."""
        done: int = self._done.get(optimizer, 0)
        return done + 1

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Count the step."""
        self._done[optimizer] = self.of(optimizer)


def _sends_updates(reading: Reading, frame: FrameType) -> None:
    reading.stepped = frame.f_locals.get("self")
    _is_of_optimizer(reading, reading.stepped, "updated parameters")


def _collects_state(reading: Reading, frame: FrameType) -> None:
    _is_of_optimizer(reading, frame.f_locals.get("self"), COLLECTS_STATE)


def _averages(reading: Reading, frame: FrameType) -> None:
    optimizer = frame.f_locals.get("self")
    done = getattr(getattr(optimizer, "averager", None), "step", None)
    reading.step = done + 1 if isinstance(done, int) else None
    _is_of_optimizer(reading, optimizer, "average of parameters")


def _is_of_optimizer(reading: Reading, optimizer: Any, action: str) -> None:
    """`ZeroRedundancyOptimizer(Adam)`: with the kind of the optimizer that makes the updates for it."""
    if reading.part is None:
        what = f"{type(optimizer).__name__}({type(getattr(optimizer, 'optim', None)).__name__})"
        reading.part = Part(Parallelism.OPTIMIZER, what, action)


def _takes_norm(reading: Reading, frame: FrameType) -> None:
    """The redistribution is one that the norm of all gradients needs; the outermost function tells what for."""
    part = reading.part
    if part is not None and part.parallelism in (Parallelism.DTENSOR, Parallelism.NORM):
        name = frame.f_code.co_name.removeprefix("_")
        reading.part = part._replace(parallelism=Parallelism.NORM, detail=f"for {name}")


_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
_CLIPPING = "torch.nn.utils.clip_grad"

OPTIMIZERS: dict[tuple[str, str], Reader] = {
    (_ZERO, "_sync_params"): _sends_updates,
    (_ZERO, "consolidate_state_dict"): _collects_state,
    ("torch.distributed.optim.post_localSGD_optimizer", "step"): _averages,
    **{(_CLIPPING, name): _takes_norm for name in ("_get_total_norm", "_clip_grads_with_norm_", "clip_grad_norm_")},
}
"""By module and name of the function. What calls from one that a later torch renames counts as the user's."""
