"""Chooses which backend's argument checks a group uses: gloo's, NCCL's, or both, by the tensors' device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Backend

from ddpsim.simulator.process_group import gloo_arguments, nccl_arguments


class ArgumentRules(Protocol):
    """The argument checks of one backend. A `check_*` raises what the backend raises when a call is issued.

    Tensors may have any shape and dtype. `size` is the number of ranks in the group, `rank` the caller's number in it.
    """

    def check_all_reduce(self, tensor: Tensor, reduction: str) -> None:
        """Check the tensor of an all_reduce; it may be sparse."""

    def check_all_reduce_coalesced(self, tensors: Sequence[Tensor]) -> None:
        """Check the dense tensors of an all_reduce_coalesced."""

    def check_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Check the tensors of a broadcast, or of a reduce to one rank."""

    def check_all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, rank: int, size: int) -> Sequence[Tensor]:
        """Check the tensors of an all_gather. Return the tensors whose shapes must be equal on all ranks."""

    def check_all_gather_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check the tensors of an all_gather into one output tensor."""

    def check_all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check the tensors of several all_gathers, each into one output tensor."""

    def check_all_gather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """Check the tensors of several all_gathers; there is a list of outputs for each rank."""

    def check_root_list(self, operation: str, kind: str, tensors: Sequence[Tensor], model: Tensor, size: int) -> None:
        """Check the root's tensor list in a gather or scatter.

        `model` is the root's own tensor, `kind` is "input" or "output".
        """

    def check_reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
        """Check a reduce_scatter with one input tensor for each rank."""

    def check_reduce_scatter_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """Check a reduce_scatter of one input tensor."""

    def check_all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Check an all_to_all with one input and one output tensor for each rank."""

    def check_all_to_all_single(self, output: Tensor, tensor: Tensor) -> None:
        """Check an all_to_all of one input and one output tensor. The split sizes are checked elsewhere."""

    def check_message(self, tensors: Sequence[Tensor], tag: int) -> None:
        """Check the tensors of a send or a receive."""

    def check_any_source(self) -> None:
        """Check that the backend can receive from any source."""

    def wait_error(self, operation: str, dtype: str, reduction: str | None) -> str | None:
        """Return the backend's error for an unsupported dtype or reduction, which a wait for the call raises; None if
        supported."""


class RulesByDevice(NamedTuple):
    """The argument checks of a group, for tensors on the CPU and on GPUs."""

    of_cpu: ArgumentRules
    of_gpu: ArgumentRules


def argument_rules_of(backend: str) -> RulesByDevice:
    """Return the argument checks of a group made with `backend`.

    "undefined" means gloo, plus NCCL if there are GPUs.
    """
    if not has_nccl(backend):
        return RulesByDevice(gloo_arguments, gloo_arguments)
    is_for_cpu = backend == Backend.UNDEFINED or "cpu" in backend
    return RulesByDevice(gloo_arguments if is_for_cpu else nccl_arguments, nccl_arguments)


def has_nccl(backend: str) -> bool:
    """True if a group made with `backend` has NCCL. For "undefined", True if there are GPUs."""
    return "nccl" in backend or (backend == Backend.UNDEFINED and torch.cuda.is_available())
