"""The simulated process group: every operation of torch.distributed, turned into calls of a run.

Each method checks its arguments as the group's backend does (argument_rules.py), says what must agree across ranks (a
`Signature`), which tensors move (a `Payload`), and issues the call. torch.distributed's Python functions call these
methods directly; C++ (the Reducer, functional collectives) reaches them through torch's trampoline
(PyProcessGroup.hpp), which looks them up by name. torch 2.13 renamed some; each stands here under both names.

Time-outs run in virtual time. That of a group ends no wait of a deadlock, which is found exactly, when it happens; see
simulator/kernel/time_outs.py.
"""

# torch's stubs list overloads of these methods that only its C++ class has.
# mypy: disable-error-code="override,assignment,call-arg"

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, ReduceOp
from torch.distributed import distributed_c10d

from ddpsim.simulator.calls import ANY_SOURCE, Signature
from ddpsim.simulator.process_group import arguments
from ddpsim.simulator.process_group.argument_rules import RulesByDevice
from ddpsim.simulator.process_group.gloo_arguments import GlooRules
from ddpsim.simulator.process_group.issuing import CallIssuer
from ddpsim.simulator.process_group.monitored_barrier import wait_at_barrier
from ddpsim.simulator.process_group.named_group import NamedGroup
from ddpsim.simulator.process_group.nccl_arguments import NcclRules
from ddpsim.simulator.process_group.store import SimulatedStore
from ddpsim.simulator.process_group.through_torch import dispatches_as
from ddpsim.simulator.process_group.work import JointWork
from ddpsim.simulator.transport.payload import Payload

