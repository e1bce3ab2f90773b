"""torch's process-wide settings.

Settings that a program changes for a block of code are swapped at every context switch (`settings.py`): default dtype,
deterministic algorithms, anomaly detection. Settings that a program makes once at its start (`SETTINGS`) are shared by
the ranks and restored at the end: reading them all would cost more than the rest of a context switch. Grad mode,
autocast and the default device are per thread already.

Inside a simulation torch computes with one intra-op thread. Otherwise every rank that enters a parallel region would
make its own OpenMP pool, and the order of a sum would depend on the machine. A rank's own `set_num_threads` lasts until
its next context switch. To read the number at each switch would take a tenth of it, so `torch.set_num_threads` is
replaced by a function that sets a flag. A call of the original, bound earlier, is noticed only at the rank's first
context switch.
"""

from typing import Any

import torch

from ddpsim.simulator.runtime.replaced import ReplacedAttributes

SETTINGS = (
    "float32_matmul_precision",
    "cublas_allow_tf32",
    "cudnn_allow_tf32",
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "mkldnn_enabled",
    "deterministic_fill_uninitialized_memory",
    "warnAlways",
)
"""Names of torch's settings that are restored after a run. Each has a `_get_` and a `_set_` function in `torch._C`."""


class TorchModes:
    """Makes torch compute with one thread, and restores the torch settings that all ranks share."""

    def __init__(self) -> None:
        self._host_threads = torch.get_num_threads()
        self._host_settings = {name: _read_setting(name) for name in SETTINGS}
        self._set_threads = torch.set_num_threads
        self._replaced = ReplacedAttributes()
        self.threads_were_set = False

    def install(self) -> None:
        """Let torch compute with one thread, also on threads started later, which use the number that was set last."""
        set_threads = self._set_threads

        def set_num_threads(nthreads: int) -> None:
            set_threads(nthreads)
            self.threads_were_set = True

        set_threads(1)
        for owner in (torch, torch._C):
            self._replaced.set_attribute(owner, "set_num_threads", set_num_threads)

    def compute_with_one_thread(self) -> None:
        """Undo a `torch.set_num_threads` of the calling thread: compute with one thread again."""
        self._set_threads(1)
        self.threads_were_set = False

    def uninstall(self) -> None:
        """Restore torch's settings and its number of threads."""
        for name, value in self._host_settings.items():
            if value is not None and _read_setting(name) not in (None, value):
                getattr(torch._C, f"_set_{name}")(value)
        self._replaced.restore_attributes()
        torch.set_num_threads(self._host_threads)


def _read_setting(name: str) -> Any:
    """Return a setting of torch, or None where torch raises (as when old and new precision settings were mixed)."""
    try:
        return getattr(torch._C, f"_get_{name}")()
    except (AttributeError, RuntimeError):
        return None
