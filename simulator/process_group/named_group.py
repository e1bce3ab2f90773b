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

from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import ProcessGroup, ProcessGroupGloo

from ddpsim.simulator.kernel.requests import SetTimeLimit
from ddpsim.simulator.process_group.argument_rules import RulesByDevice
from ddpsim.simulator.process_group.issuing import CallIssuer
from ddpsim.simulator.process_group.through_torch import TorchDispatch

_FAKE_BACKEND = FakeProcessGroup._create_internal(0, 1)
_NO_DEVICE = torch.device("meta")
"""The device for which torch's fake backend is registered; see Note [Default backend]."""


class NamedGroup(ProcessGroup):
    """One rank's handle of a process group, without the methods that issue calls."""

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
        self.set_timeout(timeout)

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
        return self

    get_backend = _get_backend

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

    def _enable_collectives_timing(self) -> None:
        """Do nothing, as gloo does."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of the group's calls."""
        self._timeout = timeout
        issuer = self._issuer
        issuer.host.send_request(SetTimeLimit(issuer.label, timeout.total_seconds(), issuer.is_nccl))

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Accept the time-out. It ends no wait here."""

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Make the group unusable, as destroy_process_group does."""
        self._issuer.mark_destroyed()

    abort = shutdown

    def __repr__(self) -> str:
        return f'SimulatedGroup("{self._issuer.label}", rank {self._group_rank} of {len(self._members)})'
