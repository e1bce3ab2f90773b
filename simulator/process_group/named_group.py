"""What torch asks of a process group besides calls: its name, its ranks and its options.

Note [Default backend]. A simulated group is its own backend, of which C++ knows nothing. The Reducer asks the group for
a C++ backend nonetheless, for each bucket that it makes, to see whether the backend has memory for the bucket
(Reducer::initialize_buckets, torch/csrc/distributed/c10d/reducer.cpp), and catches the error that there is none. Two
errors with a C++ stack in each are 3 % of a training. So the Reducer gets torch's fake backend, which has no memory
either; one fake backend is enough for all ranks.
"""

# torch's stubs list overloads of these methods that only its C++ class has.
# mypy: disable-error-code="override,assignment,call-arg"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, NoReturn

import torch
import torch._C._distributed_c10d as _c10d
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import ProcessGroup, ProcessGroupGloo

from ddpsim.simulator.foreign_names.public import refused_names
from ddpsim.simulator.kernel.requests import SetTimeLimit
from ddpsim.simulator.process_group.argument_rules import RulesByDevice
from ddpsim.simulator.process_group.arguments import time_limit
from ddpsim.simulator.process_group.call_hooks import HAS_HOOKS, CallHooks
from ddpsim.simulator.process_group.issuing import CallIssuer
from ddpsim.simulator.process_group.through_torch import TorchDispatch

_FAKE_BACKEND = FakeProcessGroup._create_internal(0, 1)
_NO_DEVICE = torch.device("meta")
"""The device for which torch's fake backend is registered; see Note [Default backend]."""
_NOT_OF_GLOO = {
    **{name: name for name in ("new_window", "resume", "shrink", "suspend")},
    **{"allocate_tensor": "allocateTensor", "memory_stats": "getMemoryStats"},
    **{"register_abort_hook": "registerAbortHook", "unregister_abort_hook": "unregisterAbortHook"},
}
"""The methods that gloo does not support, each with its name in gloo's error."""


