"""Operators that torch has only for GPUs, written in torch: of SyncBatchNorm, RMSNorm, LSTM, GRU and attention.

For SyncBatchNorm, channels are the second dimension, and all other dimensions are reduced. The gates of a cell lie one
after another in the second dimension; its workspace is what the backward needs (ATen/native/cuda/RNN.cu).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ddpsim.simulator.virtual_gpus import attention


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


def _rms_norm_backward(
    grad_output: Tensor, input: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the input and of the weight. Only a torch with CUDA comes here."""
    grad, normalized = _to_summation_type(grad_output), input * rstd
    slope = grad if weight is None else grad * weight
    mean = (slope * normalized).mean([*range(-len(shape), 0)], keepdim=True)
    of_weight = None if weight is None else (grad * normalized).sum_to_size(shape).to(weight.dtype)
    return ((slope - normalized * mean) * rstd).to(input.dtype), of_weight


def _lstm_cell(
    inputs: Tensor, hidden: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden state, the cell state, and the gates (input, forget, cell, output)."""
    gates = _add_bias(inputs, input_bias) + _add_bias(hidden, hidden_bias)
    i, f, g, o = (torch.tanh(gate) if n == 2 else torch.sigmoid(gate) for n, gate in enumerate(gates.chunk(4, 1)))
    cy = f * cx + i * g
    return o * torch.tanh(cy), cy, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = workspace.chunk(4, 1)
    tanh = torch.tanh(cy)
    of_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_cy = of_hy * o * (1 - tanh**2) + (0 if grad_cy is None else grad_cy)
    slopes = (of_cy * g * i * (1 - i), of_cy * cx * f * (1 - f), of_cy * i * (1 - g**2), of_hy * tanh * o * (1 - o))
    gates = torch.cat(slopes, 1)
    return gates, of_cy * f, gates.sum(0) if has_bias else torch.empty_like(gates[:0])


def _gru_cell(
    inputs: Tensor, hidden: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the hidden state, and what the backward needs (reset, update and new gate, old state, hidden part)."""
    of_input, of_hidden = (each.chunk(3, 1) for each in (_add_bias(inputs, input_bias), _add_bias(hidden, hidden_bias)))
    reset, update = (torch.sigmoid(of_input[n] + of_hidden[n]) for n in (0, 1))
    new = torch.tanh(of_input[2] + reset * of_hidden[2])
    return new + update * (hx - new), torch.cat((reset, update, new, hx, of_hidden[2]), 1)


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    reset, update, new, hx, hidden = workspace.chunk(5, 1)
    of_update = grad_hy * (hx - new) * update * (1 - update)
    of_new = grad_hy * (1 - update) * (1 - new**2)
    of_reset = of_new * hidden * reset * (1 - reset)
    gates = torch.cat((of_reset, of_update, of_new), 1), torch.cat((of_reset, of_update, of_new * reset), 1)
    return (*gates, grad_hy * update, *(each.sum(0) if has_bias else torch.empty_like(each[:0]) for each in gates))


def _add_bias(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _no(*arguments: Any) -> bool:
    return False


_KERNELS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _batch_norm_stats,
    "batch_norm_gather_stats_with_counts": _batch_norm_gather_stats_with_counts,
    "batch_norm_elemt": _batch_norm_elemt,
    "batch_norm_backward_reduce": _batch_norm_backward_reduce,
    "batch_norm_backward_elemt": _batch_norm_backward_elemt,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    **dict.fromkeys(
        (f"_use_{library}_ctc_loss{form}" for library in ("cudnn", "miopen") for form in ("", ".Tensor")), _no
    ),
}


def register_kernels() -> torch.library.Library:
    """Give torch the kernels; they are there as long as the result is kept."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, kernel in (_KERNELS | attention.KERNELS).items():
        library.impl(name, kernel)
    return library
