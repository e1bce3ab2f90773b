"""A readable distributed data parallel engine over plain `torch.distributed`. Start reading in engine.py.

It never imports the simulator, so the same engine runs simulated, on real gloo and on GPUs.
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
