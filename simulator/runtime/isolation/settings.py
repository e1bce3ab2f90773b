"""Process-wide settings that are usually equal on all ranks.

A context switch reads them, and writes them only if the next rank has different ones.

- The standard streams: `contextlib.redirect_stdout` puts the stream back on exit, so interleaved ranks would put back
  each other's.
- The functions that show a warning, which `warnings.catch_warnings` puts back on exit. The warning filters, which it
  puts back, too, are swapped in `isolation.py`.
- c10d's globals other than its world, and the random tracker of DTensor once that is imported.
- The debug level of torch.distributed, a C++ global that DDP's Reducer also reads.
- torch.fx's current tracing: it replaces functions in the whole process until it ends, so they are restored for the
  next rank, and replaced again for the rank that traces.
- torch's modes that a program switches for a block of code (the others: `modes.py`).
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._C._distributed_c10d as _c10d
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.fx import _symbolic_trace

from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_TRACING = "_is_fx_tracing_flag"
"""A global of torch.fx. From torch 2.15 on it is per thread, and need not be swapped."""

SettingsState = tuple[Any, ...]
"""The value of all process-wide settings. Other code relies only on the warning functions being the first two items."""


class DistributedDebugLevel:
    """The current debug level of torch.distributed.

    Reading it at each context switch would take as long as several other settings. So the functions that set it are
    replaced by ones that also record the value. A call of an original function that was bound earlier is not noticed.
    """

    def __init__(self) -> None:
        self.value: Any = _c10d.get_debug_level()
        """The current debug level of torch.distributed. Equal levels are the same object."""
        self._set = _c10d.set_debug_level
        self._replaced = ReplacedAttributes()

    def install(self) -> None:
        """Replace torch's functions that set the debug level by ones that also record it."""
        for module in (dist, _c10d):
            for name in ("set_debug_level", "set_debug_level_from_env"):
                self._replaced.replace_attribute(module, name, self._recording_setter)

    def uninstall(self) -> None:
        """Restore torch's functions that set the debug level."""
        self._replaced.restore_attributes()

    def write_level(self, value: Any) -> None:
        """Set the debug level of torch.distributed if it differs."""
        if value is not self.value:
            self._set(value)
            self.value = value

    def _recording_setter(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_level(*arguments: Any) -> None:
            original(*arguments)
            level = _c10d.get_debug_level()
            if level != self.value:
                self.value = level

        return set_level


class ProcessSettings:
    """The standard streams, warnings, c10d's globals, torch's default dtype, determinism and anomaly detection."""

    def __init__(self) -> None:
        # Bound once: looking them up takes as long as calling them.
        self._sys: dict[str, Any] = vars(sys)
        self._warnings: dict[str, Any] = vars(warnings)
        self._c10d: dict[str, Any] = vars(distributed_c10d)
        self._modules = sys.modules
        self._modules_seen = 0
        """The number of loaded modules when DTensor's module was last looked for."""
        self._dtensor_random: dict[str, Any] | None = None
        self._fx: dict[str, Any] = vars(_symbolic_trace)
        self.debug_level = DistributedDebugLevel()
        self._dtype = torch.get_default_dtype
        self._is_deterministic = torch._C._get_deterministic_algorithms
        self._is_warn_only = torch._C._get_deterministic_algorithms_warn_only
        self._is_anomaly = torch.is_anomaly_enabled
        self._is_anomaly_nan = torch.is_anomaly_check_nan_enabled
        self.host_argv: list[str] = self._sys["argv"]
        self.host_excepthook: object = self._sys["excepthook"]
        no_tracing, torch_modes = (None, False), (torch.float32, False, False, False, True)
        self.start: SettingsState = (*self.read_settings()[:6], *no_tracing, None, None, None, *torch_modes)
        """A rank's initial settings: the host's streams, warning functions and debug level, and torch's defaults."""

    def read_settings(self) -> SettingsState:
        """Return the current process-wide settings."""
        module, shown_by, c10d, fx = self._sys, self._warnings, self._c10d, self._fx
        if len(self._modules) != self._modules_seen:
            self._look_for_dtensor()
        dtensor_random = self._dtensor_random
        return (
            shown_by["showwarning"],
            shown_by["_showwarnmsg_impl"],
            module["stdin"],
            module["stdout"],
            module["stderr"],
            self.debug_level.value,
            fx.get("CURRENT_PATCHER"),
            fx.get(_TRACING, False),
            c10d["_backend"],
            c10d["_default_pg_init_method"],
            None if dtensor_random is None else dtensor_random["_rng_tracker"],
            self._dtype(),
            self._is_deterministic(),
            self._is_warn_only(),
            self._is_anomaly(),
            self._is_anomaly_nan(),
        )

    def write_settings(self, state: SettingsState) -> None:
        """Make the given process-wide settings current."""
        module, shown_by, c10d = self._sys, self._warnings, self._c10d
        shown_by["showwarning"], shown_by["_showwarnmsg_impl"] = state[:2]
        module["stdin"], module["stdout"], module["stderr"] = state[2:5]
        self.debug_level.write_level(state[5])
        self._set_fx_tracing(*state[6:8])
        c10d["_backend"], c10d["_default_pg_init_method"] = state[8:10]
        if self._dtensor_random is not None:
            self._dtensor_random["_rng_tracker"] = state[10]
        dtype, deterministic, warn_only, anomaly, check_nan = state[11:]
        torch.set_default_dtype(dtype)
        torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
        inductor: Any = self._modules.get("torch._inductor.config")
        # `torch.use_deterministic_algorithms` sets it, too, and imports it for that.
        if inductor is not None and inductor.deterministic != deterministic:
            inductor.deterministic = deterministic
        torch.autograd.set_detect_anomaly(anomaly, check_nan)

    def _set_fx_tracing(self, patcher: Any, is_tracing: bool) -> None:
        fx = self._fx
        if _TRACING in fx:
            fx[_TRACING] = is_tracing
        outgoing = fx.get("CURRENT_PATCHER")
        if patcher is not outgoing:
            if outgoing is not None:
                outgoing.revert_all_patches()
            fx["CURRENT_PATCHER"] = patcher
            if patcher is not None:
                patcher.reapply_all_patches()

    def _look_for_dtensor(self) -> None:
        self._modules_seen = len(self._modules)
        module = self._modules.get("torch.distributed.tensor._random")
        self._dtensor_random = None if module is None else vars(module)
