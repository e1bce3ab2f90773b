"""The end of every optimizer step, whatever the optimizer: an event, and what iterations are counted by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ddpsim.simulator.kernel.requests import StepDone
from ddpsim.simulator.runtime.host import Host

Listener = Callable[[int, Optimizer], None]


def watch_steps(host: Host, listeners: Sequence[Listener]) -> Any:
    """Count each rank's optimizer steps and tell `listeners`, until `remove()` is called on what this returns."""

    def step_done(optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if host.is_rank_thread() and not _is_nested():
            rank = host.me.rank
            host.ask(StepDone())
            for listener in listeners:
                listener(rank, optimizer)

    return register_optimizer_step_post_hook(step_done)


def _is_nested() -> bool:
    """True for the step of an optimizer inside another one's, as in ZeroRedundancyOptimizer."""
    wrapper = sys._getframe(2)
    frame = wrapper.f_back
    while frame is not None and frame.f_code is not wrapper.f_code:
        frame = frame.f_back
    return frame is not None
