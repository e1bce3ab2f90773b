"""A bucket brings gradients in with the same bits, whether all in one call or one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from ddpsim.ddp import bucket as bucket_module
from ddpsim.ddp.bucket import SMALL_BYTES, Bucket, GradientScale

SHAPES = ((3, 5), (7,), (), (2, 3, 4, 5), (33,))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)
EXTREMES = (float("nan"), float("inf"), float("-inf"), -0.0, 1e-40, 6e-8)


def make_bucket(dtype: torch.dtype) -> Bucket:
    """Parameters of several shapes, one of them in another memory format, one without a gradient."""
    generator = torch.Generator().manual_seed(3)
    parameters = {f"p{n}": Parameter(torch.zeros(shape, dtype=dtype)) for n, shape in enumerate(SHAPES)}
    parameters["p3"] = Parameter(parameters["p3"].detach().contiguous(memory_format=torch.channels_last))
    parameters["missing"] = Parameter(torch.zeros(4, dtype=dtype))
    for name, parameter in parameters.items():
        if name != "missing":
            gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
            extremes = torch.tensor(EXTREMES, dtype=torch.float64)[: gradient.numel()]
            gradient.view(-1)[: len(extremes)] = extremes.to(dtype)
            parameter.grad = gradient
    return Bucket(0, range(len(parameters)), parameters, is_last=True, is_sparse=False)


def bits(tensor: Tensor) -> list[int]:
    """As bytes; which NaN a NaN is depends, in bfloat16, on where in a vector register it was converted."""
    real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return torch.where(real.isnan(), float("nan"), real).reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "scale", [None, GradientScale(2), GradientScale(3), GradientScale(3, True), GradientScale(float("inf"))], ids=str
)
@pytest.mark.parametrize("views", ["none", "some", "all"])
def test_at_once_gives_the_bits_of_one_by_one(
    dtype: torch.dtype, scale: GradientScale | None, views: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = []
    for small_bytes in (SMALL_BYTES, 0):
        monkeypatch.setattr(bucket_module, "SMALL_BYTES", small_bytes)
        bucket = make_bucket(dtype)
        share = {"none": 0, "some": 3, "all": len(SHAPES)}[views]
        for parameter, view in itertools.islice(zip(bucket.parameters, bucket.views, strict=True), share):
            view.copy_(parameter.grad)
            parameter.grad = view
        bucket.flat[-1] = 5.0  # left over where the gradient is missing
        bucket.copy_gradients_in(scale, makes_views=True)
        assert all(p.grad is v for p, v in zip(bucket.parameters[:-1], bucket.views, strict=False))
        assert bucket.parameters[-1].grad is None
        filled.append(bits(bucket.flat))
    assert filled[0] == filled[1]


def test_one_call_for_small_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for each would cost more than all the rest of a step of many small layers."""
    calls = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *given: (calls.append(len(given[0])), copy(*given))[1])
    make_bucket(torch.float32).copy_gradients_in(GradientScale(2), makes_views=True)
    assert calls == [len(SHAPES)]
    large = Bucket(0, [0], {"p": Parameter(torch.zeros(SMALL_BYTES))}, is_last=True, is_sparse=False)
    large.parameters[0].grad = torch.ones(SMALL_BYTES)
    large.copy_gradients_in(GradientScale(2), makes_views=True)
    assert calls == [len(SHAPES)]
    assert bool((large.flat == 0.5).all())
