"""A readable distributed data parallel engine, bucketed and device-agnostic.

    from ddpsim.ddp import DistributedDataParallel, Join

It is written against plain `torch.distributed` and never imports `simulator`, so that the same engine runs simulated,
on real gloo and on GPUs. Start reading in engine.py.
"""

from ddpsim.ddp.broadcast import broadcast_coalesced
from ddpsim.ddp.buffer_strategies import Strategy, When
from ddpsim.ddp.engine import DistributedDataParallel
from ddpsim.ddp.errors import (
    BypassedBackwardError,
    EngineError,
    JoinError,
    OpenBackwardError,
    ParameterChangedError,
    ReplicaMismatchError,
    UsageError,
)
from ddpsim.ddp.join import Join
from ddpsim.ddp.torch_patch import patch_torch_ddp

__all__ = [
    "BypassedBackwardError",
    "DistributedDataParallel",
    "EngineError",
    "Join",
    "JoinError",
    "OpenBackwardError",
    "ParameterChangedError",
    "ReplicaMismatchError",
    "Strategy",
    "UsageError",
    "When",
    "broadcast_coalesced",
    "patch_torch_ddp",
]
