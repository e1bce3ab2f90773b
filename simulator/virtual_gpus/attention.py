"""Attention of DTensors: of the CPU's fused kernel DTensor knows no sharding, as it does of those of GPUs.

So it is computed by matrix products and a softmax, of which it does (torch/distributed/tensor/_ops). The mask that
torch makes for `is_causal` is a plain tensor, the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def attention(query: Any, *arguments: Any, **options: Any) -> Any:
    """As torch's function of that name (shapes (..., heads, length, width)), for tensors of any class."""
    if not hasattr(query, "_spec"):
        return scaled_dot_product_attention(query, *arguments, **options)
    from torch.distributed.tensor.experimental import implicit_replication

    with sdpa_kernel(SDPBackend.MATH), implicit_replication():
        return scaled_dot_product_attention(query, *arguments, **options)


KERNELS: Mapping[Any, Callable[..., Any]] = {scaled_dot_product_attention: attention}
"""By the function of torch that it stands for."""
