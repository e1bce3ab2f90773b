"""Keeps DeepSpeed on a CPU from its own shared memory: its C++ waits for the other ranks in a loop, and the simulator
cannot give the baton away there. Without it, DeepSpeed's calls are those of torch.distributed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddpsim.simulator.runtime.late_modules import call_with_module
from ddpsim.simulator.runtime.replaced import ReplacedAttributes


@contextmanager
def deepspeed_without_shared_memory() -> Iterator[None]:
    """A context in which DeepSpeed's operator `shm_comm` is not available."""
    replaced = ReplacedAttributes()

    def replace(module: Any) -> None:
        replaced.set_attribute(module, "build_shm_op", lambda: None)

    watch = call_with_module("deepspeed.comm.torch", replace)
    try:
        yield
    finally:
        watch.uninstall()
        replaced.restore_attributes()
