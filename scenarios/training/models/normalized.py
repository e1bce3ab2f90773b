"""Networks with batch normalisation over each rank's own batch, or over the batches of all ranks together."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ddpsim import UsageError
from ddpsim.scenarios.training.models.network import Network


class BatchNorm(Network):
    """Linear layers with batch normalisation and ReLU in between; it needs at least two rows per batch to train."""

    def __init__(
        self, *, features: int = 8, width: int = 16, depth: int = 2, outputs: int = 4, momentum: float = 0.1
    ) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise UsageError(f"momentum is {momentum}, expected 0 to 1: it is what the newest batch weighs")
        self.row = (features,)
        widths = [features, *[width] * (depth - 1)]
        # Without biases, because batch normalisation cancels them, so they would have no gradient.
        self.layers = nn.ModuleList(nn.Linear(inputs, width, bias=False) for inputs in widths)
        self.norms = nn.ModuleList(self._make_norm(width, momentum) for _ in widths)
        self.head = nn.Linear(width, outputs)

    def _make_norm(self, width: int, momentum: float) -> nn.Module:
        return nn.BatchNorm1d(width, momentum=momentum)

    def _apply_norm(self, norm: nn.Module, batch: Tensor) -> Tensor:
        return norm(batch)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            batch = F.relu(self._apply_norm(norm, layer(batch)))
        return self.head(batch)


class SyncBatchNormalized(BatchNorm):
    """`batch_norm` with `SyncBatchNorm` layers. With the same seed it starts from the same values."""

    communicates = True

    def _make_norm(self, width: int, momentum: float) -> nn.Module:
        return SyncBatchNorm(width, momentum=momentum)

    def _apply_norm(self, norm: nn.Module, batch: Tensor) -> Tensor:
        return norm(batch, self.group)


class SyncBatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the batches of all ranks of a group. It runs on CPU, too, unlike torch's own.

    In training, forward makes one all_reduce of 2 * features + 1 values: sums, sums of squares, and the number of rows.
    Backward makes one of the same size. A rank that is out of input may join both with zeros, or with an empty batch.
    In evaluation, or on a single rank, it is plain batch normalisation without all_reduce.
    """

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(features, eps, momentum)

    def forward(self, input: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Normalise `input`, whose rows hold the features. `group` is the process group; None is the default group."""
        if not self.training or not dist.is_initialized() or dist.get_world_size(group) < 2:
            return super().forward(input)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, variance, rows = _mean_and_variance(wide, group)
        if rows < 2:
            raise ValueError(f"batch normalisation got {rows} rows on all ranks together, expected 2 or more")
        self._update_running_statistics(mean.detach(), variance.detach() * rows / (rows - 1))
        normalized = (wide - mean) * (variance + self.eps).rsqrt()
        return (normalized * self.weight + self.bias).to(input.dtype)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running mean and variance with those of a batch. The running variance is unbiased, as in torch."""
        for running, found in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            assert self.momentum is not None
            running.lerp_(found.to(running.dtype), self.momentum)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)


def _mean_and_variance(batch: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor, int]:
    """Return mean and variance of every feature over the rows of all ranks, and the number of these rows."""
    features = batch.shape[1]
    own = torch.cat([batch.sum(0), batch.square().sum(0), batch.new_tensor([len(batch)])])
    totals: Tensor = _SumOverRanks.apply(own, group)  # type: ignore[no-untyped-call]
    sums, squares, count = totals.split([features, features, 1])
    rows = int(count.item())
    mean = sums / max(rows, 1)
    # Rounding may make a variance of zero negative.
    return mean, (squares / max(rows, 1) - mean.square()).clamp_min(0), rows


class _SumOverRanks(torch.autograd.Function):
    """The sum over all ranks of a group, in forward and in backward.

    Each rank's loss depends on the sum, and the sum on each rank's tensor. So the gradient of a tensor is the sum of
    the gradients of all ranks' losses. Mean and variance are plain functions of the sum, which autograd differentiates.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_reduce_sum(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce_sum(gradient, ctx.group), None


def _all_reduce_sum(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
