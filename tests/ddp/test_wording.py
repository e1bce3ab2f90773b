"""How errors spell what is no word."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ddpsim.ddp.text_formats import callable_name, dtype_text, ranks_text, tensor_text


def test_ranks_dtypes_and_tensors():
    assert [ranks_text([3]), ranks_text([0, 2])] == ["rank 3", "ranks 0, 2"]
    assert [dtype_text(torch.float32), dtype_text("float32")] == ["float32", "float32"]
    assert [tensor_text(torch.int64, torch.Size([2, 3])), tensor_text("bool", ())] == ["int64[2, 3]", "bool[]"]


@pytest.mark.parametrize(
    ("function", "name"),
    [(callable_name, "callable_name"), (torch.nn.Module.train, "Module.train"), (partial(int), "partial")],
)
def test_callables(function, name):
    assert callable_name(function) == name
