"""The engine under test, on the simulated group: torch's DistributedDataParallel, unmodified, or ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Result
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from tests.kit import running, training
from tests.kit.oracle import expected as expectation
from tests.kit.training import Prepare, Training

Engine = TorchEngine | OwnEngine

ENGINES: dict[str, type[Engine]] = {"torch": TorchEngine, "ddp": OwnEngine}
chosen: type[Engine] = TorchEngine
"""The fixture in conftest.py chooses."""


def DistributedDataParallel(module: nn.Module, **options: Any) -> Engine:
    """Wrap `module` in the chosen engine."""
    return chosen(module, **options)


train = partial(training.train, wrap=DistributedDataParallel)
train_model = partial(training.train_module, wrap=DistributedDataParallel)
check = partial(running.check, wrap=DistributedDataParallel)


def simulated(training: Training, options: Mapping[str, Any], prepare: Prepare | None = None, **how: Any) -> Result:
    """Run the training on the simulated group; the run must pass, and correct programs bring no hazards up."""
    return running.run(train, training.world_size, training, options, prepare, **how)


__all__ = ["DistributedDataParallel", "check", "expectation", "simulated", "train", "train_model"]
