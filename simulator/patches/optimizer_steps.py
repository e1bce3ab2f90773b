"""Reports the end of every optimizer step as an event of the trace, by which ddpsim counts iterations."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ddpsim.simulator.kernel.requests import StepDone
from ddpsim.simulator.runtime.call_sites import frames_outwards
from ddpsim.simulator.runtime.host import Host

Listener = Callable[[int, Optimizer], None]


def watch_optimizer_steps(host: Host, listeners: Sequence[Listener]) -> Any:
    """Report each end of an optimizer step and call `listeners` then, until the result's `remove()` is called."""

    def report_optimizer_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if host.is_rank_thread() and not _is_nested_step():
            rank = host.running_thread.rank
            host.send_request(StepDone())
            for listener in listeners:
                listener(rank, optimizer)

    return register_optimizer_step_post_hook(report_optimizer_step)


def _is_nested_step() -> bool:
    """True for the step of an optimizer inside another optimizer's step, as in ZeroRedundancyOptimizer."""
    wrapper = sys._getframe(2)
    return any(frame.f_code is wrapper.f_code for frame in frames_outwards(wrapper.f_back))
