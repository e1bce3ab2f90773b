"""CPU implementations of the kernels of SyncBatchNorm, which torch has only for GPUs.

Channels are the second dimension; all other dimensions are reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def _reduced_dimensions(tensor: Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _to_summation_type(tensor: Tensor) -> Tensor:
    """Convert a tensor to the type in which sums are computed, at least single precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _shape_channels_for_broadcast(per_channel: Tensor, like: Tensor) -> Tensor:
    return per_channel.view(1, -1, *[1] * (like.dim() - 2))


def _batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(_to_summation_type(input), _reduced_dimensions(input), correction=0)
    return mean, torch.rsqrt(variance + eps)


def _batch_norm_gather_stats_with_counts(
    input: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Combine the statistics of all ranks, and update the running ones."""
    weights = counts.view(-1, 1).to(means.dtype)
    total = weights.sum()
    mean = (means * weights).sum(0) / total
    squares = (invstds**-2 - eps + (means - mean) ** 2) * weights
    variance = squares.sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(momentum * squares.sum(0) / (total - 1))
    return mean, torch.rsqrt(variance + eps)


def _batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    output = (input - _shape_channels_for_broadcast(mean, input)) * _shape_channels_for_broadcast(invstd, input)
    if weight is not None:
        output = output * _shape_channels_for_broadcast(weight, input)
    if bias is not None:
        output = output + _shape_channels_for_broadcast(bias, input)
    return output.to(input.dtype)


def _batch_norm_backward_reduce(
    grad_output: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dimensions = _reduced_dimensions(input)
    sum_dy = _to_summation_type(grad_output).sum(dimensions)
    sum_dy_xmu = _to_summation_type(grad_output * (input - _shape_channels_for_broadcast(mean, input))).sum(dimensions)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()


def _batch_norm_backward_elemt(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    total = count.sum()
    slope = _shape_channels_for_broadcast(sum_dy_xmu / total * invstd**2, input)
    grad = (
        grad_output
        - _shape_channels_for_broadcast(sum_dy / total, input)
        - (input - _shape_channels_for_broadcast(mean, input)) * slope
    ) * _shape_channels_for_broadcast(invstd, input)
    return (grad if weight is None else grad * _shape_channels_for_broadcast(weight, input)).to(input.dtype)


KERNELS: Mapping[Any, Callable[..., Any]] = {
    torch.batch_norm_stats: _batch_norm_stats,
    torch.batch_norm_gather_stats_with_counts: _batch_norm_gather_stats_with_counts,
    torch.batch_norm_elemt: _batch_norm_elemt,
    torch.batch_norm_backward_reduce: _batch_norm_backward_reduce,
    torch.batch_norm_backward_elemt: _batch_norm_backward_elemt,
}
"""The CPU implementations, by the function of torch that each replaces."""
