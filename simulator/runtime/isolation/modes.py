"""torch's process-wide settings.

Those that a program switches for a block of code are swapped at every context switch (`settings.py`): default dtype,
deterministic algorithms, anomaly detection. Those that it sets once at its start are shared by the ranks, as reading
them all costs more than the rest of a context switch, and put back at the end: `SETTINGS`. (Grad mode, autocast and the
default device are per thread.)

Inside a simulation torch computes with one intra-op thread. Every rank that enters a parallel region would otherwise
make an OpenMP pool of its own, and the order of a sum would depend on the machine. What a rank sets lasts until its
next switch. To ask at each whether anybody did would take a tenth of it, so `torch.set_num_threads` takes a note
while a simulation runs; whoever has bound the original before is found out at its rank's first context switch only.
"""

from __future__ import annotations

from typing import Any

import torch

from ddpsim.simulator.runtime.replaced import Replaced

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
"""Each with a `_get_` and a `_set_` function in `torch._C`."""


class Modes:
    """One intra-op thread; and what the ranks share, put back."""

    __slots__ = ("_host_settings", "_host_threads", "_replaced", "_set_threads", "threads_were_set")

    def __init__(self) -> None:
        self._host_threads = torch.get_num_threads()
        self._host_settings = {name: _setting(name) for name in SETTINGS}
        self._set_threads = torch.set_num_threads
        self._replaced = Replaced()
        self.threads_were_set = False

    def install(self) -> None:
        """Compute with one thread. The last call of `set_num_threads` counts for threads that are new then, too."""
        set_threads = self._set_threads

        def set_num_threads(nthreads: int) -> None:
            set_threads(nthreads)
            self.threads_were_set = True

        set_threads(1)
        for owner in (torch, torch._C):
            self._replaced.put(owner, "set_num_threads", set_num_threads)

    def compute_with_one_thread(self) -> None:
        """Undo what the calling thread may have set."""
        self._set_threads(1)
        self.threads_were_set = False

    def uninstall(self) -> None:
        """Put settings and threads back."""
        for name, value in self._host_settings.items():
            if value is not None and _setting(name) not in (None, value):
                getattr(torch._C, f"_set_{name}")(value)
        self._replaced.put_back()
        torch.set_num_threads(self._host_threads)


def _setting(name: str) -> Any:
    """Return a setting, or None where torch will not say (as when old and new precision settings were mixed)."""
    try:
        return getattr(torch._C, f"_get_{name}")()
    except (AttributeError, RuntimeError):
        return None
