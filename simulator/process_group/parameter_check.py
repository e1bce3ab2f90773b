"""DDP's check of its parameters, without a tensor for each pair of ranks.

Note [Counting parameters]. verify_params_across_processes (torch/csrc/distributed/c10d/reducer.cpp) gathers every
rank's parameter count into world-size tensors on each rank: a million tensors for 1,024 ranks, half the time of the
whole run. So it is given a view of the group that looks like one rank: the same all_gather is issued, its N answers
are compared here, and all the rest (the broadcast of rank 0's shapes, and the comparison with them) stays torch's own.
"""

# torch's stubs list overloads of these methods that only its C++ class has.
# mypy: disable-error-code="override,call-arg"

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ddpsim.simulator.calls import Signature
from ddpsim.simulator.process_group.group import SimulatedGroup, rules_for
from ddpsim.simulator.process_group.issuing import gpu_of
from ddpsim.simulator.transport.modes import suspend_modes
from ddpsim.simulator.transport.payload import Payload


def parameter_check(original: Callable[..., None]) -> Callable[..., None]:
    """Return the replacement of torch.distributed._verify_params_across_processes."""

    def verify(group: Any, parameters: list[torch.Tensor], logger: Any = None) -> None:
        if isinstance(group, SimulatedGroup):
            rules_for(group._rules, parameters[0])
            group = _SingleRankGroup(group, len(parameters), gpu_of(parameters, group._issuer.host.world_size))
        if logger is None:
            return original(group, parameters)
        return original(group, parameters, logger)

    return verify


class _SingleRankGroup(dist.ProcessGroup):
    """A simulated group that pretends to DDP's parameter check to have only one rank."""

    def __init__(self, group: SimulatedGroup, parameter_count: int, gpu: str | None) -> None:
        super().__init__(group.rank(), 1)
        self._group = group
        self._parameter_count = parameter_count
        self._gpu = gpu

    def allgather(self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Any:
        gathered: list[torch.Tensor] = []
        signature = Signature("all_gather", ((1,),), "int64")
        with suspend_modes():
            work = self._group.issue(signature, Payload(inputs, (), gathered=gathered, gpu=self._gpu), [])
        work.wait()
        outputs[0][0].copy_(inputs[0])
        (counts,) = gathered
        differs = counts != self._parameter_count
        if differs.any():
            rank = int(differs.nonzero()[0])
            raise RuntimeError(
                f"DDP expects same model across all ranks, but Rank {self.rank()} has {self._parameter_count} "
                f"params, while rank {rank} has inconsistent {int(counts[rank])} params."
            )
        return work

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._group.broadcast(tensors, opts)
