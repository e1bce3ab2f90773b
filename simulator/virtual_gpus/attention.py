"""The attention kernels of GPUs, written in torch: DTensor, context parallelism and programs choose among them.

Shapes: queries (batch, heads, length, size), keys and values alike; the logarithms of the sums, which a ring of ranks
combines, (batch, heads, length). The kernels are those of ATen/native/transformers/cuda/attention.cu.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Scores(NamedTuple):
    """What queries and keys come to before the softmax, in single precision at least."""

    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor
    scale: float


def _score(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> _Scores:
    """Multiply queries and keys; heads of keys that several heads of queries share are repeated."""
    dtype, groups = torch.promote_types(query.dtype, torch.float32), query.shape[1] // key.shape[1]
    query = query.to(dtype)
    key, value = (each.to(dtype).repeat_interleave(groups, 1) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return _Scores(query, key, value, scores, scale)


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    """Return the softmax; 0 for a query that attends to no key."""
    sums = sums.unsqueeze(-1)
    return (scores - sums).exp().masked_fill(sums == float("-inf"), 0)


def _attend(scored: _Scores, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the attention, and the logarithms of the sums."""
    sums = scored.scores.logsumexp(-1)
    weights = _weights(scored.scores, sums)
    return (weights if keep is None else weights * keep) @ scored.value, sums


def _gradients(
    grad: Tensor, out: Tensor, sums: Tensor, scored: _Scores, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values and scores, from the sums over all keys, which may be of a ring."""
    grad = grad.to(scored.query.dtype)
    weights = _weights(scored.scores, sums)
    of_weights = grad @ scored.value.transpose(-2, -1)
    kept, of_weights = (weights, of_weights) if keep is None else (weights * keep, of_weights * keep)
    of_scores = weights * (of_weights - (grad * out).sum(-1, keepdim=True))
    of_key = of_scores.transpose(-2, -1) @ scored.query * scored.scale
    return of_scores @ scored.key * scored.scale, of_key, kept.transpose(-2, -1) @ grad, of_scores


def _sum_groups(gradient: Tensor, of: Tensor) -> Tensor:
    """Add up the gradients of heads that were repeated."""
    summed: Tensor = gradient.unflatten(1, (of.shape[1], -1)).sum(2).to(of.dtype)
    return summed


def _dropped(query: Tensor, key: Tensor, dropout: float, seed: Tensor) -> Tensor | None:
    """Return what each weight is multiplied by, drawn from a seed; None without dropout."""
    if not dropout:
        return None
    generator = torch.Generator(query.device).manual_seed(int(seed))
    shape = (*query.shape[:3], key.shape[2])
    return (torch.rand(shape, generator=generator, device=query.device) >= dropout) / (1 - dropout)


def _new_seed(query: Tensor, dropout: float) -> Tensor:
    if not dropout:
        return torch.zeros((), dtype=torch.int64, device=query.device)
    return torch.randint(2**62, (), device=query.device)


def _efficient(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    seed = _new_seed(query, dropout_p)
    keep = _dropped(query, key, dropout_p, seed)
    out, sums = _attend(_score(query, key, value, bias, is_causal, scale), keep)
    return _as_memory_of(query, out), sums, seed, torch.zeros_like(seed)


def _efficient_backward(
    grad: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 4
    keep = _dropped(query, key, dropout_p, seed)
    scored = _score(query, key, value, bias, is_causal, scale)
    of_query, of_key, of_value, of_scores = _gradients(grad, out, sums, scored, keep)
    of_bias = of_scores.sum_to_size(bias.shape).to(bias.dtype) if bias is not None and grad_input_mask[3] else None
    return of_query.to(query.dtype), _sum_groups(of_key, key), _sum_groups(of_value, value), of_bias


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    seed = _new_seed(query, dropout_p)
    scored = _score(query, key, value, None, is_causal, scale)
    out, sums = _attend(scored, _dropped(query, key, dropout_p, seed))
    lengths = query.shape[2], key.shape[2]
    return _as_memory_of(query, out), sums, None, None, *lengths, seed, torch.zeros_like(seed), query[:0]


def _flash_backward(
    grad: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    lengths_of_queries: Tensor,
    lengths_of_keys: Tensor,
    longest_query: int,
    longest_key: int,
    dropout_p: float,
    is_causal: bool,
    seed: Tensor,
    offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 3
    scored = _score(query, key, value, None, is_causal, scale)
    found = _gradients(grad, out, sums, scored, _dropped(query, key, dropout_p, seed))
    return found[0].to(query.dtype), _sum_groups(found[1], key), _sum_groups(found[2], value)


def _as_memory_of(query: Tensor, out: Tensor) -> Tensor:
    """Return a result in the queries' dtype, with the length before the heads in memory, as the kernels write it."""
    return out.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)


KERNELS = {
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
}
"""By the name of an operator, its kernel for tensors on a GPU."""
