"""Chooses which backend's argument checks a group uses: gloo's, NCCL's, or both, by the tensors' device."""

from typing import NamedTuple

import torch
from torch.distributed.distributed_c10d import Backend

from ddpsim.simulator.process_group.gloo_arguments import GlooRules
from ddpsim.simulator.process_group.nccl_arguments import NcclRules

_GLOO, _NCCL = GlooRules(), NcclRules()


class RulesByDevice(NamedTuple):
    """The argument checks of a group, for tensors on the CPU and on GPUs."""

    of_cpu: GlooRules
    of_gpu: GlooRules


def argument_rules_of(backend: str) -> RulesByDevice:
    """Return the checks of a group made with `backend`; "undefined" means gloo, plus NCCL if there are GPUs."""
    if not has_nccl(backend):
        return RulesByDevice(_GLOO, _GLOO)
    return RulesByDevice(_GLOO if backend == Backend.UNDEFINED or "cpu" in backend else _NCCL, _NCCL)


def has_nccl(backend: str) -> bool:
    """True if a group made with `backend` has NCCL. For "undefined", True if there are GPUs."""
    return "nccl" in backend or (backend == Backend.UNDEFINED and torch.cuda.is_available())
