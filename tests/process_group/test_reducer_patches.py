"""What the Reducer asks Python for: answered as torch does, with less work."""

import pytest
import torch
from torch import _jit_internal
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Verdict, simulate
from ddpsim.simulator.process_group.reducer_patches import tensors_in

ONE, OTHER = torch.ones(2), torch.nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize(
    ("value", "is_seen_at_once"),
    [
        ([ONE, OTHER], True),
        ([ONE, ONE], True),
        ([], True),
        ((ONE, OTHER), False),
        ([ONE, 7, None], False),
        ([[ONE], {"other": OTHER}], False),
        (ONE, False),
    ],
)
def test_the_tensors_of_a_value_are_those_that_torch_finds(value, is_seen_at_once):
    asked = []

    def torchs(each):
        asked.append(each)
        return original(each)

    original = _jit_internal._extract_tensors
    found = tensors_in(torchs)(value)
    assert list(map(id, found)) == list(map(id, original(value)))
    assert found is not value
    assert bool(asked) is not is_seen_at_once


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.full((2, 3), float(rank))).sum().backward()
    return model.module.weight.grad


def test_a_bucket_is_not_pickled_to_find_its_tensors(monkeypatch):
    pickled = []
    monkeypatch.setattr(_jit_internal, "_TensorExtractor", lambda *arguments, **options: pickled.append(arguments))
    result = simulate(train, 3)
    assert result.verdict is Verdict.PASS, str(result)
    assert pickled == []
    assert all(torch.equal(gradient, torch.full((2, 3), 2.0)) for gradient in result.returns)