_NO_TENSORS = Payload((), ())
_DTYPE_NAMES: dict[torch.dtype, str] = {
    value: str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_REDUCTION_NAMES = {value.value: name for name, value in ReduceOp.RedOpType.__members__.items()}
"""Names of reductions, by the hash of torch's operation, which is its number (c10d/init.cpp). The operation's `op` is
slower: pybind11 makes that enum anew and compares all members to find the name."""


NO_RECONFIGURE = "only a group of gloo alone is reconfigured here: make a new group"


class SimulatedGroup(NamedGroup):
    """One rank's handle of a process group. Each method issues the call of the same name."""

    make_issuer: Callable[[tuple[int, ...], int, Any], CallIssuer]
    """Makes what issues calls of other members, for a number that ranks give to what they become, and a store."""
    _uuid = -1

    # --- collectives that reduce --------------------------------------------------------------------------------------

    @dispatches_as("allreduce_")
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce tensors onto every rank, in place."""
        reduction, factor = _reduction_of(opts)
        is_usual = len(tensors) == 1  # fewer steps
        rules = rules_for(self._rules, tensors[0]) if is_usual else self._rules_for_call("allreduce_", tensors, tensors)
        rules.check_all_reduce(tensors, reduction)
        signature = _signature_of("all_reduce", tensors[:1], reduction)  # gloo's ranks need not have equally many
        return self._issue_reduction(rules, signature, tensors, tensors, factor)

    @dispatches_as("allreduce_coalesced_")
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce several tensors onto every rank, in place."""
        rules = self._rules_for_call("allreduce_coalesced_", tensors, tensors)
        rules.check_all_reduce_coalesced(tensors)
        reduction, factor = _reduction_of(opts)
        signature = _signature_of("all_reduce_coalesced", tensors, reduction)
        return self._issue_reduction(rules, signature, tensors, tensors, factor)

    @dispatches_as("reduce_")
    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce onto the root.

        The other ranks' tensors get what gloo leaves there, partial sums, or values that show wrong use; with NCCL they
        stay unchanged.
        """
        rules = self._rules_for_call("reduce_", tensors, tensors)
        root = self._global_root("reduce", opts.rootRank)
        rules.check_reduce(tensors, opts.rootTensor)
        reduction, factor = _reduction_of(opts)
        signature = _signature_of("reduce", tensors, reduction, root)
        return self._issue_reduction(rules, signature, tensors, tensors, factor)

    @dispatches_as("reduce_scatter_")
    def reduce_scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any = None) -> Any:
        """Reduce lists of tensors, one tensor for each rank; each rank gets one of the results."""
        inputs = input_lists[0] if input_lists else []
        rules = self._rules_for_call("reduce_scatter_", [*outputs, *inputs], [*outputs, *inputs])
        rules.check_reduce_scatter(outputs, inputs, self._group_rank, len(self._members))
        reduction, factor = _reduction_of(opts)
        signature = _signature_of("reduce_scatter", inputs, reduction)
        return self._issue_reduction(rules, signature, inputs, outputs, factor)

    @dispatches_as("_reduce_scatter_base_")
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Reduce a tensor; each rank gets one part of the result."""
        return self._reduce_scatter_tensors("reduce_scatter_tensor", [output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    @dispatches_as("reduce_scatter_tensor_coalesced_")
    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Make several reduce_scatter_single calls in one call."""
        return self._reduce_scatter_tensors("reduce_scatter_tensor_coalesced", outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_tensors(self, operation: str, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        arguments.check_tensors("_reduce_scatter_base_", [*outputs, *inputs])
        arguments.check_same_count(outputs, inputs)
        rules = rules_for(self._rules, inputs[0])
        for output, tensor in zip(outputs, inputs, strict=True):
            rules.check_reduce_scatter_single(output, tensor, len(self._members))
        reduction, factor = _reduction_of(opts)
        signature = _signature_of(operation, inputs, reduction)
        return self._issue_reduction(rules, signature, inputs, outputs, factor)

    # --- collectives that move ----------------------------------------------------------------------------------------

    @dispatches_as("broadcast_")
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Copy one tensor of the root to all tensors of every rank; a rank has one, or several on gloo."""
        rules = self._rules_for_call("broadcast_", tensors, tensors)
        root, first = self._global_root("broadcast", opts.rootRank), opts.rootTensor
        rules.check_broadcast(tensors, first)
        signature = _signature_of("broadcast", tensors[:1], root=root)
        moved = [tensors[first], *tensors[:first], *tensors[first + 1 :]] if first else tensors
        return self._issue_collective(rules, signature, Payload(moved, moved), tensors)

    @dispatches_as("allgather_")
    def allgather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Collect every rank's tensor on every rank, or its tensors, once for each of them, on gloo."""
        rules = self._rules_for_call("allgather_", inputs, inputs)
        alike = rules.check_all_gather(output_lists, inputs, self._group_rank, len(self._members))
        outputs = [tensor for each in output_lists for tensor in each]
        result = outputs if len(inputs) == 1 else output_lists
        return self._issue_collective(rules, _signature_of("all_gather", alike), Payload(inputs, outputs), result)

    @dispatches_as("_allgather_base_")
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Collect every rank's tensor into one tensor on every rank."""
        rules = self._rules_for_call("_allgather_base_", (output, tensor), [tensor])
        rules.check_all_gather_single(output, tensor, len(self._members))
        signature = _signature_of("all_gather_into_tensor", (tensor,))
        return self._issue_collective(rules, signature, Payload([tensor], [output]), [output])

    _allgather_base = all_gather_single

    @dispatches_as("allgather_into_tensor_coalesced_")
    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Make several all_gather_single calls in one call."""
        rules = self._rules_for_call("allgather_into_tensor_coalesced_", [*outputs, *inputs], inputs)
        rules.check_all_gather_single_coalesced(outputs, inputs, len(self._members))
        signature = _signature_of("all_gather_into_tensor_coalesced", inputs)
        return self._issue_collective(rules, signature, Payload(inputs, outputs), outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @dispatches_as("allgather_coalesced_")
    def allgather_coalesced(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Make several all_gather calls in one call; `output_lists[r][i]` receives tensor i of rank r."""
        rules = self._rules_for_call("allgather_coalesced_", inputs, inputs)
        rules.check_all_gather_coalesced(output_lists, inputs, len(self._members))
        outputs = [tensor for outputs in output_lists for tensor in outputs]
        signature = _signature_of("all_gather_coalesced", inputs)
        return self._issue_collective(rules, signature, Payload(inputs, outputs), output_lists)

    @dispatches_as("gather_")
    def gather(self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """Collect every rank's tensor on the root."""
        rules = self._rules_for_call("gather_", inputs, inputs)
        root = self._global_root("gather", opts.rootRank)
        is_root = opts.rootRank == self._group_rank
        kinds, size = ("input", "output"), len(self._members)
        rules.check_lists("gather", arguments.lists_error(kinds, output_lists, inputs, size, is_root=is_root))
        outputs = output_lists[0] if is_root else []
        signature = _signature_of("gather", inputs, root=root)
        return self._issue_collective(rules, signature, Payload(inputs, outputs), outputs)

    if hasattr(ProcessGroup, "gather_single"):  # since torch 2.14

        @dispatches_as("gather_into_tensor_")
        def gather_single(self, output: Tensor, tensor: Tensor, opts: Any) -> Any:
            """Collect every rank's tensor on the root, into one tensor."""
            rules = self._rules_for_call("gather_into_tensor_", [output, tensor], [tensor])
            root, size = self._global_root("gather", opts.rootRank), len(self._members)
            is_root = opts.rootRank == self._group_rank
            rules.check_gather_single(output if is_root else None, tensor, size)
            outputs = list(output.view(size, *tensor.shape).unbind()) if is_root else []
            signature = _signature_of("gather", [tensor], root=root)
            return self._issue_collective(rules, signature, Payload([tensor], outputs), [output])

        gather_into_tensor = gather_single
        allreduce_sparse = allreduce  # of a backend

    @dispatches_as("scatter_")
    def scatter(self, outputs: list[Tensor], input_lists: list[list[Tensor]], opts: Any) -> Any:
        """Distribute the root's tensors, one to each rank."""
        rules = self._rules_for_call("scatter_", outputs, outputs)
        root = self._global_root("scatter", opts.rootRank)
        is_root = opts.rootRank == self._group_rank
        kinds, size = ("output", "input"), len(self._members)
        rules.check_lists("scatter", arguments.lists_error(kinds, input_lists, outputs, size, is_root=is_root))
        inputs = input_lists[0] if is_root else []
        signature = _signature_of("scatter", outputs, root=root)
        return self._issue_collective(rules, signature, Payload(inputs, outputs), outputs)

    @dispatches_as("alltoall_")
    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Exchange tensors: tensor j of rank i becomes tensor i of rank j."""
        rules = self._rules_for_call("alltoall_", [*outputs, *inputs], inputs)
        rules.check_all_to_all(outputs, inputs, len(self._members))
        splits = (_element_counts(inputs), _element_counts(outputs))
        signature = _signature_of("all_to_all", inputs, splits=splits)
        return self._issue_collective(rules, signature, Payload(inputs, outputs), outputs)

    @dispatches_as("alltoall_base_")
    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Send rows of rank i's tensor to rank j, as many as the split sizes say; equal parts without split sizes."""
        size = len(self._members)
        arguments.check_tensors("alltoall_base_", [output, tensor])
        output_splits = arguments.whole_numbers("all_to_all_single", output_splits)
        input_splits = arguments.whole_numbers("all_to_all_single", input_splits)
        rules = rules_for(self._rules, tensor)
        rules.check_all_to_all_single(output, tensor)
        refusal = arguments.splits_error(output, tensor, output_splits, input_splits, size)
        splits = (_equal_parts(input_splits, tensor, size), _equal_parts(output_splits, output, size))
        signature = _signature_of("all_to_all_single", (tensor, output), splits=splits)
        return self._issue_collective(rules, signature, Payload([tensor], [output], splits=splits), [output], refusal)

    alltoall_base = all_to_all_single

    @dispatches_as("barrier")
    def barrier(self, opts: Any = None) -> Any:
        """Wait until every rank of the group has called barrier."""
        return self.issue(Signature("barrier"), _NO_TENSORS, [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until every rank has called this; raise if `timeout` passes first in virtual time, and name the missing
        ranks.

        torch passes its default of 30 minutes when the program gives none. So a monitored_barrier that not all ranks
        reach ends in gloo's RuntimeError, as it would on gloo, and not in a deadlock.
        """
        work = self.issue(Signature("monitored_barrier"), _NO_TENSORS, [])
        wait_at_barrier(self._issuer.host, work.pending, self._members, timeout, wait_all_ranks=wait_all_ranks)

    # --- point-to-point -----------------------------------------------------------------------------------------------

    @dispatches_as("send")
    def send(self, tensors: list[Tensor], dst: int, tag: int) -> Any:
        """Send to a rank of the group. Only NCCL can send to the rank itself."""
        self._check_message_arguments("send", tensors, tag)
        return self._issue_message(Payload(tensors, ()), "send", tensors, self._global_peer("send", dst), tag)

    @dispatches_as("recv_")
    def recv(self, tensors: list[Tensor], src: int, tag: int) -> Any:
        """Receive from a rank of the group."""
        self._check_message_arguments("recv_", tensors, tag)
        return self._issue_message(Payload((), tensors), "recv", tensors, self._global_peer("recv", src), tag)

    @dispatches_as("recv_any_source_")
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        """Receive from any rank of the group."""
        self._check_message_arguments("recv_any_source_", tensors, tag)
        rules_for(self._rules, tensors[0]).check_any_source()
        return self._issue_message(Payload((), tensors), "recv", tensors, ANY_SOURCE, tag)

    def _check_message_arguments(self, schema: str, tensors: list[Tensor], tag: int) -> None:
        rules = self._rules_for_call(schema, tensors, tensors)
        arguments.check_tag(schema.rstrip("_"), tag)
        rules.check_message(tensors, tag)

    def _issue_message(self, payload: Payload, operation: str, tensors: list[Tensor], peer: int, tag: int) -> Any:
        if peer == self._issuer.rank and not self._issuer.has_nccl:
            raise RuntimeError(
                f"Pair is not connected: rank {peer} calls {operation} with itself as the other side, expected another "
                "rank (gloo refuses messages to oneself): copy the tensor"
            )
        return self.issue(_signature_of(operation, tensors), payload, tensors, peer=peer, tag=tag)

    # --- several calls as one -----------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        """Start to collect the next calls. The work that `_end_coalescing` returns waits for all of them."""
        self._check_coalescing(device, "start")
        self._issuer.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> JointWork:
        """Return one work for all calls since `_start_coalescing`."""
        self._check_coalescing(device, "end")
        return JointWork(self._issuer.end_coalescing())

    def _check_coalescing(self, device: torch.device, step: str) -> None:
        """Raise gloo's error if gloo has the tensors of the device: it does not collect calls."""
        is_for_cpu = device.type == "cpu" and self._rules.of_cpu is not self._rules.of_gpu
        if is_for_cpu or not self._issuer.is_nccl:
            raise RuntimeError(f"Backend gloo does not implement {step}Coalescing")

    # --- calls that torch does not know -------------------------------------------------------------------------------

    def rendezvous(self) -> None:
        """Wait until every member has created the group. (gloo connects all members when a group is created.)"""
        self.issue(Signature("new_group", members=self._members), _NO_TENSORS, []).wait()

    def await_split(self) -> None:
        """Wait until every member has called split_group, as NCCL splits a group together."""
        self.issue(Signature("split_group"), _NO_TENSORS, []).wait()

    # --- other members ------------------------------------------------------------------------------------------------

    if hasattr(ProcessGroup, "reconfigure"):  # since torch 2.14
        supports_reconfigure = property(lambda self: self.name() == "gloo", doc="True, as on gloo.")

        def get_reconfigure_handle(self) -> str:
            """Return what the other ranks have to know of this one: gloo's text, without the address of a store."""
            if not self.supports_reconfigure:
                raise NotImplementedError(NO_RECONFIGURE)
            return f"gloo:{self._group_rank}:{self._uuid}:{self._issuer.rank}:"

        def reconfigure(self, opts: Any) -> JointWork:
            """Take the ranks of handles as members, in their order, as ProcessGroupGlooReconfigure.cpp does. They find
            each other by the group's store."""
            own = self.get_reconfigure_handle()
            handles = sorted(opts.handles) if isinstance(opts.handles, set) else opts.handles
            if error := arguments.handles_error(handles, own):
                raise RuntimeError(error)
            number, uuid = handles.index(own), opts.uuid
            store = store_under(self._store, f"reconfigure/{uuid}/")
            if number == 0 and store.compare_set("claimed", "", own).decode() != own:
                used = "was already used; each reconfigure() requires a unique uuid"
                raise RuntimeError(f"Gloo reconfigure uuid {uuid} {used}")
            store.set(f"cpu/{number}", own)
            if others := [f"cpu/{each}" for each in range(len(handles)) if each != number]:
                store.wait(others, opts.timeout or self._timeout)
            members = tuple(int(each.split(":")[3]) for each in handles)
            self._issuer = self.make_issuer(members, uuid, store)
            self.issue, self._members, self._group_rank = self._issuer.issue_call, members, number
            self._uuid = uuid
            vars(self).pop("torch_group", None)
            self.set_timeout(self._timeout)
            self.rendezvous()
            return JointWork([])

    def await_reconfigure(self) -> None:
        """Refuse all calls until the group is reconfigured."""
        self.issue = _refuse_call

    def _rules_for_call(self, schema: str, tensors: Sequence[Tensor], models: Sequence[Tensor]) -> GlooRules:
        """Check a call's tensors as torch's dispatcher does; return the backend's checks for `models[0]`'s device."""
        if self.is_backend:
            return self._rules.of_cpu
        arguments.check_tensors(schema, tensors)
        return rules_for(self._rules, models[0])

    def _issue_reduction(
        self, rules: GlooRules, signature: Signature, inputs: list[Tensor], outputs: list[Tensor], factor: Any
    ) -> Any:
        """Issue a call that reduces, with the arithmetic of the backend to which `rules` belong."""
        payload = Payload(inputs, outputs, factor, on_nccl=isinstance(rules, NcclRules))
        return self._issue_collective(rules, signature, payload, outputs)

    def _issue_collective(
        self, rules: GlooRules, signature: Signature, payload: Payload, result: list[Any], refusal: str | None = None
    ) -> Any:
        """Issue a call that moves tensors. `refusal`: the backend's error, if any, which a wait raises."""
        assert signature.dtype is not None
        refusal = rules.wait_error(signature.operation, signature.dtype, signature.reduction) or refusal
        return self.issue(signature, payload, result, refusal=refusal)

    def _global_root(self, operation: str, root: int) -> int:
        arguments.check_root(operation, root, len(self._members))
        return self._members[root]

    def _global_peer(self, operation: str, peer: int) -> int:
        arguments.check_peer(operation, peer, len(self._members))
        return self._members[peer]


def store_under(store: Any, prefix: str) -> Any:
    """Return a handle of a store that puts a prefix before all keys."""
    if isinstance(store, SimulatedStore):
        return store.with_prefix(prefix)
    return distributed_c10d.PrefixStore(prefix, store)


def _refuse_call(*arguments: Any, **options: Any) -> NoReturn:
    raise RuntimeError(
        "ProcessGroupGloo has not been initialized. Call reconfigure() before issuing collectives when "
        "enable_reconfigure=True."
    )


def rules_for(rules: RulesByDevice, tensor: Tensor) -> GlooRules:
    """Return the argument checks for a tensor's device. Where there is no GPU, NCCL takes tensors of the CPU."""
    if rules.of_cpu is not rules.of_gpu:
        return rules.of_gpu if tensor.is_cuda else rules.of_cpu
    if isinstance(rules.of_gpu, NcclRules) and not tensor.is_cuda and torch.cuda.is_available():
        raise RuntimeError("No backend type associated with device type cpu")
    return rules.of_gpu


def _signature_of(
    operation: str,
    tensors: Sequence[Tensor],
    reduction: str | None = None,
    root: int | None = None,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Signature:
    """Return what must agree on all ranks of a call, as plain values. The dtype of the first tensor stands for all."""
    first = tensors[0]
    dtype = _DTYPE_NAMES[first.dtype]
    if first.layout is not torch.strided:
        dtype = f"sparse {dtype}"
    return Signature(operation, tuple([tuple(tensor.shape) for tensor in tensors]), dtype, reduction, root, splits)


def _element_counts(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple([tensor.numel() for tensor in tensors])


def _equal_parts(splits: Sequence[int], tensor: Tensor, size: int) -> tuple[int, ...]:
    """Return the split sizes of all_to_all_single; equal parts if the program gives none."""
    return tuple(splits) or (tensor.shape[0] // size,) * size


def _reduction_of(opts: Any) -> tuple[str, Any]:
    """Return the name of a reduction operation, and the factor if it is a PREMUL_SUM."""
    if opts is None:
        return "SUM", None
    operation: Any = opts.reduceOp
    if not isinstance(operation, ReduceOp):
        return operation.name, None
    name = _REDUCTION_NAMES[hash(operation)]
    if name != "PREMUL_SUM":
        return name, None
    # pickle's state is the operation and its factor; torch 2.11 has no attribute for the factor
    return name, operation.__getstate__()[1]  # type: ignore[attr-defined]
