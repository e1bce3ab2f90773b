"""What the Reducer asks Python for: answered as torch does, with less work."""

import pytest
import torch
from torch import _jit_internal

from ddpsim import simulate
from ddpsim.simulator.process_group.reducer_patches import extract_tensors_fast

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
    found = extract_tensors_fast(torchs)(value)
    assert list(map(id, found)) == list(map(id, original(value)))
    assert found is not value
    assert bool(asked) is not is_seen_at_once


def test_torch_has_its_own_again_after_a_run():
    before = _jit_internal._extract_tensors
    result = simulate(lambda rank: _jit_internal._extract_tensors, 2)
    assert before not in result.returns
    assert _jit_internal._extract_tensors is before
