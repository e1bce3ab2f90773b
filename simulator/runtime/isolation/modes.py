"""torch's process-wide settings.

Those that a program switches for a block of code are swapped at every hand-over: default dtype, deterministic
algorithms, anomaly detection. Those that it sets once at its start are shared by the ranks, as reading them all costs
more than the rest of a hand-over, and put back at the end: `SETTINGS`. (Grad mode, autocast and the default device are
per thread.)

Inside a simulation torch computes with one intra-op thread. Every rank that enters a parallel region would otherwise
make an OpenMP pool of its own, and the order of a sum would depend on the machine. What a rank sets lasts until its
next hand-over.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

ModeState = tuple[torch.dtype, bool, bool, bool, bool]

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
    """Default dtype, deterministic algorithms and anomaly detection by rank; one intra-op thread; the rest put back."""

    def __init__(self) -> None:
        # Bound once: looking them up takes as long as calling them.
        self._threads = torch.get_num_threads
        self._dtype = torch.get_default_dtype
        self._is_deterministic = torch._C._get_deterministic_algorithms
        self._is_warn_only = torch._C._get_deterministic_algorithms_warn_only
        self._is_anomaly = torch.is_anomaly_enabled
        self._is_anomaly_nan = torch.is_anomaly_check_nan_enabled
        self._host_threads = torch.get_num_threads()
        self._host_settings = {name: _setting(name) for name in SETTINGS}
        self._live = self._read()

    def install(self) -> None:
        """Compute with one thread. The last call of `set_num_threads` counts for threads that are new then, too."""
        torch.set_num_threads(1)

    def initial(self, rank: int) -> ModeState:
        """Return torch's defaults."""
        return (torch.float32, False, False, False, True)

    def save(self) -> ModeState:
        """Return the modes in place."""
        if self._threads() != 1:
            torch.set_num_threads(1)
        self._live = self._read()
        return self._live

    def load(self, state: ModeState) -> None:
        """Put modes in place."""
        if state == self._live:
            return
        dtype, deterministic, warn_only, anomaly, check_nan = state
        torch.set_default_dtype(dtype)
        torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
        inductor: Any = sys.modules.get("torch._inductor.config")
        if inductor is not None:  # `torch.use_deterministic_algorithms` sets it, too, and imports it for that
            inductor.deterministic = deterministic
        torch.autograd.set_detect_anomaly(anomaly, check_nan)

    def uninstall(self) -> None:
        """Put settings and threads back."""
        for name, value in self._host_settings.items():
            if value is not None and _setting(name) not in (None, value):
                getattr(torch._C, f"_set_{name}")(value)
        torch.set_num_threads(self._host_threads)

    def _read(self) -> ModeState:
        return (
            self._dtype(),
            self._is_deterministic(),
            self._is_warn_only(),
            self._is_anomaly(),
            self._is_anomaly_nan(),
        )


def _setting(name: str) -> Any:
    """Return a setting, or None where torch will not say (as when old and new precision settings were mixed)."""
    try:
        return getattr(torch._C, f"_get_{name}")()
    except (AttributeError, RuntimeError):
        return None
