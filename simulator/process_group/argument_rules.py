"""Whose argument checks hold for a group: gloo's or NCCL's, or on one that has both, each for its devices' tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Backend

from ddpsim.simulator.process_group import gloo_arguments, nccl_arguments


class ArgumentRules(Protocol):
    """What a backend refuses. A `check_*` raises what the backend raises when a call is issued.

    Tensors may have any shape and dtype; `size` is how many ranks the group has, `rank` the own one's number in it.
    """

    def check_all_reduce(self, tensor: Tensor, reduction: str) -> None:
        """A tensor that may be sparse."""

    def check_all_reduce_coalesced(self, tensors: Sequence[Tensor]) -> None:
        """Several dense ones."""

    def check_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Of a broadcast, or a reduce to one rank."""

    def check_all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, rank: int, size: int) -> Sequence[Tensor]:
        """Returns the tensors whose shapes must be alike on all ranks."""

    def check_all_gather_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """One output for the tensors of all ranks."""

    def check_all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """Several of these."""

    def check_all_gather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], size: int
    ) -> None:
        """A list of outputs for each rank."""

    def check_root_list(self, operation: str, kind: str, tensors: Sequence[Tensor], model: Tensor, size: int) -> None:
        """The list that the root of a gather or scatter has; `model` is its own tensor, `kind` "input" or "output"."""

    def check_reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], rank: int, size: int) -> None:
        """An input for each rank."""

    def check_reduce_scatter_single(self, output: Tensor, tensor: Tensor, size: int) -> None:
        """One input for all ranks."""

    def check_all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], size: int) -> None:
        """An input and an output for each rank."""

    def check_all_to_all_single(self, output: Tensor, tensor: Tensor) -> None:
        """One input and one output for all ranks; their splits are checked apart."""

    def check_message(self, tensors: Sequence[Tensor], tag: int) -> None:
        """What is sent, or received into."""

    def check_any_source(self) -> None:
        """Receiving from whoever sends."""

    def refusal(self, operation: str, dtype: str, reduction: str | None) -> str | None:
        """What it says to a dtype or a reduction when the call is waited for; None if it does the work."""


class RulesByDevice(NamedTuple):
    """The rules of a group."""

    of_cpu: ArgumentRules
    of_gpu: ArgumentRules


def rules_of(backend: str) -> RulesByDevice:
    """Those of a group that is asked for with `backend`; by default a group has NCCL, too, where there are GPUs."""
    if not has_nccl(backend):
        return RulesByDevice(gloo_arguments, gloo_arguments)
    is_for_cpu = backend == Backend.UNDEFINED or "cpu" in backend
    return RulesByDevice(gloo_arguments if is_for_cpu else nccl_arguments, nccl_arguments)


def has_nccl(backend: str) -> bool:
    """True if a group that is asked for so would have NCCL, as it has by default where there are GPUs."""
    return "nccl" in backend or (backend == Backend.UNDEFINED and torch.cuda.is_available())