class NamedGroup(ProcessGroup):
    """One rank's handle of a process group, without the methods that issue calls."""

    is_backend = False
    """True if the program has made the group as a backend's object, which torch's dispatcher does not stand before."""

    def __init__(
        self,
        issuer: CallIssuer,
        through_torch: TorchDispatch,
        *,
        rules: RulesByDevice,
        name: str,
        description: str,
        store: Any,
        backend_name: str,
        timeout: timedelta,
    ) -> None:
        self._members = issuer.members
        self._group_rank = issuer.members.index(issuer.rank)
        super().__init__(self._group_rank, len(self._members))  # the other constructor allows no subclass
        self._set_group_desc(description)
        self._register_backend(_NO_DEVICE, ProcessGroup.BackendType.UNDEFINED, _FAKE_BACKEND)
        self._issuer = issuer
        self.issue = issuer.issue_call
        self._rules = rules
        self.through_torch = through_torch
        self._name = name
        self._store = store
        self._backend_name = backend_name
        self.hooks = CallHooks()
        self.set_timeout(timeout)

    def getRank(self) -> int:
        """Return the number of the rank in the group, which C++ asks for: torch's own does not change."""
        return self._group_rank

    def getSize(self) -> int:
        """Return the number of ranks in the group."""
        return len(self._members)

    @cached_property
    def torch_group(self) -> ProcessGroup:
        """A C++ group of torch without a backend, whose calls go through torch's operators (through_torch.py)."""
        twin = ProcessGroup(self._group_rank, len(self._members))
        twin._set_group_name(self._name)  # type: ignore[arg-type]
        twin._set_group_desc(self.group_desc)
        return twin

    def getBackendName(self) -> str:
        """Return a name for C++ code: at "gloo", DDP's logger (logger.cpp) would look for the C++ backend object."""
        return "simulated"

    def name(self) -> str:
        """Return the name of the backend that the program asked for: "gloo", or "nccl" if that is one of them."""
        return self._backend_name

    _get_backend_name = name

    @property
    def options(self) -> Any:
        """Return gloo's options object: a simulated group is its own backend, so it has the options."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = self._timeout
        return options

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of calls that this rank has issued on the group."""
        return self._issuer.issued

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: all ranks of a group start counting at the same number."""

    @property
    def collectives(self) -> int:
        """The number of calls, without messages, that this rank has made on the group."""
        return self._issuer.collectives

    @property
    def label(self) -> str:
        """The name of the group in calls and reports."""
        return self._issuer.label

    @property
    def members(self) -> tuple[int, ...]:
        """The global ranks, in group-rank order."""
        return self._members

    def getGroupName(self) -> str:
        """Return torch's name of the group, which is unique within a rank."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Change torch's name of the group."""
        self._name = name

    def get_group_store(self) -> Any:
        """Return the store that the group was made with."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        if not torch.cuda.is_available():
            return [torch.device("cpu")]
        has_nccl_alone = self._backend_name == "nccl" and self._rules.of_cpu is self._rules.of_gpu
        return [torch.device("cuda")] if has_nccl_alone else [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> NamedGroup:
        """Return the backend for a device, which is this group itself."""
        if not isinstance(device, torch.device):
            raise TypeError(f"_get_backend(): device is {device!r}, expected a torch.device")
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return self

    if hasattr(ProcessGroup, "get_backend"):  # since torch 2.14
        get_backend = _get_backend

    create_device = ProcessGroupGloo.create_device
    supports_splitting = True
    supports_coalescing = supports_shrinking = supports_time_estimate = False
    """False, as on gloo. The following attributes and methods are a backend's, with gloo's answers."""

    @property
    def mem_allocator(self) -> Any:
        """Raise gloo's error: it has no memory allocator."""
        raise RuntimeError(f"Backend {self.name()} does not support getMemAllocator")

    def _wait_for_pending_works(self) -> None:
        raise RuntimeError(f"Only ProcessGrouppNCCL supports waitForPendingWorks, but got {self.name()} backend.")

    def _register_on_completion_hook(self, hook: Any) -> None:
        raise RuntimeError(f"Only ProcessGrouppNCCL supports onCompletion hook, but got {self.name()} backend.")

    def _enable_collectives_timing(self, value: object = None) -> None:
        """Do nothing, as gloo does."""

    eager_connect_single_device = setUsePgForSymmMemRendezvous = _enable_collectives_timing

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return False, as gloo does."""
        return False

    if HAS_HOOKS:

        def register_pre_hook(self, hook_id: int, hook: Callable[[Any], object]) -> None:
            """Call a hook before each call of the group; of two hooks with one number, the later one."""
            self.hooks.before[hook_id] = hook

        def register_post_hook(self, hook_id: int, hook: Callable[[Any], object]) -> None:
            """Call a hook with the work of each call of the group."""
            self.hooks.after[hook_id] = hook

        def unregister_pre_hook(self, hook_id: int) -> None:
            """Call a hook no more."""
            self.hooks.before.pop(hook_id, None)

        def unregister_post_hook(self, hook_id: int) -> None:
            """Call a hook no more."""
            self.hooks.after.pop(hook_id, None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of the group's calls."""
        timeout, issuer = time_limit("set_timeout", timeout), self._issuer
        self._timeout = issuer.timeout = timeout
        issuer.host.send_request(SetTimeLimit(issuer.label, timeout.total_seconds(), issuer.is_nccl))

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Accept the time-out. It ends no wait here."""

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Make the group unusable, as destroy_process_group does."""
        self._issuer.mark_destroyed()

    def abort(self) -> None:
        """Make a group of NCCL unusable; gloo goes on as before."""
        if self._issuer.has_nccl:
            self.shutdown()

    def __str__(self) -> str:
        return f'<ProcessGroup "{self._issuer.label}">'  # equal on all members, as errors of torch quote it

    def __repr__(self) -> str:
        return f'SimulatedGroup("{self._issuer.label}", rank {self._group_rank} of {len(self._members)})'


def _refusing(name: str, advice: str) -> Callable[..., NoReturn]:
    def refuse(self: NamedGroup, *arguments: Any, **options: Any) -> NoReturn:
        if self.name() == "gloo" and name in _NOT_OF_GLOO:
            raise RuntimeError(f"Backend gloo does not support {_NOT_OF_GLOO[name]}")
        raise NotImplementedError(f"{name} of a group is not simulated: {advice}")

    return refuse


for _kind in (ProcessGroup, ProcessGroupGloo):
    for _name, _advice in refused_names(f"{_c10d.__name__}.{_kind.__name__}").items():
        if hasattr(_kind, _name):
            setattr(NamedGroup, _name, _refusing(_name, _advice))
if hasattr(ProcessGroupGloo, "get_error"):  # since torch 2.14
    NamedGroup.get_error = lambda self: _c10d.ErrorType.SUCCESS  # type: ignore[attr-defined]
